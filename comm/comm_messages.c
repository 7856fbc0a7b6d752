/* comm/comm.h over messages: collectives and communicators. In a collective the lowest rank receives from all others, then
 * sends them the result. */
#include "comm/comm_messages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"

#define SPLIT_SLEEP_NS (100 * NS_PER_US)
#define TAG_ALL COMM_TAGS         /* of collectives */
#define TAG_LOCAL (COMM_TAGS + 1) /* of collectives among the ranks of one machine */

struct messages_comm;
struct operation {
    struct messages_comm *comm;
    struct operation *next, *before;    /* in the list of the world */
    struct message_transfer *transfers; /* of the current step */
    uint32_t count;
    bool is_collective;
    /* On the lowest rank, after it has received from all others: computes and sends the results. */
    int (*answer)(struct operation *self, struct cb_err *err);
    void (*fold)(const struct operation *self, char *result);
    const uint32_t *members;
    uint32_t member_count, tag;
    uint64_t in_bytes, out_bytes; /* of each rank */
    char *gathered, *result;      /* member_count x in_bytes; the output of fold */
    char *out;
    bool shares_out; /* each rank gets its own part of the result */
};

struct messages_comm {
    struct comm base;
    struct message_world *world; /* owned by the first communicator, borrowed by its twins */
    uint64_t context;
    uint32_t *members; /* world ranks, in order */
    uint32_t *local;   /* the members on this machine */
    uint32_t local_count;
};

static struct messages_comm *cast(struct comm *comm)
{
    return (struct messages_comm *)comm;
}

/* Names the rank that disconnected first; others may have exited because of it. */
static int fail_gone(struct message_world *self, uint32_t rank, struct cb_err *err)
{
    if (self->rank == 0 && self->ops->tell_lost)
        self->ops->tell_lost(self, rank);
    return cb_fail(err, CB_ERR_ABORTED, "rank %u is gone: the connection to it ended",
                   self->first_gone < self->size ? self->first_gone : rank);
}

static int operation_new(struct messages_comm *comm, uint32_t transfers, struct operation **operation,
                         struct cb_err *err)
{
    struct operation *self = calloc(1, sizeof *self);
    if (self)
        self->transfers = calloc(transfers + 1, sizeof *self->transfers);
    if (!self || !self->transfers) {
        free(self);
        return alloc_fail(err, "for a message to other ranks");
    }
    self->comm = comm;
    pthread_mutex_lock(&comm->world->lock);
    self->next = comm->world->operations;
    if (self->next)
        self->next->before = self;
    comm->world->operations = self;
    pthread_mutex_unlock(&comm->world->lock);
    *operation = self;
    return 0;
}

static void operation_free(struct operation *self)
{
    struct message_world *world = self->comm->world;
    pthread_mutex_lock(&world->lock);
    *(self->before ? &self->before->next : &world->operations) = self->next;
    if (self->next)
        self->next->before = self->before;
    pthread_mutex_unlock(&world->lock);
    free(self->transfers);
    free(self->gathered);
    free(self->result);
    free(self);
}

static int add_transfer(struct operation *self, bool receives, uint32_t peer, uint32_t tag, void *bytes,
                        uint64_t length, struct cb_err *err)
{
    struct message_transfer *transfer = &self->transfers[self->count++];
    *transfer = (struct message_transfer){.context = self->comm->context,
                                          .length = length,
                                          .peer = peer,
                                          .tag = tag,
                                          .bytes = bytes,
                                          .receives = receives};
    return self->comm->world->ops->start(self->comm->world, transfer, err);
}

/* Fails if a participating rank is gone. */
static int check_ranks(const struct operation *self, struct cb_err *err)
{
    struct message_world *world = self->comm->world;
    for (uint32_t i = 0; i < self->count; i++) {
        if (self->transfers[i].has_other_length)
            return cb_fail(err, CB_ERR_CORRUPT, "rank %u sent a message of another length than this rank expects",
                           self->transfers[i].peer);
        if (!self->transfers[i].done &&
            world->ops->has_lost(world, self->transfers[i].peer, self->transfers[i].receives))
            return fail_gone(world, self->transfers[i].peer, err);
    }
    for (uint32_t i = 0; world->first_gone < world->size && self->is_collective && i < self->member_count; i++)
        if (world->ops->has_lost(world, self->members[i], false))
            return fail_gone(world, self->members[i], err);
    return 0;
}

static bool is_over(const struct operation *self)
{
    bool over = true;
    for (uint32_t i = 0; i < self->count; i++)
        over = over && self->transfers[i].done;
    return over;
}

