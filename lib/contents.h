/* What a checkpoint contains, for ckptbench_inspect. */
#ifndef LIB_CONTENTS_H
#define LIB_CONTENTS_H

#include "core/err.h"
#include "include/ckptbench.h"
#include "store/store.h"

int contents_read(struct store *store, const char *name, ckptbench_checkpoint **checkpoint,
                  struct cb_err *err) CB_MUST_CHECK;

#endif
