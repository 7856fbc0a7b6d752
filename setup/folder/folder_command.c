/* Runs store.prepare or store.record, and records its output. */
#include "setup/folder/folder_command.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/path.h"
#include "store/kind.h"

#define COMMAND_MAX_BYTES ((size_t)128 << 10)
#define OUTPUT_MAX_BYTES ((size_t)1 << 20)
#define TIMEOUT_NS (60 * NS_PER_S)
#define VARIABLE "CKPTBENCH_STORE_FOLDER"

/* {path} becomes a variable of the shell, since a path may contain any character. */
static int compose(const char *key, const char *template, struct buf *command, struct cb_err *err)
{
    static const char place[] = "{path}";
    for (const char *found = strstr(template, place); found; found = strstr(template, place)) {
        if (found > template && (found[-1] == '"' || found[-1] == '\''))
            return cb_fail(err, CB_ERR_USAGE, "%s: write {path} without quotes: it is one word already", key);
        buf_append(command, template, (size_t)(found - template));
        buf_append_text(command, "\"$" VARIABLE "\"");
        template = found + sizeof place - 1;
    }
    buf_append_text(command, template);
    return buf_check(command, key, err);
}

static int record(const char *name, const char *template, const struct buf *output, const struct lease_owner *owner,
                  struct cb_err *err)
{
    char file[PATH_MAX];
    struct buf text;
    int rc =
        path_format(file, sizeof file, err, "%s/attempts/%u/%s", owner->run_folder, (unsigned)owner->attempt, name);
    if (rc)
        return rc;
    buf_init(&text, OUTPUT_MAX_BYTES + COMMAND_MAX_BYTES);
    buf_printf(&text, "$ %s\n", template);
    buf_append(&text, output->data, output->len);
    rc = buf_write_file(&text, file, 0644, err);
    buf_release(&text);
    return rc;
}

static int run_for(const char *command, const char *key, const char *path, const char *suffix, struct buf *output,
                   struct cb_err *err)
{
    char variable[2 * PATH_MAX];
    int rc = path_format(variable, sizeof variable, err, VARIABLE "=%s/%s", path, suffix);
    if (rc)
        return rc;
    const struct child_options options = {.argv = (const char *const[]){"sh", "-c", command, NULL},
                                          .environment = (const char *const[]){variable, NULL},
                                          .stdin_fd = -1,
                                          .stdout_fd = -1,
                                          .stderr_fd = -1};
    rc = child_capture(&options, TIMEOUT_NS, output, err);
    return rc && err ? cb_context(err, "%s for %s/%s", key, path, suffix) : rc;
}

int folder_run_command(const struct experiment *experiment, enum option_id key, const char *file, const char *store,
                       const char *suffix, const struct lease_owner *owner, struct cb_err *err)
{
    const char *template = experiment_text(experiment, key), *name = option_row(key)->name;
    struct buf command, output;
    if (!*template) /* as it is for stores without folders */
        return 0;
    struct store_uri uri = store_uri_of(store);
    buf_init(&command, COMMAND_MAX_BYTES);
    buf_init(&output, OUTPUT_MAX_BYTES);
    int rc = compose(name, template, &command, err);
    for (const char *rest = uri.inner; rest && !rc;) {
        char path[PATH_MAX];
        rc = store_next_mount(&rest, path, err);
        if (!rc && uri.kind->is_mounts)
            buf_printf(&output, "# %s/%s\n", path, suffix);
        if (!rc)
            rc = run_for(command.data, name, path, suffix, &output, err);
    }
    if (!rc)
        rc = record(file, template, &output, owner, err);
    buf_release(&command);
    buf_release(&output);
    return rc;
}
