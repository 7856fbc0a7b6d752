/* ckptbench logs: prints the output of a run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "cli/jobs/run_here.h"
#include "cli/jobs/site_runs.h"
#include "cli/report/history_reading.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/path.h"
#include "core/units.h"
#include "jobs/slurm/run_follow.h"
#include "run/run_folder.h"

#define CHUNK_BYTES (1u << 20)
#define REST_MAX_BYTES (64u << 20)
#define LOOK_NS (300 * NS_PER_MS)
#define SYNC_EVERY 10 /* Slurm is queried once per this many checks of the files */
#define PATH_BYTES 4096
#define RANKS 3 /* index of the file with the output of the ranks */

/* One file, printed as it grows, in complete lines. */
struct log_file {
    char path[PATH_BYTES];
    uint64_t offset;
    struct buf rest; /* an incomplete line */
    bool ranks;      /* lines are marked with their rank */
};

struct logs {
    struct cli *cli;
    struct job_list list;
    const char *rank; /* print only lines of this rank; NULL: all */
    bool away;        /* the files are read on the run's site */
    char folder[PATH_BYTES];
    uint32_t attempts; /* attempts started so far */
    uint32_t attempt;  /* the attempt whose files are printed */
    struct log_file files[RANKS + 1];
    bool any;
};

/* Whether a line is of a rank: "[1,3]<stderr>:text" from Open MPI's mpirun, "[3] text" from MPICH's, or "03: text" from
 * srun, padded to the digits of the last rank. */
static bool is_of_rank(const char *line, size_t len, const char *rank)
{
    size_t rank_digits = strlen(rank), digits = 0, zeros = 0;
    const char *close = len && line[0] == '[' ? memchr(line, ']', len) : NULL;
    if (close && close + 1 < line + len) {
        const char *comma = memchr(line, ',', (size_t)(close - line));
        const char *number = comma ? comma + 1 : line + 1;
        return close[1] == (comma ? '<' : ' ') && (size_t)(close - number) == rank_digits &&
               memcmp(number, rank, rank_digits) == 0;
    }
    while (digits < len && line[digits] >= '0' && line[digits] <= '9')
        digits++;
    while (zeros + 1 < digits && line[zeros] == '0')
        zeros++;
    return digits + 1 < len && line[digits] == ':' && line[digits + 1] == ' ' && digits - zeros == rank_digits &&
           memcmp(line + zeros, rank, rank_digits) == 0;
}

static void show_line(struct logs *self, const struct log_file *file, const char *line, size_t len)
{
    if (self->rank && (!file->ranks || !is_of_rank(line, len, self->rank)))
        return;
    buf_append(&self->cli->out, line, len);
    self->any = true;
}

static void show_lines(struct logs *self, struct log_file *file, bool all)
{
    size_t done = 0;
    for (char *feed; (feed = memchr(file->rest.data + done, '\n', file->rest.len - done));) {
        size_t len = (size_t)(feed - file->rest.data) - done + 1;
        show_line(self, file, file->rest.data + done, len);
        done += len;
    }
    if (all && done < file->rest.len) {
        buf_append_char(&file->rest, '\n');
        show_line(self, file, file->rest.data + done, file->rest.len - done);
        done = file->rest.len;
    }
    memmove(file->rest.data, file->rest.data + done, file->rest.len - done);
    file->rest.len -= done;
    file->rest.data[file->rest.len] = '\0';
}

/* ---- location of the files ---- */

static int find_transport(struct logs *self, struct transport **transport, struct cb_err *err)
{
    struct remote *remote;
    *transport = self->list.transport;
    if (!self->away)
        return 0;
    int rc = job_list_site(&self->list, self->list.items[0].site, &remote, err);
    if (rc == 0)
        *transport = remote->transport;
    return rc;
}

/* The folder, which is on the run's site while the run is unfinished there. The record of a remote run shows whether it
 * belongs to an array: the log is then in another run's folder. */
