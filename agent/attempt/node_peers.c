/* The agents on other nodes: starts them, waits for them, follows and ends them. Messages are in
 * agent/node/rendezvous.c. */
#include "agent/attempt/node_peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <math.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/attempt/launch_nodes.h"
#include "agent/attempt/slurm_end.h"
#include "agent/node/rendezvous.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/process.h"
#include "core/rank_placement.h"

#define AWAIT_MS 5
#define PROGRESS_NS (500 * NS_PER_MS)
#define FINISH_NS (8 * NS_PER_S)        /* for nodes to send their remaining data */
#define STARTER_LEAVE_NS (3 * NS_PER_S) /* for srun and ssh once the agents have left */
#define STARTER_GRACE_NS (2 * NS_PER_S)
#define NOTE_SILENT_NS (3 * NS_PER_S)
#define SLOW_SHARE 0.5 /* share of the other nodes' work below which a node is slow */
#define MAX_ADDRESSES 12
#define LINE_BYTES 300
#define LOG_MAX_BYTES (16 << 20)

struct node_peers {
    struct rendezvous *rendezvous; /* NULL once it has ended */
    struct buf experiment;
    char pages[160];
    char key_path[PATH_MAX], log_path[PATH_MAX];
    struct child *starters; /* one srun for all nodes, or one ssh per node */
    uint32_t *started_node; /* the node of each starter; UINT32_MAX for all nodes */
    uint32_t starter_count;
    uint64_t complete_ns; /* when all had joined; 0 before */
    uint64_t progress_ns;
};

static void write_file(const char *path, const struct wire_file *file)
{
    struct buf text;
    buf_init(&text, CHANNEL_MAX_MESSAGE_BYTES);
    buf_append(&text, file->content.at, file->content.len);
    (void)!buf_write_file(&text, path, 0666, NULL); /* ignored: the file is only informative */
    buf_release(&text);
}

/* Stores a file in nodes/NAME/. If the head has no ranks, the first node's files describe the machine. */
static void keep_file(void *context, uint32_t node, const struct wire_file *file)
{
    const struct attempt *attempt = context;
    const char *folder = attempt->path.data;
    char path[PATH_MAX];
    if (path_format(path, sizeof path, NULL, "%s/nodes/%s/%.64s", folder, attempt->nodes.name[node], file->name) == 0 &&
        path_make_folders(path, 0777, NULL) == 0)
        write_file(path, file);
    if (node == 0 && attempt->nodes.own < 0 &&
        path_format(path, sizeof path, NULL, "%s/%.64s", folder, file->name) == 0)
        write_file(path, file);
}

