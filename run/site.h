/* Sites: clusters by name, as this user has described them.
 *
 * A site is a file, ~/.config/ckptbench/sites/NAME.yaml ($XDG_CONFIG_HOME honoured), that `site add` writes
 * and people may edit. It says how the cluster is reached and what its programs need, nothing secret. A key
 * that does not exist is refused with its place and the nearest right one. */
#ifndef RUN_SITE_H
#define RUN_SITE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

#define SITE_NAME_BYTES 64
#define SITE_LOCAL "local" /* what the history calls this machine: no site may have the name */

/* In the order in which a file has them. */
enum site_key {
    SITE_HOST,      /* as ssh knows it, user@host:port too; "localhost" is this machine, without ssh */
    SITE_PREFIX,    /* where the programs are installed there: PREFIX/bin/ckptbench */
    SITE_HOME,      /* CKPTBENCH_HOME there: run folders and history; the nodes share it, or have SITE_SBCAST */
    SITE_PARTITION, /* slurm.partition, account and launcher of runs that give none */
    SITE_ACCOUNT,
    SITE_LAUNCHER,
    SITE_CONTAINER, /* container of runs: how ranks start in an image */
    SITE_SBCAST,    /* slurm.sbcast of runs: a folder of each node, where login and compute nodes share none */
    SITE_MODULES,   /* loaded in this order before the programs start: "gcc/12 openmpi/4.1" */
    SITE_MPI,       /* an MPI's folder: its bin comes first in PATH, its lib in LD_LIBRARY_PATH */
    SITE_KEY_COUNT
};
const char *site_key_name(enum site_key key);

struct site_variable {
    char *name, *value; /* owned */
};

struct site {
    char name[SITE_NAME_BYTES];
    char *values[SITE_KEY_COUNT];      /* owned; NULL where not set */
    struct site_variable *environment; /* environment.NAME: what else the programs need there */
    size_t environment_count;
};

/* Checks the name: letters, digits, dot, dash and underscore. */
int site_init(struct site *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
void site_release(struct site *self);

/* "" where it is not set. */
const char *site_text(const struct site *self, enum site_key key);
/* Whether it is reached without ssh. */
bool site_is_here(const struct site *self);

/* One key, checked; `origin` opens messages. A value given again replaces the one before, "" removes it. */
int site_set(struct site *self, const char *key, const char *value, const char *origin,
             struct cb_err *err) CB_MUST_CHECK;

/* A site file's bytes; `path` is how messages call it. */
int site_parse(struct site *self, const char *path, const char *text, size_t len, struct cb_err *err) CB_MUST_CHECK;
/* Appends the file's text. */
void site_format(const struct site *self, struct buf *out);

/* The file of a site: CB_ERR_NOT_FOUND names the nearest site there is. Release also after a failure. */
int site_read(const char *name, struct site *self, struct cb_err *err) CB_MUST_CHECK;
int site_write(const struct site *self, struct cb_err *err) CB_MUST_CHECK;
int site_remove(const char *name, struct cb_err *err) CB_MUST_CHECK;
int site_path(const char *name, struct buf *path, struct cb_err *err) CB_MUST_CHECK;

/* The names of all sites, sorted; none is no error. */
struct site_names {
    char **items;
    size_t count;
};
int site_list(struct site_names *names, struct cb_err *err) CB_MUST_CHECK;
void site_names_release(struct site_names *names);

#endif
