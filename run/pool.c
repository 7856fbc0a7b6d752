/* Pools on disk. Owns the files but the spool's, and what a pool costs; knows no Slurm. */
#include "run/pool.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/path.h"
#include "run/spool.h"

#define FILE_MAX_BYTES (1u << 16)
#define MOST_RESTARTS 1000 /* of one job that are looked at */
#define POOL_FILE "pool.json"
#define POOL_STOP "stop"
#define POOL_END "end.json"
#define POOL_JOBS "jobs"

static const char *const mode_names[] = {"touch", "hold"};

const char *pool_mode_name(enum pool_mode mode)
{
    return mode_names[mode];
}

bool pool_mode_find(const char *name, enum pool_mode *mode)
{
    for (unsigned i = 0; i < sizeof mode_names / sizeof *mode_names; i++) {
        if (strcmp(mode_names[i], name) == 0) {
            *mode = (enum pool_mode)i;
            return true;
        }
    }
    return false;
}

int pool_check_name(const char *name, struct cb_err *err)
{
    bool good = isalnum((unsigned char)*name) && strlen(name) < POOL_NAME_BYTES;
    for (const char *at = name; *at; at++)
        good = good && (isalnum((unsigned char)*at) || strchr("._-", *at));
    if (!good)
        return cb_fail(err, CB_ERR_USAGE,
                       "'%.60s' is no name for a pool: letters, digits, '.', '_' and '-', at most %d of them, a letter "
                       "or digit first",
                       name, POOL_NAME_BYTES - 1);
    return 0;
}

/* ---- paths ---- */

static int join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err)
{
    if (path_format(path, PATH_MAX, err, "%s/%s", folder, name))
        return CB_ERR_USAGE;
    return 0;
}

int pool_folder(const char *id, struct buf *path, struct cb_err *err)
{
    int rc = home_folder(path, err);
    if (rc)
        return rc;
    buf_append_text(path, "/pools");
    if (id)
        buf_printf(path, "/%s", id);
    return buf_check(path, "the pool's path", err);
}

static int make_folder(const char *path, struct cb_err *err)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return cb_fail_errno(err, errno, "creating the folder %s", path);
    return 0;
}

int pool_create(const struct pool *self, const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s", (int)(strrchr(folder, '/') - folder), folder);
    int rc = make_folder(path, err);
    if (rc == 0 && mkdir(folder, 0755) < 0)
        rc = cb_fail_errno(err, errno, "creating the folder %s", folder);
    if (rc == 0)
        rc = join(path, folder, POOL_JOBS, err);
    if (rc == 0)
        rc = make_folder(path, err);
    if (rc == 0)
        rc = spool_create(folder, err);
    return rc ? rc : pool_write(self, folder, err);
}

/* ---- its files ---- */

static void begin_document(struct json_writer *json, struct buf *text)
{
    buf_init(text, FILE_MAX_BYTES);
    json_writer_init(json, text, 2);
    json_write_begin_object(json);
    json_member_u64(json, "version", POOL_VERSION);
}

static int end_document(struct json_writer *json, struct buf *text, const char *path, struct cb_err *err)
{
    json_write_end_object(json);
    buf_append_char(text, '\n');
    int rc = buf_check(text, path, err);
    if (rc == 0)
        rc = buf_write_file(text, path, 0644, err);
    buf_release(text);
    return rc;
}

static int check_version(const struct json_value *root, struct cb_err *err)
{
    uint64_t version;
    int rc = json_need_u64(root, "version", &version, err);
    if (rc == 0 && version != POOL_VERSION)
        rc = cb_fail(err, CB_ERR_FORMAT, "version %" PRIu64 ", this program reads %d", version, POOL_VERSION);
    return rc;
}

/* ---- pool.json ---- */

