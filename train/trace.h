/* Timeline of a rank, as Chrome trace events (JSON for TensorBoard's profiler page and Perfetto).
 *
 * Four tracks, each written by one thread at a time and allocated once, so recording an event costs a few stores.
 * Events are recorded between trace_start and trace_stop; events that do not fit are counted. Times come from the
 * monotonic clock and are written as microseconds since trace_start, which all ranks call together. */
#ifndef TRAIN_TRACE_H
#define TRAIN_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "engine/device_plugin.h"

enum trace_track { TRACE_COMPUTE, TRACE_COMM, TRACE_IO, TRACE_H2D, TRACE_TRACKS };

#define TRACE_NAME_BYTES 32
#define TRACE_ACTIVITIES_MOST 1000000
#define TRACE_STREAMS_MOST 64
#define TRACE_FILE_ENDING ".pt.trace.json"

struct trace_event {
    char name[TRACE_NAME_BYTES];
    uint64_t start_ns, end_ns, step;
    uint64_t bytes; /* bytes moved; 0 if none */
    bool marked;    /* both times are marks of a device */
};

/* A kernel or copy of a device. */
struct trace_activity {
    char name[96];
    uint64_t start_ns, end_ns, bytes;
    uint32_t stream; /* its index in `streams` of the trace */
    bool is_copy;
};

struct trace_counter {
    uint64_t at_ns, bytes;
};

struct trace {
    const char *backend; /* what ranks exchange with, for readers of the file; NULL is "mpi" */
    struct trace_event *events[TRACE_TRACKS];
    uint64_t counts[TRACE_TRACKS], capacity; /* of each track */
    uint64_t timed[TRACE_TRACKS];            /* events at the beginning of a track whose times are known */
    struct trace_activity *activities;       /* grows */
    uint64_t activity_count;
    uint32_t streams[TRACE_STREAMS_MOST], stream_count;
    struct trace_counter *memory; /* resident bytes; on the compute track */
    uint64_t memory_count;
    uint64_t start_ns, stop_ns;
    _Atomic bool active;
    _Atomic uint64_t dropped, step;
};

/* A trace without capacity records nothing and needs no memory. */
int trace_init(struct trace *self, uint64_t capacity, struct cb_err *err) CB_MUST_CHECK;
void trace_release(struct trace *self);

void trace_start(struct trace *self, uint64_t now_ns);
void trace_stop(struct trace *self, uint64_t now_ns);
bool trace_is_active(const struct trace *self);
/* Later events belong to this step. */
void trace_begin_step(struct trace *self, uint64_t step);

void trace_add(struct trace *self, enum trace_track track, const char *name, uint64_t start_ns, uint64_t end_ns,
               uint64_t bytes);
/* The same with a number after the name: "forward 3". */
void trace_add_numbered(struct trace *self, enum trace_track track, const char *name, uint64_t number,
                        uint64_t start_ns, uint64_t end_ns, uint64_t bytes);
/* The same for work that is queued on a device: its times are marks, and the event counts once trace_take_times has replaced
 * them. */
void trace_add_marked(struct trace *self, enum trace_track track, const char *name, uint64_t number,
                      uint64_t first_mark, uint64_t last_mark, uint64_t bytes);
/* Replaces all marks by the device's times. Call when everything queued is done, and before the next begin_marks: an event
 * whose time the device does not know is dropped and counted. Not while another thread adds events of a device. */
void trace_take_times(struct trace *self, struct device *device);
/* A kernel or copy, in any order, also after trace_stop. Each stream is a track of its own below the others. */
void trace_add_activity(struct trace *self, const struct device_activity *activity);
/* Ends the step that trace_begin_step began, as an event in the form that readers of PyTorch's traces expect. */
void trace_add_step(struct trace *self, uint64_t start_ns, uint64_t end_ns);
void trace_add_memory(struct trace *self, uint64_t at_ns, uint64_t bytes);

/* Writes FOLDER/rank-R.pt.trace.json, creating the folder if needed. Call after trace_stop. */
int trace_write(const struct trace *self, const char *folder, uint32_t rank, uint32_t ranks,
                struct cb_err *err) CB_MUST_CHECK;

#endif
