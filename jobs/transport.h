/* Where a cluster's commands run and its files are: on this machine, or behind a connection.
 *
 * Callers pass argument vectors and never quote; a transport that uses a shell quotes by itself. Every operation limits
 * time and output, and may fail; after CB_ERR_TIMEOUT or CB_ERR_SYSTEM it is unknown whether the remote side acted. A
 * command that ran and failed is not a failure of the transport: its exit status is in the result. Paths are absolute
 * remote paths. One thread at a time. */
#ifndef JOBS_TRANSPORT_H
#define JOBS_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

struct transport_command {
    const char *const *argv;        /* NULL-terminated; argv[0] is looked up in PATH */
    const char *const *environment; /* "NAME=value" for the command, NULL-terminated; may be NULL */
    bool without_slurm;             /* omit SBATCH_*, SLURM_* and similar variables of our environment */
    const void *input;              /* its stdin; NULL is empty */
    size_t input_bytes;
    size_t max_bytes; /* limit of stdout, and of stderr: more is CB_ERR_MEMORY */
    uint64_t timeout_ns;
};

/* Result of a command. Call transport_answer_init before and _release after, in any case. */
struct transport_answer {
    int exit_status; /* 128 + number if killed by a signal */
    struct buf out, errors;
};
void transport_answer_init(struct transport_answer *self);
void transport_answer_release(struct transport_answer *self);
/* The last non-empty line of stderr (of stdout if stderr is empty), without its line feed; for messages. `text` holds
 * `bytes`; returns it. */
char *transport_answer_last_line(const struct transport_answer *self, char *text, size_t bytes);

struct transport_stat {
    bool is_folder;
    uint64_t bytes, modified_wall_ns;
};

struct transport {
    const char *name;     /* for messages: "this machine", "login.example" */
    const char *note;     /* for the user, to be shown once ("Match … skipped"), or "" */
    uint32_t connections; /* made so far */
    int (*run)(struct transport *self, const struct transport_command *command, struct transport_answer *answer,
               struct cb_err *err);
    /* Copies files and folders to and from the remote side, creating missing parents. A file arrives complete or not
     * at all. Does nothing if both names are the same file. */
    int (*put_file)(struct transport *self, const char *local, const char *remote, struct cb_err *err);
    int (*get_file)(struct transport *self, const char *remote, const char *local, struct cb_err *err);
    /* Copies remote PARENT/NAME to local LOCAL/NAME for each of `count` plain names, in as few round trips as
     * possible. After a failure some may have been copied, completely or partially. */
    int (*get_folders)(struct transport *self, const char *parent, const char *const *names, size_t count,
                       const char *local, struct cb_err *err);
    /* CB_ERR_NOT_FOUND if there is nothing. */
    int (*stat)(struct transport *self, const char *path, struct transport_stat *status, struct cb_err *err);
    /* Appends at most `max_bytes` of a file from `offset` to `out`; nothing at its end. */
    int (*read)(struct transport *self, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                struct cb_err *err);
    void (*close)(struct transport *self); /* frees */
};
void transport_close(struct transport *self); /* accepts NULL */

/* The transport for this machine. */
int transport_local_open(struct transport **self, struct cb_err *err) CB_MUST_CHECK;

/* A machine behind SSH (docs/ssh.md lists what is supported). One connection carries everything; after a break it is
 * reopened, with backoff, before the next command or for the rest of a file. A command whose reply was lost is never
 * repeated: CB_ERR_SYSTEM means that its result is unknown. `destination` is [user@]host[:port] or a Host of
 * ~/.ssh/config. Connects; CB_ERR_UNSUPPORTED in a build without libssh2. Strings of the settings are copied; NULL
 * means all are 0. */
struct transport_ssh_settings {
    const char *config_path;     /* as for ssh -F; NULL: ~/.ssh/config, then /etc/ssh/ssh_config */
    const char *path;            /* prepended to PATH for every remote command, "/opt/a/bin:/b"; may be NULL */
    bool login_path;             /* commands get the PATH of a remote login shell, queried once */
    uint64_t connect_timeout_ns; /* for a connection; 0: ConnectTimeout of the configuration, or 20 s */
};
int transport_ssh_open(const char *destination, const struct transport_ssh_settings *settings, struct transport **self,
                       struct cb_err *err) CB_MUST_CHECK;

/* Prefixes of variables that set options of Slurm's programs, and the variables among them that locate the cluster
 * and are kept. NULL-terminated. */
extern const char *const transport_slurm_prefixes[], *const transport_slurm_kept[];

#endif
