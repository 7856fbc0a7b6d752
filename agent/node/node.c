/* A node's agent between joining and leaving the run. */
#include "agent/node/node.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/counters.h"
#include "agent/node/node_join.h"
#include "agent/node/page_copy.h"
#include "agent/node/pages.h"
#include "agent/node/rendezvous.h"
#include "agent/probe.h"
#include "agent/sent_programs.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/procfs.h"
#include "run/experiment.h"

#define TICK_MS 50
#define SPAN_NS (200 * NS_PER_MS) /* between two scans of the pages for changes */
#define PROCESS_NS NS_PER_S       /* between two reports of the ranks' processes, which are also the heartbeat */
#define LEAVE_NS (4 * NS_PER_S)   /* from a request to stop until the kill, if the head is gone */
#define KILL_BOUND_NS (4 * NS_PER_S)
#define PROBE_GRACE_NS (3 * NS_PER_S)
#define FAREWELL_NS (5 * NS_PER_S) /* for the head to close the connection */
#define FILE_MAX_BYTES (1 << 20)
#define PROCESSES_MAX 65536
#define WORKER_NAME "ckptbench-worker"

struct node_agent {
    struct channel_context *context;
    struct channel *channel;
    struct buf message;
    struct experiment *experiment;
    struct pages pages;
    struct page_sender **senders; /* one entry per page */
    struct wire_joined joined;
    struct counters counters;
    struct probe *probe;
    bool counts, sent_fingerprint;
    struct wire_beat orders;
    uint64_t heard_ns, span_ns, process_ns;
    bool finish; /* the head has requested all remaining data */
};

static int send_message(struct node_agent *self, enum wire_kind kind, const void *message, struct cb_err *err)
{
    return node_say(self->channel, &self->message, kind, message, err);
}

static int keep_experiment(struct node_agent *self, const struct wire_welcome *welcome, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    snprintf(path, sizeof path, "%s/experiment.yaml", self->pages.folder);
    buf_init(&text, CHANNEL_MAX_MESSAGE_BYTES);
    buf_append(&text, welcome->experiment.at, welcome->experiment.len);
    int rc = buf_check(&text, "the experiment", err);
    if (!rc)
        rc = experiment_read_yaml("the head's experiment", text.data, text.len, &self->experiment, err);
    if (!rc)
        rc = buf_write_file(&text, path, 0666,
                            err); /* path given to the ranks: the run folder may have another path here */
    buf_release(&text);
    return rc;
}

static void look_at_store(struct node_agent *self, uint64_t origin_ns)
{
    char path[PATH_MAX], disk[64] = "";
    struct statvfs room;
    self->joined.store_free_bytes = UINT64_MAX;
    if (probe_store_path(experiment_text(self->experiment, OPT_STORE), path)) {
        probe_disk(path, disk, sizeof disk);
        if (statvfs(path, &room) == 0)
            self->joined.store_free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    }
    counters_start(&self->counters, disk, origin_ns);
    self->counts = true;
}

static int settle(struct node_agent *self, const struct wire_welcome *welcome, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = pages_create_node(&self->pages, welcome->pages, welcome->node, welcome->nodes, welcome->ranks,
                               welcome->sample_capacity, err);
    if (!rc)
        rc = keep_experiment(self, welcome, err);
    if (!rc)
        rc = node_compare_clocks(self->channel, deadline_ns, &self->joined, err);
    if (!rc && !(self->senders = calloc(self->pages.count, sizeof(struct page_sender *))))
        rc = alloc_fail(err, "for %u ranks", self->pages.count);
    uint64_t origin_ns = welcome->started_ns + (uint64_t)self->joined.monotonic_offset_ns;
    if (!rc)
        pages_set_origin(&self->pages, origin_ns);
    for (uint32_t i = 0; i < self->pages.count && !rc; i++)
        rc = page_sender_new(self->pages.page[i], self->joined.monotonic_offset_ns, &self->senders[i], err);
    if (rc)
        return rc;
    look_at_store(self, origin_ns);
    rc = send_message(self, WIRE_JOINED, &self->joined, err);
    return rc ? rc : probe_start(self->pages.folder, experiment_text(self->experiment, OPT_STORE), &self->probe, err);
}

static int join(struct node_agent *self, const struct node_options *options, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + options->timeout_ns;
    struct channel_key key;
    struct wire_welcome welcome;
    int rc = channel_key_read(options->key_fd, &key, err);
    if (!rc)
        rc = channel_context_new(&key, CHANNEL_CLIENT, &self->context, err);
    explicit_bzero(&key, sizeof key);
    if (!rc)
        rc = node_connect(options, self->context, deadline_ns, &self->channel, err);
    if (!rc)
        rc = node_greet(self->channel, options->name, deadline_ns, &self->message, &welcome, err);
    if (rc)
        return rc;
    rc = settle(self, &welcome, deadline_ns, err);
    if (rc && err) { /* so that the head learns the reason */
        struct wire_refused refused;
        snprintf(refused.reason, sizeof refused.reason, "%s", err->message);
        if (send_message(self, WIRE_REFUSED, &refused, NULL) == 0)
            (void)!channel_work(self->channel, NULL);
    }
    return rc;
}