static int messages_test(struct comm *comm, struct comm_message *message, bool *done, struct cb_err *err)
{
    struct message_world *world = cast(comm)->world;
    struct operation *operation = (struct operation *)(uintptr_t)message->handle;
    *done = !operation;
    if (!operation)
        return 0;
    pthread_mutex_lock(&world->lock);
    int rc = world->ops->progress(world, err);
    if (!rc && operation->answer && is_over(operation)) {
        rc = operation->answer(operation, err);
        if (!rc) /* the others wait for the answers, and the caller may sleep before its next test */
            rc = world->ops->progress(world, err);
    }
    *done = !rc && !operation->answer && is_over(operation);
    if (!rc && !*done)
        rc = check_ranks(operation, err);
    pthread_mutex_unlock(&world->lock);
    if (*done) {
        operation_free(operation);
        message->handle = 0;
    }
    return rc;
}

static int start_message(struct comm *comm, bool receives, void *bytes, uint64_t len, uint32_t peer, uint32_t tag,
                         struct comm_message *message, struct cb_err *err)
{
    struct messages_comm *self = cast(comm);
    struct operation *operation = NULL;
    int rc = operation_new(self, 1, &operation, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&self->world->lock);
    rc = add_transfer(operation, receives, self->members[peer], tag, bytes, len, err);
    pthread_mutex_unlock(&self->world->lock);
    message->handle = (uintptr_t)operation;
    return rc;
}

static int messages_send(struct comm *comm, const void *bytes, uint64_t len, uint32_t to, uint32_t tag,
                         struct comm_message *message, struct cb_err *err)
{
    return start_message(comm, false, (void *)(uintptr_t)bytes, len, to, tag, message, err);
}

static int messages_receive(struct comm *comm, void *bytes, uint64_t len, uint32_t from, uint32_t tag,
                            struct comm_message *message, struct cb_err *err)
{
    return start_message(comm, true, bytes, len, from, tag, message, err);
}

/* --- collectives --- */

static const char *answer_for(const struct operation *self, uint32_t member)
{
    return self->result + (self->shares_out ? member * self->out_bytes : 0);
}

static int send_answers(struct operation *self, struct cb_err *err)
{
    self->result = calloc(1, (self->shares_out ? self->member_count : 1) * self->out_bytes + 1);
    if (!self->result)
        return alloc_fail(err, "for what %u ranks share", self->member_count);
    self->fold(self, self->result);
    if (self->out_bytes)
        memcpy(self->out, answer_for(self, 0), self->out_bytes);
    self->answer = NULL;
    self->count = 0;
    int rc = 0;
    for (uint32_t i = 1; i < self->member_count && !rc; i++)
        rc = add_transfer(self, false, self->members[i], self->tag, (void *)(uintptr_t)answer_for(self, i),
                          self->out_bytes, err);
    return rc;
}

struct collective_call {
    const void *in;
    void *out;
    uint64_t in_bytes, out_bytes;
    void (*fold)(const struct operation *self, char *result);
    bool shares_out, local;
};

static int start_collective(struct comm *comm, const struct collective_call *call, struct comm_message *message,
                            struct cb_err *err)
{
    struct messages_comm *self = cast(comm);
    uint32_t count = call->local ? self->local_count : comm->size;
    struct operation *made = NULL;
    int rc = operation_new(self, count + 1, &made, err);
    if (rc)
        return rc;
    made->is_collective = true;
    made->members = call->local ? self->local : self->members;
    made->member_count = count;
    made->tag = call->local ? TAG_LOCAL : TAG_ALL;
    made->in_bytes = call->in_bytes;
    made->out_bytes = call->out_bytes;
    made->out = call->out;
    made->fold = call->fold;
    made->shares_out = call->shares_out;
    bool is_lowest = made->members[0] == self->world->rank;
    made->gathered = malloc((is_lowest ? count : 1) * call->in_bytes + 1);
    if (!made->gathered) {
        operation_free(made);
        return alloc_fail(err, "for what %u ranks bring", count);
    }
    memcpy(made->gathered, call->in, call->in_bytes);
    pthread_mutex_lock(&self->world->lock);
    if (is_lowest) {
        made->answer = send_answers;
        for (uint32_t i = 1; i < count && !rc; i++)
            rc = add_transfer(made, true, made->members[i], made->tag, made->gathered + i * call->in_bytes,
                              call->in_bytes, err);
    } else {
        rc = add_transfer(made, true, made->members[0], made->tag, call->out, call->out_bytes, err);
        if (!rc)
            rc = add_transfer(made, false, made->members[0], made->tag, made->gathered, call->in_bytes, err);
    }
    pthread_mutex_unlock(&self->world->lock);
    message->handle = (uintptr_t)made;
    return rc;
}

