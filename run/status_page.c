/* Status pages: files in node-local memory that rank and agent map. */
#include "run/status_page.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"

/* An agent beats several times a second; after this much silence it is considered gone. */
#define HEARTBEAT_LIMIT_NS (10 * NS_PER_S)

#define LINE_MAX_BYTES 2048     /* limit of one failure or fact; longer ones are truncated */
#define TAIL_BYTES 64           /* reserved for the line "… and N more" of a full text */
#define SAMPLES_PER_ITERATION 4 /* save, load, verify, delete */
#define SAMPLES_PER_RUN 16      /* baselines, and verification and removal after all timed operations */
#define SAMPLES_WITH_DURATION 16384
#define MORE_PREFIX "… and "

const char *timed_kind_name(uint32_t kind)
{
    static const char *const names[] = {
        [REQUEST_WRITE] = "write", [REQUEST_READ] = "read", [REQUEST_FINISH] = "fsync", [TIMED_BACKOFF] = "backoff"};
    return kind < TIMED_KINDS ? names[kind] : "?";
}

uint64_t status_page_bytes(uint32_t sample_capacity)
{
    return sizeof(struct status_page) + (uint64_t)sample_capacity * sizeof(struct sample);
}

int status_page_path(const char *folder, uint32_t rank, char *path, size_t path_bytes, struct cb_err *err)
{
    int length = snprintf(path, path_bytes, "%s/rank-%u.page", folder, rank);
    if (length < 0 || (size_t)length >= path_bytes)
        return cb_fail(err, CB_ERR_USAGE, "the folder of status pages has too long a name: %s", folder);
    return 0;
}

uint32_t status_page_samples(uint64_t iterations, uint64_t warmup, bool has_duration)
{
    uint64_t count = (iterations + warmup) * SAMPLES_PER_ITERATION + SAMPLES_PER_RUN;
    if (has_duration && count < SAMPLES_WITH_DURATION)
        count = SAMPLES_WITH_DURATION;
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

void status_page_fill(struct status_page *page, uint32_t rank, uint32_t world_size, uint32_t sample_capacity)
{
    page->version = STATUS_PAGE_VERSION;
    page->rank = rank;
    page->world_size = world_size;
    page->sample_capacity = sample_capacity;
    page->size_bytes = status_page_bytes(sample_capacity);
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        page->run_values[i] = NAN;
    page->magic = STATUS_PAGE_MAGIC;
}

static int map_page(int fd, uint64_t bytes, const char *path, struct status_page **page, struct cb_err *err)
{
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (place == MAP_FAILED)
        return cb_fail_errno(err, errno, "mapping the status page %s", path);
    *page = place;
    return 0;
}

int status_page_create(const char *path, uint32_t rank, uint32_t world_size, uint32_t sample_capacity,
                       struct status_page **page, struct cb_err *err)
{
    uint64_t bytes = status_page_bytes(sample_capacity);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating the status page %s", path);
    struct status_page *mapped = NULL;
    int rc = 0;
    int failed = posix_fallocate(fd, 0, (off_t)bytes); /* allocates now, so that no store raises SIGBUS later */
    if (failed)
        rc = cb_fail_errno(err, failed, "reserving %llu bytes for the status page %s", (unsigned long long)bytes, path);
    else
        rc = map_page(fd, bytes, path, &mapped, err);
    close(fd);
    if (rc) {
        unlink(path);
        return rc;
    }
    status_page_fill(mapped, rank, world_size, sample_capacity);
    for (unsigned op = 0; op < OP_COUNT; op++) {
        histogram_init(&mapped->latency[op]);
        histogram_init(&mapped->ttfb[op]);
    }
    *page = mapped;
    return 0;
}

static int check_page(const struct status_page *page, uint64_t bytes, const char *path, struct cb_err *err)
{
    if (page->magic != STATUS_PAGE_MAGIC)
        return cb_fail(err, CB_ERR_FORMAT, "%s is not a status page", path);
    if (page->version != STATUS_PAGE_VERSION)
        return cb_fail(err, CB_ERR_FORMAT,
                       "the status page %s has version %u, this program has %u: use agent and worker of one release",
                       path, page->version, STATUS_PAGE_VERSION);
    if (page->size_bytes != bytes || status_page_bytes(page->sample_capacity) != bytes)
        return cb_fail(err, CB_ERR_FORMAT,
                       "the status page %s has another layout (%llu bytes for %u samples): use agent and worker of one "
                       "release",
                       path, (unsigned long long)bytes, page->sample_capacity);
    return 0;
}

int status_page_open(const char *path, struct status_page **page, struct cb_err *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening the status page %s", path);
    struct stat facts;
    struct status_page *mapped = NULL;
    int rc = 0;
    if (fstat(fd, &facts) < 0)
        rc = cb_fail_errno(err, errno, "looking at the status page %s", path);
    else if ((uint64_t)facts.st_size < sizeof *mapped)
        rc = cb_fail(err, CB_ERR_FORMAT, "%s is not a status page: it has only %lld bytes", path,
                     (long long)facts.st_size);
    else
        rc = map_page(fd, (uint64_t)facts.st_size, path, &mapped, err);
    close(fd);
    if (rc)
        return rc;
    rc = check_page(mapped, (uint64_t)facts.st_size, path, err);
    if (rc) {
        munmap(mapped, (size_t)facts.st_size);
        return rc;
    }
    *page = mapped;
    return 0;
}

void status_page_close(struct status_page *page)
{
    if (page)
        munmap(page, page->size_bytes);
}

void status_page_enter(struct status_page *page, enum operation op, enum rank_state state, uint64_t now_ns)
{
    atomic_store_explicit(&page->op, op, memory_order_relaxed);
    atomic_store_explicit(&page->state, state, memory_order_relaxed);
    atomic_store_explicit(&page->progress_ns, now_ns, memory_order_relaxed);
}

void status_page_enter_behind(struct status_page *page, enum operation op, enum rank_state state, uint64_t now_ns)
{
    atomic_store_explicit(&page->behind_op, op, memory_order_relaxed);
    atomic_store_explicit(&page->behind_state, state, memory_order_relaxed);
    atomic_store_explicit(&page->progress_ns, now_ns, memory_order_relaxed);
}

struct sample *status_page_begin_sample(struct status_page *page)
{
    uint32_t count = atomic_load_explicit(&page->sample_count, memory_order_relaxed);
    if (count >= page->sample_capacity)
        return NULL;
    struct sample *sample = &page->samples[count];
    memset(sample, 0, sizeof *sample);
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    return sample;
}

void status_page_publish_sample(struct status_page *page)
{
    atomic_fetch_add_explicit(&page->sample_count, 1, memory_order_release);
}

/* Copies `text` as one line: control characters become spaces, and a line feed ends it. */
static size_t make_line(char line[LINE_MAX_BYTES], const char *text)
{
    size_t len = 0;
    for (; text[len] && len < LINE_MAX_BYTES - 1; len++)
        line[len] = (unsigned char)text[len] < ' ' ? ' ' : text[len];
    line[len++] = '\n';
    return len;
}

/* Offset of the last line "… and N more", and its N; false if the text does not end with such a line. */
static bool find_more(const char *text, uint32_t used, uint32_t *start, unsigned long *more)
{
    if (used == 0)
        return false;
    uint32_t first = used - 1;
    while (first > 0 && text[first - 1] != '\n')
        first--;
    if (strncmp(text + first, MORE_PREFIX, strlen(MORE_PREFIX)) != 0)
        return false;
    *start = first;
    *more = strtoul(text + first + strlen(MORE_PREFIX), NULL, 10);
    return true;
}

/* Appends a line; once the text is full, counts it in the last line "… and N more". */
static void append_line(char *text, _Atomic uint32_t *length, const char *line, size_t len)
{
    uint32_t used = atomic_load_explicit(length, memory_order_relaxed);
    unsigned long more = 0;
    uint32_t start = used;
    if (!find_more(text, used, &start, &more) && used + len <= STATUS_PAGE_TEXT_BYTES - TAIL_BYTES)
        memcpy(text + start, line, len);
    else
        len = (size_t)snprintf(text + start, TAIL_BYTES, MORE_PREFIX "%lu more\n", more + 1);
    atomic_store_explicit(length, start + (uint32_t)len, memory_order_release);
}

void status_page_add_failure(struct status_page *page, int code, const char *text)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&page->failure_code, &none, (uint32_t)-code);
    atomic_fetch_add(&page->wrong_bytes, code == CB_ERR_CORRUPT ? 1 : 0);
    char line[LINE_MAX_BYTES];
    size_t len = make_line(line, text);
    append_line(page->failures, &page->failure_length, line, len);
}

