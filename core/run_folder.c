/* Run folders: names, attempts, manifests, progress. Knows files and their order, not what ran. */
#include "core/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/record.h"

#define SMALL_FILE_MAX_BYTES (1 << 20) /* experiment, manifest, progress */
#define RUN_ID_LETTERS 4

/* Outcomes */

static const char *const outcome_names[OUTCOME_COUNT] = {
    "pass", "benchmark_failed", "infrastructure", "timeout", "cancelled", "preempted", "lost",
};

const char *outcome_name(enum outcome outcome)
{
    return outcome < OUTCOME_COUNT ? outcome_names[outcome] : "unknown";
}

bool outcome_find(const char *name, enum outcome *outcome)
{
    for (unsigned i = 0; i < OUTCOME_COUNT; i++) {
        if (strcmp(outcome_names[i], name) == 0) {
            *outcome = (enum outcome)i;
            return true;
        }
    }
    return false;
}

int outcome_exit_code(enum outcome outcome)
{
    switch (outcome) {
    case OUTCOME_PASS:
        return CB_EXIT_PASS;
    case OUTCOME_BENCHMARK_FAILED:
        return CB_EXIT_BENCHMARK;
    default:
        return CB_EXIT_INFRASTRUCTURE;
    }
}

/* Folders */

/* mkdir -p. The path is changed and put back while it works. */
static int make_folders(char *path, mode_t mode, struct cb_err *err)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int failed = mkdir(path, mode) < 0 && errno != EEXIST ? errno : 0;
        int rc = failed ? cb_fail_errno(err, failed, "creating the folder %s", path) : 0;
        *slash = '/';
        if (rc)
            return rc;
    }
    return 0;
}

/* A home that cannot be made is no "not found": callers take that for a home without a history yet. */
static int make_home(char *path, struct cb_err *err)
{
    struct stat facts;
    struct cb_err own;
    int rc = make_folders(path, 0700, &own);
    if (!rc && mkdir(path, 0700) < 0 && errno != EEXIST)
        rc = cb_fail_errno(&own, errno, "creating the folder %s", path);
    if (!rc && stat(path, &facts) < 0)
        rc = cb_fail_errno(&own, errno, "looking at the folder %s", path);
    if (!rc && !S_ISDIR(facts.st_mode))
        rc = cb_fail(&own, CB_ERR_SYSTEM, "%s is not a folder", path);
    if (!rc && access(path, X_OK) < 0)
        rc = cb_fail_errno(&own, errno, "entering the folder %s", path);
    return rc ? cb_fail(err, rc == CB_ERR_NO_SPACE ? rc : CB_ERR_SYSTEM,
                        "%s: CKPTBENCH_HOME must name a folder that you may use", own.message)
              : 0;
}

int home_folder(struct buf *path, struct cb_err *err)
{
    const char *ours = getenv("CKPTBENCH_HOME");
    const char *data = getenv("XDG_DATA_HOME");
    const char *home = getenv("HOME");
    char working[PATH_MAX] = "";
    size_t before = path->len;
    const char *chosen = ours && *ours ? ours : data && *data ? data : home;
    if (chosen && *chosen && *chosen != '/') { /* the history names run folders: from everywhere the same */
        if (!getcwd(working, sizeof working))
            return cb_fail_errno(err, errno, "finding the working folder");
        buf_printf(path, "%s/", working);
    }
    if (ours && *ours)
        buf_append_text(path, ours);
    else if (data && *data)
        buf_printf(path, "%s/ckptbench", data);
    else if (home && *home)
        buf_printf(path, "%s/.local/share/ckptbench", home);
    else
        return cb_fail(err, CB_ERR_USAGE, "neither CKPTBENCH_HOME nor XDG_DATA_HOME nor HOME is set: set one");
    int rc = buf_check(path, "the home folder's path", err);
    if (!rc)
        rc = make_home(path->data + before, err);
    if (rc) {
        path->len = before;
        if (path->capacity)
            path->data[before] = '\0';
    }
    return rc;
}

