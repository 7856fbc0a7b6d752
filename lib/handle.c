/* The calls of include/ckptbench.h that open and close a handle, and how its ranks meet. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/agree.h"
#include "comm/comm_callbacks.h"
#include "comm/comm_tcp.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/sigpipe.h"
#include "lib/errors.h"
#include "lib/keys.h"
#include "lib/library.h"

#define HOST_MOST 150
#define OPTIONS_WITHOUT_MESSAGES offsetof(struct ckptbench_open_options, messages) /* programs built before */
#define KEY_DIGITS (2 * CHANNEL_KEY_BYTES)

/* --- how ranks meet --- */

struct ckptbench_listener {
    int fd;
    uint16_t port;
    struct channel_key key;
};

static int listen_for_ranks(const char *host, struct ckptbench_listener **listener,
                            char meeting[CKPTBENCH_MEETING_BYTES], struct cb_err *err)
{
    char own[HOST_MOST + 1] = "", digits[KEY_DIGITS + 1];
    int fd = -1;
    if (!host && gethostname(own, sizeof own - 1) != 0)
        return cb_fail(err, CB_ERR_SYSTEM, "the name of this machine is too long");
    host = host ? host : own;
    if (!*host || strlen(host) > HOST_MOST || strpbrk(host, " \t\n\v\f\r"))
        return cb_fail(err, CB_ERR_USAGE, "'%.200s' is no name of a machine", host);
    struct ckptbench_listener *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to listen for other ranks");
    channel_key_new(&self->key);
    int rc = channel_listen(0, &fd, &self->port, err);
    if (!rc && fd == 0) { /* where standard input was closed; 0 means no socket below */
        self->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        close(fd);
        rc = self->fd < 0 ? cb_fail(err, CB_ERR_SYSTEM, "no descriptor is left to listen for other ranks") : 0;
    } else if (!rc) {
        self->fd = fd;
    }
    if (rc) {
        free(self);
        return rc;
    }
    hash_hex(self->key.bytes, sizeof self->key.bytes, digits);
    snprintf(meeting, CKPTBENCH_MEETING_BYTES, "%s %u %s", host, self->port, digits);
    *listener = self;
    return 0;
}

int ckptbench_listen(const char *host, ckptbench_listener **listener, char meeting[CKPTBENCH_MEETING_BYTES],
                     struct ckptbench_error *error)
{
    struct cb_err err = {0};
    return errors_report(listen_for_ranks(host, listener, meeting, &err), &err, error);
}

void ckptbench_listener_free(ckptbench_listener *listener)
{
    if (!listener)
        return;
    if (listener->fd > 0)
        close(listener->fd);
    free(listener);
}

