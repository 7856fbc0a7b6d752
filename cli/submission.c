/* Sending runs to Slurm. Owns the order that makes sending happen once: what is intended is on disk before
 * sbatch is called, and a lost answer is looked for, never sent again. */
#include "cli/submission.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/job_list.h"
#include "core/clock.h"
#include "jobs/follow.h"
#include "jobs/script.h"

#define SCRIPT_MAX_BYTES (1u << 16)
#define LOOK_FOR_NS (10 * NS_PER_S) /* after a lost answer: as long as an RPC of Slurm may be under way */
#define LOOK_EVERY_NS (500 * NS_PER_MS)

/* ---- where things are ---- */

static bool is_program(const char *folder, size_t len, char path[PATH_MAX])
{
    int used = snprintf(path, PATH_MAX, "%.*s/ckptbench-agent", (int)len, folder);
    return used < PATH_MAX && path[0] == '/' && access(path, X_OK) == 0;
}

int submission_find_agent(char path[PATH_MAX], struct cb_err *err)
{
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len > 0) {
        self[len] = '\0';
        char *slash = strrchr(self, '/');
        if (slash && is_program(self, (size_t)(slash - self), path))
            return 0;
    }
    for (const char *at = getenv("PATH"); at && *at; at += strcspn(at, ":"), at += *at == ':')
        if (is_program(at, strcspn(at, ":"), path))
            return 0;
    return cb_fail(err, CB_ERR_NOT_FOUND, "ckptbench-agent is neither beside ckptbench nor in PATH");
}

int submission_init(struct submission *self, const struct experiment *experiment, struct cb_err *err)
{
    int rc = submission_find_agent(self->agent, err);
    if (rc == 0)
        outlook_choose_rates(experiment, &self->rates);
    return rc;
}

/* ---- scripts ---- */

static int time_limit_ns(const struct submission *self, const struct experiment *experiment, uint64_t *limit_ns,
                         struct cb_err *err)
{
    *limit_ns = experiment_u64(experiment, OPT_SLURM_TIME);
    return *limit_ns ? 0 : outlook_run_ns(experiment, &self->rates, limit_ns, err);
}

int submission_script(const struct submission *self, const char *name, const char *folder, size_t count,
                      const struct experiment *experiment, struct buf *script, struct cb_err *err)
{
    char run_folder[PATH_MAX], log[PATH_MAX];
    struct job_script parts = {.name = name,
                               .agent = self->agent,
                               .run_folder = run_folder,
                               .log = log,
                               .array_count = count,
                               .after = self->after,
                               .node_list = self->node_list,
                               .experiment = experiment};
    if (snprintf(run_folder, sizeof run_folder, "%s%s", folder, count ? "/" JOB_ARRAY : "") >= PATH_MAX ||
        snprintf(log, sizeof log, "%s/" JOB_LOG, folder) >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", folder);
    int rc = time_limit_ns(self, experiment, &parts.time_limit_ns, err);
    return rc ? rc : job_script_write(&parts, script, err);
}

bool submission_is_equal(const struct experiment *a, const struct experiment *b)
{
    static const enum option_id ids[] = {
        OPT_NODES,           OPT_RANKS,      OPT_RANKS_PER_NODE,      OPT_SLURM_PARTITION,
        OPT_SLURM_ACCOUNT,   OPT_SLURM_QOS,  OPT_SLURM_CONSTRAINT,    OPT_SLURM_RESERVATION,
        OPT_SLURM_EXCLUSIVE, OPT_SLURM_TIME, OPT_SLURM_CPUS_PER_TASK, OPT_SLURM_GPUS_PER_NODE,
        OPT_SLURM_REQUEUE,   OPT_SLURM_MAIL, OPT_SLURM_EXTRA,
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (strcmp(experiment_text(a, ids[i]), experiment_text(b, ids[i])) != 0)
            return false;
    return true;
}

static bool was_tested(const struct planning *planning, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (submission_is_equal(planning->members[i].experiment, planning->members[index].experiment))
            return true;
    return false;
}

static const char *describe_partition(const struct experiment *experiment, char text[96])
{
    const char *partition = experiment_text(experiment, OPT_SLURM_PARTITION);
    snprintf(text, 96, "%s%.60s", *partition ? "partition " : "the default partition", partition);
    return text;
}

int submission_test(const struct submission *self, const struct planning *planning, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < planning->sweep.count; i++) {
        char id[64], cluster[64], partition[96];
        enum submit_answer answer;
        struct buf script;
        if (was_tested(planning, i))
            continue;
        buf_init(&script, SCRIPT_MAX_BYTES);
        rc = submission_script(self, planning->members[i].id, planning->members[i].folder, 0,
                               planning->members[i].experiment, &script, err);
        if (rc == 0)
            rc = slurm_submit(self->client, script.data, true, id, cluster, &answer, err);
        buf_release(&script);
        if (rc)
            cb_context(err, "Slurm would not take run %s on %s (nodes=%s)", planning->members[i].id,
                       describe_partition(planning->members[i].experiment, partition),
                       experiment_text(planning->members[i].experiment, OPT_NODES));
    }
    return rc;
}

/* ---- sending ---- */

static int write_script(const char *folder, const struct buf *script, struct cb_err *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/" JOB_SCRIPT, folder) >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", folder);
    return buf_write_file(script, path, 0644, err);
}