static void fold_votes(const struct operation *self, char *result)
{
    struct vote all, one;
    memcpy(&all, self->gathered, sizeof all);
    for (uint32_t i = 1; i < self->member_count; i++) {
        memcpy(&one, self->gathered + i * sizeof one, sizeof one);
        vote_combine(&all, &one);
    }
    memcpy(result, &all, sizeof all);
}

static void fold_texts(const struct operation *self, char *result)
{
    for (uint32_t i = 0; i < self->member_count && !*result; i++)
        memcpy(result, self->gathered + i * self->in_bytes, self->in_bytes);
}

static void fold_all(const struct operation *self, char *result)
{
    memcpy(result, self->gathered, self->member_count * self->in_bytes);
}

/* Sums of floats, added in the order of the ranks. */
static void fold_sums(const struct operation *self, char *result)
{
    float *sums = (float *)(void *)result;
    for (uint32_t i = 0; i < self->member_count; i++) {
        const float *of_rank = (const float *)(const void *)(self->gathered + i * self->in_bytes);
        for (uint64_t at = 0; at < self->in_bytes / sizeof *sums; at++)
            sums[at] += of_rank[at];
    }
}

static int messages_start_agree(struct comm *comm, bool local, const struct vote *mine, struct vote *all,
                                struct comm_message *message, struct cb_err *err)
{
    struct collective_call call = {
        .in = mine, .out = all, .in_bytes = sizeof *mine, .out_bytes = sizeof *all, .fold = fold_votes, .local = local};
    return start_collective(comm, &call, message, err);
}

/* An agreement without contents, as a barrier. */
static int messages_start_barrier(struct comm *comm, struct comm_message *message, struct cb_err *err)
{
    return messages_start_agree(comm, false, &comm->mine, &comm->all, message, err);
}

static int messages_start_share_text(struct comm *comm, const char mine[COMM_REASON_BYTES],
                                     char text[COMM_REASON_BYTES], struct comm_message *message, struct cb_err *err)
{
    struct collective_call call = {
        .in = mine, .out = text, .in_bytes = COMM_REASON_BYTES, .out_bytes = COMM_REASON_BYTES, .fold = fold_texts};
    return start_collective(comm, &call, message, err);
}

static int messages_start_broadcast(struct comm *comm, void *bytes, size_t len, struct comm_message *message,
                                    struct cb_err *err)
{
    struct messages_comm *self = cast(comm);
    struct operation *made = NULL;
    if (comm->rank != 0)
        return start_message(comm, true, bytes, len, 0, TAG_ALL, message, err);
    int rc = operation_new(self, comm->size, &made, err);
    if (rc)
        return rc;
    made->is_collective = true;
    made->members = self->members;
    made->member_count = comm->size;
    pthread_mutex_lock(&self->world->lock);
    for (uint32_t i = 1; i < comm->size && !rc; i++)
        rc = add_transfer(made, false, self->members[i], TAG_ALL, bytes, len, err);
    pthread_mutex_unlock(&self->world->lock);
    message->handle = (uintptr_t)made;
    return rc;
}

static int messages_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values,
                                     struct comm_message *message, struct cb_err *err)
{
    uint64_t bytes = values * sizeof(uint32_t);
    struct collective_call call = {
        .in = mine, .out = all, .in_bytes = bytes, .out_bytes = bytes * comm->size, .fold = fold_all};
    return start_collective(comm, &call, message, err);
}

static int messages_start_reduce_scatter(struct comm *comm, const float *all, float *mine, uint64_t values,
                                         struct comm_message *message, struct cb_err *err)
{
    uint64_t bytes = values * sizeof *mine;
    struct collective_call call = {.in = all,
                                   .out = mine,
                                   .in_bytes = bytes * comm->size,
                                   .out_bytes = bytes,
                                   .fold = fold_sums,
                                   .shares_out = true};
    return start_collective(comm, &call, message, err);
}

static int messages_start_all_reduce(struct comm *comm, const float *mine, float *sum, uint64_t values,
                                     struct comm_message *message, struct cb_err *err)
{
    uint64_t bytes = values * sizeof *mine;
    struct collective_call call = {.in = mine, .out = sum, .in_bytes = bytes, .out_bytes = bytes, .fold = fold_sums};
    return start_collective(comm, &call, message, err);
}

/* --- communicators --- */

static const struct comm_ops messages_ops;

static int make_comm(struct message_world *world, uint32_t size, struct messages_comm **comm, struct cb_err *err)
{
    struct messages_comm *self = calloc(1, sizeof *self);
    if (self)
        self->members = calloc(size, sizeof *self->members);
    if (!self || !self->members) {
        free(self);
        return alloc_fail(err, "for the communicator");
    }
    self->world = world;
    self->base.ops = &messages_ops;
    self->base.state = &world->state;
    self->base.library = world->ops->name;
    *comm = self;
    return 0;
}

