/* Which pages of a site are made: counted, with a stand-in for the pages themselves. */
#include "history_world.h"

#include "cli/history/site_pages.h"
#include "core/buf.h"

#define MANY 10000

struct maker {
    size_t calls;
    char last[SITE_PATH_BYTES];
    int rc; /* of runs */
};

static int make_page(void *context, const struct site_page *page, struct buf *out, struct cb_err *err)
{
    struct maker *self = context;
    self->calls++;
    snprintf(self->last, sizeof self->last, "%s", page->path);
    buf_printf(out, "page %s\n", page->path);
    return page->kind == SITE_RUN && self->rc ? cb_fail(err, self->rc, "made to fail") : 0;
}

/* Makes the site of the history in FOLDER/site, and checks how many pages were made, kept and removed. */
static void assert_makes(const struct fixture *self, struct history *history, const char *maker, size_t made,
                         size_t kept, size_t removed)
{
    struct site_pages pages;
    struct site_counts counts;
    struct maker calls = {0};
    struct cb_err err;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/site", self->folder);
    if (site_pages_find(&pages, history, maker, &err) || site_pages_check_folder(folder, &err) ||
        site_pages_make(&pages, folder, make_page, &calls, &counts, &err))
        fail_msg("%s", err.message);
    assert_int_equal(counts.made, made);
    assert_int_equal(counts.kept, kept);
    assert_int_equal(counts.removed, removed);
    assert_int_equal(calls.calls, made);
    if (made && !kept)
        assert_string_equal(calls.last, "index.html"); /* its links are true by then */
    site_pages_release(&pages);
}

static void run_sql(const struct fixture *self, const char *sql)
{
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open_v2(self->database, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s", message);
    sqlite3_close(db);
}

static void path_of(const struct fixture *self, const char *page, char path[256])
{
    snprintf(path, 256, "%s/site/%s", self->folder, page);
}

static void a_new_run_makes_its_page_that_of_its_line_and_the_start_page(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    make_three(self, history);
    assert_makes(self, history, "1", 3 + 1 + 1, 0, 0); /* runs, sweep, start: a line of one run has no page */
    assert_makes(self, history, "1", 0, 5, 0);
    make_run(self, "20261122-cccc", 0.9, (const char *const[]){"model", "gpt2", "label.kind", "nightly", NULL});
    ingest_well(self, history, "20261122-cccc");
    assert_makes(self, history, "1", 4, 3, 0); /* and the page of the run before, which leads to the line now */
    make_run(self, "20261123-dddd", 0.9, (const char *const[]){"model", "gpt2", "label.kind", "nightly", NULL});
    ingest_well(self, history, "20261123-dddd");
    assert_makes(self, history, "1", 3, 5, 0);
    run_sql(self, "UPDATE run SET sweep='s1', block=2 WHERE run='20261122-cccc'");
    assert_makes(self, history, "1", 3, 5, 0); /* the run, its sweep, and the start page */
    history_close(history);
}

static void what_changes_in_the_history_makes_the_pages_that_show_it(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    make_three(self, history);
    assert_makes(self, history, "1", 5, 0, 0);
    run_sql(self, "UPDATE run SET labels='{\"kind\": \"other\"}' WHERE run='20261120-bbbb'");
    assert_makes(self, history, "1", 2, 3, 0);
    run_sql(self, "UPDATE attempt SET records_sha256='0' WHERE run='s1.01'");
    assert_makes(self, history, "1", 3, 2, 0);
    assert_makes(self, history, "another release", 5, 0, 0);
    history_close(history);
}

static void pages_of_runs_that_left_the_history_are_removed_and_nothing_else(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    char page[256], own[256];
    make_three(self, history);
    assert_makes(self, history, "1", 5, 0, 0);
    path_of(self, "run/mine.html", own);
    FILE *file = fopen(own, "w");
    assert_non_null(file);
    fclose(file);
    run_sql(self, "DELETE FROM run WHERE run='20261121-aaaa'");
    assert_makes(self, history, "1", 1, 3, 1);
    path_of(self, "run/20261121-aaaa.html", page);
    assert_int_not_equal(access(page, F_OK), 0);
    assert_int_equal(access(own, F_OK), 0);
    history_close(history);
}

static void a_page_that_is_missing_is_made_again_and_a_damaged_index_makes_all(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    char page[256];
    make_three(self, history);
    assert_makes(self, history, "1", 5, 0, 0);
    path_of(self, "index.html", page);
    assert_int_equal(unlink(page), 0);
    assert_makes(self, history, "1", 1, 4, 0);
    static const char *const damaged[] = {
        "",
        "{",
        "[1]",
        "{\"version\": 9, \"pages\": {}}",
        "{\"version\": 1, \"pages\": 7}",
        "{\"version\": 1, \"pages\": {\"run/../../../x.html\": 3, \"index.html\": 4}}"};
    path_of(self, "pages.json", page);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        FILE *file = fopen(page, "w");
        assert_non_null(file);
        fputs(damaged[i], file);
        fclose(file);
        assert_makes(self, history, "1", 5, 0, 0);
    }
    history_close(history);
}

