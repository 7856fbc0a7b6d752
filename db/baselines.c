/* Baselines: each is a file in FOLDER/baselines, which is authoritative, and a row for fast queries. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/log.h"
#include "core/path.h"
#include "db/connection.h"

#define BASELINE_MAX_BYTES (1u << 20)
#define PATH_MAX_BYTES 4096

static int check_name(const char *name, struct cb_err *err)
{
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    if (len == 0 || name[len] || name[0] == '.' || name[0] == '-' || len >= BASELINE_NAME_BYTES)
        return cb_fail(err, CB_ERR_USAGE,
                       "a baseline's name is up to %d letters, digits, _ . and -, as nightly, not \"%s\"",
                       BASELINE_NAME_BYTES - 1, name);
    return 0;
}

static int write_definition(const struct baseline *baseline, struct buf *out, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, out, 2);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", BASELINE_FILE_VERSION);
    json_member_text(&json, "baseline", baseline->name);
    if (baseline->window)
        json_member_u64(&json, "window", baseline->window);
    json_member_array(&json, baseline->window ? "filters" : "runs");
    for (size_t i = 0; i < baseline->word_count; i++)
        json_write_text(&json, baseline->words[i]);
    json_write_end_array(&json);
    json_write_end_object(&json);
    buf_append_char(out, '\n');
    return buf_check(out, "a baseline", err);
}

static int file_path(const struct history *self, const char *name, char path[PATH_MAX_BYTES], struct cb_err *err)
{
    if (snprintf(path, PATH_MAX_BYTES, "%s/baselines/%s.json", self->folder, name) >= PATH_MAX_BYTES)
        return cb_fail(err, CB_ERR_USAGE, "the path of baseline %s is too long", name);
    return 0;
}

/* Runs must exist and filters must be valid: it is better to fail now than in the nightly comparison. */
static int check_words(struct history *self, const struct baseline *baseline, struct cb_err *err)
{
    struct run_selection selection = {0};
    int rc = 0;
    if (baseline->window)
        rc = selection_of_window(self, baseline, NULL, &selection, err);
    else if (baseline->word_count == 0)
        rc = cb_fail(err, CB_ERR_USAGE, "baseline %s names no runs", baseline->name);
    for (size_t i = 0; !baseline->window && i < baseline->word_count && rc == 0; i++) {
        char run[64];
        rc = history_find_run(self, baseline->words[i], run, err);
        if (rc == 0 && strcmp(run, baseline->words[i]) != 0)
            rc = cb_fail(err, CB_ERR_USAGE, "baseline %s: %s is not the whole id of a run", baseline->name,
                         baseline->words[i]);
    }
    run_selection_release(&selection);
    return rc;
}

int history_set_baseline(struct history *self, const struct baseline *baseline, struct cb_err *err)
{
    char path[PATH_MAX_BYTES], folder[PATH_MAX_BYTES];
    struct buf text;
    buf_init(&text, BASELINE_MAX_BYTES);
    int rc = check_name(baseline->name, err);
    if (rc == 0)
        rc = check_words(self, baseline, err);
    if (rc == 0)
        rc = file_path(self, baseline->name, path, err);
    if (rc == 0)
        rc = write_definition(baseline, &text, err);
    if (rc == 0) {
        snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
        if (mkdir(folder, 0777) && errno != EEXIST)
            rc = cb_fail_errno(err, errno, "creating %s", folder);
    }
    if (rc == 0)
        rc = buf_write_file(&text, path, 0666, err);
    if (rc == 0)
        rc = db_run(self, err, "INSERT OR REPLACE INTO baseline VALUES(?,?)", "tt", baseline->name, text.data);
    buf_release(&text);
    return rc;
}

int history_remove_baseline(struct history *self, const char *name, struct cb_err *err)
{
    char path[PATH_MAX_BYTES];
    struct baseline baseline = {0};
    int rc = history_read_baseline(self, name, &baseline, err);
    if (rc)
        return rc;
    baseline_release(&baseline);
    rc = file_path(self, name, path, err);
    if (rc == 0 && unlink(path) && errno != ENOENT)
        rc = cb_fail_errno(err, errno, "removing %s", path);
    if (rc == 0)
        rc = db_run(self, err, "DELETE FROM baseline WHERE baseline=?", "t", name);
    return rc;
}

