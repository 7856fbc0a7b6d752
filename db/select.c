/* Turns a user's words (ids, prefixes, sweeps, baselines, filters) into one SELECT. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/nearest_word.h"
#include "core/units.h"
#include "db/connection.h"
#include "run/options.h"
#include "run/run_folder.h"

#define SQL_MAX_BYTES (1u << 22)
#define RUN_TIME "coalesce(started_ns, planned_ns)"

/* A SELECT under construction: its text and the values to bind. */
struct clause {
    struct buf sql;
    char **values;
    size_t count;
    int code;
};

static void clause_init(struct clause *self)
{
    *self = (struct clause){0};
    buf_init(&self->sql, SQL_MAX_BYTES);
}

static void clause_release(struct clause *self)
{
    buf_release(&self->sql);
    alloc_free_texts(self->values, self->count);
}

/* Appends SQL and the value for its "?". */
static void clause_add(struct clause *self, const char *sql, const char *value)
{
    buf_append_text(&self->sql, sql);
    if (alloc_add_text(&self->values, &self->count, value, strlen(value), NULL))
        self->code = CB_ERR_MEMORY;
}

void run_selection_release(struct run_selection *selection)
{
    free(selection->runs);
    *selection = (struct run_selection){0};
}

int selection_add(struct run_selection *selection, const char *run, struct cb_err *err)
{
    if (alloc_grow(&selection->runs, selection->count, sizeof *selection->runs, err))
        return CB_ERR_MEMORY;
    snprintf(selection->runs[selection->count++], 64, "%s", run);
    return 0;
}

/* Runs a finished clause. The statement depends on the user's words, so it is not cached. */
static int clause_run(struct history *self, struct clause *clause, struct run_selection *selection, struct cb_err *err)
{
    sqlite3_stmt *statement;
    struct run_selection found = {0};
    int rc = clause->code ? cb_fail(err, clause->code, "no memory for a selection of runs")
                          : buf_check(&clause->sql, "a selection of runs", err);
    if (rc)
        return rc;
    if (sqlite3_prepare_v2(self->db, clause->sql.data, -1, &statement, NULL) != SQLITE_OK)
        return db_fail(self, "selecting runs", err);
    for (size_t i = 0; i < clause->count; i++)
        sqlite3_bind_text(statement, (int)i + 1, clause->values[i], -1, SQLITE_STATIC);
    while (db_next(self, statement, &rc, err))
        rc = selection_add(&found, db_text(statement, 0), err);
    sqlite3_finalize(statement);
    if (rc)
        run_selection_release(&found);
    else
        *selection = found;
    return rc;
}

static int fail_with_nearest(struct history *self, const char *name, struct cb_err *err)
{
    char **names = NULL;
    size_t count = 0;
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err,
                      "SELECT run FROM run UNION SELECT sweep FROM sweep UNION SELECT baseline FROM baseline", "");
    while (db_next(self, statement, &rc, err))
        if (alloc_add_text(&names, &count, db_text(statement, 0), strlen(db_text(statement, 0)), NULL))
            break;
    sqlite3_reset(statement);
    const char *nearest = nearest_word(name, (const char *const *)names, count);
    for (size_t i = 0; i < count && !nearest; i++) /* the random part of an id, which people remember */
        nearest = *name && strstr(names[i], name) ? names[i] : NULL;
    if (count == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no run %s: the history %s holds none yet", name, self->path);
    else if (nearest)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no run, sweep or baseline %s: did you mean %s?", name, nearest);
    else
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no run, sweep or baseline %s: `ckptbench list` names them", name);
    alloc_free_texts(names, count);
    return rc;
}

