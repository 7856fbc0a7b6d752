/* Traces: records events and writes them as JSON. */
#include "train/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/json.h"
#include "core/path.h"

#define MOST_BYTES (UINT64_C(1) << 30) /* of a file */
#define PATH_BYTES 4096

static const char *const track_names[TRACE_TRACKS] = {"compute", "comm", "io", "h2d"};
/* TensorBoard's profiler page recognises steps by this name. */
#define STEP_NAME "ProfilerStep#"
/* Perfetto treats thread 0 as the main thread of the process: tracks are numbered from 1. */
#define FIRST_THREAD 1
static const char *const categories[TRACE_TRACKS] = {"kernel", "communication", "io", "gpu_memcpy"};

int trace_init(struct trace *self, uint64_t capacity, struct cb_err *err)
{
    memset(self, 0, sizeof *self);
    if (capacity == 0)
        return 0;
    self->capacity = capacity;
    self->memory = calloc(capacity, sizeof *self->memory);
    bool all = self->memory != NULL;
    for (int track = 0; track < TRACE_TRACKS; track++) {
        self->events[track] = calloc(capacity, sizeof *self->events[track]);
        all = all && self->events[track];
    }
    if (all)
        return 0;
    trace_release(self);
    return alloc_fail(err, "for a trace of %llu events: trace fewer steps", (unsigned long long)capacity);
}

void trace_release(struct trace *self)
{
    for (int track = 0; track < TRACE_TRACKS; track++)
        free(self->events[track]);
    free(self->memory);
    free(self->activities);
    memset(self, 0, sizeof *self);
}

void trace_start(struct trace *self, uint64_t now_ns)
{
    self->start_ns = now_ns;
    self->active = self->capacity > 0;
}

void trace_stop(struct trace *self, uint64_t now_ns)
{
    self->stop_ns = now_ns;
    self->active = false;
}

bool trace_is_active(const struct trace *self)
{
    return self->active;
}

void trace_begin_step(struct trace *self, uint64_t step)
{
    self->step = step;
}

/* The place of the next event; NULL if the track is full. */
static struct trace_event *next_event(struct trace *self, enum trace_track track, const char *name)
{
    if (self->counts[track] == self->capacity) {
        self->dropped++;
        return NULL;
    }
    struct trace_event *event = &self->events[track][self->counts[track]++];
    *event = (struct trace_event){.step = self->step};
    snprintf(event->name, sizeof event->name, "%s", name);
    return event;
}

static struct trace_event *add_event(struct trace *self, enum trace_track track, const char *name, uint64_t start,
                                     uint64_t end, uint64_t bytes)
{
    struct trace_event *event = next_event(self, track, name);
    if (event) {
        event->start_ns = start;
        event->end_ns = end;
        event->bytes = bytes;
    }
    return event;
}

void trace_add(struct trace *self, enum trace_track track, const char *name, uint64_t start_ns, uint64_t end_ns,
               uint64_t bytes)
{
    if (self->active && start_ns >= self->start_ns) /* else it began before the trace did */
        (void)add_event(self, track, name, start_ns, end_ns, bytes);
}

#define NUMBERED "%.20s %llu"

void trace_add_numbered(struct trace *self, enum trace_track track, const char *name, uint64_t number,
                        uint64_t start_ns, uint64_t end_ns, uint64_t bytes)
{
    char text[TRACE_NAME_BYTES];
    if (!self->active)
        return;
    snprintf(text, sizeof text, NUMBERED, name, (unsigned long long)number);
    trace_add(self, track, text, start_ns, end_ns, bytes);
}

void trace_add_marked(struct trace *self, enum trace_track track, const char *name, uint64_t number,
                      uint64_t first_mark, uint64_t last_mark, uint64_t bytes)
{
    char text[TRACE_NAME_BYTES];
    if (!self->active)
        return;
    snprintf(text, sizeof text, NUMBERED, name, (unsigned long long)number);
    struct trace_event *event = add_event(self, track, text, first_mark, last_mark, bytes);
    if (event)
        event->marked = true;
}

static bool take_time(struct device *device, uint64_t *mark)
{
    struct cb_err unknown;
    return device->ops->mark_ns(device, *mark, mark, &unknown) == 0;
}