void run_id_new(char id[RUN_ID_BYTES])
{
    static const char letters[] = "abcdefghijkmnpqrstuvwxyz23456789"; /* 32 of them: no l, o, 0, 1 */
    unsigned char random[RUN_ID_LETTERS];
    random_bytes(random, sizeof random);
    time_t now = (time_t)(clock_wall_ns() / NS_PER_S);
    struct tm utc;
    gmtime_r(&now, &utc);
    size_t len = strftime(id, RUN_ID_BYTES, "%Y%m%d-", &utc);
    for (size_t i = 0; i < sizeof random; i++)
        id[len++] = letters[random[i] % (sizeof letters - 1)];
    id[len] = '\0';
}

static int join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the path %s/%s is too long", folder, name);
    return 0;
}

static int make_subfolder(const char *folder, const char *name, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, folder, name, err);
    if (!rc && mkdir(path, 0755) < 0)
        rc = cb_fail_errno(err, errno, "creating the folder %s", path);
    return rc;
}

/* Labels as YAML whose texts are quoted as JSON has it, which YAML reads the same. */
static int write_labels(const char *folder, const struct experiment *experiment, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, folder, "labels.yaml", err);
    if (rc)
        return rc;
    struct buf text;
    buf_init(&text, SMALL_FILE_MAX_BYTES);
    struct json_writer json;
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    for (size_t i = 0; i < experiment_label_count(experiment); i++) {
        json_write_key(&json, experiment_label_key(experiment, i));
        json_write_text(&json, experiment_label_value(experiment, i));
    }
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}

static int write_experiment(const char *folder, const struct experiment *experiment, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, SMALL_FILE_MAX_BYTES);
    int rc = join(path, folder, "experiment.yaml", err);
    if (!rc)
        rc = experiment_write_yaml(experiment, &text, err);
    if (!rc)
        rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}

int run_folder_create(const char *path, const struct experiment *experiment, struct cb_err *err)
{
    char own[PATH_MAX];
    if (snprintf(own, sizeof own, "%s", path) >= (int)sizeof own)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", path);
    int rc = make_folders(own, 0755, err);
    if (!rc && mkdir(path, 0755) < 0)
        rc = cb_fail_errno(err, errno, "creating the run folder %s", path);
    if (!rc)
        rc = make_subfolder(path, "attempts", err);
    if (!rc)
        rc = write_labels(path, experiment, err);
    if (!rc)
        rc = write_experiment(path, experiment, err);
    return rc;
}

int run_folder_read_experiment(const char *path, struct experiment **experiment, struct cb_err *err)
{
    char file[PATH_MAX];
    struct buf text;
    buf_init(&text, SMALL_FILE_MAX_BYTES);
    int rc = join(file, path, "experiment.yaml", err);
    if (!rc)
        rc = buf_read_file(&text, file, err);
    if (!rc)
        rc = experiment_read_yaml(file, text.data, text.len, experiment, err);
    buf_release(&text);
    return rc;
}

/* Attempts */

int run_folder_last_attempt(const char *path, uint32_t *attempt, struct cb_err *err)
{
    char folder[PATH_MAX];
    int rc = join(folder, path, "attempts", err);
    if (rc)
        return rc;
    DIR *entries = opendir(folder);
    if (!entries)
        return cb_fail_errno(err, errno, "reading %s (is %s a run folder?)", folder, path);
    uint32_t last = 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        char *end;
        unsigned long number = strtoul(entry->d_name, &end, 10);
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && !*end && number <= UINT32_MAX && number > last)
            last = (uint32_t)number;
    }
    closedir(entries);
    *attempt = last;
    return 0;
}

int run_folder_new_attempt(const char *path, uint32_t *attempt, struct buf *attempt_path, struct cb_err *err)
{
    uint32_t number;
    int rc = run_folder_last_attempt(path, &number, err);
    if (rc)
        return rc;
    char folder[PATH_MAX];
    for (;;) { /* another agent may take the same number: the next one is ours */
        number++;
        if (snprintf(folder, sizeof folder, "%s/attempts/%u", path, number) >= (int)sizeof folder)
            return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", path);
        if (mkdir(folder, 0755) == 0)
            break;
        if (errno != EEXIST)
            return cb_fail_errno(err, errno, "creating the folder %s", folder);
    }
    rc = make_subfolder(folder, "logs", err);
    if (rc)
        return rc;
    size_t before = attempt_path->len;
    buf_append_text(attempt_path, folder);
    rc = buf_check(attempt_path, "the attempt's path", err);
    if (rc)
        attempt_path->len = before;
    else
        *attempt = number;
    return rc;
}

