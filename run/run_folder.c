/* Run folders: names, attempts, progress. run/manifest.c has the seal. */
#include "run/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/json_fields.h"
#include "core/path.h"

#define RUN_ID_LETTERS 4
#define OPEN_FOLDERS 16 /* folders that a removal keeps open at a time */

static const char *const names[OUTCOME_COUNT] = {
    "pass", "benchmark_failed", "infrastructure", "timeout", "cancelled", "preempted", "lost",
};
const struct name_list outcome_names = NAME_LIST(names, "unknown outcome");

const char *outcome_name(enum outcome outcome)
{
    return outcome < OUTCOME_COUNT ? names[outcome] : "unknown";
}

bool outcome_find(const char *name, enum outcome *outcome)
{
    return name_find(&outcome_names, name, (unsigned *)outcome);
}

int outcome_exit_code(enum outcome outcome)
{
    return outcome == OUTCOME_PASS               ? CB_EXIT_PASS
           : outcome == OUTCOME_BENCHMARK_FAILED ? CB_EXIT_BENCHMARK
                                                 : CB_EXIT_INFRASTRUCTURE;
}

int run_folder_make_parents(const char *path, unsigned mode, struct cb_err *err)
{
    char own[PATH_MAX];
    int rc = path_format(own, sizeof own, err, "%s", path);
    for (char *slash = strchr(own + 1, '/'); slash && !rc; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(own, mode) < 0 && errno != EEXIST)
            rc = cb_fail_errno(err, errno, "creating the folder %s", own);
        *slash = '/';
    }
    return rc;
}

/* Reports a home that cannot be created as a system error: callers treat CB_ERR_NOT_FOUND as a home without a
 * history. */
static int make_home(const char *path, struct cb_err *err)
{
    struct stat facts;
    struct cb_err own;
    int rc = run_folder_make_parents(path, 0700, &own);
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
    if (chosen && *chosen && *chosen != '/') { /* absolute, since the history stores paths of run folders */
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

int run_folder_join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err)
{
    return path_format(path, PATH_MAX, err, "%s/%s", folder, name);
}

static int make_subfolder(const char *folder, const char *name, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, folder, name, err);
    if (!rc && mkdir(path, 0777) < 0)
        rc = cb_fail_errno(err, errno, "creating the folder %s", path);
    return rc;
}

