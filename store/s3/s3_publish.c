/* Collects pieces into parts and sends them through the backend's own requests, whose slots are all free. */
#include "store/s3/s3_publish.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"
#include "store/s3/s3_object.h"

#ifdef HAVE_CURL

#define PART_MOST_BYTES (UINT64_C(32) << 20)
#define PARTS 4

struct publication {
    struct backend *backend;
    const char *name;
    struct s3_object *object; /* of the upload; NULL while all bytes fit into a part */
    uint64_t part_bytes, sent;
    uint32_t parts;      /* that may be in memory; a part's number is its slot */
    char *memory[PARTS]; /* of each */
    bool in_flight[PARTS];
    uint32_t current, flying;
    size_t filled; /* of the current part */
};

/* Waits until at most `most` parts are in flight. Returns the first failure, after waiting. */
static int wait(struct publication *self, uint32_t most, struct cb_err *err)
{
    struct backend_completion done[PARTS];
    int code = 0;
    while (self->flying > most) {
        size_t count = 0;
        int rc = self->backend->ops->poll(self->backend, done, PARTS, UINT64_MAX, &count, err);
        if (rc)
            return rc;
        for (size_t i = 0; i < count; i++) {
            self->in_flight[done[i].slot] = false;
            if (done[i].code && !code)
                code = cb_fail(err, done[i].code, "publishing %s: %s", self->name,
                               done[i].detail ? done[i].detail : cb_code_name(done[i].code));
        }
        self->flying -= (uint32_t)count;
    }
    return code;
}

static int submit(struct publication *self, enum store_request_kind kind, uint32_t slot, struct iovec *segment,
                  struct cb_err *err)
{
    struct backend_request request = {
        .slot = slot,
        .kind = kind,
        .object = &self->object->base,
        .offset = self->sent,
        .segments = segment,
        .segment_count = segment ? 1 : 0,
        .length = segment ? segment->iov_len : 0,
    };
    int rc = self->backend->ops->submit(self->backend, &request, 1, err);
    if (!rc) {
        self->in_flight[slot] = true;
        self->flying++;
    }
    return rc;
}

/* Sends the current part, and takes another one that is free. */
static int send_part(struct publication *self, struct cb_err *err)
{
    int rc = 0;
    if (!self->object)
        rc = s3_object_create(self->name, self->part_bytes * S3_MAX_PARTS, self->part_bytes, &self->object, err);
    if (!rc && self->sent + self->filled > self->object->base.length)
        rc = cb_fail(err, CB_ERR_USAGE, "%s is longer than %" PRIu64 " bytes: s3.part_size must be longer, up to 32MiB",
                     self->name, self->object->base.length);
    struct iovec segment = {.iov_base = self->memory[self->current], .iov_len = self->filled};
    if (!rc)
        rc = submit(self, STORE_WRITE, self->current, &segment, err);
    if (rc)
        return rc;
    self->sent += self->filled;
    self->filled = 0;
    rc = wait(self, self->parts - 1, err);
    for (self->current = 0; self->current + 1 < self->parts && self->in_flight[self->current];)
        self->current++;
    return rc;
}

/* A full part is sent when more bytes follow, so that an object that ends with it is one PUT. */
static int put_piece(void *to, const void *bytes, size_t len, struct cb_err *err)
{
    struct publication *self = to;
    for (const char *from = bytes; len > 0;) {
        int rc = self->filled == self->part_bytes ? send_part(self, err) : 0;
        char **memory = &self->memory[self->current];
        if (!rc && !*memory && !(*memory = malloc(self->part_bytes)))
            rc = alloc_fail(err, "for a part of %s", self->name);
        if (rc)
            return rc;
        size_t room = (size_t)self->part_bytes - self->filled, taken = len < room ? len : room;
        memcpy(*memory + self->filled, from, taken);
        self->filled += taken;
        from += taken;
        len -= taken;
    }
    return 0;
}

static int finish(struct publication *self, struct s3_client *client, struct cb_err *err)
{
    if (!self->object)
        return s3_client_put(client, self->name, self->memory[0], self->filled, err);
    int rc = send_part(self, err);
    if (!rc)
        rc = wait(self, 0, err);
    if (rc)
        return rc;
    s3_object_end(self->object, self->sent);
    rc = submit(self, STORE_FINISH, 0, NULL, err);
    return rc ? rc : wait(self, 0, err);
}

int s3_publish_pieces(struct backend *backend, struct s3_client *client, const char *name, store_pass_fn pass,
                      void *context, struct cb_err *err)
{
    const struct store_capabilities *can = &backend->capabilities;
    struct publication self = {
        .backend = backend,
        .name = name,
        .part_bytes = can->part_bytes < PART_MOST_BYTES ? can->part_bytes : PART_MOST_BYTES,
        .parts = can->max_depth < PARTS ? can->max_depth : PARTS,
    };
    int rc = pass(context, put_piece, &self, err);
    if (!rc)
        rc = finish(&self, client, err);
    if (self.flying > 0) { /* only after a failure, which stays the one reported */
        backend->ops->cancel(backend);
        (void)!wait(&self, 0, NULL);
    }
    if (self.flying > 0)
        return rc; /* the connections are stuck and may still use the memory */
    for (uint32_t i = 0; i < PARTS; i++)
        free(self.memory[i]);
    if (self.object)
        s3_object_close(client, self.object);
    return rc;
}

#endif
