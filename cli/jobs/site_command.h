/* Runs commands on a site through its transport, mainly the site's own ckptbench.
 *
 * No text of a user becomes shell code: arguments are sent as an argument vector, an experiment on standard input.
 * What the remote program prints to stderr is logged here with the site's name. Not thread-safe. */
#ifndef CLI_JOBS_SITE_COMMAND_H
#define CLI_JOBS_SITE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/json.h"
#include "jobs/transport.h"
#include "run/site.h"

#define REMOTE_QUICK_NS (60 * NS_PER_S) /* for queries */
#define REMOTE_LONG_NS (900 * NS_PER_S) /* for commands that work on every run */

struct remote {
    struct site site;
    struct transport *transport;
    bool lost;                      /* no reply to the last command: whether it ran is unknown */
    struct transport_answer answer; /* result of the last command */
    char trouble[512];              /* problem of a remote_ask that succeeded; "" */
};

/* Opens the site's transport. Takes ownership of `site`, also on failure. Release in any case. */
int remote_connect(struct remote *self, struct site *site, struct cb_err *err) CB_MUST_CHECK;
/* The same by name; fails unless the programs there are of this release. */
int remote_open(struct remote *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
void remote_release(struct remote *self);

/* CB_ERR_NOT_FOUND: the programs are missing; CB_ERR_UNSUPPORTED: they are of another release. Both errors contain
 * advice. */
int remote_check_version(struct remote *self, struct cb_err *err) CB_MUST_CHECK;
/* Splits "PROGRAM 0.1.0 (1a2b3c4)" into "0.1.0" and "1a2b3c4". */
int remote_parse_version(const char *line, char version[32], char commit[64], struct cb_err *err) CB_MUST_CHECK;

struct remote_call {
    const char *program;      /* absolute, or searched in the site's PATH; NULL: the site's ckptbench */
    const char *const *words; /* its arguments, NULL-terminated */
    const char *input;        /* its stdin; NULL for empty */
    uint64_t timeout_ns;
};
/* Runs a command. Any exit status counts as success. */
int remote_run(struct remote *self, const struct remote_call *call, struct cb_err *err) CB_MUST_CHECK;

/* Runs ckptbench there and parses the JSON document that it prints. If it fails there, this fails with the same exit
 * code and message. A document with an exit code of infrastructure is a success, and sets `trouble`. */
int remote_ask(struct remote *self, const struct remote_call *call, struct json_value **root,
               struct cb_err *err) CB_MUST_CHECK;

/* Keys of a site that are defaults of its runs. */
#define SITE_DEFAULTS 5
extern const struct site_default {
    enum site_key key;
    const char *option;
    bool of_slurm;
} site_defaults[SITE_DEFAULTS];

/* The error message of a failed command: its last line, without the program's name. `text` holds `bytes` bytes. */
char *remote_reason(const struct remote *self, char *text, size_t bytes);

/* Logs what the command printed to stderr. */
void remote_tell(const struct remote *self);

#endif
