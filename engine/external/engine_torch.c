/* engine=torch-dcp and torch-native: PyTorch DCP, or ckptbench.checkpoint inside PyTorch, saves and loads the same state
 * with the same layout at the same place, in one long-lived Python process for each rank
 * (engine/external/torch_adapter.h). The process maps our memory file with the state, so values and verification are the
 * same as for the native engine. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/process.h"
#include "engine/external/external_engine.h"
#include "engine/external/torch_adapter.h"

#define LAYOUT_MAX_BYTES (UINT64_C(1) << 32)
#define START_TIMEOUT_NS (120 * NS_PER_S) /* importing torch from a cold disk, all ranks at once */
#define QUIT_GRACE_NS (2 * NS_PER_S)
#define KNOWN_STATES 2 /* a rank's own, and the shifted one */

/* The address of PyTorch's process group. */
struct meeting {
    char address[256];
    uint32_t port;
};

struct known_state {
    const struct state *state;
    int layout_fd;
};

/* The asynchronous save; PyTorch supports one at a time. */
struct async_save {
    int ended_fd; /* a memory file of 8 bytes in which the Python process counts finished saves */
    uint64_t begun;
    bool in_flight; /* not yet waited for */
    struct sample *sample;
    struct timeline timeline; /* until the stall's end */
    bool durable;
    char path[PATH_MAX];
    struct cb_err failure; /* code != 0: not reported yet */
};

struct torch_engine {
    struct engine base;
    struct engine_setup setup;
    struct torch_adapter adapter;
    struct known_state known[KNOWN_STATES];
    size_t known_count;
    bool started;
    struct async_save async;
};

static bool is_native(const struct torch_engine *self)
{
    return self->base.ops == &engine_torch_native_ops;
}

/* --- starting --- */

static int choose_meeting(struct torch_engine *self, struct meeting *meeting, struct cb_err *err)
{
    bool one_machine = comm_local_size(self->setup.comm) == comm_size(self->setup.comm);
    if (one_machine)
        snprintf(meeting->address, sizeof meeting->address, "127.0.0.1");
    else if (gethostname(meeting->address, sizeof meeting->address - 1))
        return cb_fail_errno(err, errno, "finding this machine's name");
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t len = sizeof place;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return cb_fail_errno(err, errno, "finding a free port");
    int rc = 0;
    if (bind(fd, (struct sockaddr *)&place, len) || getsockname(fd, (struct sockaddr *)&place, &len))
        rc = cb_fail_errno(err, errno, "finding a free port");
    close(fd);
    meeting->port = ntohs(place.sin_port);
    return rc;
}

/* The options of the S3 connector; null if the store is not a bucket. */
static void write_bucket(struct json_writer *writer, const struct engine_config *config, struct store *store)
{
    json_write_key(writer, "s3");
    if (store_capabilities(store)->part_bytes == 0) {
        json_write_null(writer);
        return;
    }
    json_write_begin_object(writer);
    json_member_text(writer, "endpoint", config->s3_endpoint);
    json_member_text(writer, "region", config->s3_region);
    json_member_text(writer, "profile", config->s3_profile);
    json_member_text(writer, "path_style", config->s3_path_style);
    json_member_u64(writer, "part_size", config->s3_part_bytes);
    json_write_end_object(writer);
}

static void write_fd_path(struct json_writer *writer, const char *key, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
    json_member_text(writer, key, path);
}

static int make_ended_file(struct torch_engine *self, struct cb_err *err)
{
    static const uint64_t none = 0;
    self->async.ended_fd = memfd_create("ckptbench-ended", MFD_CLOEXEC);
    if (self->async.ended_fd < 0 || pwrite(self->async.ended_fd, &none, sizeof none, 0) != (ssize_t)sizeof none)
        return cb_fail_errno(err, errno, "a memory file for Python");
    return 0;
}

static int send_init(struct torch_engine *self, const struct meeting *meeting, struct cb_err *err)
{
    const struct engine_config *config = &self->setup.config;
    char programs[PATH_MAX];
    struct json_writer writer;
    process_folder(programs);
    torch_adapter_begin(&self->adapter, &writer, "init");
    json_member_u64(&writer, "rank", comm_rank(self->setup.comm));
    json_member_u64(&writer, "ranks", comm_size(self->setup.comm));
    json_member_text(&writer, "address", meeting->address);
    json_member_u64(&writer, "port", meeting->port);
    json_member_u64(&writer, "threads", config->threads);
    json_member_bool(&writer, "fsync", config->fsync);
    json_member_text(&writer, "dedup", config->dedup);
    json_member_text(&writer, "async", config->torch_async);
    write_fd_path(&writer, "ended", self->async.ended_fd);
    json_member_u64(&writer, "timeout_s", config->timeout_ns / NS_PER_S + 1);
    json_member_text(&writer, "words", config->library_words);
    json_member_text(&writer, "programs", programs);
    json_member_text(&writer, "run_folder", self->setup.run_folder);
    write_bucket(&writer, config, self->setup.plain);
    struct torch_answer answer;
    int rc = torch_adapter_ask(&self->adapter, &writer, clock_monotonic_ns() + START_TIMEOUT_NS, &answer, err);
    if (rc)
        return rc;
    char text[128];
    snprintf(text, sizeof text, "PyTorch %s, %s", answer.version,
             is_native(self) ? "ckptbench.checkpoint" : "torch.distributed.checkpoint over gloo");
    status_page_add_fact(self->setup.page, "io.used", text);
    return 0;
}