/* The only run whose id starts with `name`. */
static int find_prefix(struct history *self, const char *name, char run[64], bool *found, struct cb_err *err)
{
    sqlite3_stmt *statement;
    char runs[2][64] = {"", ""};
    size_t count = 0;
    int rc =
        db_query(self, &statement, err,
                 "SELECT run FROM run WHERE run >= ?1 AND run < ?1 || char(1114111) ORDER BY run LIMIT 2", "t", name);
    while (db_next(self, statement, &rc, err))
        db_copy_text(statement, 0, runs[count++], sizeof runs[0]);
    *found = rc == 0 && count > 0;
    if (*found)
        memcpy(run, runs[0], sizeof runs[0]);
    if (count == 2)
        return cb_fail(err, CB_ERR_USAGE, "%s could be %s, %s or more: write out the id", name, runs[0], runs[1]);
    return rc;
}

int history_find_run(struct history *self, const char *name, char run[64], struct cb_err *err)
{
    bool found = false;
    int rc;
    if (strcmp(name, "LATEST") == 0) {
        /* Each part searches run_by_time and stops at its first row. */
        rc = db_find(self, &found, run, err,
                     "SELECT run FROM (SELECT run FROM run WHERE ?1=?1 AND state<>'planned' ORDER BY " RUN_TIME
                     " DESC, run DESC LIMIT 1) UNION ALL SELECT run FROM (SELECT run FROM run ORDER BY " RUN_TIME
                     " DESC, run DESC LIMIT 1) LIMIT 1",
                     "t", name);
        if (rc == 0 && !found)
            rc = cb_fail(err, CB_ERR_NOT_FOUND, "the history %s holds no runs yet: `ckptbench run` makes the first",
                         self->path);
        return rc;
    }
    rc = db_find(self, &found, run, err, "SELECT run FROM run WHERE run=?", "t", name);
    if (rc == 0 && !found && *name)
        rc = find_prefix(self, name, run, &found, err);
    if (rc == 0 && !found)
        rc = fail_with_nearest(self, name, err);
    return rc;
}

/* ---- baselines ---- */

void baseline_release(struct baseline *baseline)
{
    alloc_free_texts(baseline->words, baseline->word_count);
    *baseline = (struct baseline){0};
}

static int copy_words(const struct json_value *list, struct baseline *baseline, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_count(list) && rc == 0; i++) {
        const char *word;
        if (!json_as_text(json_at(list, i), &word))
            return cb_fail(err, CB_ERR_FORMAT, "word %zu is not a text", i + 1);
        rc = alloc_add_text(&baseline->words, &baseline->word_count, word, strlen(word), err);
    }
    return rc;
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
    int rc = db_query(self, &statement, err, "SELECT definition FROM baseline WHERE baseline=?", "t", name);
    if (db_next(self, statement, &rc, err))
        rc = baseline_parse(name, db_text(statement, 0), strlen(db_text(statement, 0)), baseline, err);
    else if (rc == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no baseline %s: `ckptbench baseline list` names them", name);
    sqlite3_reset(statement);
    return rc;
}

/* ---- clauses ---- */

static int add_time_filter(struct clause *clause, const char *word, const char *value, const char *comparison,
                           struct cb_err *err)
{
    uint64_t ago_ns;
    int rc = units_parse_duration(value, &ago_ns, err);
    if (rc)
        return cb_context(err, "%s", word);
    char text[32];
    uint64_t now_ns = clock_wall_ns();
    snprintf(text, sizeof text, "%llu", (unsigned long long)(now_ns > ago_ns ? now_ns - ago_ns : 0));
    buf_printf(&clause->sql, " AND " RUN_TIME "%s", comparison);
    clause_add(clause, "CAST(? AS INTEGER)", text);
    return 0;
}