/* Manifests */

static int describe_manifest(const struct manifest *manifest, struct buf *text, struct cb_err *err)
{
    char utc[21];
    struct json_writer json;
    json_writer_init(&json, text, 2);
    json_write_begin_object(&json);
    json_write_key(&json, "version");
    json_write_u64(&json, MANIFEST_VERSION);
    json_write_key(&json, "run");
    json_write_text(&json, manifest->run);
    json_write_key(&json, "attempt");
    json_write_u64(&json, manifest->attempt);
    json_write_key(&json, "outcome");
    json_write_text(&json, outcome_name(manifest->outcome));
    json_write_key(&json, "message");
    json_write_text(&json, manifest->message);
    clock_format_utc(manifest->started_wall_ns, utc);
    json_write_key(&json, "started");
    json_write_text(&json, utc);
    json_write_key(&json, "started_wall_ns");
    json_write_u64(&json, manifest->started_wall_ns);
    clock_format_utc(manifest->ended_wall_ns, utc);
    json_write_key(&json, "ended");
    json_write_text(&json, utc);
    json_write_key(&json, "ended_wall_ns");
    json_write_u64(&json, manifest->ended_wall_ns);
    json_write_key(&json, "records_sha256");
    json_write_text(&json, manifest->records_sha256);
    json_write_key(&json, "ranks");
    json_write_u64(&json, manifest->ranks);
    json_write_key(&json, "samples");
    json_write_u64(&json, manifest->samples);
    json_write_key(&json, "sealed_by");
    json_write_text(&json, manifest->sealed_by);
    json_write_end_object(&json);
    buf_append_char(text, '\n');
    return buf_check(text, "the manifest", err);
}

/* Gives `temporary` its final name only where nothing has it: by a hard link, or where the file system
 * has none by a rename that replaces nothing. */
static int publish_exclusively(const char *temporary, const char *path, struct cb_err *err)
{
    int failed = link(temporary, path) < 0 ? errno : 0;
    if (failed == EPERM || failed == EOPNOTSUPP || failed == ENOSYS || failed == EMLINK)
        failed = renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE) < 0 ? errno : 0;
    return failed ? cb_fail_errno(err, failed, "sealing the attempt with %s", path) : 0;
}

static int sync_folder(const char *path, struct cb_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening the folder %s", path);
    int failed = fsync(fd) < 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return failed ? cb_fail_errno(err, failed, "syncing the folder %s", path) : 0;
}

int manifest_write(const char *attempt_path, const struct manifest *manifest, struct cb_err *err)
{
    char path[PATH_MAX], name[64], temporary[PATH_MAX];
    uint64_t random;
    random_bytes(&random, sizeof random);
    snprintf(name, sizeof name, "manifest.json.%016llx", (unsigned long long)random);
    int rc = join(path, attempt_path, "manifest.json", err);
    if (!rc)
        rc = join(temporary, attempt_path, name, err);
    if (rc)
        return rc;
    struct buf text;
    buf_init(&text, SMALL_FILE_MAX_BYTES);
    rc = describe_manifest(manifest, &text, err);
    if (!rc)
        rc = buf_write_file(&text, temporary, 0644, err);
    buf_release(&text);
    if (rc)
        return rc;
    rc = publish_exclusively(temporary, path, err);
    unlink(temporary);
    return rc ? rc : sync_folder(attempt_path, err);
}

/* Records that the agent left: it writes them once, whole, so that they do not change any more. */
static void take_records(const char *attempt_path, struct manifest *manifest)
{
    char path[PATH_MAX];
    struct record record;
    struct cb_err own;
    size_t used = strlen(manifest->message);
    int rc = manifest_hash_records(attempt_path, manifest->records_sha256, &own);
    if (!rc && !*manifest->records_sha256)
        return;
    if (!rc)
        rc = join(path, attempt_path, "records", &own);
    if (!rc)
        rc = record_read(path, &record, &own);
    if (rc) {
        manifest->records_sha256[0] = '\0';
        snprintf(manifest->message + used, sizeof manifest->message - used, "; its records are left out: %s",
                 own.message);
        return;
    }
    manifest->ranks = record.rank_count;
    for (uint32_t i = 0; i < record.rank_count; i++)
        manifest->samples += record.ranks[i].sample_count;
    record_release(&record);
}

