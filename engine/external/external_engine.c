/* Shared by the engines that run another process. */
#include "engine/external/external_engine.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "engine/external/child_activity.h"
#include "engine/older_checkpoint.h"

#define WAIT_SLICE_NS (100 * NS_PER_MS)
#define GRACE_NS (2 * NS_PER_S)
#define LAST_LINE_BYTES 512

static int check_owner(const struct engine_setup *setup, struct cb_err *err)
{
    return setup->check_owner ? setup->check_owner(setup->folder, err) : 0;
}

static int prepare_folder(struct external_operation *self, struct cb_err *err)
{
    if (self->sample->op != OP_SAVE || comm_rank(self->setup->comm) != 0)
        return 0;
    int rc = check_owner(self->setup, err);
    if (!rc)
        rc = store_make_folder(self->setup->plain, self->name, err);
    if (!rc)
        rc = older_checkpoint_uncommit(self->setup->plain, self->name, err);
    if (!rc && self->setup->config.replaces)
        rc = older_checkpoint_remove_files(self->setup->plain, self->name, true, err);
    return rc;
}

int external_begin(struct external_operation *self, const struct engine_setup *setup, const char *path, uint64_t bytes,
                   const struct engine_options *options, struct sample *sample, int code, struct cb_err *err)
{
    struct status_page *page = setup->page;
    memset(self, 0, sizeof *self);
    self->setup = setup;
    self->options = options;
    self->sample = sample;
    self->name = path;
    int length = snprintf(self->path, sizeof self->path, "%s/%s", setup->store_path, path);
    if (!code && (length < 0 || (size_t)length >= sizeof self->path))
        code = cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", setup->store_path, path);
    if (!code)
        code = prepare_folder(self, err);
    int rc = agree(setup->comm, code, options->deadline_ns, err);
    if (rc)
        return rc;
    atomic_store_explicit(&page->iteration, options->iteration, memory_order_relaxed);
    atomic_store_explicit(&page->bytes_done, 0, memory_order_relaxed);
    atomic_store_explicit(&page->bytes_total, bytes, memory_order_relaxed);
    timeline_start(&self->timeline, page, (enum operation)sample->op, STATE_OTHER);
    uint64_t never = 0;
    atomic_compare_exchange_strong(&page->first_operation_ns, &never, self->timeline.start_ns);
    return 0;
}

int external_end(struct external_operation *self, int code, struct cb_err *err)
{
    timeline_own_done(&self->timeline);
    timeline_enter(&self->timeline, STATE_WAIT);
    if (!code && self->sample->op == OP_SAVE && comm_rank(self->setup->comm) == 0)
        code = check_owner(self->setup, err); /* too late to prevent: the other process has committed */
    int rc = agree(self->setup->comm, code, self->options->deadline_ns, err);
    timeline_stop(&self->timeline);
    timeline_fill(&self->timeline, self->sample);
    return rc;
}

int external_join(struct external_operation *self, int code, struct cb_err *err)
{
    return agree(self->setup->comm, code, self->options->deadline_ns, err);
}

void external_attribute(struct sample *sample, enum metric_id metric, double seconds)
{
    double other = sample->values[METRIC_OTHER_S];
    if (!(seconds >= 0))
        return;
    seconds = seconds < other ? seconds : other;
    sample->values[METRIC_OTHER_S] = other - seconds;
    sample->values[metric] += seconds;
}

/* The child's output is kept in memory, so it must be limited. */
static int check_output(const int fds[EXTERNAL_OUTPUTS], struct cb_err *err)
{
    for (size_t i = 0; i < EXTERNAL_OUTPUTS; i++) {
        struct stat found;
        if (fstat(fds[i], &found) == 0 && found.st_size > EXTERNAL_OUTPUT_MAX_BYTES)
            return cb_fail(err, CB_ERR_USAGE, "the command wrote more than %d MiB of output: send it to /dev/null",
                           EXTERNAL_OUTPUT_MAX_BYTES >> 20);
    }
    return 0;
}

int external_wait(const struct external_operation *operation, struct child *child,
                  const int output_fds[EXTERNAL_OUTPUTS], struct cb_err *err)
{
    uint64_t deadline_ns = operation->options->deadline_ns;
    struct child_activity activity = {0};
    for (;;) {
        uint64_t slice_ns = clock_monotonic_ns() + WAIT_SLICE_NS;
        int rc = child_wait(child, slice_ns < deadline_ns ? slice_ns : deadline_ns, err);
        if (rc != CB_ERR_TIMEOUT)
            return rc;
        child_activity_look(&activity, child->pid, operation->setup->page, clock_monotonic_ns());
        rc = comm_check(operation->setup->comm, err);
        if (!rc)
            rc = check_output(output_fds, err);
        if (!rc && clock_monotonic_ns() >= deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "process %d did not end in time", (int)child->pid);
        if (rc) {
            child_end(child, GRACE_NS);
            return rc;
        }
    }
}

char *external_last_line(int fd, char text[LAST_LINE_BYTES])
{
    char tail[LAST_LINE_BYTES];
    struct stat found;
    text[0] = '\0';
    if (fstat(fd, &found) != 0)
        return text;
    off_t start = found.st_size > (off_t)sizeof tail - 1 ? found.st_size - ((off_t)sizeof tail - 1) : 0;
    ssize_t len = pread(fd, tail, sizeof tail - 1, start);
    while (len > 0 && (tail[len - 1] == '\n' || tail[len - 1] == '\r' || tail[len - 1] == ' '))
        len--;
    if (len <= 0)
        return text;
    tail[len] = '\0';
    const char *feed = strrchr(tail, '\n');
    snprintf(text, LAST_LINE_BYTES, "%s", feed ? feed + 1 : tail);
    return text;
}