int pool_write(const struct pool *self, const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct json_writer json;
    int rc = join(path, folder, POOL_FILE, err);
    if (rc)
        return rc;
    begin_document(&json, &text);
    json_member_text(&json, "id", self->id);
    json_member_text(&json, "name", self->name);
    json_member_text(&json, "mode", pool_mode_name(self->mode));
    json_member_u64(&json, "nodes", self->nodes);
    json_member_u64(&json, "created_wall_ns", self->created_wall_ns);
    json_member_u64(&json, "expires_wall_ns", self->expires_wall_ns);
    json_member_u64(&json, "budget_node_ns", self->budget_node_ns);
    json_member_u64(&json, "period_ns", self->period_ns);
    json_member_u64(&json, "boot_most_ns", self->boot_most_ns);
    json_member_u64(&json, "intent_wall_ns", self->intent_wall_ns);
    json_member_text(&json, "job", self->job);
    return end_document(&json, &text, path, err);
}

static int read_numbers(const struct json_value *root, struct pool *self, struct cb_err *err)
{
    const struct {
        const char *key;
        uint64_t *place;
    } rows[] = {
        {"nodes", &self->nodes},
        {"created_wall_ns", &self->created_wall_ns},
        {"expires_wall_ns", &self->expires_wall_ns},
        {"budget_node_ns", &self->budget_node_ns},
        {"period_ns", &self->period_ns},
        {"boot_most_ns", &self->boot_most_ns},
        {"intent_wall_ns", &self->intent_wall_ns},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof rows / sizeof *rows; i++)
        rc = json_need_u64(root, rows[i].key, rows[i].place, err);
    return rc;
}

static int read_members(const struct json_value *root, struct pool *self, struct cb_err *err)
{
    const char *mode;
    int rc = check_version(root, err);
    if (rc == 0)
        rc = json_copy_text(root, "id", self->id, sizeof self->id, err);
    if (rc == 0)
        rc = json_copy_text(root, "name", self->name, sizeof self->name, err);
    if (rc == 0)
        rc = pool_check_name(self->name, err);
    if (rc == 0)
        rc = json_need_text(root, "mode", &mode, err);
    if (rc == 0 && !pool_mode_find(mode, &self->mode))
        rc = cb_fail(err, CB_ERR_FORMAT, "there is no mode %.40s", mode);
    if (rc == 0)
        rc = read_numbers(root, self, err);
    if (rc == 0 && (self->nodes == 0 || self->nodes > UINT16_MAX + 1u))
        rc = cb_fail(err, CB_ERR_FORMAT, "nodes=%" PRIu64, self->nodes);
    return rc ? rc : json_copy_text(root, "job", self->job, sizeof self->job, err);
}

int pool_parse(const char *name, const char *text, size_t len, struct pool *self, struct cb_err *err)
{
    struct json_value *root = NULL;
    struct pool parsed = {0};
    struct cb_err own;
    int rc = json_parse(text, len, &root, &own);
    if (rc == 0)
        rc = read_members(root, &parsed, &own);
    json_value_free(root);
    if (rc)
        return cb_fail(err, rc == CB_ERR_USAGE ? CB_ERR_FORMAT : rc, "%s: %s", name, own.message);
    *self = parsed;
    return 0;
}

int pool_read(const char *folder, struct pool *self, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    int rc = join(path, folder, POOL_FILE, err);
    if (rc)
        return rc;
    buf_init(&text, FILE_MAX_BYTES);
    rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = pool_parse(path, text.data, text.len, self, err);
    buf_release(&text);
    return rc;
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int pool_each(pool_fn fn, void *context, struct cb_err *err)
{
    struct buf path;
    struct dirent **names = NULL;
    buf_init(&path, PATH_MAX);
    int rc = pool_folder(NULL, &path, err);
    int count = rc ? 0 : scandir(path.data, &names, not_hidden, alphasort);
    if (count < 0 && errno != ENOENT)
        rc = cb_fail_errno(err, errno, "reading the folder %s", path.data);
    for (int i = 0; i < count; i++) {
        char folder[PATH_MAX];
        struct pool pool;
        if (rc == 0 && join(folder, path.data, names[i]->d_name, NULL) == 0 && pool_read(folder, &pool, NULL) == 0)
            rc = fn(context, folder, &pool, err);
        free(names[i]);
    }
    free(names);
    buf_release(&path);
    return rc;
}

/* ---- its end ---- */

int pool_ask_stop(const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, folder, POOL_STOP, err);
    if (rc)
        return rc;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    close(fd);
    return 0;
}