void status_page_forgive(struct status_page *page)
{
    atomic_store_explicit(&page->failure_code, 0, memory_order_relaxed);
    atomic_store_explicit(&page->failure_length, 0, memory_order_release);
}

void status_page_pass_over(struct status_page *page, const char *text)
{
    char line[LINE_MAX_BYTES];
    atomic_store_explicit(&page->failure_code, 0, memory_order_relaxed);
    atomic_store_explicit(&page->failure_length, atomic_load(&page->passed_length), memory_order_release);
    if (text)
        append_line(page->failures, &page->failure_length, line, make_line(line, text));
    atomic_store(&page->passed_length, atomic_load(&page->failure_length));
}

void status_page_add_fact(struct status_page *page, const char *key, const char *value)
{
    char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
    snprintf(text, sizeof text, "%s=%s", key, value);
    size_t len = make_line(line, text);
    append_line(page->facts, &page->facts_length, line, len);
}

int status_page_check(const void *page, struct cb_err *err)
{
    const struct status_page *self = page;
    if (atomic_load_explicit(&self->stop, memory_order_relaxed) == STOP_NOW)
        return cb_fail(err, CB_ERR_ABORTED, "stopped on request");
    uint64_t beat_ns = atomic_load_explicit(&self->agent_heartbeat_ns, memory_order_relaxed);
    uint64_t now_ns = clock_monotonic_ns();
    if (beat_ns && now_ns > beat_ns + HEARTBEAT_LIMIT_NS)
        return cb_fail(err, CB_ERR_ABORTED, "the agent has been silent for %" PRIu64 " s: leaving",
                       (now_ns - beat_ns) / NS_PER_S);
    return 0;
}