/* Gathers every rank's color. Has no deadline, as splitting over MPI has none. */
static int gather_colors(struct comm *comm, uint32_t color, uint32_t *colors, struct cb_err *err)
{
    struct comm_message message;
    bool done = false;
    int rc = messages_start_all_gather(comm, &color, colors, 1, &message, err);
    while (!rc && !done) {
        rc = messages_test(comm, &message, &done, err);
        if (!rc && !done)
            rc = comm_check(comm, err);
        if (!rc && !done)
            clock_sleep_ns(SPLIT_SLEEP_NS);
    }
    comm->state->broken = comm->state->broken || rc; // NOLINT(clang-analyzer-unix.Malloc): what is stuck stays in use
    return rc;
}

static int messages_split(struct comm *comm, uint32_t color, bool copy_of_all, struct comm **part, struct cb_err *err)
{
    struct messages_comm *self = cast(comm), *made = NULL;
    struct agreement agreement;
    uint32_t *colors = calloc(comm->size, sizeof *colors);
    int rc = colors ? make_comm(self->world, comm->size, &made, err) : alloc_fail(err, "for the communicator");
    rc = agree_number(comm, rc, self->world->contexts, UINT64_MAX, &agreement, err);
    assert(rc || (made && colors)); /* else this rank has failed */
    if (!rc && !copy_of_all)
        rc = gather_colors(comm, color, colors, err);
    for (uint32_t i = 0; i < comm->size && !rc; i++) {
        if (!copy_of_all && colors[i] != color)
            continue;
        if (i == comm->rank)
            made->base.rank = made->base.size;
        made->members[made->base.size++] = self->members[i];
    }
    free(colors);
    if (rc) {
        if (made)
            free(made->members);
        free(made);
        return rc;
    }
    made->context = self->world->contexts = agreement.max + 1;
    made->base.twin = true;
    made->base.check = comm->check;
    made->base.check_context = comm->check_context;
    *part = &made->base;
    return 0;
}

static void messages_free(struct comm *comm)
{
    struct messages_comm *self = cast(comm);
    if (!comm->twin && comm_can_end(comm))
        self->world->ops->say_goodbye(self->world);
    while (!comm->twin && self->world->operations) {
        self->world->operations->comm = self; /* its own, a twin, is gone */
        operation_free(self->world->operations);
    }
    if (!comm->twin)
        self->world->ops->free(self->world);
    free(self->members);
    free(self->local);
    free(self);
}

static const struct comm_ops messages_ops = {.start_barrier = messages_start_barrier,
                                             .start_agree = messages_start_agree,
                                             .start_share_text = messages_start_share_text,
                                             .start_broadcast = messages_start_broadcast,
                                             .start_all_gather = messages_start_all_gather,
                                             .start_reduce_scatter = messages_start_reduce_scatter,
                                             .start_all_reduce = messages_start_all_reduce,
                                             .send = messages_send,
                                             .receive = messages_receive,
                                             .test = messages_test,
                                             .split = messages_split,
                                             .free = messages_free,
                                             .frees_broken = true};

/* Finds out which ranks share a machine. */
static int note_machines(struct messages_comm *self, struct cb_err *err)
{
    struct message_world *world = self->world;
    uint32_t *counts = calloc(world->size, sizeof *counts);
    self->local = calloc(world->size, sizeof *self->local);
    if (!counts || !self->local) {
        free(counts);
        return alloc_fail(err, "for the communicator");
    }
    for (uint32_t i = 0; i < world->size; i++) {
        uint32_t machine = world->ops->machine_of(world, i), count = ++counts[machine];
        self->base.fullest_node = count > self->base.fullest_node ? count : self->base.fullest_node;
        if (machine != world->ops->machine_of(world, world->rank))
            continue;
        if (i == world->rank)
            self->base.local_rank = self->local_count;
        self->local[self->local_count++] = i;
    }
    self->base.local_size = self->local_count;
    free(counts);
    return 0;
}

int comm_messages_new(struct message_world *world, struct comm **comm, struct cb_err *err)
{
    struct messages_comm *self = NULL;
    int rc = make_comm(world, world->size, &self, err);
    if (!rc)
        rc = note_machines(self, err);
    if (rc) {
        if (self) {
            free(self->members);
            free(self->local);
        }
        free(self);
        world->ops->free(world);
        return rc;
    }
    self->base.rank = world->rank;
    self->base.size = world->size;
    for (uint32_t i = 0; i < world->size; i++)
        self->members[i] = i;
    *comm = &self->base;
    return 0;
}
