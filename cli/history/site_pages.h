/* The pages of a site: which ones the history needs, where they are, and which have to be made again. */
#ifndef CLI_HISTORY_SITE_PAGES_H
#define CLI_HISTORY_SITE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "db/history.h"

enum site_page_kind { SITE_START, SITE_LINE, SITE_SWEEP, SITE_RUN };

/* Paths depend on what the page is about alone, so links to a page stay true: index.html, and by their name the pages in
 * the folders run, sweep, and line, where it is HASH-PLACE and PLACE is a hash of store and site. */
#define SITE_PATH_BYTES 256
struct site_page {
    enum site_page_kind kind;
    char path[SITE_PATH_BYTES]; /* relative to the site */
    char name[64];              /* run or sweep; of a line, the hash of its experiment */
    char site[64], newest[64];  /* of a line: where it is, and its newest run */
    size_t runs;                /* of a line */
    char *store;                /* of a line; owned */
    /* Of a run: the pages of its line and sweep; "" if it has none. */
    char line[SITE_PATH_BYTES], sweep[SITE_PATH_BYTES];
    char signature[17]; /* changes when what the page shows changes */
};

struct site_pages {
    struct site_page *items; /* the start page last, since it has links to the others */
    size_t count;
};

/* The path of a page, from the fields that name it. */
void site_run_path(const char *run, char path[SITE_PATH_BYTES]);
void site_sweep_path(const char *sweep, char path[SITE_PATH_BYTES]);
void site_line_path(const char *hash, const char *store, const char *site, char path[SITE_PATH_BYTES]);

/* Lists the pages of all runs, of all sweeps, and of all lines with two runs that passed. `maker` is what else the pages
 * depend on: the version of this program and of the code of its pages. */
int site_pages_find(struct site_pages *self, struct history *history, const char *maker,
                    struct cb_err *err) CB_MUST_CHECK;
void site_pages_release(struct site_pages *self);

/* Appends the page to an empty buffer. */
typedef int (*site_page_fn)(void *context, const struct site_page *page, struct buf *out, struct cb_err *err);

struct site_counts {
    size_t made, kept, removed, failed;
};

/* CB_ERR_USAGE if the folder has contents and is no site. */
int site_pages_check_folder(const char *folder, struct cb_err *err) CB_MUST_CHECK;

/* Makes the pages in `folder` that are missing or not current, and removes those of runs that have left the history.
 * The signatures of the pages are kept in FOLDER/pages.json, which is written last. A page whose run is damaged in the
 * history is left out with a warning; the next call tries again. */
int site_pages_make(struct site_pages *self, const char *folder, site_page_fn make, void *context,
                    struct site_counts *counts, struct cb_err *err) CB_MUST_CHECK;

#endif