static pid_t pid_of(const struct node_agent *self, uint32_t index)
{
    return (pid_t)atomic_load(&self->pages.page[index]->pid);
}

static char state_of(const struct node_agent *self, uint32_t index)
{
    pid_t pid = pid_of(self, index);
    char state = pid > 0 ? procfs_state(pid) : '\0';
    return state && state != 'Z' && state != 'X' && procfs_mentions(pid, self->pages.base) ? state : '\0';
}

static bool kill_known(const struct node_agent *self)
{
    bool any = false;
    for (uint32_t i = 0; i < self->pages.count; i++) {
        if (state_of(self, i)) {
            kill(pid_of(self, i), SIGKILL);
            any = true;
        }
    }
    return any;
}

/* Kills also ranks whose page has no pid yet: their launcher has lost its head node, too. */
static void kill_unknown(const struct node_agent *self)
{
    pid_t *found = calloc(PROCESSES_MAX, sizeof *found);
    size_t count = found ? procfs_all(found, PROCESSES_MAX) : 0;
    for (size_t i = 0; i < count; i++) {
        char words[4096];
        procfs_read(found[i], "cmdline", words, sizeof words);
        const char *name = strrchr(words, '/');
        if (strcmp(name ? name + 1 : words, WORKER_NAME) == 0 && procfs_mentions(found[i], self->pages.base))
            kill(found[i], SIGKILL);
    }
    free(found);
}

static int send_span(void *context, uint32_t rank, uint64_t offset, const void *bytes, size_t len, struct cb_err *err)
{
    const struct wire_span span = {.rank = rank, .offset = offset, .bytes = {bytes, len}};
    return send_message(context, WIRE_SPAN, &span, err);
}

static int send_spans(struct node_agent *self, bool all, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < self->pages.count && !rc; i++) {
        rc = page_sender_send(self->senders[i], all, send_span, self, err);
        if (!rc && channel_unsent(self->channel) > CHANNEL_MAX_UNSENT_BYTES / 2)
            rc = channel_work(self->channel, err);
    }
    return rc;
}

static int send_processes(struct node_agent *self, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < self->pages.count && !rc; i++) {
        struct wire_process process = {
            .rank = self->pages.first + i, .pid = (uint32_t)pid_of(self, i), .state = state_of(self, i)};
        if (process.state)
            procfs_read(pid_of(self, i), "wchan", process.place, sizeof process.place);
        if (strcmp(process.place, "0") == 0)
            *process.place = '\0';
        rc = send_message(self, WIRE_PROCESS, &process, err);
    }
    return rc;
}

/* Skips a missing file. */
static int send_file(struct node_agent *self, const char *name, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct wire_file file = {0};
    int rc = 0;
    snprintf(path, sizeof path, "%s/%s", self->pages.folder, name);
    snprintf(file.name, sizeof file.name, "%s", name);
    buf_init(&text, FILE_MAX_BYTES);
    if (buf_read_file(&text, path, NULL) == 0) {
        file.content = (struct wire_bytes){text.data, text.len};
        rc = send_message(self, WIRE_FILE, &file, err);
    }
    buf_release(&text);
    return rc;
}

static int send_fingerprint(struct node_agent *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct probe *probe = self->probe;
    if (self->sent_fingerprint || !probe)
        return 0;
    self->probe = NULL;
    self->sent_fingerprint = true;
    return probe_finish(probe, deadline_ns, NULL) == 0 ? send_file(self, "fingerprint.json", err) : 0;
}

static int hear(struct node_agent *self, uint64_t now_ns, struct cb_err *err)
{
    const void *bytes;
    size_t len;
    int rc = channel_work(self->channel, err);
    while (!rc && channel_next(self->channel, &bytes, &len)) {
        struct wire_beat beat;
        self->heard_ns = now_ns;
        if (wire_kind_of(bytes, len) == WIRE_BEAT) {
            rc = wire_read(bytes, len, WIRE_BEAT, &beat, err);
            if (rc)
                break;
            if (beat.stop > self->orders.stop && beat.stop <= STOP_NOW)
                pages_request_stop(&self->pages, (enum stop_request)beat.stop);
            self->orders = beat;
        } else if (wire_kind_of(bytes, len) == WIRE_FINISH)
            self->finish = true;
        else
            rc = cb_fail(err, CB_ERR_FORMAT, "the head sent something that no head sends");
    }
    if (!rc && now_ns - self->heard_ns > RENDEZVOUS_SILENCE_NS)
        rc = cb_fail(err, CB_ERR_ABORTED, "the head has said nothing for %.0f s",
                     (double)(now_ns - self->heard_ns) / (double)NS_PER_S);
    return rc;
}

