/* Where a destination is and how to reach it, from the user's ssh configuration.
 *
 * Supports `Host` with patterns, HostName, User, Port, IdentityFile, IdentitiesOnly, IdentityAgent, ProxyJump,
 * HostKeyAlias, UserKnownHostsFile, GlobalKnownHostsFile, ConnectTimeout, ServerAliveInterval, ServerAliveCountMax
 * and Include; the first value of a keyword counts, as in ssh. Other keywords are ignored. Match sections are
 * skipped, and the position of the first one is kept. Reads files of the user, opens no connection. */
#ifndef JOBS_SSH_SSH_CONFIG_H
#define JOBS_SSH_SSH_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define SSH_HOST_BYTES 256
#define SSH_PLACE_BYTES 512
#define SSH_LIST_MAX 32
#define SSH_HOPS_MAX 8
#define SSH_INCLUDE_DEPTH_MAX 16
#define SSH_CONFIG_MAX_BYTES (1u << 20)

struct ssh_list {
    char *items[SSH_LIST_MAX]; /* owned */
    size_t count;
};

int ssh_list_add(struct ssh_list *self, const char *text, struct cb_err *err) CB_MUST_CHECK;

/* The user, and where the files are. All borrowed. */
struct ssh_places {
    const char *home, *user;
    const char *config_path; /* as for ssh -F, "none" for no file; NULL: the user's file, then the system's */
};

/* One machine on the route. */
struct ssh_host {
    char alias[SSH_HOST_BYTES]; /* as requested */
    char host_name[SSH_HOST_BYTES], host_key_alias[SSH_HOST_BYTES];
    char user[128];
    uint16_t port;
    struct ssh_list identity_files; /* as configured, tokens replaced; an empty list means the usual files */
    struct ssh_list user_known_hosts, global_known_hosts;
    int identities_only;                       /* -1 while not set */
    char identity_agent[SSH_PLACE_BYTES];      /* a socket, "none", or "" for SSH_AUTH_SOCK */
    char proxy_jump[1024];                     /* "" if there is none */
    char proxy_command_place[SSH_PLACE_BYTES]; /* FILE:LINE of the effective ProxyCommand; "" if none */
    char skipped_match_place[SSH_PLACE_BYTES]; /* FILE:LINE of the first Match section that was skipped */
    int64_t connect_timeout_s, alive_interval_s, alive_count; /* -1 while not set */
};

/* The machines from here to the destination, which is the last one. */
struct ssh_route {
    struct ssh_host hops[SSH_HOPS_MAX];
    size_t count;
};

/* Parses [user@]host[:port], [user@][v6]:port, or ssh://… of these. `user` (128 bytes) is "" and `port` 0 if absent. */
int ssh_destination_parse(const char *text, char *user, char host[SSH_HOST_BYTES], uint16_t *port,
                          struct cb_err *err) CB_MUST_CHECK;

bool ssh_port_parse(const char *text, uint16_t *port);

void ssh_host_init(struct ssh_host *self, const char *alias);
void ssh_host_release(struct ssh_host *self);

/* Applies a text in the format of ~/.ssh/config to the host; `name` is for messages. `depth` counts nested includes:
 * at SSH_INCLUDE_DEPTH_MAX an Include is an error. */
int ssh_config_apply(struct ssh_host *self, const struct ssh_places *places, const char *text, size_t len,
                     const char *name, unsigned depth, struct cb_err *err) CB_MUST_CHECK;

/* The whole route. `route` is heap memory of the caller (it is large). Release it after success and failure. */
int ssh_route_resolve(struct ssh_route *self, const char *destination, const struct ssh_places *places,
                      struct cb_err *err) CB_MUST_CHECK;
void ssh_route_release(struct ssh_route *self);

/* The name of a host in known_hosts: lower case, "[name]:port" if the port is not 22. */
void ssh_host_known_name(const struct ssh_host *self, char name[SSH_HOST_BYTES + 16]);

/* Patterns of ssh: only * and ? are special; case is ignored. A list has commas or blanks between patterns; a
 * matching pattern with "!" rejects. */
bool ssh_pattern_matches(const char *pattern, size_t pattern_len, const char *text);
bool ssh_pattern_list_matches(const char *list, size_t len, const char *text);

#endif
