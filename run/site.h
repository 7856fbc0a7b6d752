/* Sites: clusters by name, as this user has described them.
 *
 * A site is a file, ~/.config/ckptbench/sites/NAME.yaml (honours $XDG_CONFIG_HOME), that `site add` writes and people
 * may edit. It contains how to reach the cluster and what its programs require; it holds no secrets. An unknown key is
 * rejected with its position and the nearest valid key. */
#ifndef RUN_SITE_H
#define RUN_SITE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

#define SITE_NAME_BYTES 64
#define SITE_LOCAL "local" /* the history's name for this machine; no site may have it */

/* In file order. */
enum site_key {
    SITE_HOST,      /* as ssh knows it, also user@host:port; "localhost" is this machine, without ssh */
    SITE_PREFIX,    /* installation prefix there: PREFIX/bin/ckptbench */
    SITE_HOME,      /* CKPTBENCH_HOME there: run folders and history; shared by the nodes, or SITE_SBCAST is set */
    SITE_PARTITION, /* defaults of slurm.partition, account and launcher */
    SITE_ACCOUNT,
    SITE_LAUNCHER,
    SITE_CONTAINER, /* default of container: how ranks start in an image */
    SITE_SBCAST,  /* default of slurm.sbcast: a folder on each node, if login and compute nodes share no file system */
    SITE_MODULES, /* loaded in this order before the programs start: "gcc/12 openmpi/4.1" */
    SITE_MPI,     /* an MPI's folder: its bin goes first in PATH, its lib in LD_LIBRARY_PATH */
    SITE_KEY_COUNT
};
const char *site_key_name(enum site_key key);

struct site_variable {
    char *name, *value; /* owned */
};

struct site {
    char name[SITE_NAME_BYTES];
    char *values[SITE_KEY_COUNT];      /* owned; NULL if not set */
    struct site_variable *environment; /* environment.NAME: further variables for the programs there */
    size_t environment_count;
};

/* Checks the name: letters, digits, dot, dash and underscore. */
int site_init(struct site *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
void site_release(struct site *self);

/* "" if it is not set. */
const char *site_text(const struct site *self, enum site_key key);
/* Whether the site is this machine, reached without ssh. */
bool site_is_here(const struct site *self);

/* Sets one checked key; error messages start with `origin`. A repeated key replaces its earlier value, "" removes
 * it. */
int site_set(struct site *self, const char *key, const char *value, const char *origin,
             struct cb_err *err) CB_MUST_CHECK;

/* Parses a site file's bytes; messages call it `path`. */
int site_parse(struct site *self, const char *path, const char *text, size_t len, struct cb_err *err) CB_MUST_CHECK;
/* Appends the file's text. */
void site_format(const struct site *self, struct buf *out);

/* Reads a site's file: CB_ERR_NOT_FOUND suggests the nearest existing site. Release also after a failure. */
int site_read(const char *name, struct site *self, struct cb_err *err) CB_MUST_CHECK;
int site_write(const struct site *self, struct cb_err *err) CB_MUST_CHECK;
int site_remove(const char *name, struct cb_err *err) CB_MUST_CHECK;
int site_path(const char *name, struct buf *path, struct cb_err *err) CB_MUST_CHECK;

/* The names of all sites, sorted; an empty list is not an error. */
struct site_names {
    char **items;
    size_t count;
};
int site_list(struct site_names *names, struct cb_err *err) CB_MUST_CHECK;
void site_names_release(struct site_names *names);

#endif
