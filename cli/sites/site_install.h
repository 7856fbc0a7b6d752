/* Installs the programs on a site: builds them there once from the sources of this release, without root. */
#ifndef CLI_SITES_SITE_INSTALL_H
#define CLI_SITES_SITE_INSTALL_H

#include <stdbool.h>

#include "cli/jobs/site_command.h"
#include "core/err.h"

/* The value of an environment variable on the site, "" if it is unset: "HOME". `text` holds `bytes` bytes. */
int site_ask_variable(struct remote *remote, const char *name, char *text, size_t bytes,
                      struct cb_err *err) CB_MUST_CHECK;

/* Whether all three programs are in the site's prefix. */
int site_has_programs(struct remote *remote, bool *has, struct cb_err *err) CB_MUST_CHECK;

/* Builds the programs into the site's prefix; the error names missing build tools. Takes minutes. */
int site_install(struct remote *remote, struct cb_err *err) CB_MUST_CHECK;

#endif
