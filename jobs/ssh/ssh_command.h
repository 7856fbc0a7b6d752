/* Encodes a command for a remote shell, and decodes that shell's output.
 *
 * We know neither the login shell nor what its profile prints. Therefore that shell reads only one line of ours,
 * without any word of a user: it starts /bin/sh, which reads a script of known length from stdin and evaluates it. The
 * script is one compound command, so a truncated one runs nothing. The rest of stdin is the command's input. Both
 * outputs are enclosed by lines with a random mark; everything outside the marks is noise and dropped. Pure. */
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

/* The line for the login shell, for a script of that length. */
void ssh_loader_format(size_t script_bytes, char line[SSH_LOADER_BYTES]);

/* The script. `path` is prepended to PATH; `login_path` replaces PATH; both may be NULL or "". CB_ERR_USAGE for a
 * variable name that no shell can set. */
int ssh_script_append(struct buf *script, const struct transport_command *command, const char *mark, const char *path,
                      const char *login_path, struct cb_err *err) CB_MUST_CHECK;

/* One output of the command while it is received. */
struct ssh_stream {
    struct buf text;          /* the command's output once `begun`; noise before */
    const char *mark;         /* borrowed */
    bool begun, ended;        /* both marks were seen */
    bool too_much;            /* more output than allowed, or too much noise */
    char first[32], last[32]; /* the texts of the two marks: the process group, the exit status */
};
void ssh_stream_init(struct ssh_stream *self, const char *mark, size_t max_bytes);
void ssh_stream_release(struct ssh_stream *self);
void ssh_stream_take(struct ssh_stream *self, const char *bytes, size_t len);

#endif