static void append_address(char *text, size_t text_bytes, const struct sockaddr *place)
{
    char address[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *v4 = (const void *)place;
    const struct sockaddr_in6 *v6 = (const void *)place;
    if (place->sa_family == AF_INET)
        inet_ntop(AF_INET, &v4->sin_addr, address, sizeof address);
    else if (place->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
        inet_ntop(AF_INET6, &v6->sin6_addr, address, sizeof address);
    size_t used = strlen(text);
    if (*address && used + strlen(address) + 2 < text_bytes)
        snprintf(text + used, text_bytes - used, "%s%s", used ? "," : "", address);
}

/* All addresses of this machine, loopback last: node names may be aliases of this machine. */
static void list_addresses(char *text, size_t text_bytes)
{
    struct ifaddrs *all = NULL;
    text[0] = '\0';
    if (getifaddrs(&all))
        all = NULL;
    size_t count = 0;
    for (const struct ifaddrs *at = all; at && count < MAX_ADDRESSES; at = at->ifa_next) {
        if (!at->ifa_addr || !(at->ifa_flags & IFF_UP) || at->ifa_flags & IFF_LOOPBACK)
            continue;
        append_address(text, text_bytes, at->ifa_addr);
        count++;
    }
    freeifaddrs(all);
    size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, "%s127.0.0.1", used ? "," : "");
}

struct agent_words {
    char program[PATH_MAX], addresses[1024], port[16], timeout[32];
};

/* Starts one srun (node UINT32_MAX: all others) or ssh with the key on its standard input, which it forwards. */
static int start_one(struct attempt *attempt, uint32_t node, const char *const *words, struct cb_err *err)
{
    struct node_peers *self = attempt->peers;
    struct child *starter = &self->starters[self->starter_count];
    int key_fd = open(self->key_path, O_RDONLY | O_CLOEXEC);
    int log_fd = open(self->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int rc = key_fd < 0 || log_fd < 0
                 ? cb_fail_errno(err, errno, "opening %s", key_fd < 0 ? self->key_path : self->log_path)
                 : 0;
    /* SIGTERM would make srun kill the agents at once; without it they notice that we are gone, and leave normally. */
    const struct child_options options = {
        .argv = words, .stdin_fd = key_fd, .stdout_fd = log_fd, .stderr_fd = log_fd, .death_signal = SIGKILL};
    if (!rc)
        rc = node == UINT32_MAX ? launch_on_each(&attempt->nodes, false, &options, starter, err)
                                : child_start(starter, &options, err);
    if (!rc)
        self->started_node[self->starter_count++] = node;
    if (key_fd >= 0)
        close(key_fd);
    if (log_fd >= 0)
        close(log_fd);
    return rc;
}

static int start_by_srun(struct attempt *attempt, const struct agent_words *agent, struct cb_err *err)
{
    const char *const words[] = {agent->program,
                                 "node",
                                 "--head",
                                 agent->addresses,
                                 "--port",
                                 agent->port,
                                 "--timeout",
                                 agent->timeout,
                                 *attempt->programs ? "--sent" : NULL,
                                 NULL};
    return start_one(attempt, UINT32_MAX, words, err);
}

static int start_by_ssh(struct attempt *attempt, const struct agent_words *agent, uint32_t node, struct cb_err *err)
{
    const char *host = attempt->nodes.name[node];
    const char *const node_peers_words[] = {agent->program,   "node",   "--name",    host,        "--head",
                                            agent->addresses, "--port", agent->port, "--timeout", agent->timeout};
    char destination[NODE_NAME_BYTES], port[8];
    const char *words[LAUNCH_SSH_WORDS + 1];
    struct buf command;
    buf_init(&command, LOG_MAX_BYTES);
    buf_append_text(&command, "exec");
    for (size_t i = 0; i < sizeof node_peers_words / sizeof *node_peers_words; i++) {
        buf_append_char(&command, ' ');
        buf_append_quoted(&command, node_peers_words[i]);
    }
    size_t count = launch_ssh_words(host, destination, port, words);
    words[count] = command.data;
    words[count + 1] = NULL;
    int rc = buf_check(&command, "a command for ssh", err);
    if (!rc)
        rc = start_one(attempt, node, words, err);
    buf_release(&command);
    return rc;
}

static int start_agents(struct attempt *attempt, struct cb_err *err)
{
    struct node_peers *self = attempt->peers;
    struct agent_words words;
    self->starters = calloc(attempt->nodes.count, sizeof *self->starters);
    self->started_node = calloc(attempt->nodes.count, sizeof *self->started_node);
    if (!self->starters || !self->started_node)
        return alloc_fail(err, "for %u nodes", attempt->nodes.count);
    if (*attempt->programs)
        snprintf(words.program, sizeof words.program, "%s/ckptbench-agent", attempt->programs);
    else if (!process_own_path(words.program))
        return cb_fail_errno(err, errno, "finding this program's own path");
    list_addresses(words.addresses, sizeof words.addresses);
    snprintf(words.port, sizeof words.port, "%u", rendezvous_port(self->rendezvous));
    snprintf(words.timeout, sizeof words.timeout, "%s", experiment_text(attempt->experiment, OPT_RENDEZVOUS_TIMEOUT));
    if (attempt->nodes.slurm)
        return start_by_srun(attempt, &words, err);
    int rc = 0;
    for (uint32_t i = 0; i < attempt->nodes.count && !rc; i++)
        if (attempt->nodes.own != (int64_t)i)
            rc = start_by_ssh(attempt, &words, i, err);
    return rc;
}

static int open_port(struct attempt *attempt, uint32_t sample_capacity, struct cb_err *err)
{
    struct node_peers *self = attempt->peers;
    const struct rendezvous_setup setup = {
        .run = attempt->run,
        .attempt = attempt->number,
        .nodes = &attempt->nodes,
        .ranks = attempt->ranks,
        .sample_capacity = sample_capacity,
        .started_ns = attempt->started_ns,
        .pages = self->pages,
        .experiment = self->experiment.data,
        .page = attempt->pages.page,
        .port = (uint16_t)experiment_u64(attempt->experiment, OPT_RENDEZVOUS_PORT),
        .file = keep_file,
        .context = attempt,
    };
    int rc = rendezvous_new(&setup, &self->rendezvous, err);
    return rc ? rc : channel_key_write(rendezvous_key(self->rendezvous), self->key_path, err);
}

int node_peers_open(struct attempt *attempt, uint32_t sample_capacity, struct cb_err *err)
{
    struct node_peers *self = calloc(1, sizeof *self);
    char path[PATH_MAX];
    if (!self)
        return alloc_fail(err, "for other nodes");
    attempt->peers = self;
    buf_init(&self->experiment, CHANNEL_MAX_MESSAGE_BYTES / 2);
    snprintf(self->key_path, sizeof self->key_path, "%.4000s/rendezvous.key", attempt->path.data);
    snprintf(self->log_path, sizeof self->log_path, "%.4000s/logs/nodes.log", attempt->path.data);
    pages_choose_base(attempt->run, attempt->number, self->pages);
    int rc = experiment_write_yaml(attempt->experiment, &self->experiment, err);
    if (!rc)
        rc = pages_create_head(&attempt->pages, self->pages, attempt->nodes.own, attempt->nodes.count, attempt->ranks,
                               sample_capacity, err);
    if (!rc && attempt->nodes.own >= 0) { /* the same path as on the other nodes */
        snprintf(path, sizeof path, "%s/experiment.yaml", attempt->pages.folder);
        rc = buf_write_file(&self->experiment, path, 0666, err);
    }
    if (!rc)
        rc = open_port(attempt, sample_capacity, err);
    return rc ? rc : start_agents(attempt, err);
}

/* The last line written by srun, ssh or an agent. */
static void last_words(const struct node_peers *self, char line[LINE_BYTES])
{
    struct buf text;
    buf_init(&text, LOG_MAX_BYTES);
    bool good = buf_read_file(&text, self->log_path, NULL) == 0;
    text_last_line(good ? text.data : "", "", line, LINE_BYTES);
    buf_release(&text);
}

/* If a starter has ended before its agents joined, they never will. */
static bool find_failed_starter(const struct attempt *attempt, char *text, size_t text_bytes)
{
    struct node_peers *self = attempt->peers;
    for (uint32_t i = 0; i < self->starter_count; i++) {
        char how[64], line[LINE_BYTES], missing[256];
        uint32_t node = self->started_node[i];
        if (child_wait(&self->starters[i], 0, NULL) != 0)
            continue;
        if (node != UINT32_MAX && rendezvous_report(self->rendezvous, node)->joined_wall_ns)
            continue;
        child_describe(&self->starters[i], how);
        last_words(self, line);
        rendezvous_name_missing(self->rendezvous, missing, sizeof missing);
        snprintf(text, text_bytes, "no agent on node %s: %s ended with %s%s%s",
                 node == UINT32_MAX ? missing : attempt->nodes.name[node], attempt->nodes.slurm ? "srun" : "ssh", how,
                 *line ? ": " : "", line);
        return true;
    }
    return false;
}

static void show_joining(struct attempt *attempt, uint64_t now_ns)
{
    struct progress progress = {.state = "joining", .iterations = (uint32_t)attempt->iterations, .slowest_rank = -1};
    char missing[160];
    if (now_ns - attempt->peers->progress_ns < PROGRESS_NS)
        return;
    attempt->peers->progress_ns = now_ns;
    rendezvous_name_missing(attempt->peers->rendezvous, missing, sizeof missing);
    snprintf(progress.note, sizeof progress.note, "waiting for node %s", missing);
    (void)!progress_write(attempt->path.data, &progress, NULL); /* ignored: progress is only informative */
}

/* Decides the attempt if waiting is pointless. */
static void check_joining(struct attempt *attempt, uint64_t now_ns)
{
    const struct node_peers *self = attempt->peers;
    uint64_t timeout_ns = experiment_u64(attempt->experiment, OPT_RENDEZVOUS_TIMEOUT);
    const char *reason;
    char text[1024];
    if (*attempt->signals > 0) {
        slurm_end_explain(attempt);
        attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request before the ranks were started");
    } else if (getppid() != attempt->parent)
        attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "the controller that started this run died");
    else if (rendezvous_was_refused(self->rendezvous, &reason))
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_UNSUPPORTED, "%s", reason);
    else if (node_peers_find_lost(attempt, text, sizeof text) || find_failed_starter(attempt, text, sizeof text))
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "%s", text);
    else if (now_ns - attempt->started_ns > timeout_ns) {
        char missing[512], line[LINE_BYTES];
        rendezvous_name_missing(self->rendezvous, missing, sizeof missing);
        last_words(self, line);
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_TIMEOUT,
                       "node %s has not joined within rendezvous.timeout=%s%s%s", missing,
                       experiment_text(attempt->experiment, OPT_RENDEZVOUS_TIMEOUT), *line ? ": " : "", line);
    }
}