int manifest_write_for_agent(const char *attempt_path, struct manifest *manifest, struct cb_err *err)
{
    snprintf(manifest->sealed_by, sizeof manifest->sealed_by, "collect");
    take_records(attempt_path, manifest);
    return manifest_write(attempt_path, manifest, err);
}

static int copy_text(const struct json_value *object, const char *key, char *place, size_t bytes, struct cb_err *err)
{
    const char *text;
    int rc = json_need_text(object, key, &text, err);
    if (rc)
        return rc;
    if (strlen(text) >= bytes)
        return cb_fail(err, CB_ERR_FORMAT, "%s is longer than %zu bytes", key, bytes - 1);
    memcpy(place, text, strlen(text) + 1);
    return 0;
}

static int copy_u32(const struct json_value *object, const char *key, uint32_t *place, struct cb_err *err)
{
    uint64_t number;
    int rc = json_need_u64(object, key, &number, err);
    if (rc)
        return rc;
    if (number > UINT32_MAX)
        return cb_fail(err, CB_ERR_FORMAT, "%s is out of range", key);
    *place = (uint32_t)number;
    return 0;
}

static int read_manifest_fields(const struct json_value *root, struct manifest *manifest, struct cb_err *err)
{
    uint32_t version = 0;
    char outcome[32] = "";
    int rc = copy_u32(root, "version", &version, err);
    if (!rc && version != MANIFEST_VERSION)
        rc = cb_fail(err, CB_ERR_FORMAT, "version %u, this program reads %d", version, MANIFEST_VERSION);
    if (!rc)
        rc = copy_text(root, "run", manifest->run, sizeof manifest->run, err);
    if (!rc)
        rc = copy_u32(root, "attempt", &manifest->attempt, err);
    if (!rc)
        rc = copy_text(root, "outcome", outcome, sizeof outcome, err);
    if (!rc && !outcome_find(outcome, &manifest->outcome))
        rc = cb_fail(err, CB_ERR_FORMAT, "unknown outcome %s", outcome);
    if (!rc)
        rc = copy_text(root, "message", manifest->message, sizeof manifest->message, err);
    if (!rc)
        rc = json_need_u64(root, "started_wall_ns", &manifest->started_wall_ns, err);
    if (!rc)
        rc = json_need_u64(root, "ended_wall_ns", &manifest->ended_wall_ns, err);
    if (!rc)
        rc = copy_text(root, "records_sha256", manifest->records_sha256, sizeof manifest->records_sha256, err);
    if (!rc)
        rc = copy_u32(root, "ranks", &manifest->ranks, err);
    if (!rc)
        rc = copy_u32(root, "samples", &manifest->samples, err);
    if (!rc)
        rc = copy_text(root, "sealed_by", manifest->sealed_by, sizeof manifest->sealed_by, err);
    return rc;
}

int manifest_parse(const char *name, const char *text, size_t len, struct manifest *manifest, struct cb_err *err)
{
    struct json_value *root = NULL;
    struct manifest parsed = {0};
    struct cb_err own;
    int rc = json_parse(text, len, &root, &own);
    if (!rc)
        rc = read_manifest_fields(root, &parsed, &own);
    json_value_free(root);
    if (rc) {
        cb_context(&own, "%s", name);
        if (err)
            *err = own;
        return rc;
    }
    *manifest = parsed;
    return 0;
}

static int hash_file(int fd, const char *path, char hex[65], struct cb_err *err)
{
    struct stat facts;
    if (fstat(fd, &facts) < 0)
        return cb_fail_errno(err, errno, "looking at %s", path);
    if (facts.st_size == 0) {
        hash_sha256_hex("", 0, hex);
        return 0;
    }
    void *bytes = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return cb_fail_errno(err, errno, "reading %s", path);
    hash_sha256_hex(bytes, (size_t)facts.st_size, hex);
    munmap(bytes, (size_t)facts.st_size);
    return 0;
}

int manifest_hash_records(const char *attempt_path, char hex[65], struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, attempt_path, "records", err);
    if (rc)
        return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        hex[0] = '\0';
        return 0;
    }
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    rc = hash_file(fd, path, hex, err);
    close(fd);
    return rc;
}

