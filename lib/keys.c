#include "lib/keys.h"

#include <stdio.h>
#include <string.h>

#include "run/library_keys.h"

#define KEY_BYTES 64
#define RECORD "record="

static int read_word(struct experiment *experiment, const char *word, struct cb_err *err)
{
    char key[KEY_BYTES];
    const char *equals = word ? strchr(word, '=') : NULL;
    if (!equals || (size_t)(equals - word) >= sizeof key)
        return cb_fail(err, CB_ERR_USAGE, "'%.100s' is not key=value", word ? word : "");
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    if (!library_keys_has(key))
        return cb_fail(err, CB_ERR_USAGE, "%s: this key has no meaning for saves and loads of a program", key);
    return experiment_set(experiment, key, equals + 1, NULL, err);
}

int keys_read(const char *const *words, size_t count, struct experiment **experiment, const char **record,
              struct cb_err *err)
{
    struct experiment *made = NULL;
    int rc = experiment_new(&made, err);
    *record = NULL;
    *experiment = made;
    for (size_t i = 0; i < count && made; i++) {
        if (words[i] && strncmp(words[i], RECORD, strlen(RECORD)) == 0) {
            *record = words[i] + strlen(RECORD);
            continue;
        }
        int code = read_word(made, words[i], rc ? NULL : err);
        rc = rc ? rc : code;
    }
    if (!rc && !experiment_is(made, OPT_FORMAT, "dcp"))
        rc = cb_fail(err, CB_ERR_USAGE, "format=%s: a program's state is saved as dcp",
                     experiment_text(made, OPT_FORMAT));
    if (!rc && experiment_is(made, OPT_FOLDER, "rotate"))
        rc = cb_fail(err, CB_ERR_USAGE, "folder=rotate: the program chooses the path of each save");
    if (!rc && !experiment_is(made, OPT_IO_GDS, "off"))
        rc = cb_fail(err, CB_ERR_USAGE, "io.gds=%s: a program's tensors on a GPU pass through pinned memory",
                     experiment_text(made, OPT_IO_GDS));
    if (!rc && experiment_is(made, OPT_LOAD_EXCHANGE, "auto"))
        rc = cb_fail(err, CB_ERR_USAGE, "load.exchange=auto chooses from measured loads: give off, broadcast or split");
    return rc ? rc : experiment_validate(made, err);
}