/* The labels and the frozen experiment. Labels are YAML with texts quoted as in JSON, which YAML reads the same. */
static int write_files(struct file_batch *batch, const char *folder, const struct experiment *experiment,
                       struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct json_writer json;
    buf_init(&text, RUN_FOLDER_FILE_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    experiment_write_labels_json(experiment, &json);
    buf_append_char(&text, '\n');
    int rc = run_folder_join(path, folder, "labels.yaml", err);
    if (!rc)
        rc = file_write(batch, &text, path, 0666, err);
    buf_clear(&text);
    if (!rc)
        rc = run_folder_join(path, folder, "experiment.yaml", err);
    if (!rc)
        rc = experiment_write_yaml(experiment, &text, err);
    if (!rc)
        rc = file_write(batch, &text, path, 0666, err);
    buf_release(&text);
    return rc;
}

int run_folder_create(struct file_batch *batch, const char *path, const struct experiment *experiment,
                      struct cb_err *err)
{
    int rc = run_folder_make_parents(path, 0777, err);
    if (!rc && mkdir(path, 0777) < 0)
        rc = cb_fail_errno(err, errno, "creating the run folder %s", path);
    if (!rc)
        rc = make_subfolder(path, "attempts", err);
    return rc ? rc : write_files(batch, path, experiment, err);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

void run_folder_discard(const char *path)
{
    (void)nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

int run_folder_read_experiment(const char *path, struct experiment **experiment, struct cb_err *err)
{
    char file[PATH_MAX];
    struct buf text;
    buf_init(&text, RUN_FOLDER_FILE_MAX_BYTES);
    int rc = run_folder_join(file, path, "experiment.yaml", err);
    if (!rc)
        rc = buf_read_file(&text, file, err);
    if (!rc)
        rc = experiment_read_yaml(file, text.data, text.len, experiment, err);
    buf_release(&text);
    return rc;
}

int run_folder_last_attempt(const char *path, uint32_t *attempt, struct cb_err *err)
{
    char folder[PATH_MAX];
    int rc = run_folder_join(folder, path, "attempts", err);
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
    for (;;) { /* another agent may have created the same number: try the next one */
        number++;
        if (path_format(folder, sizeof folder, err, "%s/attempts/%u", path, number))
            return CB_ERR_USAGE;
        if (mkdir(folder, 0777) == 0)
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

/* Renamed, so that readers see a complete file; not synced, since a sync could disturb a measurement. */
static int replace_file(const char *path, const char *text, size_t len, struct cb_err *err)
{
    char temporary[PATH_MAX];
    if (path_format(temporary, sizeof temporary, err, "%s.tmp", path))
        return CB_ERR_USAGE;
    int rc = 0, fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, len) != (ssize_t)len || rename(temporary, path) < 0)
        rc = cb_fail_errno(err, errno, "writing %s", path);
    if (fd >= 0)
        close(fd);
    return rc;
}

void run_folder_write_state(const char *path, const char *state)
{
    char file[PATH_MAX], line[48];
    uint32_t attempts = 0;
    if (run_folder_join(file, path, "job.json", NULL) || access(file, F_OK) == 0 ||
        run_folder_join(file, path, "state", NULL) || run_folder_last_attempt(path, &attempts, NULL))
        return; /* the run has a job, or no folder */
    int len = snprintf(line, sizeof line, "%.15s %u\n", state, attempts);
    (void)!replace_file(file, line, (size_t)len, NULL);
}

void run_folder_read_state(const char *path, uint32_t sealed, char state[16])
{
    char file[PATH_MAX];
    struct buf text;
    unsigned attempts = 0;
    buf_init(&text, RUN_FOLDER_FILE_MAX_BYTES);
    if (run_folder_join(file, path, "state", NULL) || buf_read_file(&text, file, NULL) ||
        sscanf(text.data, "%15s %u", state, &attempts) != 2 || attempts < sealed)
        state[0] = '\0';
    buf_release(&text);
}

/* A record lock on a file, because flock() on the folder would not hold between machines of a network file system. */
static int lock_folder(const char *path, short type, int *fd, struct cb_err *err)
{
    char file[PATH_MAX];
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    int rc = run_folder_join(file, path, "lock", err);
    if (rc)
        return rc;
    int opened = *fd >= 0 ? *fd : open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0)
        return cb_fail_errno(err, errno, "opening %s", file);
    if (fcntl(opened, F_OFD_SETLK, &whole) < 0 && errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP) {
        int failed = errno;
        close(opened);
        *fd = opened = -1; /* nobody closes it again, when the number may be another file's */
        if (failed != EAGAIN && failed != EACCES)
            return cb_fail_errno(err, failed, "locking %s", file);
    }
    *fd = opened;
    return 0;
}

int run_folder_lock(const char *path, int *fd, struct cb_err *err)
{
    *fd = -1;
    return lock_folder(path, F_WRLCK, fd, err);
}

int run_folder_share_lock(const char *path, int *fd, struct cb_err *err)
{
    return lock_folder(path, F_RDLCK, fd, err);
}

void run_folder_unlock(int fd)
{
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (fd < 0)
        return;
    /* A close alone is not enough on a FUSE file system: see store/posix/posix_swap.c. */
    (void)fcntl(fd, F_OFD_SETLK, &whole);
    close(fd);
}

static void write_slowest(struct json_writer *json, const void *object)
{
    json_write_i64(json, ((const struct progress *)object)->slowest_rank);
}

static int read_slowest(const struct json_value *value, void *object, struct cb_err *err)
{
    double slowest;
    if (!json_as_double(value, &slowest) || !(slowest >= -1 && slowest <= INT32_MAX))
        return cb_fail(err, CB_ERR_FORMAT, "slowest_rank is out of range");
    ((struct progress *)object)->slowest_rank = (int)slowest;
    return 0;
}

static const struct json_field progress_fields[] = {
    JSON_FIELD(struct progress, FIELD_TEXT, state),
    JSON_FIELD(struct progress, FIELD_TEXT, op),
    JSON_FIELD(struct progress, FIELD_U32, iteration),
    JSON_FIELD(struct progress, FIELD_U32, iterations),
    JSON_FIELD(struct progress, FIELD_U64, bytes_done),
    JSON_FIELD(struct progress, FIELD_U64, bytes_total),
    JSON_FIELD(struct progress, FIELD_DOUBLE, bytes_per_s),
    JSON_FIELD_OWN("slowest_rank", write_slowest, read_slowest),
    JSON_FIELD_OPTIONAL(struct progress, FIELD_TEXT, nodes),
    JSON_FIELD(struct progress, FIELD_TEXT, note),
};

int progress_write(const char *attempt_path, const struct progress *progress, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, attempt_path, "progress.json", err);
    if (rc)
        return rc;
    struct buf text;
    struct json_writer json;
    buf_init(&text, RUN_FOLDER_FILE_MAX_BYTES);
    json_writer_init(&json, &text, 0);
    json_write_begin_object(&json);
    json_write_fields(&json, JSON_FIELDS(progress_fields), progress);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    rc = buf_check(&text, "the progress", err);
    if (!rc)
        rc = replace_file(path, text.data, text.len, err);
    buf_release(&text);
    return rc;
}

int progress_read(const char *attempt_path, struct progress *progress, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, attempt_path, "progress.json", err);
    if (rc)
        return rc;
    struct json_value *root = NULL;
    struct progress parsed = {0};
    rc = json_parse_file(path, RUN_FOLDER_FILE_MAX_BYTES, &root, err);
    if (!rc)
        rc = json_read_fields(root, JSON_FIELDS(progress_fields), &parsed, err);
    json_value_free(root);
    if (!rc)
        *progress = parsed;
    return rc;
}
