/* Messages between our programs over TCP, under TLS 1.3 with a pre-shared key.
 *
 * Whoever does not hold the key gets no further than the handshake. Nothing here blocks: the owner
 * polls channel_fd() for channel_events(), calls channel_work(), takes the whole messages with
 * channel_next(), and sets its own deadlines, also for a handshake that does not end. A message is
 * bytes of at most CHANNEL_MAX_MESSAGE_BYTES; what they mean is the owner's. A failed channel stays
 * failed. One thread a channel; contexts may be shared by the channels of one thread. */
#ifndef CORE_CHANNEL_H
#define CORE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define CHANNEL_KEY_BYTES 32
#define CHANNEL_MAX_MESSAGE_BYTES (4u << 20)
#define CHANNEL_MAX_UNSENT_BYTES (16u << 20) /* of a peer that does not read */

struct channel_key {
    unsigned char bytes[CHANNEL_KEY_BYTES];
};

void channel_key_new(struct channel_key *key);
/* A file that must not exist, mode 0600: 64 hex digits and a line feed. */
int channel_key_write(const struct channel_key *key, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* The same from a descriptor that brings them, a pipe for example; blocks until it has. */
int channel_key_read(int fd, struct channel_key *key, struct cb_err *err) CB_MUST_CHECK;

/* A key, ready to be used by one end. */
enum channel_end { CHANNEL_SERVER, CHANNEL_CLIENT };
struct channel_context;
int channel_context_new(const struct channel_key *key, enum channel_end end, struct channel_context **context,
                        struct cb_err *err) CB_MUST_CHECK;
void channel_context_free(struct channel_context *context); /* after all of its channels */

/* A listening socket on all addresses of this machine, IPv6 where there is any. Port 0 takes a free
 * one; *bound is the one taken. CB_ERR_EXISTS where the port is in use. */
int channel_listen(uint16_t port, int *fd, uint16_t *bound, struct cb_err *err) CB_MUST_CHECK;

struct channel;
/* *channel is NULL where nobody waits to be let in. */
int channel_accept(struct channel_context *context, int listening_fd, struct channel **channel,
                   struct cb_err *err) CB_MUST_CHECK;
/* Begins to connect; `address` is a numeric one, IPv4 or IPv6. */
int channel_connect(struct channel_context *context, const char *address, uint16_t port, struct channel **channel,
                    struct cb_err *err) CB_MUST_CHECK;
void channel_free(struct channel *self); /* tells the other end where that costs no waiting; NULL is fine */

int channel_fd(const struct channel *self);
short channel_events(const struct channel *self); /* for poll(2) */
bool channel_is_open(const struct channel *self); /* the other end has shown that it holds the key */

/* Shakes hands, sends and receives as far as that goes without waiting. CB_ERR_ABORTED: the other end
 * closed; messages that came before can still be taken. */
int channel_work(struct channel *self, struct cb_err *err) CB_MUST_CHECK;
/* The next whole message; false where there is none. Valid until the next channel_work. */
bool channel_next(struct channel *self, const void **bytes, size_t *len);

/* Copies a message to be sent by channel_work. CB_ERR_MEMORY where the other end does not read. */
int channel_send(struct channel *self, const void *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;
size_t channel_unsent(const struct channel *self); /* bytes that wait */

#endif