/* Reads "HOST PORT KEY". */
static int read_meeting(const char *meeting, char host[HOST_MOST + 1], struct comm_tcp_place *place, struct cb_err *err)
{
    char digits[KEY_DIGITS + 1];
    unsigned port = 0;
    int used = 0;
    _Static_assert(HOST_MOST == 150 && KEY_DIGITS == 64, "the lengths below");
    if (!meeting || sscanf(meeting, "%150s %5u %64[0-9a-f]%n", host, &port, digits, &used) != 3 || meeting[used] ||
        strlen(digits) != KEY_DIGITS || port == 0 || port > UINT16_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the text of the meeting is not one that ckptbench_listen wrote");
    for (size_t i = 0; i < CHANNEL_KEY_BYTES; i++) {
        char two[3] = {digits[2 * i], digits[2 * i + 1], '\0'};
        place->key.bytes[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    place->address = host;
    place->port = (uint16_t)port;
    return 0;
}

static int use_messages(ckptbench *self, const struct ckptbench_open_options *options, struct cb_err *err)
{
    const struct ckptbench_messages *messages = options->messages;
    if (messages->struct_bytes != sizeof *messages || !messages->send || !messages->receive || !messages->test)
        return cb_fail(err, CB_ERR_USAGE, "struct ckptbench_messages lacks a function, or its struct_bytes is wrong");
    if (options->listener || options->meeting)
        return cb_fail(err, CB_ERR_USAGE, "ranks meet through a listener, or by messages of the program: not both");
    const struct comm_callbacks callbacks = {messages->context, messages->send, messages->receive, messages->test};
    return comm_callbacks_new(&callbacks, options->rank, options->rank_count, &self->comm, err);
}

static int connect_ranks(ckptbench *self, const struct ckptbench_open_options *options, uint64_t deadline_ns,
                         struct cb_err *err)
{
    char host[HOST_MOST + 1] = "localhost";
    struct comm_tcp_place place = {
        .rank = options->rank, .size = options->rank_count, .address = host, .is_listening = true};
    struct ckptbench_listener *listener = options->listener;
    int rc = 0;
    if (listener && options->rank != 0) {
        rc = cb_fail(err, CB_ERR_USAGE, "rank %u has a listener, which is rank 0's alone", options->rank);
    } else if (listener) {
        place.port = listener->port;
        place.key = listener->key;
    } else if (options->rank_count == 1) {
        channel_key_new(&place.key);
    } else if (options->rank == 0) {
        rc = cb_fail(err, CB_ERR_USAGE, "rank 0 of several ranks needs a listener");
    } else {
        rc = read_meeting(options->meeting, host, &place, err);
    }
    if (rc)
        return rc;
    if (listener) {
        place.listening_fd = listener->fd;
        listener->fd = 0;
    }
    return comm_tcp_new(&place, deadline_ns, &self->comm, err);
}

/* --- opening and closing --- */

/* Its share of the machine's cores, unless it is bound to fewer. */
static uint32_t cores_of_rank(const ckptbench *self)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t ranks = comm_local_size(self->comm), allowed = device_host_cores();
    uint32_t share = online > 0 ? ((uint32_t)online + ranks - 1) / ranks : 1;
    return share < allowed ? share : allowed;
}

static int make_handle(const struct ckptbench_open_options *given, ckptbench *self, struct cb_err *err)
{
    struct ckptbench_open_options own = {0}, *options = &own;
    if (given->struct_bytes != sizeof own && given->struct_bytes != OPTIONS_WITHOUT_MESSAGES)
        return cb_fail(err, CB_ERR_USAGE, "the options' struct_bytes is not their size in any version");
    memcpy(options, given, given->struct_bytes);
    if (options->rank >= options->rank_count)
        return cb_fail(err, CB_ERR_USAGE, "there is no rank %u of %u", options->rank, options->rank_count);
    self->allows_different_values = options->allows_different_values != 0;
    self->page = calloc(1, status_page_bytes(0));
    if (!self->page)
        return alloc_fail(err, "for a handle");
    status_page_fill(self->page, options->rank, options->rank_count, 0);
    const char *record = NULL, *asked = getenv("CKPTBENCH_RUN");
    int rc = keys_read(options->words, options->word_count, &self->experiment, &record, err);
    if (!rc) {
        self->record = strdup(record ? record : asked ? asked : "");
        rc = self->record ? 0 : alloc_fail(err, "for a handle");
    }
    if (rc && (options->rank_count == 1 || !self->experiment))
        return rc;
    /* A rank that fails meets the others all the same, to tell them. */
    uint64_t deadline_ns = library_deadline(self);
    struct cb_err unused, *why = rc ? &unused : err;
    int met = options->messages ? use_messages(self, options, why) : connect_ranks(self, options, deadline_ns, why);
    if (met)
        return rc ? rc : met;
    if (!rc) {
        self->cores = cores_of_rank(self);
        rc = device_host_open(self->cores, &self->device, err);
    }
    return agree(self->comm, rc, deadline_ns, err);
}

static void free_handle(ckptbench *self)
{
    comm_free(self->async_comm);
    comm_free(self->comm);
    if (self->device)
        device_close(self->device);
    free(self->page);
    free(self->record);
    experiment_free(self->experiment);
    packing_release(&self->packing);
    gpu_close(&self->gpu);
    tables_release(&self->saved);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

int ckptbench_open(const struct ckptbench_open_options *options, ckptbench **handle, struct ckptbench_error *error)
{
    struct sigpipe_guard guard;
    struct cb_err err = {0};
    ckptbench *self = calloc(1, sizeof *self);
    if (!self) {
        ckptbench_listener_free(options->listener);
        return errors_report(alloc_fail(&err, "for a handle"), &err, error);
    }
    sigpipe_block(&guard);
    pthread_mutex_init(&self->lock, NULL);
    tables_init(&self->saved);
    int rc = make_handle(options, self, &err);
    ckptbench_listener_free(options->listener);
    if (rc)
        free_handle(self);
    else
        *handle = self;
    sigpipe_restore(&guard);
    return errors_report(rc, &err, error);
}

int ckptbench_timeout(const char *const *words, size_t word_count, double *seconds, struct ckptbench_error *error)
{
    struct experiment *experiment = NULL;
    struct cb_err err = {0};
    const char *record;
    int rc = keys_read(words, word_count, &experiment, &record, &err);
    if (!rc)
        *seconds = (double)experiment_u64(experiment, OPT_TIMEOUT_OP) / 1e9;
    experiment_free(experiment);
    return errors_report(rc, &err, error);
}

int ckptbench_close(ckptbench *handle, struct ckptbench_error *error)
{
    struct sigpipe_guard guard;
    bool closed = true;
    if (!handle) {
        if (error)
            *error = (struct ckptbench_error){0};
        return 0;
    }
    pthread_mutex_lock(&handle->lock);
    sigpipe_block(&guard);
    int rc = library_stop(handle, &closed, error);
    pthread_mutex_unlock(&handle->lock);
    if (closed)
        free_handle(handle);
    sigpipe_restore(&guard);
    return rc;
}
