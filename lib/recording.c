#include "lib/recording.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/path.h"
#include "core/process.h"
#include "include/ckptbench.h"
#include "run/run_folder.h"
#include "run/workload_kind.h"

#define LINE_MAX_BYTES 65536
#define LOCK_TRIES 20 /* `collect` holds the lock while it seals */
#define LOCK_SLEEP_NS (50 * NS_PER_MS)

struct recording {
    pthread_mutex_t lock;
    uint32_t rank, ranks;
    char folder[PATH_MAX]; /* of the lines; "" if nothing is recorded */
    int run_fd;            /* rank 0: the shared lock of the run; else -1 */
    int fd;                /* this process's file; -1: none */
    bool is_taken;         /* another program had the run at the last try */
    struct cb_err trouble; /* not told yet */
};

/* --- the run, by rank 0 --- */

/* The run's name becomes a name in the history, where other characters would mean something else. */
static int check_run_name(const char *name, struct cb_err *err)
{
    size_t len = strlen(name);
    bool is_fine = len > 0 && len < RUN_ID_BYTES && isalnum((unsigned char)*name);
    for (size_t i = 0; i < len; i++)
        is_fine = is_fine && (isalnum((unsigned char)name[i]) || strchr("._-", name[i]));
    return is_fine
               ? 0
               : cb_fail(err, CB_ERR_USAGE,
                         "'%.100s' is no name for a run: it is made of at most %d letters, digits, '.', '_' and '-'",
                         name, RUN_ID_BYTES - 1);
}

static int find_run(const char *name, char folder[PATH_MAX], struct cb_err *err)
{
    struct buf home;
    char working[PATH_MAX] = "";
    const char *slash = strrchr(name, '/');
    int rc = check_run_name(slash ? slash + 1 : name, err);
    if (rc)
        return rc;
    if (slash && *name != '/' && !getcwd(working, sizeof working))
        return cb_fail_errno(err, errno, "finding the working folder");
    if (slash)
        return path_format(folder, PATH_MAX, err, "%s%s%s", working, *working ? "/" : "", name);
    buf_init(&home, PATH_MAX);
    rc = home_folder(&home, err);
    if (!rc)
        rc = path_format(folder, PATH_MAX, err, "%s/runs/%s", home.data, name);
    buf_release(&home);
    return rc;
}

/* Makes the run folder. One that exists must be of a recorded or watched run. */
static int make_run(const char *folder, const struct experiment *experiment, uint32_t ranks, struct cb_err *err)
{
    struct experiment *frozen = NULL;
    struct stat facts;
    char number[16];
    if (stat(folder, &facts) == 0) {
        int rc = run_folder_read_experiment(folder, &frozen, err);
        if (!rc && !workload_kind_of(frozen)->watches)
            rc = cb_fail(err, CB_ERR_EXISTS, "%s is a run of ckptbench itself: choose another name", folder);
        experiment_free(frozen);
        return rc;
    }
    snprintf(number, sizeof number, "%" PRIu32, ranks);
    int rc = experiment_copy(experiment, &frozen, err);
    if (!rc)
        rc = experiment_set(frozen, "workload", "watch", "the record", err);
    if (!rc)
        rc = experiment_set(frozen, "ranks", number, "the record", err);
    if (!rc && strchr(experiment_text(frozen, OPT_S3_ENDPOINT), '@')) /* a user and a password */
        rc = experiment_reset(frozen, OPT_S3_ENDPOINT, err);
    if (!rc)
        rc = run_folder_create(NULL, folder, frozen, err);
    experiment_free(frozen);
    return rc;
}

/* Tells this process from an earlier one of the same name and number, as in a container that is started again. */
static uint64_t token;
static pthread_once_t token_is_made = PTHREAD_ONCE_INIT;

static void make_token(void)
{
    random_bytes(&token, sizeof token);
}

/* The file of this process, for all its handles; NFS and forks do not mix up files of two processes. */
static int own_file(const char *lines, char path[PATH_MAX], struct cb_err *err)
{
    char host[PROCESS_NODE_BYTES];
    (void)pthread_once(&token_is_made, make_token);
    process_node_name(host);
    return path_format(path, PATH_MAX, err, "%s/%s-%ld.%016" PRIx64 ".jsonl", lines, host, (long)getpid(), token);
}

