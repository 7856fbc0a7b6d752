/* A page for browsers: one HTML file that has its data, scripts and styles in it and loads nothing.
 *
 * share/report/page.html is the frame. Each line `<script src="FILE"></script>` or `<link rel="stylesheet" href="FILE">`
 * is replaced by the file, @SCRIPTS@ in the content security policy by the hashes of those scripts, and @DATA@ by the
 * data. Data: {"kind","command","version","made","documents":{name:{"command","data"}}}; `data` is what `command`
 * prints. Not thread-safe.
 *
 * Pages of a site share one copy of the scripts, which is in files next to them. */
#ifndef CLI_REPORT_PAGE_H
#define CLI_REPORT_PAGE_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"

#define PART_PATH_BYTES 128

/* The scripts of the frame, in its order. */
struct page_scripts {
    struct page_script {
        char path[PART_PATH_BYTES]; /* report/FILE, in share/ and in a site */
        char *text;
        size_t len;
    } * items;
    size_t count;
    char digest[17]; /* of frame, scripts and styles */
};

struct page {
    struct buf data;
    struct json_writer json;
    const struct page_scripts *shared; /* borrowed; NULL: the page has its own */
    const char *root;                  /* the path from the page to the folder of the scripts: "" or "../" */
};

/* Starts a page of `kind`, which share/report has to know, made by the command line `command` (NULL: none). */
void page_init(struct page *self, const char *kind, const char *command);
void page_release(struct page *self);

/* Adds a JSON document under `name`, and the command line that prints it (NULL: none). */
void page_add(struct page *self, const char *name, const char *command, const char *document);

/* Ends the data. */
int page_end(struct page *self, struct cb_err *err) CB_MUST_CHECK;
/* Appends the page after page_end. CB_ERR_NOT_FOUND if share/report is missing. */
int page_write(const struct page *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* The page refers to the scripts instead. */
void page_share_scripts(struct page *self, const struct page_scripts *scripts, const char *root);

/* Call page_scripts_release also after a failure. CB_ERR_NOT_FOUND if share/report is missing. */
int page_scripts_load(struct page_scripts *self, struct cb_err *err) CB_MUST_CHECK;
/* Writes the scripts that are missing or different into a folder, where pages can share them. */
int page_scripts_write(const struct page_scripts *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
void page_scripts_release(struct page_scripts *self);

#endif