/* Starts Python and its process group, once, outside of any timing. Collective. */
static int start(struct torch_engine *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct meeting meeting = {0};
    struct comm *comm = self->setup.comm;
    if (self->started)
        return 0;
    int rc = torch_adapter_start(&self->adapter, err);
    if (!rc)
        rc = make_ended_file(self, err);
    if (!rc && comm_rank(comm) == 0)
        rc = choose_meeting(self, &meeting, err);
    rc = agree(comm, rc, deadline_ns, err);
    if (!rc)
        rc = comm_broadcast(comm, &meeting, sizeof meeting, deadline_ns, err);
    if (rc)
        return rc;
    rc = agree(comm, send_init(self, &meeting, err), deadline_ns, err);
    self->started = rc == 0;
    return rc;
}

/* --- passing it the state --- */

static void write_numbers(struct json_writer *writer, const char *key, uint32_t count, const uint64_t *numbers)
{
    json_write_key(writer, key);
    json_write_begin_array(writer);
    for (uint32_t i = 0; i < count; i++)
        json_write_u64(writer, numbers[i]);
    json_write_end_array(writer);
}

static void write_layout(const struct state *state, struct buf *out)
{
    struct json_writer writer;
    json_writer_init(&writer, out, 0);
    json_write_begin_object(&writer);
    json_write_key(&writer, "tensors");
    json_write_begin_array(&writer);
    for (size_t i = 0; i < state->piece_count; i++) {
        const struct piece *piece = &state->pieces[i];
        const struct state_tensor *tensor = layout_tensor(state->layout, piece->tensor);
        if (tensor->kind == KIND_BYTES)
            continue;
        json_write_begin_object(&writer);
        json_member_text(&writer, "fqn", tensor->fqn);
        json_member_text(&writer, "dtype", dtype_torch_name(tensor->dtype));
        write_numbers(&writer, "shape", tensor->dims, tensor->shape);
        write_numbers(&writer, "offsets", piece->region.dims, piece->region.offset);
        write_numbers(&writer, "sizes", piece->region.dims, piece->region.size);
        json_member_u64(&writer, "at", (uint64_t)((char *)state->memory[i] - (char *)state->base));
        json_write_end_object(&writer);
    }
    json_write_end_array(&writer);
    json_write_key(&writer, "objects");
    json_write_begin_object(&writer);
    for (size_t i = 0; i < layout_tensor_count(state->layout); i++) {
        const struct state_tensor *tensor = layout_tensor(state->layout, i);
        if (tensor->kind != KIND_BYTES)
            continue;
        json_member_text(&writer, tensor->fqn, tensor->literal);
    }
    json_write_end_object(&writer);
    json_write_end_object(&writer);
}

static int make_layout_file(const struct state *state, int *fd, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, LAYOUT_MAX_BYTES);
    write_layout(state, &text);
    int rc = buf_check(&text, "the layout for Python", err);
    int file = rc ? -1 : memfd_create("ckptbench-layout", MFD_CLOEXEC);
    if (!rc && file < 0)
        rc = cb_fail_errno(err, errno, "a memory file for the layout");
    for (size_t done = 0; !rc && done < text.len;) {
        ssize_t len = write(file, text.data + done, text.len - done);
        if (len < 0)
            rc = cb_fail_errno(err, errno, "writing the layout for Python");
        else
            done += (size_t)len;
    }
    buf_release(&text);
    if (rc && file >= 0)
        close(file);
    if (!rc)
        *fd = file;
    return rc;
}

