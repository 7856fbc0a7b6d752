/* Turns the lines of watched processes into the samples of their ranks. */
#include "agent/attempt/watch_lines.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/attempt/watch_task.h"
#include "agent/probe.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/json.h"
#include "core/path.h"
#include "core/units.h"

#define FILE_MAX_BYTES (UINT64_C(1) << 30)
#define MOUNTS_MAX_BYTES (1u << 20)
#define RANKS_MOST (1 << 20)
#define RANKS_FOR_ONE 16 /* ranks that are kept for each one that has reported anything; more would cost too much */
#define WARNINGS_MOST 20
#define MOST 1e18 /* bytes or seconds; more was not measured */
#define SECONDS_MOST 1e9

/* One save or load of one rank. */
struct seen {
    char *path;
    uint32_t rank, op, iteration;
    uint32_t process;    /* number of its file */
    size_t host;         /* number of its machine */
    uint32_t occurrence; /* of this path on this rank */
    uint64_t start_ns;   /* wall clock; after grouping the earliest of the ranks */
    double files;
    char why[160]; /* it failed; "" if it did not, or if that is not told */
    bool is_whole_file, is_asynchronous;
    bool is_child; /* of a process that a rank forked or spawned, and which has its rank */
    struct sample sample;
};

/* What a rank has reported. */
struct told {
    bool anything, process;
    uint32_t page; /* number of its status page */
};

struct reading {
    struct seen *seen;
    size_t count;
    uint32_t world, malformed, processes;
    uint32_t page_count;          /* ranks with a status page */
    struct told *told;            /* of each rank that may be */
    uint32_t ranks_with_process;  /* how many of them have */
    uint32_t at_work, unfinished; /* in the file that is read: processes, less their ends; files with any left */
    uint64_t first_ns, last_ns;   /* wall clock: of all lines */
    uint32_t files;               /* read so far, one for each process */
    uint32_t unreadable;          /* files */
    char first_unreadable[256];   /* and why */
    bool was_stopped;
    int requests; /* foreground_requests() at the start */
    size_t host;  /* of the file that is read */
    struct watch_summary *summary;
    uint32_t asynchronous;         /* saves */
    char program[64], broken[512]; /* "torch 2.13.0" */
    char calls[OP_COUNT][256];     /* of which functions saves and loads are calls: "save, async_save" */
    char **warnings;
    size_t warning_count;
    double step_s[2]; /* sums over the ranks: alone, and with a save behind */
    uint32_t step_ranks[2];
    uint32_t failed[OP_COUNT], counted[OP_COUNT], left_out;
    const char *why[OP_COUNT]; /* the first of them failed; borrowed from `seen` */
    double left_out_bytes, left_out_s;
};

static void release(struct reading *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->seen[i].path);
    free(self->seen);
    free(self->told);
    alloc_free_texts(self->warnings, self->warning_count);
}

/* ---- reading ---- */

static double number_of(const struct json_value *line, const char *key)
{
    double value;
    return json_as_double(json_get(line, key), &value) && value >= 0 && value < MOST ? value : NAN;
}

static bool is_true(const struct json_value *line, const char *key)
{
    bool value;
    return json_as_bool(json_get(line, key), &value) && value;
}

/* The function of a save or load that is no file in one piece; those of the C library have no name in their lines. */
static void add_call(struct reading *self, const struct json_value *line, enum operation op)
{
    char *calls = self->calls[op], with_end[80], all[sizeof self->calls[op] + 8];
    const char *call = "libckptbench";
    (void)json_as_text(json_get(line, "api"), &call);
    snprintf(with_end, sizeof with_end, ", %.70s, ", call);
    snprintf(all, sizeof all, ", %s, ", calls);
    if (is_true(line, "is_whole_file") || strstr(all, with_end))
        return;
    size_t used = strlen(calls);
    snprintf(calls + used, sizeof self->calls[op] - used, "%s%.70s", used ? ", " : "", call);
}

