/* For tests: fake devices (fake_device.h) that talk to each other, as engine/device_comm.h has it, where ranks are
 * threads of one process. What is queued on a device happens late and in order, a collective only when all of its
 * ranks have come to it: ranks that queue in different orders wait for ever, as devices do. What is sent is read when
 * it is sent, not when it was queued. */
#ifndef TESTS_FAKE_COMM_H
#define TESTS_FAKE_COMM_H

#include <pthread.h>
#include <sched.h>

#include "engine/device_comm.h"
#include "tests/unit/fake_device.h"

#define FAKE_MAX_QUEUED 4096
#define FAKE_MAX_MEMBERS 16

/* One collective of a group: what each rank brings, once all are there. */
struct fake_round {
    void *brought[FAKE_MAX_MEMBERS];
    bool is_here[FAKE_MAX_MEMBERS];
    uint32_t here, gone, peer;
    enum device_collective kind;
    uint64_t bytes;
    struct fake_round *next;
};

/* What one rank has sent to another one, and that one has not taken. */
struct fake_mail {
    uint32_t from, to;
    uint64_t bytes;
    struct fake_mail *next;
    char content[];
};

struct fake_room {
    struct fake_mail *mails; /* the oldest first */
    uint64_t id;
    uint32_t size, joined, left;
    struct fake_round *rounds; /* the oldest first */
    uint64_t first_round;      /* number of that */
    struct fake_room *next;
};

/* All rooms of the process, and what tests want of them and ask about them. */
struct fake_rooms {
    pthread_mutex_t lock;
    uint64_t made;
    struct fake_room *rooms;
    bool same_device;  /* all ranks have one: joining is refused */
    uint64_t rounds;   /* of all collectives, ended */
    uint64_t received; /* bytes, by all ranks */
    uint32_t open;     /* communicators */
};
static struct fake_rooms fake_rooms = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct device_comm {
    struct fake_device *device;
    struct fake_room *room;
    uint32_t rank, size;
    uint64_t queued; /* collectives */
    bool aborted;
};

enum fake_saying { FAKE_SAYS_COPY, FAKE_SAYS_COLLECTIVE, FAKE_SAYS_EXCHANGE, FAKE_SAYS_EVENT, FAKE_SAYS_MARK };

struct fake_said {
    enum fake_saying saying;
    struct device_comm *comm;
    uint64_t number; /* of the collective in its communicator, of the event, or of the mark */
    uint64_t after;  /* an event of the device itself */
    struct device_copy copy;
    enum device_collective kind;
    const void *from;
    void *to;
    uint64_t bytes;
    uint32_t peer;
    bool is_sent; /* of an exchange */
};

struct fake_talk {
    struct fake_said said[FAKE_MAX_QUEUED]; /* a ring */
    size_t first, count;
    uint64_t recorded, done;
};

static inline struct fake_talk *fake_talk_of(struct fake_device *device)
{
    return device->talk;
}

/* --- rooms --- */

static inline int fake_comm_make_id(char id[DEVICE_COMM_ID_BYTES], struct cb_err *err)
{
    struct fake_room *room = calloc(1, sizeof *room);
    if (!room)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for a room");
    pthread_mutex_lock(&fake_rooms.lock);
    room->id = ++fake_rooms.made;
    room->next = fake_rooms.rooms;
    fake_rooms.rooms = room;
    memset(id, 0, DEVICE_COMM_ID_BYTES);
    memcpy(id, &room->id, sizeof room->id);
    pthread_mutex_unlock(&fake_rooms.lock);
    return 0;
}

static inline struct fake_room *fake_enter(const char *id, uint32_t size)
{
    uint64_t number;
    memcpy(&number, id, sizeof number);
    pthread_mutex_lock(&fake_rooms.lock);
    struct fake_room *room = fake_rooms.rooms;
    while (room && room->id != number)
        room = room->next;
    assert(room && (room->size == 0 || room->size == size) && size <= FAKE_MAX_MEMBERS);
    room->size = size;
    room->joined++;
    pthread_mutex_unlock(&fake_rooms.lock);
    return room;
}

static inline bool fake_all_joined(const struct fake_room *room)
{
    pthread_mutex_lock(&fake_rooms.lock);
    bool all = room->joined == room->size;
    pthread_mutex_unlock(&fake_rooms.lock);
    return all;
}

static inline void fake_free_round(struct fake_round *round)
{
    for (uint32_t i = 0; i < FAKE_MAX_MEMBERS; i++)
        free(round->brought[i]);
    free(round);
}