static void a_damaged_run_has_no_page_until_it_is_repaired(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    struct site_pages pages;
    struct site_counts counts;
    struct maker calls = {.rc = CB_ERR_CORRUPT};
    struct cb_err err;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/site", self->folder);
    make_three(self, history);
    assert_int_equal(site_pages_find(&pages, history, "1", &err), 0);
    assert_int_equal(site_pages_make(&pages, folder, make_page, &calls, &counts, &err), 0);
    assert_true(counts.made == 2 && counts.failed == 3);
    site_pages_release(&pages);
    assert_makes(self, history, "1", 3, 2, 0);
    calls.rc = CB_ERR_MEMORY; /* but any other failure ends it */
    assert_int_equal(site_pages_find(&pages, history, "2", &err), 0);
    assert_int_equal(site_pages_make(&pages, folder, make_page, &calls, &counts, &err), CB_ERR_MEMORY);
    assert_string_equal(err.message, "made to fail");
    site_pages_release(&pages);
    history_close(history);
}

static void a_folder_with_other_contents_is_refused(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    assert_int_equal(site_pages_check_folder(self->folder, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "is not empty and contains no site"));
}

static void paths_are_those_of_names_and_have_no_character_that_a_url_changes(void **unused)
{
    (void)unused;
    char path[SITE_PATH_BYTES], other[SITE_PATH_BYTES], long_name[64];
    site_run_path("20261121-k3f9.01", path);
    assert_string_equal(path, "run/20261121-k3f9.01.html");
    site_sweep_path(".a b/ä?#", path);
    assert_string_equal(path, "sweep/=2Ea=20b=2F=C3=A4=3F=23.html");
    memset(long_name, '/', 63);
    long_name[63] = '\0';
    site_run_path(long_name, path);
    assert_int_equal(strlen(path), 4 + 3 * 63 + 5);
    site_line_path("4355a46b19d348dc", "/scratch/a", "local", path);
    site_line_path("4355a46b19d348dc", "/scratch/a", "tor", other);
    assert_int_equal(strncmp(path, "line/4355a46b19d348dc-", 22), 0);
    assert_string_not_equal(path, other);
    site_line_path("4355a46b19d348dc", "/scratch/", "alocal", other);
    assert_string_not_equal(path, other);
}

/* The rows of one run, 10,000 times, in 50 lines and 100 sweeps. */
static void of_10000_runs_one_new_run_makes_4_pages(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    make_run(self, "first", 0.8, NULL);
    ingest_well(self, history, "first");
    run_sql(self,
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<9999)"
            " INSERT INTO run(run, sweep, block, combination, site, store_target, folder, hash, state, outcome,"
            " planned_ns, started_ns, ended_ns, experiment, labels) SELECT printf('r%05d', i), CASE WHEN i%2 THEN"
            " printf('s%02d', i/2%100) END, 1, 0, site, store_target, folder, printf('%016d', i%50), state, outcome,"
            " planned_ns+i, started_ns+i, ended_ns+i, experiment, labels FROM n, run WHERE run='first'");
    size_t pages = MANY + 50 + 100 + 1;
    assert_makes(self, history, "1", pages, 0, 0);
    assert_makes(self, history, "1", 0, pages, 0);
    run_sql(self, "INSERT INTO run(run, sweep, block, combination, site, store_target, folder, hash, state, outcome,"
                  " planned_ns, started_ns, ended_ns, experiment, labels) SELECT 'new', 's07', 1, 0, site,"
                  " store_target, folder, hash, state, outcome, planned_ns, started_ns, ended_ns, experiment, labels"
                  " FROM run WHERE run='r00777'");
    assert_makes(self, history, "1", 4, pages - 3, 0);
    history_close(history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_run_makes_its_page_that_of_its_line_and_the_start_page),
        TEST(what_changes_in_the_history_makes_the_pages_that_show_it),
        TEST(pages_of_runs_that_left_the_history_are_removed_and_nothing_else),
        TEST(a_page_that_is_missing_is_made_again_and_a_damaged_index_makes_all),
        TEST(a_damaged_run_has_no_page_until_it_is_repaired),
        TEST(a_folder_with_other_contents_is_refused),
        cmocka_unit_test(paths_are_those_of_names_and_have_no_character_that_a_url_changes),
        TEST(of_10000_runs_one_new_run_makes_4_pages),
    };
    return cmocka_run_group_tests_name("site_pages", tests, NULL, NULL);
}