static int add_seen(struct reading *self, const struct json_value *line, uint32_t rank, enum operation op,
                    struct cb_err *err)
{
    const char *path = "";
    uint64_t start_ns = 0;
    if (alloc_grow(&self->seen, self->count, sizeof *self->seen, err))
        return CB_ERR_MEMORY;
    (void)json_as_text(json_get(line, "path"), &path);
    (void)json_as_u64(json_get(line, "start_ns"), &start_ns);
    struct seen *seen = &self->seen[self->count];
    *seen = (struct seen){.path = strdup(path),
                          .rank = rank,
                          .op = op,
                          .process = self->files,
                          .host = self->host,
                          .start_ns = start_ns,
                          .files = number_of(line, "files"),
                          .is_whole_file = is_true(line, "is_whole_file"),
                          .is_asynchronous = is_true(line, "asynchronous"),
                          .is_child = is_true(line, "child"),
                          .sample = {.op = op}};
    if (!seen->path)
        return alloc_fail(err, "for a path");
    self->count++;
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++) /* the keys are the names of the metrics */
        seen->sample.values[i] = number_of(line, metric_row((enum metric_id)i)->name);
    if (is_true(line, "failed")) {
        seen->sample.flags |= SAMPLE_FAILED;
        (void)!json_copy_text(line, "why", seen->why, sizeof seen->why, NULL);
    }
    if (op == OP_LOAD)
        seen->sample.flags |= SAMPLE_COLDNESS_UNKNOWN;
    add_call(self, line, op);
    return 0;
}

/* A message for people, once. */
static int add_warning(struct reading *self, const char *text, struct cb_err *err)
{
    for (size_t i = 0; i < self->warning_count; i++)
        if (strcmp(self->warnings[i], text) == 0)
            return 0;
    return self->warning_count < WARNINGS_MOST
               ? alloc_add_text(&self->warnings, &self->warning_count, text, strlen(text), err)
               : 0;
}

static void add_rounds(const struct json_value *seconds, double bytes, struct limit_round rounds[LIMIT_ROUNDS])
{
    for (size_t i = 0; i < LIMIT_ROUNDS && i < json_count(seconds); i++) {
        double taken_s = 0;
        (void)json_as_double(json_at(seconds, i), &taken_s);
        rounds[i].bytes += bytes;
        rounds[i].slowest_s = taken_s > rounds[i].slowest_s ? taken_s : rounds[i].slowest_s;
        rounds[i].nodes++;
    }
}

/* A line of watch_nodes.c. False if it is another line. */
static bool read_limit(struct watch_limit *limit, const struct json_value *line, const char *op)
{
    uint32_t files = 0;
    if (strcmp(op, "limit_failed") == 0) {
        if (!*limit->why)
            (void)!json_copy_text(line, "why", limit->why, sizeof limit->why, NULL);
        return true;
    }
    if (strcmp(op, "limit") == 0 && json_need_u32(line, "nodes", &limit->nodes, NULL) == 0 &&
        json_need_u32(line, "files", &files, NULL) == 0) {
        double bytes = number_of(line, "bytes") * files;
        limit->files += files;
        add_rounds(json_get(line, "write_s"), bytes, limit->writes);
        add_rounds(json_get(line, "read_s"), bytes, limit->reads);
    }
    return strcmp(op, "limit") == 0 || strcmp(op, "limit_ready") == 0;
}

