/* Starts the agent of a run and follows it until it ends. */
#include "cli/jobs/run_here.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli/jobs/agent_program.h"
#include "cli/report/blocks.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/log.h"
#include "core/process.h"
#include "core/units.h"
#include "run/run_folder.h"

#define LOOK_EVERY_NS (200 * NS_PER_MS)
#define STOP_NOW_GRACE_NS (60 * NS_PER_S) /* from the second signal until the agent itself is killed */
#define END_GRACE_NS (10 * NS_PER_S)
/* If the agent was stopped by a signal for this long, it is killed: its ranks exit after 10 s without its heartbeat. */
#define STANDSTILL_LIMIT_NS (15 * NS_PER_S)
#define BAR_CELLS 20
#define BAR_CELLS_SHORT 12      /* on a terminal of fewer columns than 100, so that the figures fit beside it */
#define COLUMNS_FOR_BAR 72      /* of the terminal; narrower ones show the figures alone */
#define COMMAND_NOT_STARTED 127 /* as a shell reports it */
#define LINE_START "\r\033[K"   /* clears the progress line */

/* Written by the signal handler: number of stop requests, and the last signal. */
static volatile sig_atomic_t stop_count;
static volatile sig_atomic_t stop_signal;

static void count_signal(int number)
{
    stop_count = stop_count + 1;
    stop_signal = number;
}

void launch_catch_signals(bool only_first)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = only_first ? (int)SA_RESETHAND : 0};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

bool launch_was_stopped(void)
{
    return stop_count > 0;
}

/* ---- the progress line ---- */

/* A line that ends before the terminal does: a longer one would wrap, and could not be cleared. */
struct progress_line {
    struct buf text;
    size_t columns;
    bool is_full; /* a part did not fit; later ones are left out */
};

static size_t width_of(const struct progress_line *self)
{
    return table_text_width(self->text.data + strlen(LINE_START));
}

static void add_part(struct progress_line *self, const char *part)
{
    size_t width = width_of(self) + table_text_width(part);
    self->is_full = self->is_full || width >= self->columns;
    if (!self->is_full)
        buf_append_text(&self->text, part);
}

CB_PRINTF(2, 3)
static void add_partf(struct progress_line *self, const char *format, ...)
{
    char part[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part, sizeof part, format, arguments);
    va_end(arguments);
    add_part(self, part);
}

/* "━━━━━━━━━━━━╸         ", or "############-        " where the locale is not UTF-8; nothing on a narrow terminal. */
static void add_bar(struct progress_line *self, double share)
{
    static const char *const marks[2][2] = {{"#", "-"}, {"━", "╸"}};
    int cells = self->columns < 100 ? BAR_CELLS_SHORT : BAR_CELLS, halves = (int)(share * 2 * cells);
    bool utf8 = blocks_locale_is_utf8();
    if (self->columns < COLUMNS_FOR_BAR)
        return;
    for (int cell = 0; cell < cells; cell++)
        add_part(self, 2 * cell + 1 < halves ? marks[utf8][0] : 2 * cell < halves ? marks[utf8][1] : " ");
}

/* The bar and "  61 %"; or the agent's note in place of the bar, cut where the terminal ends. */
static void add_share(struct progress_line *self, const struct progress *progress)
{
    double share = progress->bytes_total ? (double)progress->bytes_done / (double)progress->bytes_total : 0;
    share = share > 1 ? 1 : share;
    if (progress->bytes_total && !*progress->note)
        add_bar(self, share);
    if (progress->bytes_total)
        add_partf(self, " %3.0f %%", 100 * share);
    size_t used = width_of(self) + 4;
    if (*progress->note && self->columns > used) {
        size_t bytes = strnlen(progress->note, self->columns - used);
        while (bytes > 0 && ((unsigned char)progress->note[bytes] & 0xC0) == 0x80) /* inside a character */
            bytes--;
        add_partf(self, "   %.*s", (int)bytes, progress->note);
    }
}

