/* The programs on a site: built there from the sources of this release, without root, once. */
#ifndef CLI_SITES_SITE_INSTALL_H
#define CLI_SITES_SITE_INSTALL_H

#include <stdbool.h>

#include "cli/sites/site_command.h"
#include "core/err.h"

/* What an environment there says, "" where it is not set: "HOME". `text` holds `bytes`. */
int site_ask_variable(struct remote *remote, const char *name, char *text, size_t bytes,
                      struct cb_err *err) CB_MUST_CHECK;

/* Whether all three programs lie in the site's prefix. */
int site_has_programs(struct remote *remote, bool *has, struct cb_err *err) CB_MUST_CHECK;

/* Builds them into the site's prefix; what is missing there is named. Takes minutes. */
int site_install(struct remote *remote, struct cb_err *err) CB_MUST_CHECK;

#endif