/* The last one out puts the room away. */
static inline void fake_leave(struct fake_room *room)
{
    pthread_mutex_lock(&fake_rooms.lock);
    if (++room->left == room->size) {
        struct fake_room **link = &fake_rooms.rooms;
        while (*link != room)
            link = &(*link)->next;
        *link = room->next;
        while (room->rounds) {
            struct fake_round *round = room->rounds;
            room->rounds = round->next;
            fake_free_round(round);
        }
        while (room->mails) {
            struct fake_mail *mail = room->mails;
            room->mails = mail->next;
            free(mail);
        }
        free(room);
    }
    pthread_mutex_unlock(&fake_rooms.lock);
}

static inline bool fake_talk_until(struct fake_device *device, uint64_t event);

static inline int fake_comm_join(struct device *device, const char id[DEVICE_COMM_ID_BYTES], uint32_t rank,
                                 uint32_t size, uint64_t deadline_ns, struct device_comm **comm, struct cb_err *err)
{
    struct fake_device *fake = (struct fake_device *)device;
    struct fake_room *room = fake_enter(id, size);
    if (fake_rooms.same_device) {
        fake_leave(room);
        return cb_fail(err, CB_ERR_UNSUPPORTED, "two ranks have one fake device");
    }
    while (!fake_all_joined(room)) {
        if (clock_monotonic_ns() > deadline_ns) {
            fake_leave(room);
            return cb_fail(err, CB_ERR_TIMEOUT, "the others did not join");
        }
        sched_yield();
    }
    if (!fake->talk)
        fake->talk = calloc(1, sizeof *fake->talk);
    struct device_comm *self = calloc(1, sizeof *self);
    assert(fake->talk && self);
    fake->talk_until = fake_talk_until;
    *self = (struct device_comm){.device = fake, .room = room, .rank = rank, .size = size};
    __atomic_fetch_add(&fake_rooms.open, 1, __ATOMIC_RELAXED);
    *comm = self;
    return 0;
}

/* --- collectives --- */

static inline struct fake_round *fake_round_of(struct fake_room *room, uint64_t number)
{
    struct fake_round **link = &room->rounds;
    assert(number >= room->first_round);
    for (uint64_t i = room->first_round; i < number; i++)
        link = &(*link)->next;
    if (!*link) {
        *link = calloc(1, sizeof **link);
        assert(*link);
    }
    return *link;
}

static inline void fake_bring(struct fake_round *round, const struct fake_said *said)
{
    const struct device_comm *comm = said->comm;
    bool parts = said->kind == DEVICE_REDUCE_SCATTER || said->kind == DEVICE_ALL_TO_ALL;
    uint64_t bytes = said->bytes * (parts ? comm->size : 1);
    if (round->here == 0) {
        round->kind = said->kind;
        round->bytes = said->bytes;
        round->peer = said->peer;
    }
    assert(round->kind == said->kind && round->bytes == said->bytes && round->peer == said->peer);
    round->is_here[comm->rank] = true;
    round->here++;
    round->brought[comm->rank] = malloc(bytes + 1);
    assert(round->brought[comm->rank]);
    memcpy(round->brought[comm->rank], fake_where(comm->device, said->from, bytes), bytes);
}

static inline void fake_sum(const struct fake_round *round, uint32_t size, uint64_t at, float *to)
{
    for (uint64_t i = 0; i < round->bytes / sizeof *to; i++) {
        float sum = 0;
        for (uint32_t rank = 0; rank < size; rank++)
            sum += ((const float *)round->brought[rank])[at + i];
        to[i] = sum;
    }
}

static inline void fake_take(const struct fake_round *round, const struct fake_said *said)
{
    const struct device_comm *comm = said->comm;
    struct fake_device *device = comm->device;
    uint64_t bytes = said->bytes;
    bool all = said->kind == DEVICE_ALL_GATHER || said->kind == DEVICE_ALL_TO_ALL;
    char *to = fake_where(device, said->to, bytes * (all ? comm->size : 1));
    if (said->kind == DEVICE_BROADCAST)
        memcpy(to, round->brought[said->peer], bytes);
    else if (!all)
        fake_sum(round, comm->size, said->kind == DEVICE_REDUCE_SCATTER ? comm->rank * bytes / sizeof(float) : 0,
                 (float *)(void *)to);
    for (uint32_t i = 0; i < comm->size && all; i++)
        memcpy(to + i * bytes,
               (const char *)round->brought[i] + (said->kind == DEVICE_ALL_TO_ALL ? comm->rank * bytes : 0), bytes);
    if (bytes > 0 && ++device->copied == device->corrupt_at)
        to[bytes / 2] ^= 4;
    __atomic_fetch_add(&fake_rooms.received, bytes, __ATOMIC_RELAXED);
}