int node_peers_write_report(const struct attempt *attempt, struct cb_err *err)
{
    char path[PATH_MAX];
    if (!attempt->peers)
        return 0;
    snprintf(path, sizeof path, "%.4000s/rendezvous.json", attempt->path.data);
    return rendezvous_write(attempt->peers->rendezvous, path, node_peers_seconds(attempt), err);
}

void node_peers_await(struct attempt *attempt)
{
    struct node_peers *self = attempt->peers;
    while (self && !attempt->verdict.decided) {
        uint64_t now_ns = clock_monotonic_ns();
        rendezvous_work(self->rendezvous, now_ns, AWAIT_MS);
        if (rendezvous_is_complete(self->rendezvous)) {
            self->complete_ns = clock_monotonic_ns();
            pages_beat(&attempt->pages, self->complete_ns);
            return;
        }
        check_joining(attempt, now_ns);
        if (!attempt->verdict.decided)
            show_joining(attempt, now_ns);
    }
}

void node_peers_work(struct attempt *attempt, uint64_t now_ns, enum stop_request stop)
{
    if (!attempt->peers || !attempt->peers->rendezvous)
        return;
    rendezvous_order(attempt->peers->rendezvous, stop, false);
    rendezvous_work(attempt->peers->rendezvous, now_ns, 0);
}

