/* Rows of a run: converts an experiment to columns and params, writes and reads planned.json; also the rows of warm
 * pools. */
#include "db/connection.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/file_batch.h"
#include "core/json.h"
#include "run/workload_kind.h"

#define PLANNED_FILE_VERSION 1
#define JSON_MAX_BYTES (1u << 20)

static int insert_params(struct history *self, const struct planned_run *row, struct cb_err *err)
{
    static const char sql[] = "INSERT OR REPLACE INTO param VALUES(?,?,?,?)";
    int rc = db_run(self, err, "DELETE FROM param WHERE run=?", "t", row->run);
    for (int i = 0; i < OPTION_COUNT && rc == 0; i++) {
        enum option_id id = (enum option_id)i;
        rc = db_run(self, err, sql, "tttt", row->run, option_row(id)->name, experiment_text(row->experiment, id),
                    option_class_name(option_row(id)->class));
    }
    for (size_t i = 0; i < experiment_label_count(row->experiment) && rc == 0; i++) {
        char key[256];
        snprintf(key, sizeof key, "label.%s", experiment_label_key(row->experiment, i));
        rc = db_run(self, err, sql, "tttt", row->run, key, experiment_label_value(row->experiment, i), "label");
    }
    return rc;
}

/* A watched program decides where it saves: which store that was is known when its records are (rows_move_run). */
static const char *store_of(const struct planned_run *row)
{
    return workload_kind_of(row->experiment)->watches ? "" : experiment_text(row->experiment, OPT_STORE);
}

/* Runs of this machine have the site "local"; a site's row is created with its first run. */
static int insert_place(struct history *self, const struct planned_run *row, struct cb_err *err)
{
    const char *store = store_of(row), *site = row->site ? row->site : "local";
    int rc = db_run(self, err, "INSERT OR IGNORE INTO site(site) VALUES(?)", "t", site);
    if (rc == 0)
        rc = db_run(self, err,
                    "INSERT OR IGNORE INTO store_target(site, store) VALUES((SELECT id FROM site WHERE site=?),?)",
                    "tt", site, store);
    if (rc == 0 && row->sweep)
        rc = db_run(self, err,
                    "INSERT INTO sweep VALUES(?,?) ON CONFLICT(sweep) DO UPDATE SET"
                    " planned_ns=min(planned_ns, excluded.planned_ns)",
                    "tu", row->sweep, row->planned_wall_ns);
    if (rc == 0 && row->sweep)
        rc = db_run(self, err,
                    "INSERT INTO block VALUES(?,?,?) ON CONFLICT(sweep, block) DO UPDATE SET"
                    " planned_ns=min(planned_ns, excluded.planned_ns)",
                    "tuu", row->sweep, row->block, row->planned_wall_ns);
    return rc;
}

int rows_insert_run(struct history *self, const struct planned_run *row, struct cb_err *err)
{
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    struct buf experiment, labels;
    struct json_writer json;
    buf_init(&experiment, JSON_MAX_BYTES);
    buf_init(&labels, JSON_MAX_BYTES);
    experiment_hash(row->experiment, hash);
    json_writer_init(&json, &experiment, 0);
    experiment_write_json(row->experiment, workload_kind_of(row->experiment)->watches ? workload_has_key : NULL, &json);
    json_writer_init(&json, &labels, 0);
    experiment_write_labels_json(row->experiment, &json);
    int rc = buf_check(&experiment, "an experiment", err);
    if (rc == 0)
        rc = buf_check(&labels, "the labels", err);
    if (rc == 0)
        rc = insert_place(self, row, err);
    if (rc == 0)
        rc = db_run(self, err,
                    "INSERT INTO run(run,sweep,block,combination,site,store_target,folder,hash,state,planned_ns,"
                    "experiment,labels) VALUES(?1,?2,?3,?4,(SELECT id FROM site WHERE site=?11),"
                    "(SELECT id FROM store_target WHERE store=?5 AND site=(SELECT id FROM site WHERE site=?11)),"
                    "?6,?7,'planned',?8,?9,?10) ON CONFLICT(run) DO UPDATE SET folder=excluded.folder,"
                    " site=excluded.site, experiment=excluded.experiment, labels=excluded.labels,"
                    " store_target=CASE WHEN ?5='' THEN run.store_target ELSE excluded.store_target END",
                    "ttuutttuttt", row->run, row->sweep, row->block, row->combination, store_of(row), row->folder, hash,
                    row->planned_wall_ns, experiment.data, labels.data, row->site ? row->site : "local");
    if (rc == 0)
        rc = insert_params(self, row, err);
    buf_release(&experiment);
    buf_release(&labels);
    return rc;
}

int rows_move_run(struct history *self, const char *run, const char *store, struct cb_err *err)
{
    int rc = db_run(self, err, "INSERT OR IGNORE INTO store_target(site, store) SELECT site, ?2 FROM run WHERE run=?1",
                    "tt", run, store);
    return rc ? rc
              : db_run(self, err,
                       "UPDATE run SET store_target=(SELECT t.id FROM store_target t WHERE t.store=?2 AND"
                       " t.site=run.site) WHERE run=?1",
                       "tt", run, store);
}

int rows_delete_run(struct history *self, const char *run, struct cb_err *err)
{
    static const char *const deletes[] = {
        "DELETE FROM sample WHERE run_id=(SELECT id FROM run WHERE run=?)",
        "DELETE FROM attempt WHERE run=?",
        "DELETE FROM param WHERE run=?",
        "DELETE FROM fingerprint WHERE run=?",
        "DELETE FROM fact WHERE run=?",
        "DELETE FROM failure WHERE run=?",
        "DELETE FROM metric WHERE run=?",
        "DELETE FROM operation WHERE run=?",
        "DELETE FROM state_share WHERE run=?",
        "DELETE FROM histogram WHERE run=?",
        "DELETE FROM event WHERE run=?",
        "DELETE FROM run WHERE run=?",
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof deletes / sizeof deletes[0] && rc == 0; i++)
        rc = db_run(self, err, deletes[i], "t", run);
    return rc;
}