/* A line of watch_join.c: a task begins, or has ended. False if it is another line. */
static bool read_task(struct watch_summary *summary, const struct json_value *line, const char *op)
{
    uint64_t start_ns = 0;
    uint32_t expected = 0;
    if (strcmp(op, "task") == 0) {
        (void)json_as_u64(json_get(line, "start_ns"), &start_ns);
        if (json_need_u32(line, "tasks", &expected, NULL) == 0 && expected > summary->expected)
            summary->expected = expected;
        if (summary->tasks++ == 0 || start_ns < summary->started_wall_ns)
            summary->started_wall_ns = start_ns;
        (void)!json_copy_text(line, "command", summary->command, sizeof summary->command, NULL);
        return true;
    }
    if (strcmp(op, "task_end") != 0)
        return read_limit(&summary->limit, line, op);
    summary->ended++;
    uint64_t end_ns = 0;
    summary->was_asked = summary->was_asked || is_true(line, "asked");
    summary->was_late = summary->was_late || is_true(line, "late");
    if (json_as_u64(json_get(line, "end_ns"), &end_ns) && end_ns > summary->ended_wall_ns)
        summary->ended_wall_ns = end_ns;
    if (!*summary->failure && json_copy_text(line, "failure", summary->failure, sizeof summary->failure, NULL))
        snprintf(summary->failure, sizeof summary->failure, "a command failed");
    return true;
}

static void add_process(struct reading *self, uint32_t rank)
{
    self->processes++;
    self->at_work++;
    self->ranks_with_process += self->told[rank].process ? 0 : 1;
    self->told[rank].process = true;
}

static int read_line(struct reading *self, const struct json_value *line, struct cb_err *err)
{
    const char *op = "", *text = "", *torch = "", *program = "";
    uint32_t rank, world;
    uint64_t at_ns = 0;
    if (json_as_text(json_get(line, "op"), &op) && read_task(self->summary, line, op))
        return 0;
    if (json_need_u32(line, "rank", &rank, NULL) || json_need_u32(line, "world", &world, NULL) || rank >= world ||
        world > RANKS_MOST || !json_as_text(json_get(line, "op"), &op)) {
        self->malformed++;
        return 0;
    }
    bool has_text = json_as_text(json_get(line, "text"), &text);
    self->world = world > self->world ? world : self->world;
    self->told[rank].anything = true;
    if (json_as_u64(json_get(line, "start_ns"), &at_ns) && at_ns > 0) {
        double seconds = number_of(line, "op_s");
        uint64_t end_ns = at_ns + (uint64_t)(seconds < SECONDS_MOST ? seconds * NS_PER_S : 0);
        self->first_ns = !self->first_ns || at_ns < self->first_ns ? at_ns : self->first_ns;
        self->last_ns = end_ns > self->last_ns ? end_ns : self->last_ns;
    }
    if (strcmp(op, "save") == 0 || strcmp(op, "load") == 0)
        return add_seen(self, line, rank, *op == 's' ? OP_SAVE : OP_LOAD, err);
    if (strcmp(op, "process") == 0 && json_as_text(json_get(line, "torch"), &torch)) {
        add_process(self, rank);
        snprintf(self->program, sizeof self->program, "torch %s", torch);
    } else if (strcmp(op, "process") == 0 && json_as_text(json_get(line, "program"), &program)) {
        add_process(self, rank);
        snprintf(self->program, sizeof self->program, "%s", program);
    } else if (strcmp(op, "end") == 0) {
        self->at_work -= self->at_work ? 1 : 0;
    } else if (strcmp(op, "step_alone") == 0 || strcmp(op, "step_behind") == 0) {
        size_t which = strcmp(op, "step_alone") == 0 ? 0 : 1;
        self->step_s[which] += number_of(line, "op_s");
        self->step_ranks[which]++;
    } else if (strcmp(op, "broken") == 0 && has_text && !*self->broken)
        snprintf(self->broken, sizeof self->broken, "%s", text);
    else if (strcmp(op, "warning") == 0 && has_text)
        return add_warning(self, text, err);
    return 0;
}

/* A file that cannot be read is left out, and the others count. If it is a task's, that task has ended: tasks share a lock
 * while they run, and who seals holds it alone. */
static void skip_file(struct reading *self, const char *name, const char *why)
{
    if (self->unreadable++ == 0)
        snprintf(self->first_unreadable, sizeof self->first_unreadable, "%.100s (%.140s)", name, why);
    if (!watch_file_is_task(name))
        return;
    self->summary->tasks++;
    self->summary->ended++;
    snprintf(self->summary->unreadable, sizeof self->summary->unreadable, "%s", self->first_unreadable);
}

