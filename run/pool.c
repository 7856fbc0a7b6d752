/* Warm pools on disk: all files except the spool, and the pool's cost. */
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
#include "core/json_fields.h"
#include "run/spool.h"

#define FILE_MAX_BYTES (1u << 16)
#define MOST_RESTARTS 1000 /* limit of restarts of one job that are counted */
#define POOL_FILE "pool.json"
#define POOL_STOP "stop"
#define POOL_END "end.json"
#define POOL_JOBS "jobs"

static const char *const mode_names[] = {"touch", "hold"};
static const struct name_list modes = NAME_LIST(mode_names, "there is no mode");

const char *pool_mode_name(enum pool_mode mode)
{
    return mode_names[mode];
}

bool pool_mode_find(const char *name, enum pool_mode *mode)
{
    return name_find(&modes, name, (unsigned *)mode);
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

int pool_create(const struct pool *self, const char *folder, struct cb_err *err)
{
    char above[PATH_MAX], jobs[PATH_MAX];
    snprintf(above, sizeof above, "%.*s", (int)(strrchr(folder, '/') - folder), folder);
    if (mkdir(above, 0777) < 0 && errno != EEXIST)
        return cb_fail_errno(err, errno, "creating the folder %s", above);
    if (mkdir(folder, 0777) < 0)
        return cb_fail_errno(err, errno, "creating the folder %s", folder);
    int rc = run_folder_join(jobs, folder, POOL_JOBS, err);
    if (rc == 0 && mkdir(jobs, 0777) < 0)
        rc = cb_fail_errno(err, errno, "creating the folder %s", jobs);
    if (rc == 0)
        rc = spool_create(folder, err);
    return rc ? rc : pool_write(self, folder, err);
}

static int write_document(const char *folder, const char *name, const struct json_field *fields, size_t count,
                          const void *object, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, folder, name, err);
    return rc ? rc : json_write_file(NULL, path, POOL_VERSION, fields, count, object, err);
}

static int read_document(const char *path, const struct json_field *fields, size_t count, void *object,
                         struct cb_err *err)
{
    struct buf text;
    buf_init(&text, FILE_MAX_BYTES);
    int rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = json_read_document(path, text.data, text.len, POOL_VERSION, fields, count, object, err);
    buf_release(&text);
    return rc;
}

static const struct json_field pool_fields[] = {
    JSON_FIELD(struct pool, FIELD_TEXT, id),
    JSON_FIELD(struct pool, FIELD_TEXT, name),
    JSON_FIELD_NAME(struct pool, mode, &modes),
    JSON_FIELD(struct pool, FIELD_U64, nodes),
    JSON_FIELD(struct pool, FIELD_U64, created_wall_ns),
    JSON_FIELD(struct pool, FIELD_U64, expires_wall_ns),
    JSON_FIELD(struct pool, FIELD_U64, budget_node_ns),
    JSON_FIELD(struct pool, FIELD_U64, period_ns),
    JSON_FIELD(struct pool, FIELD_U64, boot_most_ns),
    JSON_FIELD(struct pool, FIELD_U64, intent_wall_ns),
    JSON_FIELD(struct pool, FIELD_TEXT, job),
    JSON_FIELD_OPTIONAL(struct pool, FIELD_TEXT, sbcast), /* pools of early versions lack it */
};

int pool_write(const struct pool *self, const char *folder, struct cb_err *err)
{
    return write_document(folder, POOL_FILE, JSON_FIELDS(pool_fields), self, err);
}

int pool_parse(const char *name, const char *text, size_t len, struct pool *self, struct cb_err *err)
{
    struct pool parsed = {0};
    struct cb_err own;
    int rc = json_read_document(name, text, len, POOL_VERSION, JSON_FIELDS(pool_fields), &parsed, err);
    if (rc)
        return rc;
    if (pool_check_name(parsed.name, &own))
        return cb_fail(err, CB_ERR_FORMAT, "%s: %s", name, own.message);
    if (parsed.nodes == 0 || parsed.nodes > UINT16_MAX + 1u)
        return cb_fail(err, CB_ERR_FORMAT, "%s: nodes=%" PRIu64, name, parsed.nodes);
    *self = parsed;
    return 0;
}

int pool_read(const char *folder, struct pool *self, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, FILE_MAX_BYTES);
    int rc = run_folder_join(path, folder, POOL_FILE, err);
    if (rc == 0)
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
        if (rc == 0 && run_folder_join(folder, path.data, names[i]->d_name, NULL) == 0 &&
            pool_read(folder, &pool, NULL) == 0)
            rc = fn(context, folder, &pool, err);
        free(names[i]);
    }
    free(names);
    buf_release(&path);
    return rc;
}

int pool_ask_stop(const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, folder, POOL_STOP, err);
    if (rc)
        return rc;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    close(fd);
    return 0;
}

static bool is_there(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return run_folder_join(path, folder, name, NULL) == 0 && access(path, F_OK) == 0;
}

bool pool_is_stopping(const char *folder)
{
    return is_there(folder, POOL_STOP);
}