static int find_lines(const char *folder, uint32_t attempt, char lines[PATH_MAX], struct cb_err *err)
{
    return path_format(lines, PATH_MAX, err, "%s/attempts/%" PRIu32 "/" LINES_FOLDER, folder, attempt);
}

/* Whether another handle of this process records the run's last attempt, and it is not sealed. */
static bool is_ours(const char *folder, char lines[PATH_MAX])
{
    char own[PATH_MAX], manifest[PATH_MAX];
    uint32_t last = 0;
    return run_folder_last_attempt(folder, &last, NULL) == 0 && last > 0 &&
           find_lines(folder, last, lines, NULL) == 0 && own_file(lines, own, NULL) == 0 && access(own, F_OK) == 0 &&
           path_format(manifest, sizeof manifest, NULL, "%s/../manifest.json", lines) == 0 &&
           access(manifest, F_OK) != 0;
}

static int make_attempt(const char *folder, char lines[PATH_MAX], struct cb_err *err)
{
    struct buf attempt;
    uint32_t number = 0;
    run_folder_write_state(folder, "running");
    buf_init(&attempt, PATH_MAX);
    int rc = run_folder_new_attempt(folder, &number, &attempt, err);
    if (!rc)
        rc = find_lines(folder, number, lines, err);
    if (!rc && mkdir(lines, 0777) < 0)
        rc = cb_fail_errno(err, errno, "making the folder %s", lines);
    buf_release(&attempt);
    return rc;
}

/* Locks the run as long as this handle is open: nobody takes its attempt for dead. Later tries do not wait, since a save
 * or load does each time. */
static int join_attempt(struct recording *self, const char *folder, struct cb_err *err)
{
    unsigned most = self->is_taken ? 1 : LOCK_TRIES;
    int rc = 0;
    self->is_taken = false;
    for (unsigned tries = 0; !rc && self->run_fd < 0 && tries < most; tries++) {
        if (tries > 0)
            clock_sleep_ns(LOCK_SLEEP_NS);
        rc = run_folder_lock(folder, &self->run_fd, err);
        bool is_alone = !rc && self->run_fd >= 0, joins = !rc && is_ours(folder, self->folder);
        if (is_alone && !joins)
            rc = make_attempt(folder, self->folder, err);
        if (!rc && (is_alone || joins))
            rc = run_folder_share_lock(folder, &self->run_fd, err);
    }
    self->is_taken = !rc && self->run_fd < 0;
    return self->is_taken ? cb_fail(err, CB_ERR_EXISTS, "another program records run %s", folder) : rc;
}

static int begin_run(struct recording *self, const char *name, const struct experiment *experiment, struct cb_err *err)
{
    char folder[PATH_MAX];
    int rc = find_run(name, folder, err);
    if (!rc)
        rc = make_run(folder, experiment, self->ranks, err);
    if (!rc)
        rc = join_attempt(self, folder, err);
    if (rc) {
        run_folder_unlock(self->run_fd);
        self->run_fd = -1;
    }
    return rc;
}

/* --- lines --- */

static void stop(struct recording *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}

static void begin_line(const struct recording *self, struct json_writer *json, const char *op, uint64_t at_ns)
{
    json_write_begin_object(json);
    json_member_u64(json, "rank", self->rank);
    json_member_u64(json, "world", self->ranks);
    json_member_text(json, "op", op);
    json_member_u64(json, "start_ns", at_ns);
}

/* In one write, so that lines of two handles of a process do not mix. */
static void end_line(struct recording *self, struct json_writer *json, struct buf *line)
{
    json_write_end_object(json);
    buf_append_char(line, '\n');
    int rc = buf_check(line, "a line of the record", &self->trouble);
    ssize_t written = rc ? -1 : write(self->fd, line->data, line->len);
    if (!rc && written != (ssize_t)line->len)
        rc = cb_fail_errno(&self->trouble, written < 0 ? errno : ENOSPC, "writing to %s", self->folder);
    if (rc)
        stop(self);
}

