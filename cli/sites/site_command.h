/* A site's own ckptbench, called from here: commands there, with what the site file says they need.
 *
 * No text of a user becomes part of a shell's code: arguments travel as an argument vector, an experiment as
 * standard input. What the program there says on stderr is told here with the site's name. Not thread-safe. */
#ifndef CLI_SITES_SITE_COMMAND_H
#define CLI_SITES_SITE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/json.h"
#include "jobs/transport.h"
#include "run/site.h"

#define REMOTE_QUICK_NS (60 * NS_PER_S) /* what only looks */
#define REMOTE_LONG_NS (900 * NS_PER_S) /* what does something for every run */

struct remote {
    struct site site;
    struct transport *transport;
    bool lost;       /* the last command's answer did not come: nobody knows what became of it */
    int exit_status; /* of the last command that answered */
};

/* Opens the site's transport. `site` is taken over, also on failure. Release in any case. */
int remote_connect(struct remote *self, struct site *site, struct cb_err *err) CB_MUST_CHECK;
/* The same by name; the programs there must be of this release. */
int remote_open(struct remote *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
void remote_release(struct remote *self);

/* CB_ERR_NOT_FOUND: they are not there; CB_ERR_UNSUPPORTED: of another release. Both say what to do. */
int remote_check_version(struct remote *self, struct cb_err *err) CB_MUST_CHECK;
/* "0.1.0" and "1a2b3c4" of "PROGRAM 0.1.0 (1a2b3c4)". */
int remote_parse_version(const char *line, char version[32], char commit[64], struct cb_err *err) CB_MUST_CHECK;

struct remote_call {
    const char *program;      /* absolute, or looked up in the site's PATH; NULL: the site's ckptbench */
    const char *const *words; /* behind it, NULL-terminated */
    const char *input;        /* its stdin; NULL is nothing */
    uint64_t timeout_ns;
};
/* Runs it; any exit status is an answer. The answer is initialised and released by the caller. */
int remote_run(struct remote *self, const struct remote_call *call, struct transport_answer *answer,
               struct cb_err *err) CB_MUST_CHECK;

/* Runs ckptbench there and parses the JSON document that it answers with. A failure there is one here, with
 * the same exit code and its sentence; a document beside an exit code of infrastructure is an answer, and what
 * was wrong is in `trouble` (512 bytes, else ""). */
int remote_ask(struct remote *self, const struct remote_call *call, struct json_value **root, char trouble[512],
               struct cb_err *err) CB_MUST_CHECK;

/* What a failed command says: its last line, without the program's name; `text` holds `bytes`. */
char *remote_reason(const struct transport_answer *answer, char *text, size_t bytes);

/* Tells what the program there has said on stderr. */
void remote_tell(const struct remote *self, const struct transport_answer *answer);

/* SITE_HOME/runs/RUN there. */
int remote_run_folder(const struct remote *self, const char *run, struct buf *path, struct cb_err *err) CB_MUST_CHECK;

#endif
