/* Where a cluster's commands run and its files lie: on this machine, or behind a connection.
 *
 * Callers pass argument vectors and never quote: a transport that goes through a shell does that itself.
 * Every operation has a bound on time and on what it brings back, and every one can fail; a failure of
 * the way there (CB_ERR_TIMEOUT, CB_ERR_SYSTEM) says nothing about whether the far side acted. A command
 * that ran and ended badly is no failure of the transport: its exit status is in the answer. Paths are
 * absolute paths of the far side. One thread at a time. */
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
    bool without_slurm;             /* SBATCH_*, SLURM_* and the like of our own environment are left out */
    const void *input;              /* what it reads from stdin; NULL is nothing */
    size_t input_bytes;
    size_t max_bytes; /* of stdout, and of stderr: more is CB_ERR_MEMORY */
    uint64_t timeout_ns;
};

/* What a command left. transport_answer_init before, _release after, whatever happened in between. */
struct transport_answer {
    int exit_status; /* 128 + number for one that a signal ended */
    struct buf out, errors;
};
void transport_answer_init(struct transport_answer *self);
void transport_answer_release(struct transport_answer *self);
/* The last line of stderr (of stdout where stderr is empty) that says something, without its line feed;
 * for messages. `text` holds `bytes`; returns it. */
char *transport_answer_last_line(const struct transport_answer *self, char *text, size_t bytes);

struct transport_stat {
    bool is_folder;
    uint64_t bytes, modified_wall_ns;
};

struct transport;

struct transport_ops {
    const char *name; /* for messages: "this machine", "login.example" */
    int (*run)(struct transport *self, const struct transport_command *command, struct transport_answer *answer,
               struct cb_err *err);
    /* Files and folders to and from the far side, missing parents made. A file arrives whole or not at
     * all. Where both names are the same file nothing is done. */
    int (*put_file)(struct transport *self, const char *local, const char *remote, struct cb_err *err);
    int (*get_file)(struct transport *self, const char *remote, const char *local, struct cb_err *err);
    /* PARENT/NAME there becomes LOCAL/NAME here for each of `count` plain names, in as few round trips as can be.
     * All of them, or a failure: then some may have come, whole or in part. */
    int (*get_folders)(struct transport *self, const char *parent, const char *const *names, size_t count,
                       const char *local, struct cb_err *err);
    /* CB_ERR_NOT_FOUND where there is nothing. */
    int (*stat)(struct transport *self, const char *path, struct transport_stat *status, struct cb_err *err);
    /* Appends at most `max_bytes` of a file from `offset` to `out`; nothing at its end. */
    int (*read)(struct transport *self, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                struct cb_err *err);
    void (*close)(struct transport *self); /* frees */
};

struct transport {
    const struct transport_ops *ops;
};

/* The same through the table. */
int transport_run(struct transport *self, const struct transport_command *command, struct transport_answer *answer,
                  struct cb_err *err) CB_MUST_CHECK;
int transport_put_file(struct transport *self, const char *local, const char *remote, struct cb_err *err) CB_MUST_CHECK;
int transport_get_file(struct transport *self, const char *remote, const char *local, struct cb_err *err) CB_MUST_CHECK;
int transport_get_folders(struct transport *self, const char *parent, const char *const *names, size_t count,
                          const char *local, struct cb_err *err) CB_MUST_CHECK;
int transport_stat(struct transport *self, const char *path, struct transport_stat *status,
                   struct cb_err *err) CB_MUST_CHECK;
int transport_read(struct transport *self, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err) CB_MUST_CHECK;
void transport_close(struct transport *self); /* fine on NULL */

/* This machine itself. */
int transport_local_open(struct transport **self, struct cb_err *err) CB_MUST_CHECK;

/* A machine behind SSH (docs/ssh.md says what is supported). One connection carries everything; when it
 * breaks it is made again, with pauses that grow, before the next command or for the rest of a file. A
 * command whose answer was lost is never run again: CB_ERR_SYSTEM says that nobody knows what became of
 * it. `destination` is [user@]host[:port] or a Host of ~/.ssh/config. Connects; CB_ERR_UNSUPPORTED in a
 * build without libssh2. Strings of the settings are copied; NULL is all of them 0. */
struct transport_ssh_settings {
    const char *config_path;     /* as ssh -F has it; NULL: ~/.ssh/config, then /etc/ssh/ssh_config */
    const char *path;            /* put before PATH for every command there, "/opt/a/bin:/b"; may be NULL */
    bool login_path;             /* commands get the PATH of a login shell there, which is asked once */
    uint64_t connect_timeout_ns; /* for a connection; 0: ConnectTimeout of the configuration, or 20 s */
};
int transport_ssh_open(const char *destination, const struct transport_ssh_settings *settings, struct transport **self,
                       struct cb_err *err) CB_MUST_CHECK;
/* What the user should know once ("Match … skipped"), or "". */
const char *transport_ssh_note(const struct transport *self);
/* How many connections were made so far. */
uint32_t transport_ssh_connections(const struct transport *self);

/* Variables that set options of Slurm's programs (by how they begin), and those of them that say where
 * the cluster is, which stay. NULL-terminated. */
extern const char *const transport_slurm_prefixes[], *const transport_slurm_kept[];

#endif