static void add_short_line(struct recording *self, const char *op, const char *key, const char *value)
{
    struct json_writer json;
    struct buf line;
    if (self->fd < 0)
        return;
    buf_init(&line, LINE_MAX_BYTES);
    json_writer_init(&json, &line, 0);
    begin_line(self, &json, op, clock_wall_ns());
    if (key)
        json_member_text(&json, key, value);
    end_line(self, &json, &line);
    buf_release(&line);
}

void recording_add(struct recording *self, const struct recorded *recorded)
{
    const struct sample *sample = recorded->sample;
    struct json_writer json;
    struct buf line;
    pthread_mutex_lock(&self->lock);
    buf_init(&line, LINE_MAX_BYTES);
    json_writer_init(&json, &line, 0);
    if (self->fd >= 0) {
        begin_line(self, &json, operation_name((enum operation)sample->op), recorded->start_wall_ns);
        json_member_text(&json, "path", recorded->path);
        json_member_bool(&json, "failed", sample->flags & SAMPLE_FAILED);
        json_member_bool(&json, "asynchronous", recorded->is_asynchronous);
        for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++) {
            if (!isnan(sample->values[i]))
                json_member_double(&json, metric_row((enum metric_id)i)->name, sample->values[i]);
        }
        end_line(self, &json, &line);
    }
    buf_release(&line);
    pthread_mutex_unlock(&self->lock);
}

/* --- beginning and ending --- */

static void open_file(struct recording *self)
{
    char path[PATH_MAX];
    int rc = own_file(self->folder, path, &self->trouble);
    self->fd = rc ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (!rc && self->fd < 0)
        (void)cb_fail_errno(&self->trouble, errno, "opening %s", path);
    char program[64];
    snprintf(program, sizeof program, "libckptbench %s", ckptbench_version());
    add_short_line(self, "process", "program", program);
}

static struct recording *make_recording(const struct comm *comm)
{
    struct recording *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    pthread_mutex_init(&self->lock, NULL);
    self->rank = comm_rank(comm);
    self->ranks = comm_size(comm);
    self->run_fd = self->fd = -1;
    return self;
}

/* What rank 0 tells the others. */
struct invitation {
    char folder[PATH_MAX]; /* of the lines, or "" */
    uint32_t is_taken;
};

static void invite(struct recording *self, const char *name, const struct experiment *experiment,
                   struct invitation *invitation)
{
    struct cb_err trouble = {0};
    bool was_taken = self->is_taken;
    int rc = begin_run(self, name, experiment, &trouble);
    if (!rc)
        snprintf(invitation->folder, sizeof invitation->folder, "%s", self->folder);
    if (!rc || !was_taken) /* else it was told that nothing is recorded */
        self->trouble = trouble;
    invitation->is_taken = self->is_taken;
}

int recording_begin(const char *name, const struct experiment *experiment, struct comm *comm, uint64_t deadline_ns,
                    struct recording **recording, struct cb_err *err)
{
    struct invitation invitation = {0};
    struct recording *self = *recording ? *recording : make_recording(comm);
    if (*recording && !self->is_taken)
        return 0;
    int rc = agree(comm, self ? 0 : alloc_fail(err, "for the record"), deadline_ns, err);
    assert(rc || self);
    if (!rc && self->rank == 0 && *name)
        invite(self, name, experiment, &invitation);
    if (!rc)
        rc = comm_broadcast(comm, &invitation, sizeof invitation, deadline_ns, err);
    if (rc) {
        if (!*recording)
            recording_free(self);
        return rc;
    }
    snprintf(self->folder, sizeof self->folder, "%s", invitation.folder);
    self->is_taken = invitation.is_taken;
    if (*self->folder)
        open_file(self);
    *recording = self;
    return 0;
}

void recording_end(struct recording *self)
{
    if (self)
        add_short_line(self, "end", NULL, NULL);
}

void recording_free(struct recording *self)
{
    if (!self)
        return;
    stop(self);
    run_folder_unlock(self->run_fd);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

void recording_trouble(struct recording *self, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    if (self->trouble.code)
        snprintf(text, bytes, "saves and loads are not recorded: %.800s", self->trouble.message);
    self->trouble = (struct cb_err){0};
    pthread_mutex_unlock(&self->lock);
}