/* The state's name in the Python process, to which the state is described on first use. */
static int introduce(struct torch_engine *self, const struct state *state, uint64_t deadline_ns, char name[16],
                     struct cb_err *err)
{
    size_t index = 0;
    while (index < self->known_count && self->known[index].state != state)
        index++;
    snprintf(name, 16, "%zu", index);
    if (index < self->known_count)
        return 0;
    if (index == KNOWN_STATES)
        return cb_fail(err, CB_ERR_INTERNAL, "more states than engine=%s keeps", self->base.ops->name);
    int layout_fd = -1;
    int rc = make_layout_file(state, &layout_fd, err);
    if (rc)
        return rc;
    self->known[index] = (struct known_state){.state = state, .layout_fd = layout_fd};
    self->known_count++;
    struct json_writer writer;
    torch_adapter_begin(&self->adapter, &writer, "state");
    json_member_text(&writer, "name", name);
    write_fd_path(&writer, "memory", state->shared_fd);
    write_fd_path(&writer, "layout", layout_fd);
    return torch_adapter_ask(&self->adapter, &writer, deadline_ns, NULL, err);
}

/* --- operations --- */

static int request_operation(struct torch_engine *self, const struct external_operation *operation, const char *command,
                             const char *name, struct torch_answer *answer, struct cb_err *err)
{
    struct json_writer writer;
    torch_adapter_begin(&self->adapter, &writer, command);
    json_member_text(&writer, "name", name);
    json_member_text(&writer, "path", operation->path);
    int rc = torch_adapter_ask(&self->adapter, &writer, operation->options->deadline_ns, answer, err);
    return rc ? cb_context(err, "%s", operation->path) : 0;
}

/* Copies values that only the Python process knows: parts of the time, CPU, memory, bytes after PyTorch's
 * deduplication. */
static void take_answer(const struct torch_answer *answer, const struct state *state, struct sample *sample)
{
    external_attribute(sample, METRIC_PLAN_S, answer->plan_s);
    external_attribute(sample, METRIC_IO_S, answer->io_s);
    external_attribute(sample, METRIC_COMMIT_S, answer->commit_s);
    external_attribute(sample, METRIC_WAIT_S, answer->wait_s);
    sample->values[METRIC_CPU_S] = answer->cpu_s;
    sample->values[METRIC_RSS_BYTES] = answer->rss_bytes;
    sample->values[METRIC_BYTES_MOVED] = answer->bytes;
    sample->values[METRIC_BYTES_NEEDED] = sample->op == OP_SAVE ? answer->bytes : (double)state->bytes;
}

static int run_operation(struct engine *engine, const char *path, struct state *state,
                         const struct engine_options *options, struct sample *sample, struct cb_err *err)
{
    struct torch_engine *self = (struct torch_engine *)engine;
    struct external_operation operation;
    struct torch_answer answer;
    char name[16];
    int rc = start(self, options->deadline_ns, err);
    if (rc)
        return rc;
    rc = introduce(self, state, options->deadline_ns, name, err);
    rc = external_begin(&operation, &self->setup, path, state->bytes, options, sample, rc, err);
    if (rc)
        return rc;
    rc = request_operation(self, &operation, operation_name((enum operation)sample->op), name, &answer, err);
    rc = external_end(&operation, rc, err);
    if (rc)
        return rc;
    take_answer(&answer, state, sample);
    if (sample->op == OP_SAVE && self->setup.config.fsync)
        sample->values[METRIC_DURABLE_S] = sample->values[METRIC_OP_S];
    return 0;
}

/* --- asynchronous saves --- */

/* Waits for the save in flight; keeps its failure for the next call that returns failures. */
static void collect(struct torch_engine *self, uint64_t deadline_ns)
{
    struct async_save *async = &self->async;
    struct sample *sample = async->sample;
    struct json_writer writer;
    struct torch_answer answer;
    if (!async->in_flight)
        return;
    torch_adapter_begin(&self->adapter, &writer, "wait");
    int rc = torch_adapter_ask(&self->adapter, &writer, deadline_ns, &answer, &async->failure);
    async->in_flight = false;
    if (rc) {
        cb_context(&async->failure, "saving %s behind, rank %u", async->path, comm_rank(self->setup.comm));
        sample->flags |= SAMPLE_FAILED;
        return;
    }
    double op_s = answer.ended_s - (double)async->timeline.start_ns / 1e9;
    for (int state = 0; state < STATE_COUNT; state++)
        sample->values[metric_of_state((enum rank_state)state)] = 0;
    sample->values[METRIC_OP_S] = sample->values[METRIC_OWN_S] = sample->values[METRIC_OTHER_S] = op_s;
    sample->values[METRIC_PERSIST_S] = op_s - sample->values[METRIC_STALL_S];
    if (async->durable)
        sample->values[METRIC_DURABLE_S] = op_s;
    take_answer(&answer, NULL, sample);
    sample->values[METRIC_CPU_S] = answer.save_cpu_s;
}

static int tell(struct torch_engine *self, struct cb_err *err)
{
    int rc = self->async.failure.code;
    if (rc && err)
        *err = self->async.failure;
    self->async.failure.code = 0;
    return rc;
}