/* "   2.05 GiB/s   slowest rank 2   eta 2 s" */
static void add_rates(struct progress_line *self, const struct progress *progress)
{
    char rate[32], eta[32];
    if (progress->bytes_per_s > 0)
        add_partf(self, "   %s", units_format_rate(progress->bytes_per_s, rate));
    if (progress->slowest_rank >= 0)
        add_partf(self, "   slowest rank %d", progress->slowest_rank);
    if (progress->bytes_per_s > 0 && progress->bytes_done < progress->bytes_total) {
        double left = (double)(progress->bytes_total - progress->bytes_done) / progress->bytes_per_s;
        if (left < 60)
            snprintf(eta, sizeof eta, "%.0f s", ceil(left));
        else
            units_format_duration(ceil(left) * 1e9, eta);
        add_partf(self, "   eta %s", eta);
    }
}

/* "save 3/5 ", its bytes or the agent's note, and the rates of all ranks and of the nodes. */
static void add_progress(struct progress_line *self, const struct progress *progress)
{
    if (strcmp(progress->state, "running") != 0 || !*progress->op) {
        add_part(self, progress->state);
        return;
    }
    if (progress->iteration == 0)
        add_partf(self, "%-6s warm-up  ", progress->op);
    else
        add_partf(self, "%-6s %u/%u  ", progress->op, progress->iteration, progress->iterations);
    add_share(self, progress);
    if (progress->bytes_total > 0)
        add_rates(self, progress);
    if (*progress->nodes)
        add_partf(self, "   %s", progress->nodes);
}

static void write_stderr(const char *text, size_t len)
{
    while (len > 0) {
        ssize_t written = write(STDERR_FILENO, text, len);
        if (written < 0 && errno != EINTR)
            return; /* without a terminal nobody would see a progress line */
        if (written > 0) {
            text += written;
            len -= (size_t)written;
        }
    }
}

/* The folder of the attempt that the agent has started. */
static bool find_attempt(const struct launch *launch, uint32_t attempts_before, char path[PATH_MAX])
{
    uint32_t attempt;
    return run_folder_last_attempt(launch->folder, &attempt, NULL) == 0 && attempt > attempts_before &&
           snprintf(path, PATH_MAX, "%s/attempts/%u", launch->folder, attempt) < PATH_MAX;
}

static void show_progress(const struct launch *launch, uint32_t attempts_before)
{
    struct progress progress;
    struct progress_line line = {0};
    char path[PATH_MAX];
    if (!launch->show_progress || !find_attempt(launch, attempts_before, path) || progress_read(path, &progress, NULL))
        return;
    buf_init(&line.text, 4096);
    line.columns = blocks_of(STDERR_FILENO).columns;
    buf_append_text(&line.text, LINE_START);
    if (line.columns >= COLUMNS_FOR_BAR)
        add_part(&line, launch->prefix);
    add_progress(&line, &progress);
    write_stderr(line.text.data, line.text.len);
    buf_release(&line.text);
}

static void clear_progress(const struct launch *launch)
{
    if (launch->show_progress)
        write_stderr(LINE_START, strlen(LINE_START));
}

/* ---- one run ---- */

/* Forwards a new signal. The agent has its own process group, so a terminal's Ctrl-C reaches only this process. */
static void forward_stop(const struct launch *launch, const struct child *agent, int *forwarded)
{
    if (stop_count <= *forwarded)
        return;
    clear_progress(launch);
    if (*forwarded == 0)
        log_info("stopping %s: waiting for it to end in order and to be recorded; once more stops it now", launch->run);
    else
        log_info("stopping %s now", launch->run);
    *forwarded += 1;
    kill(agent->pid, stop_signal == SIGHUP ? SIGTERM : stop_signal);
}