/* False while others have not come. */
static inline bool fake_meet(const struct fake_said *said)
{
    struct device_comm *comm = said->comm;
    pthread_mutex_lock(&fake_rooms.lock);
    struct fake_round *round = fake_round_of(comm->room, said->number);
    if (!round->is_here[comm->rank])
        fake_bring(round, said);
    bool all = round->here == comm->size;
    if (all) {
        fake_take(round, said);
        round->gone++;
    }
    while (comm->room->rounds && comm->room->rounds->gone == comm->size) {
        struct fake_round *oldest = comm->room->rounds;
        comm->room->rounds = oldest->next;
        comm->room->first_round++;
        fake_rooms.rounds++;
        fake_free_round(oldest);
    }
    pthread_mutex_unlock(&fake_rooms.lock);
    return all;
}

static inline void fake_send(const struct fake_said *said)
{
    struct fake_mail *mail = calloc(1, sizeof *mail + said->bytes), **link = &said->comm->room->mails;
    assert(mail);
    *mail = (struct fake_mail){.from = said->comm->rank, .to = said->peer, .bytes = said->bytes};
    memcpy(mail->content, fake_where(said->comm->device, said->from, said->bytes), said->bytes);
    while (*link)
        link = &(*link)->next;
    *link = mail;
}

/* Sends its part once; false while the other's has not come. */
static inline bool fake_swap(struct fake_said *said)
{
    struct device_comm *comm = said->comm;
    struct fake_device *device = comm->device;
    pthread_mutex_lock(&fake_rooms.lock);
    if (!said->is_sent)
        fake_send(said);
    said->is_sent = true;
    struct fake_mail **link = &comm->room->mails;
    while (*link && ((*link)->to != comm->rank || (*link)->from != said->peer))
        link = &(*link)->next;
    struct fake_mail *mail = *link;
    if (mail) {
        char *to = fake_where(device, said->to, said->bytes);
        assert(mail->bytes == said->bytes);
        *link = mail->next;
        memcpy(to, mail->content, mail->bytes);
        if (++device->copied == device->corrupt_at)
            to[mail->bytes / 2] ^= 4;
        free(mail);
    }
    pthread_mutex_unlock(&fake_rooms.lock);
    return mail != NULL;
}

/* --- what is queued --- */

static inline int fake_say(struct device_comm *self, struct fake_said said, struct cb_err *err)
{
    struct fake_talk *talk = fake_talk_of(self->device);
    if (self->aborted)
        return cb_fail(err, CB_ERR_ABORTED, "the fake communicator was aborted");
    if (talk->count == FAKE_MAX_QUEUED)
        return cb_fail(err, CB_ERR_INTERNAL, "the fake device has room for %d sayings", FAKE_MAX_QUEUED);
    int rc = fake_record(&self->device->base, &said.after, err); /* what was queued on the device before */
    said.comm = self;
    if (!rc)
        talk->said[(talk->first + talk->count++) % FAKE_MAX_QUEUED] = said;
    return rc;
}

static inline bool fake_is_own(const struct fake_device *device, const void *address)
{
    return fake_where(device, address, 1) != address;
}

static inline int fake_comm_queue(struct device_comm *self, enum device_collective kind, const void *from, void *to,
                                  uint64_t bytes, uint32_t peer, uint64_t deadline_ns, struct cb_err *err)
{
    (void)deadline_ns;
    assert(fake_is_own(self->device, from) && fake_is_own(self->device, to) && peer < self->size);
    struct fake_said said = {.saying = kind == DEVICE_EXCHANGE ? FAKE_SAYS_EXCHANGE : FAKE_SAYS_COLLECTIVE,
                             .number = self->queued,
                             .kind = kind,
                             .from = from,
                             .to = to,
                             .bytes = bytes,
                             .peer = peer};
    int rc = fake_say(self, said, err);
    self->queued += rc || kind == DEVICE_EXCHANGE ? 0 : 1;
    return rc;
}