static int read_file(struct reading *self, const char *path, struct cb_err *err)
{
    struct buf text;
    struct stat about;
    struct cb_err why = {0};
    const char *name = strrchr(path, '/') + 1;
    buf_init(&text, FILE_MAX_BYTES);
    int rc = 0;
    if (lstat(path, &about) != 0 || !S_ISREG(about.st_mode)) /* reading a pipe would never end */
        skip_file(self, name, "it is no regular file");
    else if (buf_read_file(&text, path, &why))
        skip_file(self, name, why.message);
    const char *end = text.data ? text.data + text.len : NULL;
    self->at_work = 0;
    for (const char *at = text.data; rc == 0 && at < end && !self->was_stopped;) { /* a crash may leave NUL bytes */
        self->was_stopped = foreground_requests() > self->requests;
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((newline ? newline : end) - at);
        struct json_value *line = NULL;
        if (json_parse(at, len, &line, NULL) == 0)
            rc = read_line(self, line, err);
        else
            self->malformed++;
        json_value_free(line);
        at += len + (newline ? 1 : 0);
    }
    self->unfinished += self->at_work ? 1 : 0;
    buf_release(&text);
    return rc;
}

static int note_host(struct reading *self, const char *name, struct cb_err *err)
{
    struct watch_summary *summary = self->summary;
    for (self->host = 0; self->host < summary->share_count; self->host++)
        if (watch_file_is_of_host(name, summary->shares[self->host].host))
            return 0;
    int rc = alloc_grow(&summary->shares, summary->share_count, sizeof *summary->shares, err);
    if (rc)
        return rc;
    summary->shares[self->host] = (struct watch_share){.host = strndup(name, watch_file_host_length(name))};
    if (!summary->shares[self->host].host)
        return alloc_fail(err, "for a machine");
    summary->share_count++;
    summary->has_several_hosts = summary->share_count > 1;
    return 0;
}