int history_each_baseline(struct history *self, baseline_fn each, void *context, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, "SELECT baseline, definition FROM baseline ORDER BY baseline", "");
    while (db_next(self, statement, &rc, err)) {
        struct baseline baseline = {0};
        rc =
            baseline_parse(db_text(statement, 0), db_text(statement, 1), strlen(db_text(statement, 1)), &baseline, err);
        if (rc == 0) {
            rc = each(context, &baseline, err);
            baseline_release(&baseline);
        }
    }
    sqlite3_reset(statement);
    return rc;
}

/* Compares one file with its row. */
static int update_one(struct history *self, const char *folder, const char *file, bool load, bool *differ,
                      struct cb_err *err)
{
    char path[PATH_MAX_BYTES], name[BASELINE_NAME_BYTES];
    size_t len = strlen(file);
    bool same = false;
    if (len <= 5 || strcmp(file + len - 5, ".json") != 0 || len - 5 >= sizeof name || file[0] == '.')
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)(len - 5), file);
    if (path_format(path, sizeof path, err, "%s/%s", folder, file))
        return CB_ERR_USAGE;
    struct buf text;
    struct baseline baseline = {0};
    buf_init(&text, BASELINE_MAX_BYTES);
    struct cb_err why;
    int rc = 0, unreadable = buf_read_file(&text, path, &why);
    if (!unreadable)
        rc = db_find(self, &same, NULL, err, "SELECT 1 FROM baseline WHERE baseline=? AND definition=?", "tt", name,
                     text.data);
    if (!unreadable && rc == 0 && !same) {
        unreadable = baseline_parse(name, text.data, text.len, &baseline, &why);
        *differ = *differ || !unreadable;
        if (!unreadable && load)
            rc = db_run(self, err, "INSERT OR REPLACE INTO baseline VALUES(?,?)", "tt", name, text.data);
        baseline_release(&baseline);
    }
    if (unreadable && unreadable != CB_ERR_NOT_FOUND) /* one bad file must not end every command */
        log_info("%s: the baseline stays as it was here", why.message);
    buf_release(&text);
    return rc;
}

static int remove_rows_without_file(struct history *self, bool load, bool *differ, struct cb_err *err)
{
    char path[PATH_MAX_BYTES], gone[BASELINE_NAME_BYTES];
    sqlite3_stmt *statement;
    int rc;
    do {
        gone[0] = '\0';
        rc = db_query(self, &statement, err, "SELECT baseline FROM baseline", "");
        while (!*gone && db_next(self, statement, &rc, err)) {
            const char *name = db_text(statement, 0);
            if (file_path(self, name, path, NULL) == 0 && access(path, F_OK) < 0 && errno == ENOENT)
                snprintf(gone, sizeof gone, "%s", name);
        }
        sqlite3_reset(statement);
        *differ = *differ || *gone;
        if (rc == 0 && *gone && load)
            rc = db_run(self, err, "DELETE FROM baseline WHERE baseline=?", "t", gone);
    } while (rc == 0 && *gone && load);
    return rc;
}

int baselines_update(struct history *self, bool load, bool *differ, struct cb_err *err)
{
    char folder[PATH_MAX_BYTES];
    *differ = false;
    if (path_format(folder, sizeof folder, err, "%s/baselines", self->folder))
        return CB_ERR_USAGE;
    DIR *entries = opendir(folder);
    if (!entries && errno != ENOENT)
        return cb_fail_errno(err, errno, "reading %s", folder);
    int rc = 0;
    for (struct dirent *entry; entries && rc == 0 && (entry = readdir(entries));)
        rc = update_one(self, folder, entry->d_name, load, differ, err);
    if (entries)
        closedir(entries);
    return rc ? rc : remove_rows_without_file(self, load, differ, err);
}