static bool is_there(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return join(path, folder, name, NULL) == 0 && access(path, F_OK) == 0;
}

bool pool_is_stopping(const char *folder)
{
    return is_there(folder, POOL_STOP);
}

int pool_write_end(const char *folder, const char *reason, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct json_writer json;
    int rc = join(path, folder, POOL_END, err);
    if (rc || is_there(folder, POOL_END))
        return rc;
    begin_document(&json, &text);
    json_member_u64(&json, "at_wall_ns", clock_wall_ns());
    json_member_text(&json, "reason", reason);
    return end_document(&json, &text, path, err);
}

bool pool_has_ended(const char *folder)
{
    return is_there(folder, POOL_END);
}

int pool_read_end(const char *folder, struct pool_end *end, struct cb_err *err)
{
    char path[PATH_MAX];
    struct json_value *root = NULL;
    struct pool_end found = {0};
    int rc = join(path, folder, POOL_END, err);
    if (rc == 0)
        rc = json_parse_file(path, FILE_MAX_BYTES, &root, err);
    if (rc == 0)
        rc = check_version(root, err);
    if (rc == 0)
        rc = json_need_u64(root, "at_wall_ns", &found.at_wall_ns, err);
    if (rc == 0)
        rc = json_copy_text(root, "reason", found.reason, sizeof found.reason, err);
    json_value_free(root);
    if (rc == 0)
        *end = found;
    return rc;
}

/* ---- shares ---- */

int pool_write_share(const char *folder, const struct pool_share *share, struct cb_err *err)
{
    char path[PATH_MAX], name[128];
    struct buf text;
    struct json_writer json;
    snprintf(name, sizeof name, POOL_JOBS "/%s.%" PRIu64, share->job, share->restarts);
    int rc = join(path, folder, name, err);
    if (rc)
        return rc;
    begin_document(&json, &text);
    json_member_text(&json, "job", share->job);
    json_member_u64(&json, "restarts", share->restarts);
    json_member_u64(&json, "node_count", share->node_count);
    json_member_text(&json, "nodes", share->nodes);
    json_member_u64(&json, "allocated_wall_ns", share->allocated_wall_ns);
    json_member_u64(&json, "began_wall_ns", share->began_wall_ns);
    json_member_u64(&json, "seen_wall_ns", share->seen_wall_ns);
    json_member_u64(&json, "kept_ns", share->kept_ns);
    json_member_bool(&json, "ended", share->ended);
    return end_document(&json, &text, path, err);
}

static int read_share(const char *path, struct pool_share *share)
{
    struct json_value *root = NULL;
    struct pool_share found = {0};
    int rc = json_parse_file(path, FILE_MAX_BYTES, &root, NULL);
    const struct {
        const char *key;
        uint64_t *place;
    } rows[] = {
        {"restarts", &found.restarts},           {"node_count", &found.node_count},
        {"began_wall_ns", &found.began_wall_ns}, {"allocated_wall_ns", &found.allocated_wall_ns},
        {"seen_wall_ns", &found.seen_wall_ns},   {"kept_ns", &found.kept_ns},
    };
    if (rc == 0)
        rc = check_version(root, NULL);
    for (size_t i = 0; rc == 0 && i < sizeof rows / sizeof *rows; i++)
        rc = json_need_u64(root, rows[i].key, rows[i].place, NULL);
    if (rc == 0)
        rc = json_copy_text(root, "job", found.job, sizeof found.job, NULL);
    if (rc == 0)
        rc = json_copy_text(root, "nodes", found.nodes, sizeof found.nodes, NULL);
    bool ordered = found.allocated_wall_ns <= found.began_wall_ns && found.began_wall_ns <= found.seen_wall_ns;
    if (rc == 0 && (!json_as_bool(json_get(root, "ended"), &found.ended) || !ordered))
        rc = CB_ERR_FORMAT;
    json_value_free(root);
    if (rc == 0)
        *share = found;
    return rc;
}

