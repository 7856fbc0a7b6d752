/* What this build is. In its own object file, so that a new commit rebuilds nothing else. */
#ifndef CORE_VERSION_H
#define CORE_VERSION_H

const char *version_text(void);   /* "0.1.0" */
const char *version_commit(void); /* of the sources, or "unknown" */
const char *version_prefix(void); /* where `make install` installs */

#endif
