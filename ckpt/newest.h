/* Which checkpoint of a folder was committed last: a run keeps several below its own. */
#ifndef CKPT_NEWEST_H
#define CKPT_NEWEST_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "store/store.h"

/* The folder, relative to the store, whose commit marker is the youngest: `folder` itself where it has one, else
 * one below it; without any, `folder` itself where safetensors files lie in it, whose writers know no marker.
 * CB_ERR_NOT_FOUND where there is none; *files says how many files lie there then. `name` may be
 * "" (the store itself), and `folder` too. */
int newest_checkpoint(struct store *store, const char *folder, char *name, size_t room, uint64_t *files,
                      struct cb_err *err) CB_MUST_CHECK;

#endif