int rows_delete_empty_sweeps(struct history *self, struct cb_err *err)
{
    return db_exec(self,
                   "DELETE FROM block WHERE sweep NOT IN (SELECT sweep FROM run WHERE sweep IS NOT NULL);"
                   "DELETE FROM sweep WHERE sweep NOT IN (SELECT sweep FROM run WHERE sweep IS NOT NULL)",
                   err);
}

int rows_insert_event(struct history *self, const char *run, uint64_t at_ns, const char *state, const char *note,
                      struct cb_err *err)
{
    return db_run(self, err, "INSERT INTO event(run,at_ns,state,note) VALUES(?,?,?,?)", "tutt", run, at_ns, state,
                  note);
}

int rows_run_id(struct history *self, const char *run, int64_t *id, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, "SELECT id FROM run WHERE run=?", "t", run);
    bool found = db_next(self, statement, &rc, err);
    if (found && id)
        *id = sqlite3_column_int64(statement, 0);
    sqlite3_reset(statement);
    return found || rc ? rc : cb_fail(err, CB_ERR_NOT_FOUND, "no run %s in history %s", run, self->path);
}

int planned_file_write(const struct planned_run *row, struct cb_err *err)
{
    char path[4096];
    struct buf text;
    struct json_writer json;
    snprintf(path, sizeof path, "%s/planned.json", row->folder);
    buf_init(&text, JSON_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", PLANNED_FILE_VERSION);
    json_member_text(&json, "run", row->run);
    json_member_text(&json, "sweep", row->sweep);
    if (row->site)
        json_member_text(&json, "site", row->site);
    json_member_u64(&json, "block", row->block);
    json_member_u64(&json, "combination", row->combination);
    json_member_u64(&json, "planned_ns", row->planned_wall_ns);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    int rc = buf_check(&text, path, err);
    if (rc == 0)
        rc = file_write(row->batch, &text, path, 0666, err);
    buf_release(&text);
    return rc;
}

/* An optional member. */
static int copy_member(const struct json_value *root, const char *key, const char *path, char **copy,
                       struct cb_err *err)
{
    const char *text;
    if (!json_as_text(json_get(root, key), &text))
        return 0;
    *copy = strdup(text);
    return *copy ? 0 : alloc_fail(err, "to read %s", path);
}

static int parse_planned(const char *path, const struct json_value *root, struct planned_run *row,
                         struct planned_file *file, struct cb_err *err)
{
    uint64_t version;
    int rc = json_need_u64(root, "version", &version, err);
    if (rc == 0 && version != PLANNED_FILE_VERSION)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "version %llu, this program knows %d", (unsigned long long)version,
                     PLANNED_FILE_VERSION);
    if (rc == 0)
        rc = json_need_u64(root, "block", &row->block, err);
    if (rc == 0)
        rc = json_need_u64(root, "combination", &row->combination, err);
    if (rc == 0)
        rc = json_need_u64(root, "planned_ns", &row->planned_wall_ns, err);
    if (rc)
        return cb_context(err, "%s", path);
    rc = copy_member(root, "sweep", path, &file->sweep, err);
    if (rc == 0)
        rc = copy_member(root, "site", path, &file->site, err);
    row->sweep = file->sweep;
    row->site = file->site;
    return rc;
}

int planned_file_read(const char *folder, struct planned_run *row, struct planned_file *file, struct cb_err *err)
{
    char path[4096];
    struct stat status;
    struct json_value *root;
    *file = (struct planned_file){0};
    snprintf(path, sizeof path, "%s/planned.json", folder);
    if (stat(path, &status)) {
        if (stat(folder, &status) == 0)
            row->planned_wall_ns = (uint64_t)status.st_mtim.tv_sec * NS_PER_S;
        return 0;
    }
    int rc = json_parse_file(path, JSON_MAX_BYTES, &root, err);
    if (rc)
        return rc;
    rc = parse_planned(path, root, row, file, err);
    json_value_free(root);
    return rc;
}

void planned_file_release(struct planned_file *file)
{
    free(file->sweep);
    free(file->site);
    *file = (struct planned_file){0};
}

int history_mark_folder(const char *run_folder, const char *site, struct cb_err *err)
{
    const char *slash = strrchr(run_folder, '/');
    struct planned_run row = {.run = slash ? slash + 1 : run_folder, .folder = run_folder};
    struct planned_file file;
    int rc = planned_file_read(run_folder, &row, &file, err);
    row.site = site;
    if (rc == 0)
        rc = planned_file_write(&row, err);
    planned_file_release(&file);
    return rc;
}

int history_keep_pool(struct history *self, const struct pool_cost *cost, struct cb_err *err)
{
    return db_run(
        self, err,
        "INSERT OR REPLACE INTO pool VALUES(?1,?2,?3,?4,?5,?6,nullif(?7,0),?8,?9,?10,?11,?12,?13,?14,?15,?16)",
        "tttuuuuddduududt", cost->id, cost->pool, cost->mode, cost->nodes, cost->created_wall_ns, cost->expires_wall_ns,
        cost->ended_wall_ns, cost->budget_node_hours, cost->node_hours, cost->job_node_hours, cost->jobs,
        cost->failed_boots, cost->boot_s, cost->runs, cost->saved_s, cost->note);
}