/* "(column=? OR column GLOB ?)" for the values between commas. An option's value is made canonical. */
static int add_values(struct clause *clause, const char *column, const char *values, const enum option_id *option,
                      struct cb_err *err)
{
    const char *separator = "(";
    for (const char *start = values;; start++) {
        size_t len = strcspn(start, ",");
        char *value = strndup(start, len);
        if (!value)
            return alloc_fail(err, "for a filter");
        bool pattern = strchr(value, '*') != NULL;
        struct option_value parsed = {0};
        int rc = 0;
        if (option && !pattern)
            rc = option_parse(*option, value, &parsed, err);
        if (rc == 0) {
            buf_printf(&clause->sql, "%s%s", separator, column);
            clause_add(clause, pattern ? " GLOB ?" : "=?", parsed.text ? parsed.text : value);
        }
        option_value_release(&parsed);
        free(value);
        if (rc)
            return rc;
        separator = " OR ";
        start += len;
        if (!*start)
            break;
    }
    buf_append_char(&clause->sql, ')');
    return 0;
}

/* A value that no run can have is an error, since an empty result would look as if no run matched. */
static int check_outcomes(const char *values, struct cb_err *err)
{
    for (const char *start = values; *start; start += strcspn(start, ","), start += *start == ',') {
        char name[64];
        enum outcome outcome;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(start, ","), start);
        if (!strchr(name, '*') && !outcome_find(name, &outcome))
            return cb_fail(err, CB_ERR_USAGE,
                           "outcome=%s: there is no such outcome; there are pass, benchmark_failed, infrastructure, "
                           "timeout, cancelled, preempted and lost",
                           name);
    }
    return 0;
}

static int add_filter(struct clause *clause, const char *word, struct cb_err *err)
{
    static const char *const columns[] = {"state", "outcome", "sweep", "run", "hash", "block"};
    const char *equals = strchr(word, '=');
    char key[256];
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    if (strcmp(key, "since") == 0)
        return add_time_filter(clause, word, equals + 1, ">=", err);
    if (strcmp(key, "until") == 0)
        return add_time_filter(clause, word, equals + 1, "<", err);
    if (strcmp(key, "outcome") == 0 && check_outcomes(equals + 1, err))
        return CB_ERR_USAGE;
    buf_append_text(&clause->sql, " AND ");
    /* `state` is a column and an option: filters mean the run's state, unless the value is one of the option's. */
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        enum option_id state;
        struct option_value parsed = {0};
        bool is_option =
            i == 0 && option_find(key, &state, NULL) == 0 && option_parse(state, equals + 1, &parsed, NULL) == 0;
        option_value_release(&parsed);
        if (strcmp(key, columns[i]) == 0 && !is_option)
            return add_values(clause, columns[i], equals + 1, NULL, err);
    }
    if (strcmp(key, "site") == 0)
        return add_values(clause, "(SELECT s.site FROM site s WHERE s.id=run.site)", equals + 1, NULL, err);
    enum option_id id;
    bool is_label = strncmp(key, "label.", 6) == 0;
    int rc = is_label ? 0 : option_find(key, &id, err);
    if (rc)
        return rc;
    clause_add(clause, "run IN (SELECT run FROM param WHERE key=? AND ", key);
    rc = add_values(clause, "value", equals + 1, is_label ? NULL : &id, err);
    buf_append_char(&clause->sql, ')');
    return rc;
}

static int add_filters(struct clause *clause, const char *const *words, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        if (strchr(words[i], '='))
            rc = add_filter(clause, words[i], err);
    return rc;
}

static bool contains(const struct run_selection *selection, const char *run)
{
    for (size_t i = 0; selection && i < selection->count; i++)
        if (strcmp(selection->runs[i], run) == 0)
            return true;
    return false;
}

static void drop_excluded(struct run_selection *selection, const struct run_selection *exclude)
{
    size_t kept = 0;
    for (size_t i = 0; i < selection->count; i++)
        if (!contains(exclude, selection->runs[i]))
            memmove(selection->runs[kept++], selection->runs[i], 64);
    selection->count = kept;
}

/* Restricts to the store targets of the given runs, each a store at a site: figures of two places say nothing about a
 * change. */