void trace_take_times(struct trace *self, struct device *device)
{
    for (int track = 0; track < TRACE_TRACKS; track++) {
        struct trace_event *events = self->events[track];
        uint64_t kept = self->timed[track];
        for (uint64_t i = kept; i < self->counts[track]; i++) {
            struct trace_event *event = &events[i];
            bool known = !event->marked || (take_time(device, &event->start_ns) && take_time(device, &event->end_ns));
            event->marked = false;
            if (known)
                events[kept++] = *event;
            self->dropped += known ? 0 : 1;
        }
        self->timed[track] = self->counts[track] = kept;
    }
}

static bool find_stream(struct trace *self, uint32_t stream, uint32_t *index)
{
    for (*index = 0; *index < self->stream_count; ++*index)
        if (self->streams[*index] == stream)
            return true;
    if (self->stream_count == TRACE_STREAMS_MOST)
        return false;
    self->streams[self->stream_count++] = stream;
    return true;
}

void trace_add_activity(struct trace *self, const struct device_activity *activity)
{
    struct cb_err full;
    uint32_t stream;
    if (activity->start_ns < self->start_ns) /* it began before the trace did */
        return;
    if (self->activity_count == TRACE_ACTIVITIES_MOST || !find_stream(self, activity->stream, &stream) ||
        alloc_grow(&self->activities, self->activity_count, sizeof *self->activities, &full)) {
        self->dropped++;
        return;
    }
    struct trace_activity *kept = &self->activities[self->activity_count++];
    *kept = (struct trace_activity){.start_ns = activity->start_ns,
                                    .end_ns = activity->end_ns,
                                    .bytes = activity->bytes,
                                    .stream = stream,
                                    .is_copy = activity->kind == DEVICE_COPY};
    snprintf(kept->name, sizeof kept->name, "%s", activity->name);
}

void trace_add_step(struct trace *self, uint64_t start_ns, uint64_t end_ns)
{
    char text[TRACE_NAME_BYTES];
    if (!self->active)
        return;
    snprintf(text, sizeof text, STEP_NAME "%llu", (unsigned long long)self->step);
    trace_add(self, TRACE_COMPUTE, text, start_ns, end_ns, 0);
}

void trace_add_memory(struct trace *self, uint64_t at_ns, uint64_t bytes)
{
    if (!self->active)
        return;
    if (self->memory_count == self->capacity)
        self->dropped++;
    else
        self->memory[self->memory_count++] = (struct trace_counter){at_ns, bytes};
}

/* --- writing --- */

static void member_us(struct json_writer *json, const char *key, uint64_t ns)
{
    json_member_double(json, key, (double)ns / 1e3);
}

/* "M" events: names and order of processes and threads. */
static void write_name(struct json_writer *json, uint32_t rank, uint64_t track, const char *what, const char *name)
{
    json_write_begin_object(json);
    json_member_text(json, "ph", "M");
    json_member_text(json, "name", what);
    json_member_u64(json, "pid", rank);
    json_member_u64(json, "tid", FIRST_THREAD + track);
    member_us(json, "ts", 0);
    json_write_key(json, "args");
    json_write_begin_object(json);
    if (name)
        json_member_text(json, "name", name);
    else
        json_member_u64(json, "sort_index", track);
    json_write_end_object(json);
    json_write_end_object(json);
}

static void write_names(const struct trace *self, struct json_writer *json, uint32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "rank %u", rank);
    write_name(json, rank, 0, "process_name", name);
    for (unsigned track = 0; track < TRACE_TRACKS + self->stream_count; track++) {
        if (track >= TRACE_TRACKS)
            snprintf(name, sizeof name, "stream %u", self->streams[track - TRACE_TRACKS]);
        write_name(json, rank, track, "thread_name", track < TRACE_TRACKS ? track_names[track] : name);
        write_name(json, rank, track, "thread_sort_index", NULL);
    }
}

/* The beginning of a complete event, up to the members of its "args". */
static void begin_event(struct json_writer *json, uint32_t rank, unsigned track, const char *category, const char *name,
                        uint64_t start_ns, uint64_t end_ns, uint64_t origin_ns)
{
    json_write_begin_object(json);
    json_member_text(json, "ph", "X");
    json_member_text(json, "cat", category);
    json_member_text(json, "name", name);
    json_member_u64(json, "pid", rank);
    json_member_u64(json, "tid", FIRST_THREAD + track);
    member_us(json, "ts", start_ns > origin_ns ? start_ns - origin_ns : 0);
    member_us(json, "dur", end_ns > start_ns ? end_ns - start_ns : 0);
    json_write_key(json, "args");
    json_write_begin_object(json);
    json_member_u64(json, "device", rank); /* TensorBoard's reader expects the process here */
}