/* After an answer was lost: the job may be in the queue, or come into it soon. */
static int look_for(const struct submission *self, const struct job_record *record, char id[64], struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + LOOK_FOR_NS;
    struct slurm_job job;
    char lost[sizeof err->message];
    snprintf(lost, sizeof lost, "%s", err->message);
    while (job_list_find(self->client, record, &job, NULL)) {
        if (clock_monotonic_ns() >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT,
                           "%s; Slurm does not list the job, which may still come: it is not sent again, and "
                           "`ckptbench status` finds it",
                           lost);
        clock_sleep_ns(LOOK_EVERY_NS);
    }
    snprintf(id, 64, "%.*s", (int)strcspn(job.id, "_"), job.id); /* of an array the whole */
    return 0;
}

/* Calls sbatch for what is on disk as intended. */
static int call_sbatch(const struct submission *self, const char *script, const struct job_record *record, char id[64],
                       char cluster[64], enum submit_answer *answer, struct cb_err *err)
{
    int rc = slurm_submit(self->client, script, false, id, cluster, answer, err);
    if (rc && *answer == SUBMIT_UNCERTAIN && look_for(self, record, id, err) == 0) {
        *answer = SUBMIT_ACCEPTED;
        cluster[0] = '\0';
        rc = 0;
    }
    return rc;
}

static int intend(const char *name, const char *folder, struct job_record *record, struct cb_err *err)
{
    uint64_t now_ns = clock_wall_ns();
    snprintf(record->name, sizeof record->name, "%s", name);
    record->intent_wall_ns = now_ns;
    int rc = job_record_enter(record, JOB_PLANNED, now_ns, "", err);
    return rc ? rc : job_record_write(folder, record, err);
}

static int note_sent(const struct submission *self, const char *run, const char *folder, struct job_record *record,
                     struct cb_err *err)
{
    record->submitted_wall_ns = clock_wall_ns();
    int rc = job_record_enter(record, JOB_SUBMITTED, record->submitted_wall_ns, "", err);
    if (rc == 0)
        rc = job_record_write(folder, record, err);
    return rc ? rc : history_set_state(self->history, run, job_state_name(JOB_SUBMITTED), err);
}

/* Nothing was taken: it may be sent again. */
static void take_back(const char *folder, struct job_record *record)
{
    record->intent_wall_ns = 0;
    if (job_record_write(folder, record, NULL))
        return; /* what is written says more was intended: then `status` looks for it in vain, and says so */
}