static void describe_lost(const struct attempt *attempt, uint32_t node, const char *trouble, char *text,
                          size_t text_bytes)
{
    char place[96], ranks[64];
    const struct node_report *report = rendezvous_report(attempt->peers->rendezvous, node);
    if (report->rank_count == 1)
        snprintf(ranks, sizeof ranks, "rank %u", report->first_rank);
    else
        snprintf(ranks, sizeof ranks, "ranks %u to %u", report->first_rank,
                 report->first_rank + report->rank_count - 1);
    snprintf(text, text_bytes, "node %s is lost (its agent: %s); its %s %s last in %s", attempt->nodes.name[node],
             trouble, ranks, report->rank_count == 1 ? "was" : "were",
             attempt_describe_place(attempt, report->first_rank, place));
}

bool node_peers_find_lost(const struct attempt *attempt, char *text, size_t text_bytes)
{
    uint32_t node;
    if (!attempt->peers || !attempt->peers->rendezvous || !rendezvous_find_lost(attempt->peers->rendezvous, &node))
        return false;
    describe_lost(attempt, node, rendezvous_report(attempt->peers->rendezvous, node)->trouble, text, text_bytes);
    return true;
}

bool node_peers_find_silent(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes)
{
    uint32_t node;
    uint64_t silent_ns;
    char trouble[64];
    if (!attempt->peers || !attempt->peers->rendezvous ||
        !rendezvous_find_silent(attempt->peers->rendezvous, now_ns, &node, &silent_ns) || silent_ns <= NOTE_SILENT_NS)
        return false;
    snprintf(trouble, sizeof trouble, "it has said nothing for %.0f s", (double)silent_ns / (double)NS_PER_S);
    describe_lost(attempt, node, trouble, text, text_bytes);
    return true;
}

static double done_share(const struct attempt *attempt, uint32_t node)
{
    const struct node_report *report = rendezvous_report(attempt->peers->rendezvous, node);
    uint64_t done = 0, total = 0;
    for (uint32_t i = 0; i < report->rank_count; i++) {
        const struct status_page *page = attempt->pages.page[report->first_rank + i];
        done += atomic_load(&page->bytes_done);
        total += atomic_load(&page->bytes_total);
    }
    return total ? (double)done / (double)total : NAN;
}

/* Notes the slowest node, if its share of work done is less than half of every other node's. */
static void note_slow(const struct attempt *attempt, char *text, size_t text_bytes)
{
    double least = INFINITY, next = INFINITY;
    uint32_t slowest = 0;
    for (uint32_t node = 0; node < attempt->nodes.count; node++) {
        double share = done_share(attempt, node);
        if (isnan(share))
            return; /* between operations */
        if (share < least) {
            next = least;
            least = share;
            slowest = node;
        } else if (share < next) {
            next = share;
        }
    }
    if (isfinite(next) && next > 0.2 && least < SLOW_SHARE * next)
        snprintf(text, text_bytes, "node %s is slow: %.0f %% done, all others %.0f %% or more",
                 attempt->nodes.name[slowest], least * 100, next * 100);
}