static int find_folder(struct logs *self, struct cb_err *err)
{
    char path[PATH_BYTES];
    struct remote *remote;
    struct job_record record;
    struct job_entry *entry = &self->list.items[0];
    self->away = job_entry_is_away(entry);
    snprintf(self->folder, sizeof self->folder, "%s", entry->folder);
    if (!self->away)
        return 0;
    int rc = job_list_site(&self->list, entry->site, &remote, err);
    if (rc)
        return rc;
    if (path_format(self->folder, sizeof self->folder, err, "%s/runs/%s", site_text(&remote->site, SITE_HOME),
                    entry->run) ||
        path_format(path, sizeof path, err, "%s/job.json", self->folder))
        return CB_ERR_USAGE;
    struct buf text;
    buf_init(&text, CHUNK_BYTES);
    rc = remote->transport->read(remote->transport, path, 0, CHUNK_BYTES, &text, err);
    if (rc == 0)
        rc = job_record_parse(path, text.data, text.len, &record, err);
    if (rc == 0) {
        job_record_release(&entry->record);
        entry->record = record;
    }
    buf_release(&text);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

static int count_attempts(struct logs *self, struct cb_err *err)
{
    char path[PATH_BYTES];
    struct transport *transport;
    struct transport_stat status;
    if (!self->away)
        return run_folder_last_attempt(self->folder, &self->attempts, err);
    int rc = find_transport(self, &transport, err);
    while (rc == 0) {
        if (path_format(path, sizeof path, err, "%s/attempts/%u", self->folder, self->attempts + 1))
            return CB_ERR_USAGE;
        rc = transport->stat(transport, path, &status, err);
        self->attempts += rc == 0;
    }
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

/* ---- contents ---- */

/* Prints what was added to a file; a missing file counts as empty. */
static int show_new(struct logs *self, struct log_file *file, bool all, struct cb_err *err)
{
    size_t got = CHUNK_BYTES;
    struct transport *transport;
    int rc = find_transport(self, &transport, err);
    while (rc == 0 && got == CHUNK_BYTES) {
        size_t before = file->rest.len;
        rc = transport->read(transport, file->path, file->offset, CHUNK_BYTES, &file->rest, err);
        if (rc == CB_ERR_NOT_FOUND)
            return 0;
        got = file->rest.len - before;
        file->offset += got;
        show_lines(self, file, all && got < CHUNK_BYTES);
        if (rc == 0)
            rc = cli_flush(self->cli, err);
    }
    return rc;
}

/* The logs of its agent, of the agents of other nodes and their launcher, and of the ranks. */
static int open_attempt(struct logs *self, struct cb_err *err)
{
    static const char *const names[] = {NULL, "agent.log", "nodes.log", "ranks.log"};
    int rc = 0;
    for (size_t i = 1; rc == 0 && i < sizeof names / sizeof *names; i++) {
        struct log_file *file = &self->files[i];
        buf_release(&file->rest);
        *file = (struct log_file){.ranks = i == RANKS};
        buf_init(&file->rest, REST_MAX_BYTES);
        rc = path_format(file->path, sizeof file->path, err, "%s/attempts/%u/logs/%s", self->folder, self->attempt,
                         names[i]);
    }
    return rc;
}

/* Runs of one job or of an array have their log in the folder of the first run; in an array with their number. */
static int open_files(struct logs *self, struct cb_err *err)
{
    const struct job_entry *entry = &self->list.items[0];
    char folder[PATH_BYTES], name[64] = JOB_LOG;
    snprintf(folder, sizeof folder, "%s", self->folder);
    if (entry->record.in_array || *entry->record.before) {
        char *slash = strrchr(folder, '/');
        snprintf(slash + 1, sizeof folder - (size_t)(slash + 1 - folder), "%s", entry->record.name);
    }
    if (entry->record.in_array) {
        snprintf(name, sizeof name, JOB_LOG ".%" PRIu64, entry->record.array_task);
    }
    int rc = path_format(self->files[0].path, sizeof self->files[0].path, err, "%s/%s", folder, name);
    return rc == 0 && self->attempt ? open_attempt(self, err) : rc;
}

static int show_all_new(struct logs *self, bool all, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof self->files / sizeof *self->files; i++)
        if (*self->files[i].path)
            rc = show_new(self, &self->files[i], all, err);
    return rc;
}

static int follow(struct logs *self, struct cb_err *err)
{
    int rc = 0;
    launch_catch_signals(false);
    for (unsigned look = 0; rc == 0 && !launch_was_stopped(); look++) {
        if (look % SYNC_EVERY == 0)
            rc = job_list_sync(&self->list, err);
        if (rc == 0)
            rc = count_attempts(self, err);
        if (rc == 0 && self->attempts != self->attempt) { /* has its own files; the job's log continues */
            self->attempt = self->attempts;
            rc = open_attempt(self, err);
        }
        bool ended = job_list_is_final(&self->list);
        if (rc == 0)
            rc = show_all_new(self, ended, err);
        if (ended)
            break;
        clock_sleep_ns(LOOK_NS);
    }
    return rc;
}

static int show_logs(struct logs *self, struct cb_err *err)
{
    int rc = find_folder(self, err);
    if (rc == 0)
        rc = count_attempts(self, err);
    if (rc)
        return rc;
    uint64_t number = self->attempts;
    rc = cli_parse_flag(self->cli, "attempt", units_parse_u64, &number, err);
    if (rc)
        return rc;
    if (number > self->attempts)
        return cb_fail(err, CB_ERR_NOT_FOUND, "run %s has had %u attempt%s so far", self->list.items[0].run,
                       self->attempts, units_plural(self->attempts));
    self->attempt = (uint32_t)number;
    rc = open_files(self, err);
    if (rc == 0)
        rc = cli_has_flag(self->cli, "f") ? follow(self, err) : show_all_new(self, true, err);
    if (rc == 0 && !self->any)
        log_info("run %s has said nothing%s", self->list.items[0].run,
                 self->rank                       ? " of that rank"
                 : job_list_is_final(&self->list) ? ""
                                                  : " (yet)");
    return rc;
}

static int run_logs(struct cli *cli, struct cb_err *err)
{
    struct logs self = {.cli = cli, .rank = cli_flag_value(cli, "rank")};
    const char *site = cli_flag_value(cli, "site");
    char run[64];
    uint64_t unused;
    int rc = cli_parse_flag(cli, "rank", units_parse_u64, &unused, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof self.files / sizeof *self.files; i++)
        buf_init(&self.files[i].rest, REST_MAX_BYTES);
    rc = job_list_init(&self.list, NULL, err);
    if (rc == 0 && site)
        rc = job_list_take(&self.list, site, cli->words, cli->word_count, err);
    if (rc == 0)
        rc = find_only_run(cli, self.list.history, run, err);
    if (rc == 0)
        rc = job_list_add(&self.list, (const char *const[]){run}, 1, err);
    if (rc == 0)
        rc = job_list_sync(&self.list, err);
    if (rc == 0)
        rc = show_logs(&self, err);
    for (size_t i = 0; i < sizeof self.files / sizeof *self.files; i++)
        buf_release(&self.files[i].rest);
    job_list_release(&self.list);
    return rc;
}

static const struct verb_flag flags[] = {
    {"f", NULL, "go on until the run has ended"},
    {"rank", "N", "only lines of this rank"},
    {"attempt", "N", "of this attempt, not the last one"},
    SITE_FLAG,
};

const struct verb verb_logs = {
    .name = "logs",
    .arguments = "[RUN]",
    .summary = "what a run has said: its job, its agent, its ranks",
    .example = "ckptbench logs LATEST -f",
    VERB_FLAGS(flags),
    .run = run_logs,
};
