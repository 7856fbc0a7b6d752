/* Files that are not part of the programs and belong to them: share/ in the source tree, PREFIX/share/ckptbench after
 * `make install`. Includes <limits.h> for PATH_MAX. */
#ifndef CORE_SHARE_FILE_H
#define CORE_SHARE_FILE_H

#include <limits.h>

#include "core/err.h"

/* The path of `name` ("adapters/torch_dcp.py"). Searches near the folder of this program (a build folder in the source
 * tree, or PREFIX/bin), then the prefix of the build. CB_ERR_NOT_FOUND says that `what` needs it. Thread-safe. */
int share_file_find(const char *what, const char *name, char path[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

#endif