static inline int fake_comm_copy(struct device_comm *self, enum device_direction direction,
                                 const struct device_copy *copies, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count && !rc; i++) {
        assert(fake_is_own(self->device, copies[i].to) == (direction != DEVICE_TO_HOST));
        assert(fake_is_own(self->device, copies[i].from) == (direction != HOST_TO_DEVICE));
        rc = fake_say(self, (struct fake_said){.saying = FAKE_SAYS_COPY, .copy = copies[i]}, err);
    }
    return rc;
}

static inline int fake_comm_record(struct device_comm *self, uint64_t *event, struct cb_err *err)
{
    struct fake_talk *talk = fake_talk_of(self->device);
    int rc = fake_say(self, (struct fake_said){.saying = FAKE_SAYS_EVENT, .number = talk->recorded + 1}, err);
    if (!rc)
        *event = ++talk->recorded;
    return rc;
}

static inline int fake_comm_mark(struct device_comm *self, uint64_t *mark, struct cb_err *err)
{
    *mark = fake_new_mark(self->device);
    return fake_say(self, (struct fake_said){.saying = FAKE_SAYS_MARK, .number = *mark}, err);
}

/* The oldest of what is queued; false where it cannot be yet. */
static inline bool fake_say_next(struct fake_device *device)
{
    struct fake_talk *talk = fake_talk_of(device);
    struct fake_said *said = &talk->said[talk->first];
    if (talk->count == 0 || fake_random(device) % 4 == 0)
        return false;
    if (device->math_until && !device->math_until(device, said->after))
        return false;
    if (said->after > device->done)
        fake_catch_up(device, said->after);
    if (said->saying == FAKE_SAYS_COLLECTIVE && !fake_meet(said))
        return false;
    if (said->saying == FAKE_SAYS_EXCHANGE && !fake_swap(said))
        return false;
    if (said->saying == FAKE_SAYS_COPY)
        fake_perform(device, &(struct fake_copy){.copy = said->copy});
    if (said->saying == FAKE_SAYS_EVENT)
        talk->done = said->number;
    if (said->saying == FAKE_SAYS_MARK)
        fake_pass_mark(device, said->number);
    talk->first = (talk->first + 1) % FAKE_MAX_QUEUED;
    talk->count--;
    return true;
}

static inline bool fake_talk_until(struct fake_device *device, uint64_t event)
{
    struct fake_talk *talk = fake_talk_of(device);
    while (talk->done < event && fake_say_next(device))
        continue;
    return talk->done >= event;
}

static inline int fake_comm_hold(struct device_comm *self, uint64_t event, struct cb_err *err)
{
    if (self->aborted)
        return cb_fail(err, CB_ERR_ABORTED, "the fake communicator was aborted");
    self->device->hold(self->device, event);
    return 0;
}

static inline int fake_comm_poll(struct device_comm *self, uint64_t event, bool *done, struct cb_err *err)
{
    struct fake_device *device = self->device;
    if (self->aborted)
        return cb_fail(err, CB_ERR_ABORTED, "the fake communicator was aborted");
    if (device->fail_talk_at && event >= device->fail_talk_at)
        return cb_fail(err, CB_ERR_SYSTEM, "the fake device lost what another sent");
    device->talk_waits += event != device->talk_awaited;
    device->talk_awaited = event;
    *done = fake_talk_until(device, event);
    return 0;
}

static inline int fake_comm_wait(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t event;
    bool done = false;
    int rc = fake_comm_record(self, &event, err);
    while (!rc && !done) {
        rc = fake_comm_poll(self, event, &done, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the fake device waits for others");
        if (!rc && !done)
            sched_yield();
    }
    return rc;
}

/* What its device had been given to do is over. */
static inline void fake_comm_abort(struct device_comm *self)
{
    struct fake_talk *talk = fake_talk_of(self->device);
    self->aborted = true;
    talk->count = 0;
    talk->done = talk->recorded;
}

static inline void fake_comm_close(struct device_comm *self)
{
    fake_leave(self->room);
    __atomic_fetch_sub(&fake_rooms.open, 1, __ATOMIC_RELAXED);
    free(self);
}

static const struct device_comm_ops fake_comm_ops = {
    .make_id = fake_comm_make_id,
    .join = fake_comm_join,
    .queue = fake_comm_queue,
    .copy = fake_comm_copy,
    .record = fake_comm_record,
    .mark = fake_comm_mark,
    .hold_device = fake_comm_hold,
    .poll = fake_comm_poll,
    .wait = fake_comm_wait,
    .abort = fake_comm_abort,
    .close = fake_comm_close,
};

#endif