static int send_locked(const struct submission *self, const char *run, const char *folder,
                       const struct experiment *experiment, struct job_record *record, struct cb_err *err)
{
    struct buf script;
    enum submit_answer answer = SUBMIT_REFUSED;
    buf_init(&script, SCRIPT_MAX_BYTES);
    int rc = submission_script(self, run, folder, 0, experiment, &script, err);
    if (rc == 0)
        rc = write_script(folder, &script, err);
    if (rc == 0)
        rc = intend(run, folder, record, err);
    if (rc == 0)
        rc = call_sbatch(self, script.data, record, record->job, record->cluster, &answer, err);
    if (rc && answer == SUBMIT_REFUSED)
        take_back(folder, record);
    if (rc == 0)
        rc = note_sent(self, run, folder, record, err);
    buf_release(&script);
    return rc;
}

/* Another one may have had the lock since the record was read: then what it has written counts. */
static bool was_sent_meanwhile(const char *folder, const struct job_record *record)
{
    struct job_record now;
    if (job_record_read(folder, &now, NULL))
        return false;
    bool sent = *now.job || now.intent_wall_ns != record->intent_wall_ns;
    job_record_release(&now);
    return sent;
}

int submission_send(const struct submission *self, const char *run, const char *folder,
                    const struct experiment *experiment, struct job_record *record, struct cb_err *err)
{
    int fd;
    int rc = job_folder_lock(folder, &fd, err);
    if (rc == 0 && (fd < 0 || was_sent_meanwhile(folder, record))) {
        job_folder_unlock(fd);
        return cb_fail(err, CB_ERR_EXISTS, "run %s is being submitted by another ckptbench", run);
    }
    if (rc == 0)
        rc = send_locked(self, run, folder, experiment, record, err);
    if (rc == 0 || fd >= 0)
        job_folder_unlock(fd);
    return rc;
}

/* ---- arrays ---- */

/* FIRST/array/K points at member K: the script needs no logic to find its run. */
static int link_members(const struct planning *planning, size_t first, size_t count, struct cb_err *err)
{
    char folder[PATH_MAX], path[PATH_MAX], target[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s/" JOB_ARRAY, planning->members[first].folder) >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", planning->members[first].folder);
    if (mkdir(folder, 0755) < 0)
        return cb_fail_errno(err, errno, "creating the folder %s", folder);
    for (size_t i = 0; i < count; i++) {
        snprintf(target, sizeof target, "../../%s", planning->members[first + i].id);
        if (snprintf(path, sizeof path, "%s/%zu", folder, i) >= PATH_MAX)
            return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", folder);
        if (symlink(target, path) < 0)
            return cb_fail_errno(err, errno, "linking %s", path);
    }
    return 0;
}

int submission_send_array(const struct submission *self, const struct planning *planning, size_t first, size_t count,
                          struct job_record *records, struct cb_err *err)
{
    const struct planned *head = &planning->members[first];
    char id[64] = "", cluster[64] = "";
    enum submit_answer answer = SUBMIT_REFUSED;
    struct buf script;
    buf_init(&script, SCRIPT_MAX_BYTES);
    int rc = submission_script(self, head->id, head->folder, count, head->experiment, &script, err);
    if (rc == 0)
        rc = write_script(head->folder, &script, err);
    if (rc == 0)
        rc = link_members(planning, first, count, err);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        records[i].in_array = true;
        records[i].array_task = i;
        rc = intend(head->id, planning->members[first + i].folder, &records[i], err);
    }
    if (rc == 0)
        rc = call_sbatch(self, script.data, &records[0], id, cluster, &answer, err);
    for (size_t i = 0; i < count; i++) {
        const struct planned *member = &planning->members[first + i];
        if (rc && answer == SUBMIT_REFUSED)
            take_back(member->folder, &records[i]);
        if (rc)
            continue;
        snprintf(records[i].job, sizeof records[i].job, "%.40s_%zu", id, i);
        snprintf(records[i].cluster, sizeof records[i].cluster, "%s", cluster);
        rc = note_sent(self, member->id, member->folder, &records[i], err);
    }
    buf_release(&script);
    return rc;
}
