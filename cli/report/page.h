/* A page for browsers: one HTML file that has its data, scripts and styles in it and loads nothing.
 *
 * share/report/page.html is the frame. Each line `<script src="FILE"></script>` or `<link rel="stylesheet" href="FILE">`
 * is replaced by the file, @SCRIPTS@ in the content security policy by the hashes of those scripts, and @DATA@ by the
 * data. Data: {"kind","command","version","made","documents":{name:{"command","data"}}}; `data` is what `command`
 * prints. Not thread-safe. */
#ifndef CLI_REPORT_PAGE_H
#define CLI_REPORT_PAGE_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"

struct page {
    struct buf data;
    struct json_writer json;
};

/* Starts a page of `kind`, which share/report has to know, made by the command line `command`. */
void page_init(struct page *self, const char *kind, const char *command);
void page_release(struct page *self);

/* Adds a JSON document under `name`, and the command line that prints it. */
void page_add(struct page *self, const char *name, const char *command, const char *document);

/* Ends the data. */
int page_end(struct page *self, struct cb_err *err) CB_MUST_CHECK;
/* Appends the page after page_end. CB_ERR_NOT_FOUND if share/report is missing. */
int page_write(const struct page *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