int manifest_read(const char *attempt_path, struct manifest *manifest, struct cb_err *err)
{
    char path[PATH_MAX], hex[65];
    struct buf text;
    struct manifest parsed;
    buf_init(&text, SMALL_FILE_MAX_BYTES);
    int rc = join(path, attempt_path, "manifest.json", err);
    if (!rc)
        rc = buf_read_file(&text, path, err);
    if (!rc)
        rc = manifest_parse(path, text.data, text.len, &parsed, err);
    buf_release(&text);
    if (!rc && *parsed.records_sha256) /* else a file of that name came after the seal, and is no part of it */
        rc = manifest_hash_records(attempt_path, hex, err);
    if (!rc && *parsed.records_sha256 && strcmp(hex, parsed.records_sha256) != 0)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s/records is not what was sealed: its SHA-256 is %s, the manifest has %s",
                     attempt_path, *hex ? hex : "absent", parsed.records_sha256);
    if (!rc)
        *manifest = parsed;
    return rc;
}

/* Progress */

int progress_write(const char *attempt_path, const struct progress *progress, struct cb_err *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    int rc = join(path, attempt_path, "progress.json", err);
    if (!rc)
        rc = join(temporary, attempt_path, "progress.json.tmp", err);
    if (rc)
        return rc;
    struct buf text;
    struct json_writer json;
    buf_init(&text, SMALL_FILE_MAX_BYTES);
    json_writer_init(&json, &text, 0);
    json_write_begin_object(&json);
    json_write_key(&json, "state");
    json_write_text(&json, progress->state);
    json_write_key(&json, "op");
    json_write_text(&json, progress->op);
    json_write_key(&json, "iteration");
    json_write_u64(&json, progress->iteration);
    json_write_key(&json, "iterations");
    json_write_u64(&json, progress->iterations);
    json_write_key(&json, "bytes_done");
    json_write_u64(&json, progress->bytes_done);
    json_write_key(&json, "bytes_total");
    json_write_u64(&json, progress->bytes_total);
    json_write_key(&json, "bytes_per_s");
    json_write_double(&json, progress->bytes_per_s);
    json_write_key(&json, "slowest_rank");
    json_write_i64(&json, progress->slowest_rank);
    json_write_key(&json, "note");
    json_write_text(&json, progress->note);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    rc = buf_check(&text, "the progress", err);
    /* Renamed so that readers see a whole one; not synced, since a sync could disturb what is timed. */
    int fd = rc ? -1 : open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (!rc && (fd < 0 || write(fd, text.data, text.len) != (ssize_t)text.len || rename(temporary, path) < 0))
        rc = cb_fail_errno(err, errno, "writing %s", path);
    if (fd >= 0)
        close(fd);
    buf_release(&text);
    return rc;
}

static int read_progress_fields(const struct json_value *root, struct progress *progress, struct cb_err *err)
{
    double slowest;
    int rc = copy_text(root, "state", progress->state, sizeof progress->state, err);
    if (!rc)
        rc = copy_text(root, "op", progress->op, sizeof progress->op, err);
    if (!rc)
        rc = copy_u32(root, "iteration", &progress->iteration, err);
    if (!rc)
        rc = copy_u32(root, "iterations", &progress->iterations, err);
    if (!rc)
        rc = json_need_u64(root, "bytes_done", &progress->bytes_done, err);
    if (!rc)
        rc = json_need_u64(root, "bytes_total", &progress->bytes_total, err);
    if (!rc)
        rc = json_need_double(root, "bytes_per_s", &progress->bytes_per_s, err);
    if (!rc)
        rc = json_need_double(root, "slowest_rank", &slowest, err);
    if (!rc && !(slowest >= -1 && slowest <= INT32_MAX))
        rc = cb_fail(err, CB_ERR_FORMAT, "slowest_rank is out of range");
    if (!rc)
        rc = copy_text(root, "note", progress->note, sizeof progress->note, err);
    if (!rc)
        progress->slowest_rank = (int)slowest;
    return rc;
}

int progress_read(const char *attempt_path, struct progress *progress, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, attempt_path, "progress.json", err);
    if (rc)
        return rc;
    struct json_value *root = NULL;
    struct progress parsed = {0};
    rc = json_parse_file(path, SMALL_FILE_MAX_BYTES, &root, err);
    if (!rc)
        rc = read_progress_fields(root, &parsed, err);
    json_value_free(root);
    if (!rc)
        *progress = parsed;
    return rc;
}