/* True if the agent has been stopped for so long that its run is lost. */
static bool stands_still(const struct launch *launch, const struct child *agent, uint64_t now_ns, uint64_t *since_ns)
{
    if (!child_is_stopped(agent)) {
        *since_ns = 0;
        return false;
    }
    if (*since_ns == 0) {
        *since_ns = now_ns;
        clear_progress(launch);
        log_info("the agent of %s (process %d) was stopped by a signal: kill -CONT %d lets it go on", launch->run,
                 (int)agent->pid, (int)agent->pid);
    }
    return now_ns - *since_ns > STANDSTILL_LIMIT_NS;
}

/* Returns when the agent has ended; *stood_still: it was killed because it had been stopped too long. */
static int follow_agent(const struct launch *launch, struct child *agent, uint32_t attempts_before, bool *stood_still,
                        struct cb_err *err)
{
    int forwarded = 0;
    uint64_t give_up_ns = UINT64_MAX, stopped_ns = 0;
    *stood_still = false;
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns();
        int rc = child_wait(agent, now_ns + LOOK_EVERY_NS, err);
        *stood_still = rc == CB_ERR_TIMEOUT && stands_still(launch, agent, now_ns, &stopped_ns);
        if (rc != CB_ERR_TIMEOUT || *stood_still) {
            clear_progress(launch);
            if (*stood_still)
                child_end(agent, 0);
            return *stood_still ? 0 : rc;
        }
        forward_stop(launch, agent, &forwarded);
        if (forwarded >= 2 && give_up_ns == UINT64_MAX)
            give_up_ns = now_ns + STOP_NOW_GRACE_NS;
        if (now_ns > give_up_ns) {
            child_end(agent, END_GRACE_NS);
            clear_progress(launch);
            return 0;
        }
        show_progress(launch, attempts_before);
    }
}

/* Seals an attempt that its agent can no longer seal. It is not an error if another process has sealed it meanwhile. */
static int seal(const struct launch *launch, uint32_t attempts_before, enum outcome outcome, const char *reason,
                struct cb_err *err)
{
    struct buf path;
    uint32_t attempt;
    struct manifest manifest = {.outcome = outcome};
    buf_init(&path, PATH_MAX);
    int rc = run_folder_last_attempt(launch->folder, &attempt, err);
    if (rc == 0 && attempt <= attempts_before)
        rc = run_folder_new_attempt(launch->folder, &attempt, &path, err);
    else if (rc == 0)
        buf_printf(&path, "%s/attempts/%u", launch->folder, attempt);
    if (rc == 0) {
        snprintf(manifest.run, sizeof manifest.run, "%s", launch->run);
        snprintf(manifest.message, sizeof manifest.message, "%s", reason);
        manifest.attempt = attempt;
        manifest.started_wall_ns = manifest.ended_wall_ns = clock_wall_ns();
        rc = manifest_write_for_agent(path.data, &manifest, err);
        rc = rc == CB_ERR_EXISTS ? 0 : rc;
    }
    buf_release(&path);
    return rc;
}

/* Seals the attempt if the agent left it unsealed, and ingests it. */
static int take_attempt(const struct launch *launch, uint32_t attempts_before, const char *reason, struct cb_err *err)
{
    struct manifest manifest;
    char path[PATH_MAX];
    bool ingested;
    int rc = 0;
    bool is_there = find_attempt(launch, attempts_before, path);
    if (is_there && manifest_read(path, &manifest, NULL) != CB_ERR_NOT_FOUND)
        return history_ingest(launch->history, launch->folder, &ingested, err);
    if (is_there && agent_program_seal(launch->folder, OUTCOME_LOST, reason, err)) /* from lines, if there are any */
        log_error("%s", err->message);
    rc = seal(launch, attempts_before, OUTCOME_LOST, reason, err);
    return rc ? rc : history_ingest(launch->history, launch->folder, &ingested, err);
}