static const struct json_field end_fields[] = {
    JSON_FIELD(struct pool_end, FIELD_U64, at_wall_ns),
    JSON_FIELD(struct pool_end, FIELD_TEXT, reason),
};

int pool_write_end(const char *folder, const char *reason, struct cb_err *err)
{
    struct pool_end end = {.at_wall_ns = clock_wall_ns()};
    snprintf(end.reason, sizeof end.reason, "%s", reason);
    return is_there(folder, POOL_END) ? 0 : write_document(folder, POOL_END, JSON_FIELDS(end_fields), &end, err);
}

bool pool_has_ended(const char *folder)
{
    return is_there(folder, POOL_END);
}

int pool_read_end(const char *folder, struct pool_end *end, struct cb_err *err)
{
    char path[PATH_MAX];
    struct pool_end found = {0};
    int rc = run_folder_join(path, folder, POOL_END, err);
    if (rc == 0)
        rc = read_document(path, JSON_FIELDS(end_fields), &found, err);
    if (rc == 0)
        *end = found;
    return rc;
}

static const struct json_field share_fields[] = {
    JSON_FIELD(struct pool_share, FIELD_TEXT, job),
    JSON_FIELD(struct pool_share, FIELD_U64, restarts),
    JSON_FIELD(struct pool_share, FIELD_U64, node_count),
    JSON_FIELD(struct pool_share, FIELD_TEXT, nodes),
    JSON_FIELD(struct pool_share, FIELD_U64, allocated_wall_ns),
    JSON_FIELD(struct pool_share, FIELD_U64, began_wall_ns),
    JSON_FIELD(struct pool_share, FIELD_U64, seen_wall_ns),
    JSON_FIELD(struct pool_share, FIELD_U64, kept_ns),
    JSON_FIELD(struct pool_share, FIELD_BOOL, ended),
};

int pool_write_share(const char *folder, const struct pool_share *share, struct cb_err *err)
{
    char name[128];
    snprintf(name, sizeof name, POOL_JOBS "/%s.%" PRIu64, share->job, share->restarts);
    return write_document(folder, name, JSON_FIELDS(share_fields), share, err);
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
    usage->open_jobs += !share->ended;
    if (*first_ns == 0 || share->began_wall_ns < *first_ns) {
        *first_ns = share->began_wall_ns;
        snprintf(usage->nodes, sizeof usage->nodes, "%s", share->nodes);
    }
}

/* The number of starts of the same job directly before this one that left no share: failed boots. */
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

/* Only the shares of jobs, not the temporary files of buf_write_file, which are incomplete. */
static int is_share(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name);
    return not_hidden(entry) && (len <= 4 || strcmp(entry->d_name + len - 4, ".tmp") != 0);
}

int pool_sum(const struct pool *pool, const char *folder, struct pool_usage *usage, struct cb_err *err)
{
    char jobs[PATH_MAX], path[PATH_MAX];
    struct pool_usage sum = {0};
    uint64_t first_ns = 0;
    int rc = run_folder_join(jobs, folder, POOL_JOBS, err);
    DIR *names = rc ? NULL : opendir(jobs);
    if (rc == 0 && !names)
        return cb_fail_errno(err, errno, "reading the folder %s", jobs);
    for (struct dirent *entry; names && (entry = readdir(names));) {
        struct pool_share share = {0};
        if (!is_share(entry) || run_folder_join(path, jobs, entry->d_name, NULL) ||
            read_document(path, JSON_FIELDS(share_fields), &share, NULL) ||
            share.allocated_wall_ns > share.began_wall_ns || share.began_wall_ns > share.seen_wall_ns)
            continue;
        add_share(&share, &first_ns, &sum);
        uint64_t failures = count_failures(jobs, &share);
        sum.failures += failures;
        sum.node_ns += failures * share.node_count * pool->boot_most_ns;
    }
    if (names)
        closedir(names);
    if (rc == 0)
        *usage = sum;
    return rc;
}

bool pool_may_touch(const struct pool *pool, const struct pool_usage *usage, uint64_t nodes, uint64_t now_wall_ns,
                    char *reason, size_t bytes)
{
    if (usage->failures >= POOL_MOST_FAILURES)
        snprintf(reason, bytes, "%" PRIu64 " boots of its nodes have failed", usage->failures);
    else if (now_wall_ns + pool->period_ns >= pool->expires_wall_ns)
        snprintf(reason, bytes, "its time is over");
    else if (usage->node_ns + nodes * pool->period_ns > pool->budget_node_ns)
        snprintf(reason, bytes, "its budget is used up");
    else
        return true;
    return false;
}

uint64_t pool_hold_end_wall_ns(const struct pool *pool, const struct pool_usage *earlier,
                               const struct pool_share *share)
{
    uint64_t left_ns = pool->budget_node_ns > earlier->node_ns ? pool->budget_node_ns - earlier->node_ns : 0;
    uint64_t spent_ns = share->allocated_wall_ns + left_ns / (share->node_count ? share->node_count : 1);
    return spent_ns < pool->expires_wall_ns ? spent_ns : pool->expires_wall_ns;
}
