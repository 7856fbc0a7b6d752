/* The job of a warm pool: parses scontrol, and keeps the job's share. */
#include "agent/pool/pool_job.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/give_back.h"
#include "core/child.h"
#include "core/clock.h"

#define ANSWER_NS (10 * NS_PER_S)
#define TEXT_MAX_BYTES (1 << 20)
#define MINUTE_NS (60 * NS_PER_S) /* Slurm's time limits are whole minutes */

/* The word after " KEY=". */
static bool find_word(const char *text, const char *key, char *word, size_t bytes)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *at = strstr(text, wanted);
    if (!at)
        return false;
    at += strlen(wanted);
    size_t len = strcspn(at, " \n");
    snprintf(word, bytes, "%.*s", (int)(len < bytes ? len : bytes - 1), at);
    return len > 0;
}

static uint64_t find_number(const char *text, const char *key)
{
    char word[64];
    return find_word(text, key, word, sizeof word) ? strtoull(word, NULL, 10) : 0;
}

/* Slurm overwrites StartTime when the nodes are up; the nodes were allocated when the scheduler last considered the job
 * (LastSchedEval). Times are whole seconds, so a difference below two seconds does not count as a boot. */
bool pool_job_read_details(const char *text, struct pool_share *share, uint64_t *boot_s)
{
    uint64_t began_s = find_number(text, "StartTime"), given_s = find_number(text, "LastSchedEval");
    uint64_t eligible_s = find_number(text, "EligibleTime");
    *boot_s = given_s && given_s >= eligible_s && began_s > given_s + 1 ? began_s - given_s : 0;
    share->restarts = find_number(text, "Restarts");
    share->node_count = find_number(text, "NumNodes");
    return share->node_count > 0 && find_word(text, "NodeList", share->nodes, sizeof share->nodes);
}

static void ask_slurm(struct pool_share *share, uint64_t *boot_s)
{
    static const char *const environment[] = {"SLURM_TIME_FORMAT=%s", NULL};
    const char *const argv[] = {"scontrol", "show", "job", "-o", share->job, NULL};
    const struct child_options options = {.argv = argv, .environment = environment, .stdin_fd = -1};
    struct buf text;
    struct pool_share said = *share;
    buf_init(&text, TEXT_MAX_BYTES);
    if (child_capture(&options, ANSWER_NS, &text, NULL) == 0 && pool_job_read_details(text.data, &said, boot_s))
        *share = said;
    buf_release(&text);
}

static uint64_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : 0;
}

int pool_job_begin(struct pool_job *self, const char *folder, const volatile sig_atomic_t *signals,
                   const volatile sig_atomic_t *time_is_up, struct cb_err *err)
{
    uint64_t boot_s = 0, now_ns = clock_wall_ns();
    const char *job = getenv("SLURM_JOB_ID"), *nodes = getenv("SLURM_JOB_NODELIST");
    *self = (struct pool_job){.folder = folder, .signals = signals, .time_is_up = time_is_up, .parent = getppid()};
    if (!job || !nodes || strlen(job) >= sizeof self->share.job)
        return cb_fail(err, CB_ERR_USAGE, "`warm` is what the jobs of a pool run: this is no job of Slurm");
    int rc = pool_read(folder, &self->pool, err);
    if (rc)
        return rc;
    struct pool_share *share = &self->share;
    snprintf(share->job, sizeof share->job, "%s", job);
    snprintf(share->nodes, sizeof share->nodes, "%s", nodes);
    share->node_count = number_of("SLURM_JOB_NUM_NODES");
    share->restarts = number_of("SLURM_RESTART_COUNT");
    ask_slurm(share, &boot_s);
    share->node_count = share->node_count ? share->node_count : 1;
    share->allocated_wall_ns = now_ns - boot_s * NS_PER_S;
    share->began_wall_ns = now_ns;
    return pool_job_tell(self, false, err);
}

bool pool_job_is_led_here(const struct pool_job *self)
{
    return *self->pool.sbcast != '\0';
}

bool pool_job_is_orphaned(const struct pool_job *self)
{
    return pool_job_is_led_here(self) && getppid() != self->parent;
}

static void log_text(void *context, const char *text)
{
    pool_job_log(context, "%s", text);
}

int pool_job_leave(struct pool_job *self, struct cb_err *err)
{
    uint64_t lasts_ns = self->pool.expires_wall_ns - self->pool.created_wall_ns + POOL_MARGIN_NS + MINUTE_NS;
    const struct give_back request = {.job = self->share.job,
                                      .name = self->pool.id,
                                      .until_wall_ns = self->share.began_wall_ns + lasts_ns,
                                      .signals = self->signals,
                                      .log = log_text,
                                      .context = self};
    if (pool_job_is_orphaned(self))
        give_back_nodes(&request);
    return pool_job_tell(self, true, err);
}

int pool_job_tell(struct pool_job *self, bool ended, struct cb_err *err)
{
    uint64_t now_ns = clock_wall_ns();
    if (now_ns > self->share.seen_wall_ns) /* a clock that was set back does not reduce the share */
        self->share.seen_wall_ns = now_ns;
    self->share.ended = ended;
    return pool_write_share(self->folder, &self->share, err);
}

void pool_job_log(const struct pool_job *self, const char *format, ...)
{
    char date[21], path[PATH_MAX];
    FILE *log = snprintf(path, sizeof path, "%s/" POOL_LOG, self->folder) < (int)sizeof path ? fopen(path, "ae") : NULL;
    if (!log)
        return;
    va_list arguments;
    va_start(arguments, format);
    clock_format_utc(clock_wall_ns(), date);
    fprintf(log, "%s job %s: ", date, self->share.job);
    vfprintf(log, format, arguments);
    fputc('\n', log);
    va_end(arguments);
    fclose(log);
}

void pool_job_end(struct pool_job *self, const char *reason)
{
    struct cb_err err;
    pool_job_log(self, "the pool ends: %s", reason);
    if (pool_write_end(self->folder, reason, &err))
        pool_job_log(self, "%s", err.message);
}