static int read_folder(struct reading *self, const char *folder, struct cb_err *err)
{
    DIR *entries = opendir(folder);
    int rc = entries ? 0 : cb_fail_errno(err, errno, "reading the folder %s", folder);
    for (struct dirent *entry; !rc && !self->was_stopped && (entry = readdir(entries));) {
        char path[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        rc = note_host(self, entry->d_name, err);
        self->files++;
        self->summary->processes += watch_file_is_task(entry->d_name) ? 0 : 1;
        if (!rc)
            rc = path_format(path, sizeof path, err, "%s/%s", folder, entry->d_name);
        if (!rc)
            rc = read_file(self, path, err);
    }
    if (entries)
        closedir(entries);
    return rc;
}

/* ---- iterations ---- */

static int compare_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_by_path(const struct seen *a, const struct seen *b)
{
    int order = compare_numbers(a->op, b->op);
    return order ? order : strcmp(a->path, b->path);
}

static int by_rank(const void *x, const void *y)
{
    const struct seen *a = x, *b = y;
    int order = compare_by_path(a, b);
    order = order ? order : compare_numbers(a->rank, b->rank);
    return order ? order : compare_numbers(a->start_ns, b->start_ns);
}

static int by_occurrence(const void *x, const void *y)
{
    const struct seen *a = x, *b = y;
    int order = compare_by_path(a, b);
    return order ? order : compare_numbers(a->occurrence, b->occurrence);
}

static int by_start(const void *x, const void *y)
{
    const struct seen *a = x, *b = y;
    int order = compare_numbers(a->op, b->op);
    order = order ? order : compare_numbers(a->start_ns, b->start_ns);
    order = order ? order : by_occurrence(x, y);
    return order ? order : compare_numbers(a->rank, b->rank);
}

/* Leaves out files saved in one piece where there are other saves and loads. */
static void leave_out_whole_files(struct reading *self)
{
    size_t others = 0, kept = 0;
    for (size_t i = 0; i < self->count; i++)
        others += self->seen[i].is_whole_file ? 0 : 1;
    for (size_t i = 0; others && i < self->count; i++) {
        struct seen *seen = &self->seen[i];
        if (seen->is_whole_file) {
            self->left_out++;
            self->left_out_bytes += seen->sample.values[METRIC_BYTES_MOVED];
            self->left_out_s += seen->sample.values[METRIC_OP_S];
            free(seen->path);
        } else
            self->seen[kept++] = *seen;
    }
    self->count = others ? kept : self->count;
}

static int by_rank_and_start(const void *x, const void *y)
{
    const struct seen *a = x, *b = y;
    int order = compare_numbers(a->rank, b->rank);
    return order ? order : compare_numbers(a->start_ns, b->start_ns);
}

static uint64_t end_of(const struct seen *seen)
{
    double op_s = seen->sample.values[METRIC_OP_S];
    return seen->start_ns + (op_s < MOST / 1e9 ? (uint64_t)(op_s * 1e9) : 0);
}

/* One rank's values must come from one process at a time: a mean of two would be nobody's. If several processes claim a
 * rank at the same time, the one that began first counts. */
static int leave_out_claims(struct reading *self, struct cb_err *err)
{
    bool *claims = calloc(self->files + 1, sizeof *claims);
    size_t kept = 0, claimed = 0;
    char text[256];
    if (!claims)
        return alloc_fail(err, "for %u processes", self->files);
    if (self->count > 0)
        qsort(self->seen, self->count, sizeof *self->seen, by_rank_and_start);
    for (size_t i = 0, last = 0; i < self->count; i++) {
        const struct seen *seen = &self->seen[i], *before = &self->seen[last];
        if (seen->is_child)
            continue;
        if (i > 0 && !before->is_child && seen->rank == before->rank && seen->process != before->process &&
            seen->start_ns < end_of(before))
            claims[seen->process] = true;
        else if (i == 0 || seen->rank != before->rank || !claims[seen->process])
            last = i;
    }
    for (size_t i = 0; i < self->count; i++) {
        if (claims[self->seen[i].process]) {
            snprintf(text, sizeof text,
                     "several processes say at the same time that they are rank %u: only what the first of them saved "
                     "and loaded is counted (RANK and WORLD_SIZE, or the process group, tell who is who)",
                     self->seen[i].rank);
            claimed++;
            free(self->seen[i].path);
        } else
            self->seen[kept++] = self->seen[i];
    }
    self->count = kept;
    free(claims);
    return claimed ? add_warning(self, text, err) : 0;
}

/* The n-th save of a path on each rank belongs to one iteration; iterations are numbered by when they began. */
static void number_iterations(struct reading *self)
{
    struct seen *seen = self->seen;
    size_t count = self->count, end;
    if (count == 0)
        return;
    qsort(seen, count, sizeof *seen, by_rank);
    for (size_t i = 1; i < count; i++)
        if (compare_by_path(&seen[i], &seen[i - 1]) == 0 && seen[i].rank == seen[i - 1].rank)
            seen[i].occurrence = seen[i - 1].occurrence + 1;
    qsort(seen, count, sizeof *seen, by_occurrence);
    for (size_t first = 0; first < count; first = end) {
        uint64_t start_ns = seen[first].start_ns;
        for (end = first; end < count && by_occurrence(&seen[first], &seen[end]) == 0; end++)
            start_ns = seen[end].start_ns < start_ns ? seen[end].start_ns : start_ns;
        for (size_t i = first; i < end; i++)
            seen[i].start_ns = start_ns;
    }
    qsort(seen, count, sizeof *seen, by_start);
    for (size_t i = 0; i < count; i++) {
        bool is_first = i == 0 || by_occurrence(&seen[i - 1], &seen[i]) != 0;
        bool is_of_op = i > 0 && seen[i].op == seen[i - 1].op;
        seen[i].iteration = is_of_op ? seen[i - 1].iteration + (is_first ? 1 : 0) : 1;
        self->counted[seen[i].op] += is_first ? 1 : 0;
    }
}

/* ---- pages ---- */

/* Gives ranks their pages: all ranks, unless these are many more than have reported. Then the program's other nodes do
 * not see the folder, or a line is wrong; only ranks that have reported get a page, in their order. */
static void number_pages(struct reading *self)
{
    uint32_t reported = 0;
    for (uint32_t rank = 0; rank < self->world; rank++)
        reported += self->told[rank].anything ? 1 : 0;
    bool has_all = reported == 0 || self->world / reported <= RANKS_FOR_ONE;
    for (uint32_t rank = 0; rank < self->world; rank++)
        if (has_all || self->told[rank].anything)
            self->told[rank].page = self->page_count++;
    for (size_t i = 0; i < self->count; i++)
        self->seen[i].rank = self->told[self->seen[i].rank].page;
}

static void publish(struct status_page *page, const struct seen *seen, const struct sample *values)
{
    struct sample *sample = status_page_begin_sample(page);
    if (!sample)
        return; /* the capacity is the number of iterations, so this does not happen */
    *sample = *values;
    sample->op = seen->op;
    sample->iteration = seen->iteration;
    status_page_publish_sample(page);
}

/* A rank that had no part in a save: it lost no time and moved no bytes; whether it was slow cannot be asked. */
static void make_absent(struct sample *sample)
{
    *sample = (struct sample){0};
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    static const enum metric_id nothing[] = {METRIC_OP_S, METRIC_BYTES_NEEDED, METRIC_BYTES_MOVED, METRIC_REQUESTS,
                                             METRIC_CPU_S};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        sample->values[nothing[i]] = 0;
    for (unsigned state = 0; state < STATE_COUNT; state++)
        if (state != STATE_BACKOFF)
            sample->values[metric_of_state((enum rank_state)state)] = 0;
}

static void fill_iteration(const struct pages *pages, const struct seen *seen, size_t count)
{
    struct sample absent;
    size_t next = 0;
    make_absent(&absent);
    absent.flags = seen->sample.flags & SAMPLE_COLDNESS_UNKNOWN;
    for (uint32_t rank = 0; rank < pages->count; rank++) {
        bool has = next < count && seen[next].rank == rank;
        publish(pages->page[rank], seen, has ? &seen[next].sample : &absent);
        next += has ? 1 : 0;
    }
}

/* Sums over the ranks of the last save. */
static void fill_checkpoint(struct watch_summary *summary, struct status_page *page, const struct seen *seen,
                            size_t count)
{
    static const enum metric_id values[] = {METRIC_CHECKPOINT_BYTES, METRIC_CHECKPOINT_STORED_BYTES,
                                            METRIC_CHECKPOINT_FILES};
    double sums[3] = {0};
    uint32_t writers = 0;
    for (size_t i = 0; i < summary->share_count; i++)
        summary->shares[i].bytes = summary->shares[i].writers = 0;
    for (size_t i = 0; i < count; i++) {
        struct watch_share *share = &summary->shares[seen[i].host];
        sums[0] += seen[i].sample.values[METRIC_BYTES_NEEDED];
        sums[1] += seen[i].sample.values[METRIC_BYTES_MOVED];
        sums[2] += seen[i].files;
        if (!(seen[i].sample.values[METRIC_BYTES_MOVED] > 0))
            continue;
        share->bytes += seen[i].sample.values[METRIC_BYTES_MOVED];
        share->writers++;
        writers++;
    }
    for (size_t i = 0; i < 3; i++)
        page->run_values[values[i]] = sums[i];
    summary->bytes = sums[1];
    summary->writers = writers;
}

static void fill_samples(struct reading *self, const struct pages *pages)
{
    size_t end;
    for (size_t first = 0; first < self->count; first = end) {
        const struct seen *seen = &self->seen[first];
        bool failed = false;
        for (end = first;
             end < self->count && self->seen[end].op == seen->op && self->seen[end].iteration == seen->iteration;
             end++) {
            failed = failed || self->seen[end].sample.flags & SAMPLE_FAILED;
            if (!self->why[seen->op] && *self->seen[end].why)
                self->why[seen->op] = self->seen[end].why;
        }
        fill_iteration(pages, seen, end - first);
        self->failed[seen->op] += failed ? 1 : 0;
        self->asynchronous += seen->is_asynchronous ? 1 : 0;
        if (seen->op == OP_SAVE && !failed)
            fill_checkpoint(self->summary, pages->page[0], seen, end - first);
        if (seen->op == OP_SAVE && *seen->path && (!failed || !*self->summary->place)) {
            const char *slash = seen->is_whole_file ? NULL : strrchr(seen->path, '/');
            int len = slash ? (int)(slash - seen->path) : (int)strlen(seen->path);
            snprintf(self->summary->place, sizeof self->summary->place, "%.*s", len, seen->path);
        }
    }
}

static void add_fact(struct status_page *page, const char *key, const char *format, ...) CB_PRINTF(3, 4);
static void add_fact(struct status_page *page, const char *key, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    status_page_add_fact(page, key, text);
}

static void add_numbered(struct status_page *page, const char *prefix, size_t number, const char *text)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%zu", prefix, number);
    status_page_add_fact(page, key, text);
}