static int report(struct node_agent *self, uint64_t now_ns, struct cb_err *err)
{
    int rc = 0;
    if (now_ns - self->span_ns >= SPAN_NS) {
        self->span_ns = now_ns;
        rc = send_spans(self, false, err);
    }
    if (!rc && (self->orders.kill || now_ns - self->process_ns >= PROCESS_NS)) {
        self->process_ns = now_ns;
        rc = send_processes(self, err);
    }
    if (!rc && probe_is_done(self->probe))
        rc = send_fingerprint(self, now_ns, err);
    counters_watch(&self->counters, now_ns);
    return rc;
}

/* Runs until the head requests the remaining data (0) or is gone. */
static int serve(struct node_agent *self, struct cb_err *err)
{
    int rc = 0;
    self->heard_ns = clock_monotonic_ns();
    while (!rc && !self->finish) {
        struct pollfd ready = {.fd = channel_fd(self->channel), .events = channel_events(self->channel)};
        (void)poll(&ready, 1, TICK_MS);
        uint64_t now_ns = clock_monotonic_ns();
        rc = hear(self, now_ns, err);
        if (rc)
            break;
        pages_beat(&self->pages, now_ns);
        if (self->orders.kill)
            kill_known(self);
        rc = report(self, now_ns, err);
    }
    return rc;
}

/* Sends all remaining data and waits until the head closes the connection, which means that it arrived. */
static int say_farewell(struct node_agent *self, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + FAREWELL_NS;
    int rc = send_spans(self, true, err);
    if (!rc)
        rc = send_processes(self, err);
    if (!rc)
        rc = send_fingerprint(self, clock_monotonic_ns() + PROBE_GRACE_NS, err);
    counters_stop(&self->counters);
    if (!rc && counters_write(&self->counters, self->pages.folder, NULL) == 0)
        rc = send_file(self, "host.json", err);
    if (!rc)
        rc = send_message(self, WIRE_FINISHED, NULL, err);
    if (rc)
        return rc;
    while (channel_work(self->channel, NULL) == 0 && clock_monotonic_ns() < deadline_ns) {
        struct pollfd ready = {.fd = channel_fd(self->channel), .events = channel_events(self->channel)};
        const void *bytes;
        size_t len;
        while (channel_next(self->channel, &bytes, &len))
            ; /* heartbeats that were still in flight */
        (void)poll(&ready, 1, TICK_MS);
    }
    return 0;
}

/* The head is gone: give the ranks a moment to leave by themselves. Remove our files at once, since Slurm may end the
 * job's processes within two seconds of its head. */
static void abandon(struct node_agent *self, bool was_sent)
{
    uint64_t deadline_ns = clock_monotonic_ns() + LEAVE_NS;
    pages_request_stop(&self->pages, STOP_NOW);
    pages_remove(&self->pages);
    if (was_sent)
        sent_programs_remove_own();
    for (bool any = true; any && clock_monotonic_ns() < deadline_ns; clock_sleep_ns(TICK_MS * NS_PER_MS)) {
        any = false;
        for (uint32_t i = 0; i < self->pages.count; i++)
            any = any || state_of(self, i);
    }
    kill_unknown(self);
}

int node_run(const struct node_options *options, struct cb_err *err)
{
    struct node_agent self = {.pages = {.lock_fd = -1}};
    buf_init(&self.message, CHANNEL_MAX_MESSAGE_BYTES);
    pages_remove_stale();
    int rc = join(&self, options, err);
    if (!rc)
        rc = serve(&self, err);
    if (!rc)
        rc = say_farewell(&self, err);
    if (rc && self.pages.count > 0)
        abandon(&self, options->was_sent);
    uint64_t deadline_ns = clock_monotonic_ns() + KILL_BOUND_NS;
    while (kill_known(&self) && clock_monotonic_ns() < deadline_ns)
        clock_sleep_ns(5 * NS_PER_MS);
    if (self.probe)
        (void)!probe_finish(self.probe, clock_monotonic_ns(), NULL);
    for (uint32_t i = 0; self.senders && i < self.pages.count; i++)
        page_sender_free(self.senders[i]);
    free(self.senders);
    pages_release(&self.pages);
    channel_free(self.channel);
    channel_context_free(self.context);
    experiment_free(self.experiment);
    buf_release(&self.message);
    if (options->was_sent)
        sent_programs_remove_own();
    return rc;
}
