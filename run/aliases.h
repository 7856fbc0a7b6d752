/* Names that keys have in other tools, accepted when settings are read: world_size=8 is ranks=8. One row each, in
 * run/aliases.def. Frozen experiments, the history and all output use our names alone. */
#ifndef RUN_ALIASES_H
#define RUN_ALIASES_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/setting.h"
#include "run/options.h"

struct alias {
    const char *word;
    enum option_id id;
    const char *values; /* "theirs=ours|…", or "" */
    const char *tool;   /* the tool that uses the word */
};

size_t alias_count(void);
const struct alias *alias_row(size_t index);

/* The alias of a name, or NULL. Accepts Hydra's forms (+name, ++workload.name) and '-' instead of '_'. */
const struct alias *alias_find(const char *name);

/* Replaces aliases among the settings by our keys and values. `said` receives "world_size is ranks, backend is device
 * (gloo: cpu)", or nothing if there is no alias. */
int aliases_resolve(struct setting_list *list, struct buf *said, struct cb_err *err) CB_MUST_CHECK;

#endif
