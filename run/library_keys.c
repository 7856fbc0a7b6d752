#include "run/library_keys.h"

#include <string.h>

/* A name, or what a group of names begins with. */
static const char *const names[] = {
    "format",          "checksum",           "copies",        "folder",   "io.",        "s3.",        "save.dedup",
    "save.plan_cache", "save.staging_bytes", "load.exchange", "load.gap", "load.waste", "timeout.op", "timeout.lease",
    "label."};

bool library_keys_has(const char *key)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t len = strlen(names[i]);
        if (names[i][len - 1] == '.' ? strncmp(key, names[i], len) == 0 : strcmp(key, names[i]) == 0)
            return true;
    }
    return false;
}

void library_keys_write(const struct experiment *experiment, struct buf *words)
{
    for (int id = 0; id < OPTION_COUNT; id++) {
        const char *key = option_row((enum option_id)id)->name;
        const char *value = experiment_text(experiment, (enum option_id)id);
        bool only_run = id == OPT_FOLDER || (id == OPT_LOAD_EXCHANGE && strcmp(value, "auto") == 0);
        if (library_keys_has(key) && experiment_uses(experiment, (enum option_id)id) && !only_run)
            buf_printf(words, "%s=%s\n", key, value);
    }
}
