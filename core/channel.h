/* Messages between our programs over TCP, under TLS 1.3 with a pre-shared key.
 *
 * A peer without the key fails in the handshake. Nothing here blocks: the owner polls channel_fd() for
 * channel_events(), calls channel_work(), reads complete messages with channel_next(), and sets its own deadlines,
 * also for a handshake that does not finish. A message is at most CHANNEL_MAX_MESSAGE_BYTES of any content. A failed
 * channel stays failed. A channel belongs to one thread, and so do all channels that share a context. A child that
 * fork() makes is without the connections of its parent, and may not use its channels. */
#ifndef CORE_CHANNEL_H
#define CORE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define CHANNEL_KEY_BYTES 32
#define CHANNEL_MAX_MESSAGE_BYTES (4u << 20)
#define CHANNEL_MAX_UNSENT_BYTES (16u << 20) /* unsent, to a peer that does not read */

struct channel_key {
    unsigned char bytes[CHANNEL_KEY_BYTES];
};

void channel_key_new(struct channel_key *key);
/* Creates the key file PATH, which must not exist, with mode 0600: 64 hex digits and a line feed. */
int channel_key_write(const struct channel_key *key, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* Reads a key from a descriptor, such as a pipe; blocks until it is complete. */
int channel_key_read(int fd, struct channel_key *key, struct cb_err *err) CB_MUST_CHECK;

/* A TLS context with the key, for one end. */
enum channel_end { CHANNEL_SERVER, CHANNEL_CLIENT };
struct channel_context;
int channel_context_new(const struct channel_key *key, enum channel_end end, struct channel_context **context,
                        struct cb_err *err) CB_MUST_CHECK;
void channel_context_free(struct channel_context *context); /* after all of its channels are freed */

/* A listening socket on all addresses of this machine, IPv6 if available. Port 0 picks a free port; *bound is the
 * port in use. CB_ERR_EXISTS if the port is taken. */
int channel_listen(uint16_t port, int *fd, uint16_t *bound, struct cb_err *err) CB_MUST_CHECK;

struct channel;
/* *channel is NULL if no connection is waiting. */
int channel_accept(struct channel_context *context, int listening_fd, struct channel **channel,
                   struct cb_err *err) CB_MUST_CHECK;
/* Starts to connect; `address` is numeric, IPv4 or IPv6. */
int channel_connect(struct channel_context *context, const char *address, uint16_t port, struct channel **channel,
                    struct cb_err *err) CB_MUST_CHECK;
void channel_free(struct channel *self); /* notifies the peer if that does not block; accepts NULL */

int channel_fd(const struct channel *self);
short channel_events(const struct channel *self); /* for poll(2) */
bool channel_is_open(const struct channel *self); /* the peer has proved that it holds the key */

/* Continues the handshake, sends and receives as far as possible without blocking. CB_ERR_ABORTED: the peer closed;
 * messages received before can still be read. */
int channel_work(struct channel *self, struct cb_err *err) CB_MUST_CHECK;
/* The next complete message; false if there is none. Valid until the next channel_work. */
bool channel_next(struct channel *self, const void **bytes, size_t *len);

/* Queues a copy of a message for channel_work. CB_ERR_MEMORY if the peer does not read and the queue is full. */
int channel_send(struct channel *self, const void *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;
size_t channel_unsent(const struct channel *self); /* queued bytes */

#endif
