/* A touch pool's job: does nothing on its nodes, which keeps them up, and submits the next job.
 *
 * The first job has all nodes and starts a chain for each of them, so that a node that is busy with a run (and needs no
 * touch) does not delay the others. Each job checks expiry and budget before it submits the next, so the chains end by
 * themselves. With slurm.sbcast all of this runs on the machine that started the pool, under the salloc of each job. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/pool/pool_job.h"
#include "core/child.h"
#include "core/clock.h"

#define COMMAND_NS (30 * NS_PER_S)
#define TEXT_MAX_BYTES (1 << 20)
#define TRIES 3
#define AGAIN_NS (3 * NS_PER_S)
#define NODE_BYTES 256
#define LOOK_NS (50 * NS_PER_MS)
#define SAID_BYTES 4096

static int ask(const char *const *argv, struct buf *answer, struct cb_err *err)
{
    const struct child_options options = {.argv = argv, .stdin_fd = -1};
    buf_clear(answer);
    return child_capture(&options, COMMAND_NS, answer, err);
}

/* Whether a node's next touch is in the queue, after a reply of sbatch was lost. */
static bool is_queued(const struct pool_job *self, const char *node, struct buf *answer)
{
    const char *const argv[] = {"squeue", "-h", "-a", "--me", "-t", "PENDING", "-n", self->pool.id, "-o", "%n", NULL};
    size_t len = strlen(node);
    if (ask(argv, answer, NULL))
        return false;
    for (const char *line = answer->data; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n'))
        if (strncmp(line, node, len) == 0 && (line[len] == '\n' || line[len] == '\0'))
            return true;
    return false;
}

/* Starts salloc, which outlives us: it waits for its turn and then runs the next job of the chain here. Its request has
 * been accepted once it names its allocation. */
static int start_salloc(const char *const *argv, struct cb_err *err)
{
    char said[SAID_BYTES] = "", line[256];
    struct child salloc = {0};
    uint64_t deadline_ns = clock_monotonic_ns() + COMMAND_NS;
    int fd = memfd_create("salloc", MFD_CLOEXEC);
    const struct child_options options = {
        .argv = argv, .stdin_fd = -1, .stdout_fd = fd, .stderr_fd = fd, .death_signal = SIGCONT};
    int rc = fd < 0 ? cb_fail_errno(err, errno, "keeping what salloc says") : child_start(&salloc, &options, err);
    while (rc == 0 && !strstr(said, "job allocation ")) {
        bool ended = child_wait(&salloc, clock_monotonic_ns() + LOOK_NS, NULL) == 0;
        ssize_t len = pread(fd, said, sizeof said - 1, 0);
        said[len > 0 ? len : 0] = '\0';
        if (strstr(said, "job allocation ") || (!ended && clock_monotonic_ns() < deadline_ns))
            continue;
        text_last_line(said, " \t\r", line, sizeof line);
        child_end(&salloc, NS_PER_S);
        rc = cb_fail(err, CB_ERR_SYSTEM, "salloc: %s", *line ? line : "no reply");
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int submit_next(const struct pool_job *self, const char *node, struct cb_err *err)
{
    char begin[64], deadline[64], list[NODE_BYTES + 16], script[PATH_MAX];
    uint64_t now_ns = clock_wall_ns();
    uint64_t left_ns = self->pool.expires_wall_ns > now_ns ? self->pool.expires_wall_ns - now_ns : 0;
    struct buf answer;
    snprintf(begin, sizeof begin, "--begin=now+%" PRIu64, self->pool.period_ns / NS_PER_S);
    snprintf(deadline, sizeof deadline, "--deadline=now+%" PRIu64, (left_ns + POOL_DEADLINE_NS) / NS_PER_S);
    snprintf(list, sizeof list, "--nodelist=%s", node);
    bool led_here = pool_job_is_led_here(self);
    snprintf(script, sizeof script, "%s/%s", self->folder, led_here ? POOL_ALLOCATION : POOL_SCRIPT);
    const char *const argv[] = {"sbatch", "--parsable", begin, deadline, "--nodes=1", list, script, NULL};
    const char *const led_argv[] = {"sh", script, begin, deadline, "--nodes=1", list, NULL};
    int rc = CB_ERR_SYSTEM;
    buf_init(&answer, TEXT_MAX_BYTES);
    for (int i = 0; rc && i < TRIES && !pool_is_stopping(self->folder); i++) {
        if (i > 0)
            clock_sleep_ns(AGAIN_NS);
        if (i > 0 && is_queued(self, node, &answer))
            rc = 0;
        else
            rc = led_here ? start_salloc(led_argv, err) : ask(argv, &answer, err);
    }
    buf_release(&answer);
    return rc;
}

/* Cancels a job that was submitted while the pool was being stopped. */
static void call_off(const struct pool_job *self)
{
    const char *const argv[] = {"scancel", "-Q", "--me", "-t", "PENDING", "-n", self->pool.id, NULL};
    struct buf answer;
    struct cb_err err;
    buf_init(&answer, TEXT_MAX_BYTES);
    if (ask(argv, &answer, &err))
        pool_job_log(self, "%s", err.message);
    buf_release(&answer);
}

/* Starts a chain for each node of this job: all nodes in the first job, one node in later ones. */
static int submit_all(struct pool_job *self, uint64_t *submitted, struct cb_err *err)
{
    const char *const argv[] = {"scontrol", "show", "hostnames", self->share.nodes, NULL};
    struct buf names;
    int rc;
    buf_init(&names, TEXT_MAX_BYTES);
    rc = ask(argv, &names, err);
    for (char *line = names.data; rc == 0 && *line && !pool_is_stopping(self->folder);) {
        size_t len = strcspn(line, "\n");
        char node[NODE_BYTES];
        snprintf(node, sizeof node, "%.*s", (int)(len < sizeof node ? len : 0), line);
        if (*node)
            rc = submit_next(self, node, err);
        *submitted += rc == 0 && *node;
        line += len + (line[len] == '\n');
    }
    buf_release(&names);
    return rc;
}

int touch_run(struct pool_job *self, struct cb_err *err)
{
    char reason[512];
    struct pool_usage usage;
    uint64_t submitted = 0;
    if (pool_has_ended(self->folder))
        return 0;
    if (pool_is_stopping(self->folder)) {
        pool_job_end(self, "stopped on request");
        return 0;
    }
    int rc = pool_sum(&self->pool, self->folder, &usage, err);
    if (rc == 0 && !pool_may_touch(&self->pool, &usage, self->share.node_count, clock_wall_ns(), reason, sizeof reason))
        pool_job_end(self, reason);
    else if (rc == 0)
        rc = submit_all(self, &submitted, err);
    if (rc) {
        snprintf(reason, sizeof reason, "the next touch of %.200s was not submitted: %.250s", self->share.nodes,
                 err->message);
        pool_job_end(self, reason);
    }
    if (pool_is_stopping(self->folder))
        call_off(self);
    self->share.kept_ns = submitted ? self->pool.period_ns * submitted / self->share.node_count : 0;
    return rc;
}
