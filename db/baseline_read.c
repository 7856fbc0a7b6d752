/* Reads a baseline's definition, from its row or its file. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "db/connection.h"

void baseline_release(struct baseline *baseline)
{
    for (size_t i = 0; i < baseline->word_count; i++)
        free(baseline->words[i]);
    free(baseline->words);
    *baseline = (struct baseline){0};
}

static int copy_words(const struct json_value *list, struct baseline *baseline, struct cb_err *err)
{
    size_t count = json_count(list);
    baseline->words = calloc(count + 1, sizeof *baseline->words);
    if (!baseline->words)
        return alloc_fail(err, "for a baseline");
    for (size_t i = 0; i < count; i++) {
        const char *word;
        if (!json_as_text(json_at(list, i), &word))
            return cb_fail(err, CB_ERR_FORMAT, "word %zu is not a text", i + 1);
        baseline->words[i] = strdup(word);
        if (!baseline->words[i])
            return alloc_fail(err, "for a baseline");
        baseline->word_count++;
    }
    return 0;
}

int baseline_parse(const char *name, const char *text, size_t len, struct baseline *baseline, struct cb_err *err)
{
    struct json_value *root;
    struct baseline parsed = {0};
    uint64_t version;
    int rc = json_parse(text, len, &root, err);
    if (rc)
        return cb_context(err, "baseline %s", name);
    snprintf(parsed.name, sizeof parsed.name, "%s", name);
    rc = json_need_u64(root, "version", &version, err);
    if (rc == 0 && version != BASELINE_FILE_VERSION)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "version %llu, this program knows %d", (unsigned long long)version,
                     BASELINE_FILE_VERSION);
    if (!json_as_u64(json_get(root, "window"), &parsed.window))
        parsed.window = 0;
    const struct json_value *list = json_get(root, parsed.window ? "filters" : "runs");
    if (rc == 0 && !json_is_array(list))
        rc = cb_fail(err, CB_ERR_FORMAT, "it has neither runs nor a window with filters");
    if (rc == 0)
        rc = copy_words(list, &parsed, err);
    json_value_free(root);
    if (rc) {
        baseline_release(&parsed);
        return cb_context(err, "baseline %s", name);
    }
    *baseline = parsed;
    return 0;
}

int history_read_baseline(struct history *self, const char *name, struct baseline *baseline, struct cb_err *err)
{
    sqlite3_stmt *statement;
    bool has_row;
    int rc = db_query(self, &statement, err, "SELECT definition FROM baseline WHERE baseline=?", "t", name);
    if (rc == 0)
        rc = db_step(self, statement, &has_row, err);
    if (rc)
        return rc;
    if (has_row)
        rc = baseline_parse(name, db_text(statement, 0), strlen(db_text(statement, 0)), baseline, err);
    else
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no baseline %s: `ckptbench baseline list` names them", name);
    db_reset(statement);
    return rc;
}