static void end_event(struct json_writer *json, uint64_t bytes)
{
    if (bytes)
        json_member_u64(json, "bytes", bytes);
    json_write_end_object(json);
    json_write_end_object(json);
}

/* Where kernels and copies themselves are in the trace, stages and pieces of work are no kernels and copies to readers that add
 * them up. */
static void write_event(const struct trace *self, struct json_writer *json, uint32_t rank, unsigned track,
                        const struct trace_event *event)
{
    bool step = strncmp(event->name, STEP_NAME, strlen(STEP_NAME)) == 0;
    bool above = self->activity_count > 0 && (track == TRACE_COMPUTE || track == TRACE_H2D);
    const char *category = step ? "user_annotation" : above ? "gpu_user_annotation" : categories[track];
    begin_event(json, rank, track, category, event->name, event->start_ns, event->end_ns, self->start_ns);
    json_member_u64(json, "step", event->step);
    end_event(json, event->bytes);
}

static void write_activity(const struct trace *self, struct json_writer *json, uint32_t rank,
                           const struct trace_activity *activity)
{
    begin_event(json, rank, TRACE_TRACKS + activity->stream, activity->is_copy ? "gpu_memcpy" : "kernel",
                activity->name, activity->start_ns, activity->end_ns, self->start_ns);
    json_member_u64(json, "stream", self->streams[activity->stream]);
    end_event(json, activity->bytes);
}

static void write_counter(struct json_writer *json, uint32_t rank, const struct trace_counter *counter,
                          uint64_t origin_ns)
{
    json_write_begin_object(json);
    json_member_text(json, "ph", "C");
    json_member_text(json, "name", "memory");
    json_member_u64(json, "pid", rank);
    member_us(json, "ts", counter->at_ns - origin_ns);
    json_write_key(json, "args");
    json_write_begin_object(json);
    json_member_u64(json, "resident bytes", counter->bytes);
    json_write_end_object(json);
    json_write_end_object(json);
}

static void write_all(const struct trace *self, uint32_t rank, uint32_t ranks, struct json_writer *json)
{
    json_write_begin_object(json);
    json_member_u64(json, "schemaVersion", 1);
    json_write_key(json, "distributedInfo");
    json_write_begin_object(json);
    json_member_text(json, "backend", self->backend ? self->backend : "mpi");
    json_member_u64(json, "rank", rank);
    json_member_u64(json, "world_size", ranks);
    json_write_end_object(json);
    json_member_text(json, "displayTimeUnit", "ms");
    json_member_u64(json, "droppedEvents", self->dropped);
    json_write_key(json, "traceEvents");
    json_write_begin_array(json);
    write_names(self, json, rank);
    for (unsigned track = 0; track < TRACE_TRACKS; track++)
        for (uint64_t i = 0; i < self->counts[track]; i++)
            write_event(self, json, rank, track, &self->events[track][i]);
    for (uint64_t i = 0; i < self->activity_count; i++)
        write_activity(self, json, rank, &self->activities[i]);
    for (uint64_t i = 0; i < self->memory_count; i++)
        write_counter(json, rank, &self->memory[i], self->start_ns);
    json_write_end_array(json);
    json_write_end_object(json);
}

static int make_folders(const char *folder, struct cb_err *err)
{
    char path[PATH_BYTES];
    int len = snprintf(path, sizeof path, "%s", folder);
    if (len >= (int)sizeof path)
        return cb_fail(err, CB_ERR_USAGE, "the name %s is too long", folder);
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "making the folder %s", path);
        if (!slash)
            return 0;
        *slash = '/';
    }
}

int trace_write(const struct trace *self, const char *folder, uint32_t rank, uint32_t ranks, struct cb_err *err)
{
    char path[PATH_BYTES];
    struct json_writer json;
    struct buf text;
    if (path_format(path, sizeof path, err, "%s/rank-%u" TRACE_FILE_ENDING, folder, rank))
        return CB_ERR_USAGE;
    buf_init(&text, MOST_BYTES);
    json_writer_init(&json, &text, 0);
    write_all(self, rank, ranks, &json);
    buf_append_char(&text, '\n');
    int rc = buf_check(&text, "the trace", err);
    if (!rc)
        rc = make_folders(folder, err);
    if (!rc)
        rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}