/* Where the checkpoints are, and the file system there: in the history, runs of a program are compared over time only if
 * they save to the same one. The folder itself may have another name in each run. */
static void add_place(struct status_page *page, const char *place)
{
    struct buf mounts;
    struct mount mount;
    buf_init(&mounts, MOUNTS_MAX_BYTES);
    add_fact(page, "watch.place", "%s", place);
    if (*place == '/' && buf_read_file(&mounts, "/proc/self/mountinfo", NULL) == 0 &&
        probe_parse_mount(mounts.data, place, &mount))
        add_fact(page, "watch.mount", "%s", mount.place);
    buf_release(&mounts);
}

static void describe(const struct reading *self, struct status_page *page)
{
    const uint32_t *counted = self->counted, *failed = self->failed;
    char bytes[32], time[32];
    char text[640];
    size_t unseen = 0;
    if (self->processes == 0 && self->count == 0 && !*self->broken && !self->unreadable) {
        add_numbered(page, "watch.unseen", 1, "no Python process that imported torch (python -I and -E load no hooks)");
        return;
    }
    snprintf(text, sizeof text, " (%u asynchronous)", self->asynchronous);
    add_fact(page, "watch.seen", "%u rank%s of %s: %u save%s%s, %u load%s", self->world, units_plural(self->world),
             *self->program ? self->program : "torch ?", counted[OP_SAVE], units_plural(counted[OP_SAVE]),
             self->asynchronous ? text : "", counted[OP_LOAD], units_plural(counted[OP_LOAD]));
    if (self->left_out)
        add_fact(page, "watch.left_out", "%u file%s saved or loaded in one piece: %s in %s", self->left_out,
                 units_plural(self->left_out), units_format_bytes(self->left_out_bytes, bytes),
                 units_format_duration(self->left_out_s * 1e9, time));
    if (counted[OP_SAVE])
        add_place(page, self->summary->place);
    if (*self->calls[OP_SAVE])
        add_fact(page, "watch.save_calls", "%s", self->calls[OP_SAVE]);
    if (*self->calls[OP_LOAD])
        add_fact(page, "watch.load_calls", "%s", self->calls[OP_LOAD]);
    for (size_t i = 0; i < self->warning_count; i++)
        add_numbered(page, "watch.warning", i + 1, self->warnings[i]);
    for (enum operation op = OP_SAVE; op <= OP_LOAD; op++) {
        snprintf(text, sizeof text, "%u of %u %s%s failed%s%s", failed[op], counted[op], operation_name(op),
                 units_plural(counted[op]), self->why[op] ? ": " : "", self->why[op] ? self->why[op] : "");
        if (failed[op])
            add_numbered(page, "watch.warning", self->warning_count + op, text);
    }
    snprintf(text, sizeof text, "what came after a hook had failed: %s", self->broken);
    if (*self->broken)
        add_numbered(page, "watch.unseen", ++unseen, text);
    snprintf(text, sizeof text, "%u line%s that a process did not finish", self->malformed,
             units_plural(self->malformed));
    if (self->malformed)
        add_numbered(page, "watch.unseen", ++unseen, text);
    snprintf(text, sizeof text, "what is in %u file%s that cannot be read: %s%s", self->unreadable,
             units_plural(self->unreadable), self->first_unreadable, self->unreadable > 1 ? ", …" : "");
    if (self->unreadable)
        add_numbered(page, "watch.unseen", ++unseen, text);
    snprintf(text, sizeof text, "all of %u ranks: only %u process%s reported (all nodes must share the run folder)",
             self->world, self->summary->processes, self->summary->processes == 1 ? "" : "es");
    if (self->summary->lacks_ranks)
        add_numbered(page, "watch.unseen", ++unseen, text);
    snprintf(text, sizeof text, "any of %u ranks but %u, which are numbered from 0 here, in their order", self->world,
             self->page_count);
    if (self->page_count < self->world)
        add_numbered(page, "watch.unseen", ++unseen, text);
    if (self->was_stopped)
        add_numbered(page, "watch.unseen", ++unseen,
                     "the rest of the lines: a request to end arrived while they were read");
}