static int torch_wait(struct engine *engine, uint64_t deadline_ns, struct cb_err *err)
{
    struct torch_engine *self = (struct torch_engine *)engine;
    collect(self, deadline_ns);
    return tell(self, err);
}

static uint32_t torch_under_way(struct engine *engine)
{
    struct torch_engine *self = (struct torch_engine *)engine;
    uint64_t ended = 0;
    if (!self->async.in_flight)
        return 0;
    if (pread(self->async.ended_fd, &ended, sizeof ended, 0) != (ssize_t)sizeof ended || ended < self->async.begun)
        return 1;
    collect(self, clock_monotonic_ns() + QUIT_GRACE_NS); /* its answer has arrived already */
    return 0;
}

static bool torch_stop(struct engine *engine)
{
    (void)engine; /* the process is killed when the engine is freed */
    return true;
}

static int save_async(struct torch_engine *self, const char *path, struct state *state,
                      const struct engine_options *options, struct sample *sample, struct cb_err *err)
{
    struct async_save *async = &self->async;
    struct external_operation operation;
    char name[16];
    int rc = start(self, options->deadline_ns, err);
    if (rc)
        return rc;
    rc = introduce(self, state, options->deadline_ns, name, err);
    rc = external_begin(&operation, &self->setup, path, state->bytes, options, sample, rc, err);
    if (rc)
        return rc;
    collect(self, options->deadline_ns);
    rc = tell(self, err);
    double waited_s = (double)(clock_monotonic_ns() - operation.timeline.start_ns) / 1e9;
    if (!rc)
        rc = request_operation(self, &operation, "save_async", name, NULL, err);
    double stall_s = (double)timeline_stop(&operation.timeline) / 1e9;
    if (rc)
        return rc;
    sample->values[METRIC_STALL_WAIT_S] = waited_s;
    sample->values[METRIC_STALL_S] = stall_s;
    async->in_flight = true;
    async->begun++;
    async->sample = sample;
    async->timeline = operation.timeline;
    async->durable = self->setup.config.fsync;
    snprintf(async->path, sizeof async->path, "%s", path);
    return 0;
}

static int torch_save(struct engine *engine, const char *path, struct state *state,
                      const struct engine_options *options, struct sample *sample, struct cb_err *err)
{
    struct torch_engine *self = (struct torch_engine *)engine;
    return options->async ? save_async(self, path, state, options, sample, err)
                          : run_operation(engine, path, state, options, sample, err);
}

static int open_engine(const struct engine_setup *setup, const struct engine_ops *ops, struct engine **engine,
                       struct cb_err *err)
{
    if (strcmp(setup->config.format, "dcp") != 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "engine=%s writes format=dcp only", ops->name);
    struct torch_engine *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the engine");
    self->base.ops = ops;
    self->setup = *setup;
    self->async.ended_fd = -1;
    torch_adapter_init(&self->adapter, ops->name, setup->comm, setup->page);
    *engine = &self->base;
    return 0;
}

static int dcp_open(const struct engine_setup *setup, struct engine **engine, struct cb_err *err)
{
    const struct engine_config *config = &setup->config;
    if (strcmp(config->dedup, "none") == 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "PyTorch DCP always deduplicates: engine=torch-dcp cannot do save.dedup=none");
    if (config->inflight > 1 || config->staging_bytes > 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "PyTorch's async_save copies all of the state and has one save under way: engine=torch-dcp "
                       "cannot do save.inflight or save.staging_bytes");
    return open_engine(setup, &engine_torch_ops, engine, err);
}

static int native_open(const struct engine_setup *setup, struct engine **engine, struct cb_err *err)
{
    if (setup->config.inflight > 1)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "libckptbench has one save under way: engine=torch-native cannot do save.inflight");
    return open_engine(setup, &engine_torch_native_ops, engine, err);
}

static void torch_close(struct engine *engine)
{
    struct torch_engine *self = (struct torch_engine *)engine;
    torch_adapter_end(&self->adapter);
    if (self->async.ended_fd >= 0)
        close(self->async.ended_fd);
    for (size_t i = 0; i < self->known_count; i++)
        close(self->known[i].layout_fd);
    free(self);
}

#define OPERATIONS                                                                                                     \
    .save = torch_save, .load = run_operation, .wait = torch_wait, .under_way = torch_under_way, .stop = torch_stop,   \
    .close = torch_close
const struct engine_ops engine_torch_ops = {.name = "torch-dcp", .open = dcp_open, OPERATIONS};
const struct engine_ops engine_torch_native_ops = {.name = "torch-native", .open = native_open, OPERATIONS};