static int fail_start(const struct launch *launch, uint32_t attempts_before, struct cb_err *why, struct cb_err *err)
{
    bool ingested;
    cb_context(why, "ckptbench-agent belongs beside ckptbench, or into PATH");
    int rc = seal(launch, attempts_before, OUTCOME_INFRASTRUCTURE, why->message, err);
    return rc ? rc : history_ingest(launch->history, launch->folder, &ingested, err);
}

/* workload=watch: the agent and its command have the terminal, and get every signal. If we are killed, the agent continues
 * and holds the lock of the folder alone. */
static int run_in_foreground(const struct launch *launch, int lock_fd, const char *program, uint32_t attempts_before,
                             struct cb_err *err)
{
    struct cb_err why;
    char reason[256], how[64], lock[16];
    size_t words = 0;
    int status;
    while (launch->command[words])
        words++;
    const char **argv = calloc(words + 5, sizeof *argv);
    if (!argv)
        return alloc_fail(err, "for %zu words", words);
    argv[0] = program;
    argv[1] = "watch";
    argv[2] = launch->folder;
    snprintf(lock, sizeof lock, "%d", lock_fd);
    argv[3] = lock;
    memcpy(argv + 4, launch->command, words * sizeof *argv);
    (void)fcntl(lock_fd, F_SETFD, 0);
    int rc = foreground_run(argv, NULL, false, 0, &status, &why);
    (void)fcntl(lock_fd, F_SETFD, FD_CLOEXEC);
    free(argv);
    *launch->exit_code = rc ? COMMAND_NOT_STARTED : foreground_exit_code(status);
    if (rc)
        return fail_start(launch, attempts_before, &why, err);
    const struct child agent = {.exited = true, .status = status};
    snprintf(reason, sizeof reason, "the agent ended (%s) and left the attempt unsealed", child_describe(&agent, how));
    return take_attempt(launch, attempts_before, reason, err);
}

/* Runs the agent; the caller holds the lock of the folder. */
static int run_locked(const struct launch *launch, int lock_fd, struct cb_err *err)
{
    struct child agent = {0};
    struct cb_err why;
    uint32_t attempts_before;
    char how[64], reason[256];
    bool stood_still;
    int rc = run_folder_last_attempt(launch->folder, &attempts_before, err);
    if (rc == 0)
        rc = history_set_state(launch->history, launch->run, "running", err);
    if (rc)
        return rc;
    char path[PATH_MAX];
    const char *program = process_find_program("ckptbench-agent", path) ? path : "ckptbench-agent";
    if (launch->command)
        return run_in_foreground(launch, lock_fd, program, attempts_before, err);
    const char *const argv[] = {program, "run", launch->folder, NULL};
    const struct child_options options = {
        .argv = argv, .stdin_fd = -1, .stdout_fd = STDERR_FILENO, .stderr_fd = -1}; /* stdout is for our output */
    rc = child_start(&agent, &options, &why);
    if (rc)
        return fail_start(launch, attempts_before, &why, err);
    rc = follow_agent(launch, &agent, attempts_before, &stood_still, err);
    if (rc) {
        child_end(&agent, END_GRACE_NS);
        return rc;
    }
    if (stood_still)
        snprintf(reason, sizeof reason, "the agent was stopped by a signal and stood still for %d s",
                 (int)(STANDSTILL_LIMIT_NS / NS_PER_S));
    else
        snprintf(reason, sizeof reason, "the agent ended (%s) and left the attempt unsealed",
                 child_describe(&agent, how));
    return take_attempt(launch, attempts_before, reason, err);
}

int launch_run(const struct launch *launch, struct cb_err *err)
{
    int fd, rc = run_folder_lock(launch->folder, &fd, err);
    if (rc)
        return rc;
    if (fd < 0)
        return cb_fail(err, CB_ERR_EXISTS, "run %s is being run by another ckptbench", launch->run);
    rc = run_locked(launch, fd, err);
    close(fd);
    return rc;
}