static void add_same_places(struct clause *clause, const struct run_selection *runs)
{
    if (!runs || runs->count == 0)
        return;
    buf_append_text(&clause->sql, " AND store_target IN (SELECT store_target FROM run WHERE 0");
    for (size_t i = 0; i < runs->count; i++)
        clause_add(clause, " OR run=?", runs->runs[i]);
    buf_append_char(&clause->sql, ')');
}

int selection_of_window(struct history *self, const struct baseline *baseline, const struct run_selection *exclude,
                        struct run_selection *selection, struct cb_err *err)
{
    struct clause clause;
    clause_init(&clause);
    buf_append_text(&clause.sql, "SELECT run FROM run WHERE outcome='pass'");
    int rc = add_filters(&clause, (const char *const *)baseline->words, baseline->word_count, err);
    add_same_places(&clause, exclude);
    buf_append_text(&clause.sql, " ORDER BY " RUN_TIME " DESC, run DESC");
    if (rc == 0)
        rc = clause_run(self, &clause, selection, err);
    if (rc == 0) {
        drop_excluded(selection, exclude);
        if (selection->count > baseline->window)
            selection->count = baseline->window;
    }
    clause_release(&clause);
    return rc;
}

/* Appends the runs that a word without "=" names, as values of "run IN (…)". */
static int add_word(struct history *self, struct clause *clause, const char *word, const struct run_selection *exclude,
                    struct cb_err *err)
{
    char run[64];
    bool found;
    struct baseline baseline;
    int rc = db_find(self, &found, run, err, "SELECT sweep FROM run WHERE sweep=? LIMIT 1", "t", word);
    if (rc)
        return rc;
    if (found) {
        clause_add(clause, " OR sweep=?", word);
        return 0;
    }
    rc = db_find(self, &found, run, err, "SELECT baseline FROM baseline WHERE baseline=?", "t", word);
    if (rc || !found) {
        rc = rc ? rc : history_find_run(self, word, run, err);
        if (rc == 0)
            clause_add(clause, " OR run=?", run);
        return rc;
    }
    rc = history_read_baseline(self, word, &baseline, err);
    if (rc)
        return rc;
    struct run_selection window = {0};
    if (baseline.window)
        rc = selection_of_window(self, &baseline, exclude, &window, err);
    for (size_t i = 0; i < window.count && rc == 0; i++)
        clause_add(clause, " OR run=?", window.runs[i]);
    for (size_t i = 0; !baseline.window && i < baseline.word_count; i++)
        if (!contains(exclude, baseline.words[i]))
            clause_add(clause, " OR run=?", baseline.words[i]);
    run_selection_release(&window);
    baseline_release(&baseline);
    return rc;
}

int history_select_excluding(struct history *self, const char *const *words, size_t count,
                             const struct run_selection *exclude, struct run_selection *selection, struct cb_err *err)
{
    struct clause clause;
    clause_init(&clause);
    bool only_filters = true;
    int rc = 0;
    buf_append_text(&clause.sql, "SELECT run FROM run WHERE (0");
    for (size_t i = 0; i < count && rc == 0; i++) {
        if (strchr(words[i], '='))
            continue;
        only_filters = false;
        rc = add_word(self, &clause, words[i], exclude, err);
    }
    buf_append_text(&clause.sql, only_filters ? " OR 1)" : ")");
    if (rc == 0)
        rc = add_filters(&clause, words, count, err);
    buf_append_text(&clause.sql, " ORDER BY " RUN_TIME " DESC, run DESC");
    if (rc == 0)
        rc = clause_run(self, &clause, selection, err);
    if (rc == 0 && only_filters)
        drop_excluded(selection, exclude);
    clause_release(&clause);
    return rc;
}

int history_select(struct history *self, const char *const *words, size_t count, struct run_selection *selection,
                   struct cb_err *err)
{
    return history_select_excluding(self, words, count, NULL, selection, err);
}
