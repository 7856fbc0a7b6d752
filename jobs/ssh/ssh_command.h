/* A command as a shell behind SSH gets it, and its answer as that shell gives it.
 *
 * Which shell a login has, and what its profile prints, is not known. So the only line that shell reads
 * is ours and holds no word of a user: it starts /bin/sh, which reads a script of known length from
 * stdin and evaluates it. The script is one compound command, so one that was cut runs nothing at all.
 * What follows on stdin is the command's input. Both outputs are bracketed by lines with a random mark;
 * what comes before or after is noise and is dropped. Pure; knows no connection. */
#ifndef JOBS_SSH_SSH_COMMAND_H
#define JOBS_SSH_SSH_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "jobs/transport.h"

#define SSH_MARK_BYTES 33
#define SSH_NOISE_MAX_BYTES (1u << 20)
#define SSH_LOADER_BYTES 112

void ssh_mark_make(char mark[SSH_MARK_BYTES]);

/* Appends `text` for sh, in quotes; any bytes but NUL. */
void ssh_quote(struct buf *into, const char *text);

/* The line for the login's shell, for a script of that length. */
void ssh_loader_format(size_t script_bytes, char line[SSH_LOADER_BYTES]);

/* The script. `path` is put before PATH; `login_path` takes its place; both may be NULL or "".
 * CB_ERR_USAGE for a variable whose name no shell can set. */
int ssh_script_append(struct buf *script, const struct transport_command *command, const char *mark, const char *path,
                      const char *login_path, struct cb_err *err) CB_MUST_CHECK;

/* One output of the command, as it comes in. */
struct ssh_stream {
    struct buf text;          /* of the command alone, once `begun`; noise before */
    const char *mark;         /* borrowed */
    bool begun, ended;        /* the marks were seen */
    bool too_much;            /* more than it may say, or more noise than is bearable */
    char first[32], last[32]; /* what stands on the lines of the marks: the process group, the exit status */
};
void ssh_stream_init(struct ssh_stream *self, const char *mark, size_t max_bytes);
void ssh_stream_release(struct ssh_stream *self);
void ssh_stream_take(struct ssh_stream *self, const char *bytes, size_t len);

#endif