void node_peers_note(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes)
{
    uint32_t node;
    uint64_t silent_ns;
    if (!attempt->peers || !attempt->peers->rendezvous)
        return;
    if (rendezvous_find_silent(attempt->peers->rendezvous, now_ns, &node, &silent_ns) && silent_ns > NOTE_SILENT_NS)
        snprintf(text, text_bytes, "node %s says nothing since %.1f s", attempt->nodes.name[node],
                 (double)silent_ns / (double)NS_PER_S);
    else
        note_slow(attempt, text, text_bytes);
}

static uint32_t node_of(const struct attempt *attempt, uint32_t rank)
{
    return rank_placement_node_of(attempt->ranks, attempt->nodes.count, rank);
}

bool node_peers_has(const struct attempt *attempt, uint32_t rank)
{
    return attempt->peers && attempt->nodes.own != (int64_t)node_of(attempt, rank);
}

/* A process that its node has not checked yet counts as alive, since its page says so. */
bool node_peers_is_alive(const struct attempt *attempt, uint32_t rank)
{
    const struct rendezvous *rendezvous = attempt->peers->rendezvous;
    uint32_t pid = atomic_load(&attempt->pages.page[rank]->pid);
    if (!rendezvous || !pid || rendezvous_report(rendezvous, node_of(attempt, rank))->state != NODE_JOINED)
        return false;
    const struct wire_process *process = rendezvous_process(rendezvous, rank);
    return process->pid != pid || process->state;
}

char *node_peers_describe_process(const struct attempt *attempt, uint32_t rank, char text[64])
{
    const struct wire_process *process =
        attempt->peers->rendezvous ? rendezvous_process(attempt->peers->rendezvous, rank) : NULL;
    const char *node = attempt->nodes.name[node_of(attempt, rank)];
    if (!process || !process->state)
        snprintf(text, 64, "no process on %.40s", node);
    else
        snprintf(text, 64, "state %c%s%.20s%s on %.24s", process->state, *process->place ? " (" : "", process->place,
                 *process->place ? ")" : "", node);
    return text;
}

char *node_peers_describe_node(const struct attempt *attempt, uint32_t rank, char text[NODE_NAME_BYTES + 16])
{
    text[0] = '\0';
    if (attempt->peers)
        snprintf(text, NODE_NAME_BYTES + 16, " on node %s", attempt->nodes.name[node_of(attempt, rank)]);
    return text;
}

double node_peers_seconds(const struct attempt *attempt)
{
    if (!attempt->peers || !attempt->peers->complete_ns)
        return NAN;
    return (double)(attempt->peers->complete_ns - attempt->started_ns) / (double)NS_PER_S;
}

bool node_peers_started(const struct attempt *attempt, pid_t pid)
{
    for (uint32_t i = 0; attempt->peers && i < attempt->peers->starter_count; i++)
        if (attempt->peers->starters[i].pid == pid)
            return true;
    return false;
}

void node_peers_kill(const struct attempt *attempt)
{
    if (!attempt->peers || !attempt->peers->rendezvous)
        return;
    rendezvous_order(attempt->peers->rendezvous, STOP_NOW, true);
    rendezvous_work(attempt->peers->rendezvous, clock_monotonic_ns(), 0);
}

void node_peers_finish(struct attempt *attempt)
{
    struct node_peers *self = attempt->peers;
    struct cb_err err;
    if (!self)
        return;
    if (self->rendezvous) {
        rendezvous_finish(self->rendezvous, clock_monotonic_ns() + FINISH_NS);
        if (node_peers_write_report(attempt, &err) != 0)
            attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, err.code, "%s", err.message);
    }
    unlink(self->key_path);
    rendezvous_free(self->rendezvous); /* agents leave when the connection closes */
    self->rendezvous = NULL;
    uint64_t deadline_ns = clock_monotonic_ns() + STARTER_LEAVE_NS;
    for (uint32_t i = 0; i < self->starter_count; i++)
        if (child_wait(&self->starters[i], deadline_ns, NULL) != 0)
            child_end(&self->starters[i], STARTER_GRACE_NS);
}

void node_peers_free(struct node_peers *self)
{
    if (!self)
        return;
    rendezvous_free(self->rendezvous);
    buf_release(&self->experiment);
    free(self->starters);
    free(self->started_node);
    free(self);
}
