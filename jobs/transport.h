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
    int (*put_folder)(struct transport *self, const char *local, const char *remote, struct cb_err *err);
    int (*get_folder)(struct transport *self, const char *remote, const char *local, struct cb_err *err);
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
int transport_put_folder(struct transport *self, const char *local, const char *remote,
                         struct cb_err *err) CB_MUST_CHECK;
int transport_get_folder(struct transport *self, const char *remote, const char *local,
                         struct cb_err *err) CB_MUST_CHECK;
int transport_stat(struct transport *self, const char *path, struct transport_stat *status,
                   struct cb_err *err) CB_MUST_CHECK;
int transport_read(struct transport *self, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err) CB_MUST_CHECK;
void transport_close(struct transport *self); /* fine on NULL */

/* This machine itself. */
int transport_local_open(struct transport **self, struct cb_err *err) CB_MUST_CHECK;

#endif