static void add_share(const struct pool_share *share, uint64_t *first_ns, struct pool_usage *usage)
{
    uint64_t held_ns = share->seen_wall_ns - share->allocated_wall_ns;
    uint64_t boot_ns = share->began_wall_ns - share->allocated_wall_ns;
    usage->job_node_ns += share->node_count * held_ns;
    usage->node_ns += share->node_count * (held_ns + share->kept_ns);
    usage->boot_ns = boot_ns > usage->boot_ns ? boot_ns : usage->boot_ns;
    usage->seen_wall_ns = share->seen_wall_ns > usage->seen_wall_ns ? share->seen_wall_ns : usage->seen_wall_ns;
    usage->jobs++;
    if (*first_ns == 0 || share->began_wall_ns < *first_ns) {
        *first_ns = share->began_wall_ns;
        snprintf(usage->nodes, sizeof usage->nodes, "%s", share->nodes);
    }
}

/* Starts of the same job right before this one that left no share: their boot failed. */
static uint64_t count_failures(const char *jobs, const struct pool_share *share)
{
    uint64_t failures = 0;
    while (failures < share->restarts && failures < MOST_RESTARTS) {
        char name[128];
        snprintf(name, sizeof name, "%s.%" PRIu64, share->job, share->restarts - failures - 1);
        if (is_there(jobs, name))
            break;
        failures++;
    }
    return failures;
}

/* What buf_write_file has not renamed yet, or never will. */
static bool is_temporary(const char *name)
{
    size_t len = strlen(name);
    return len > 4 && strcmp(name + len - 4, ".tmp") == 0;
}

int pool_sum(const struct pool *pool, const char *folder, struct pool_usage *usage, struct cb_err *err)
{
    char jobs[PATH_MAX], path[PATH_MAX];
    struct pool_usage sum = {0};
    uint64_t first_ns = 0, failed_nodes = 0;
    int rc = join(jobs, folder, POOL_JOBS, err);
    DIR *names = rc ? NULL : opendir(jobs);
    if (rc == 0 && !names)
        rc = cb_fail_errno(err, errno, "reading the folder %s", jobs);
    for (struct dirent *entry; names && (entry = readdir(names));) {
        struct pool_share share;
        if (!not_hidden(entry) || is_temporary(entry->d_name) || join(path, jobs, entry->d_name, NULL) ||
            read_share(path, &share))
            continue;
        add_share(&share, &first_ns, &sum);
        uint64_t failures = count_failures(jobs, &share);
        sum.failures += failures;
        failed_nodes += failures * share.node_count;
    }
    if (names)
        closedir(names);
    sum.node_ns += failed_nodes * pool->boot_most_ns;
    if (rc == 0)
        *usage = sum;
    return rc;
}

/* ---- what may still be done ---- */

bool pool_may_touch(const struct pool *pool, const struct pool_usage *usage, uint64_t nodes, uint64_t now_wall_ns,
                    char *reason, size_t bytes)
{
    bool in_time = now_wall_ns + pool->period_ns < pool->expires_wall_ns;
    bool in_budget = usage->node_ns + nodes * pool->period_ns <= pool->budget_node_ns;
    if (usage->failures >= POOL_MOST_FAILURES)
        snprintf(reason, bytes, "%" PRIu64 " boots of its nodes have failed", usage->failures);
    else if (!in_time)
        snprintf(reason, bytes, "its time is over");
    else if (!in_budget)
        snprintf(reason, bytes, "its budget is used up");
    return in_time && in_budget && usage->failures < POOL_MOST_FAILURES;
}

uint64_t pool_hold_end_wall_ns(const struct pool *pool, const struct pool_usage *earlier,
                               const struct pool_share *share)
{
    uint64_t left_ns = pool->budget_node_ns > earlier->node_ns ? pool->budget_node_ns - earlier->node_ns : 0;
    uint64_t spent_ns = share->allocated_wall_ns + left_ns / (share->node_count ? share->node_count : 1);
    return spent_ns < pool->expires_wall_ns ? spent_ns : pool->expires_wall_ns;
}