static void fill_pages(struct reading *self, const struct pages *pages)
{
    static const enum metric_id steps[] = {METRIC_STEP_ALONE_S, METRIC_STEP_BEHIND_S};
    fill_samples(self, pages);
    describe(self, pages->page[0]);
    for (size_t i = 0; i < 2; i++)
        if (self->step_ranks[i])
            pages->page[0]->run_values[steps[i]] = self->step_s[i] / self->step_ranks[i];
    for (uint32_t rank = 0; rank < pages->count; rank++)
        atomic_store(&pages->page[rank]->phase, (uint32_t)PHASE_DONE);
}

int watch_lines_read(struct attempt *attempt, const char *folder, struct watch_summary *summary, struct cb_err *err)
{
    struct reading reading = {.world = 1, .requests = foreground_requests(), .summary = summary};
    *summary = (struct watch_summary){0};
    reading.told = calloc(RANKS_MOST, sizeof *reading.told);
    int rc = reading.told ? read_folder(&reading, folder, err) : alloc_fail(err, "for ranks");
    if (!rc)
        rc = leave_out_claims(&reading, err);
    if (!rc) {
        leave_out_whole_files(&reading);
        number_pages(&reading);
        number_iterations(&reading);
        attempt->ranks = reading.page_count;
        summary->saves = reading.counted[OP_SAVE];
        summary->loads = reading.counted[OP_LOAD];
        summary->lacks_ranks = summary->processes < reading.world && reading.processes > 0;
        uint32_t samples = reading.counted[OP_SAVE] + reading.counted[OP_LOAD];
        /* in memory of our own: no rank maps them, and /dev/shm may be small */
        rc = pages_create_head(&attempt->pages, "", -1, 1, reading.page_count, samples ? samples : 1, err);
    }
    if (!rc)
        fill_pages(&reading, &attempt->pages);
    if (!rc && !attempt->started_wall_ns) {
        attempt->started_wall_ns = reading.first_ns;
        attempt->ended_wall_ns = reading.last_ns;
    }
    summary->all_reported =
        reading.ranks_with_process >= reading.world && reading.unfinished == 0 && reading.unreadable == 0;
    summary->was_stopped = reading.was_stopped;
    release(&reading);
    return rc;
}

void watch_summary_release(struct watch_summary *summary)
{
    for (size_t i = 0; i < summary->share_count; i++)
        free(summary->shares[i].host);
    free(summary->shares);
    summary->shares = NULL;
    summary->share_count = 0;
}
