/* ckptbench warm: manages pools of nodes that are kept up. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/jobs/agent_program.h"
#include "cli/jobs/pool_list.h"
#include "cli/jobs/submission.h"
#include "cli/sites/site_verb.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/nearest_word.h"
#include "core/path.h"
#include "core/units.h"
#include "jobs/slurm/job_script.h"
#include "run/experiment.h"

#define SCRIPT_MAX_BYTES (1u << 16)
#define MINUTE_NS (60 * NS_PER_S)
#define HOUR_NS (60 * MINUTE_NS)
#define LONGEST_NS (30 * 24 * HOUR_NS)
#define TOUCH_LIMIT_NS (5 * MINUTE_NS)
#define LOOK_FOR_NS (10 * NS_PER_S)
#define LOOK_NS (500 * NS_PER_MS)

struct pool_request {
    struct pool pool;
    uint64_t for_ns;
    double budget_node_hours;
    struct experiment *experiment; /* nodes, slurm.* */
};

/* ---- words ---- */

/* "16node-hours", "16": node-hours. */
static int read_budget(const char *text, double *node_hours, struct cb_err *err)
{
    char *end;
    double value = strtod(text, &end);
    bool unit =
        *end == '\0' || strcmp(end, "node-hours") == 0 || strcmp(end, "node-hour") == 0 || strcmp(end, "nh") == 0;
    if (end == text || !unit || !(value > 0) || value > 1e9)
        return cb_fail(err, CB_ERR_USAGE, "budget=%.40s: node-hours, as 16node-hours or 0.5", text);
    *node_hours = value;
    return 0;
}

static int read_word(struct pool_request *self, const char *word, struct cb_err *err)
{
    static const char *const keys[] = {"nodes", "for", "budget", "mode", "slurm.partition"};
    const char *value = strchr(word, '=');
    char key[64];
    if (!value || (size_t)(value - word) >= sizeof key)
        return cb_fail(err, CB_ERR_USAGE, "'%.60s' is no key=value: warm start POOL nodes=N for=2h", word);
    snprintf(key, sizeof key, "%.*s", (int)(value - word), word);
    value++;
    if (strcmp(key, "for") == 0)
        return units_parse_duration(value, &self->for_ns, err) ? cb_context(err, "for") : 0;
    if (strcmp(key, "budget") == 0)
        return read_budget(value, &self->budget_node_hours, err);
    if (strcmp(key, "mode") == 0)
        return pool_mode_find(value, &self->pool.mode) ? 0
                                                       : cb_fail(err, CB_ERR_USAGE, "mode=%.40s: touch or hold", value);
    if (strcmp(key, "nodes") == 0 || strncmp(key, "slurm.", 6) == 0)
        return experiment_set(self->experiment, key, value, "command line", err);
    const char *nearest = nearest_word(key, keys, sizeof keys / sizeof *keys);
    return cb_fail(err, CB_ERR_USAGE, "warm start takes nodes, for, budget, mode and slurm.* keys, not %s%s%s%s", key,
                   nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static int read_request(const struct cli *cli, struct pool_request *self, struct cb_err *err)
{
    struct pool *pool = &self->pool;
    int rc = experiment_new(&self->experiment, err);
    if (rc == 0)
        rc = pool_check_name(cli->words[1], err);
    for (size_t i = 2; rc == 0 && i < cli->word_count; i++)
        rc = read_word(self, cli->words[i], err);
    if (rc)
        return rc;
    snprintf(pool->name, sizeof pool->name, "%s", cli->words[1]);
    pool->nodes = experiment_u64(self->experiment, OPT_NODES);
    if (pool->nodes == 0 || self->for_ns == 0)
        return cb_fail(err, CB_ERR_USAGE, "how many nodes, and for how long? warm start %s nodes=2 for=2h", pool->name);
    rc = submission_check_folder(self->experiment, err);
    if (rc)
        return rc;
    int len = snprintf(pool->sbcast, sizeof pool->sbcast, "%s", experiment_text(self->experiment, OPT_SLURM_SBCAST));
    if (len >= (int)sizeof pool->sbcast)
        return cb_fail(err, CB_ERR_USAGE, "slurm.sbcast: a path of at most %zu characters", sizeof pool->sbcast - 1);
    if (self->for_ns > LONGEST_NS)
        return cb_fail(err, CB_ERR_USAGE, "for: at most 30d; a pool costs what its nodes cost");
    double all_hours = (double)pool->nodes * (double)self->for_ns / (double)HOUR_NS;
    if (self->budget_node_hours == 0)
        self->budget_node_hours = all_hours;
    run_id_new(pool->id);
    pool->created_wall_ns = clock_wall_ns();
    pool->expires_wall_ns = pool->created_wall_ns + self->for_ns;
    pool->budget_node_ns = (uint64_t)(self->budget_node_hours * (double)HOUR_NS);
    return 0;
}

/* ---- starting ---- */

/* Slurm's power saving settings decide whether touching nodes has any effect. */
static int read_power(struct slurm_client *client, struct pool_request *self, struct cb_err *err)
{
    struct slurm_power power;
    const char *partition = experiment_text(self->experiment, OPT_SLURM_PARTITION);
    int rc = slurm_ask_power(client, partition, &power, err);
    if (rc)
        return rc;
    self->pool.boot_most_ns = power.saves ? power.resume_most_ns : 0;
    if (self->pool.mode == POOL_HOLD)
        return 0;
    if (!power.saves)
        return cb_fail(err, CB_ERR_USAGE,
                       "this Slurm powers no idle node down (SuspendTime is off%s%s): its nodes are warm as they are, "
                       "and there is nothing to touch. mode=hold keeps an allocation instead",
                       *partition ? " in partition " : "", partition);
    self->pool.period_ns = pool_touch_period_ns(&power);
    return 0;
}

/* With `allocation` for salloc, else for sbatch. */
static int write_script(const struct pool_request *self, const char *folder, bool allocation, struct buf *script,
                        struct cb_err *err)
{
    char log[PATH_MAX], agent[PATH_MAX];
    const struct pool *pool = &self->pool;
    uint64_t share_ns = pool->budget_node_ns / pool->nodes;
    uint64_t hold_ns = share_ns < self->for_ns ? share_ns : self->for_ns;
    uint64_t limit_ns = pool->mode == POOL_HOLD ? hold_ns + POOL_MARGIN_NS : TOUCH_LIMIT_NS;
    /* A hold job may start until the pool expires (and then ends at once); Slurm needs the latest end. */
    uint64_t last_ns = self->for_ns + POOL_DEADLINE_NS + (pool->mode == POOL_HOLD ? limit_ns : 0);
    uint64_t pending_ns = experiment_u64(self->experiment, OPT_SLURM_PENDING);
    uint64_t whole_ns = (limit_ns + MINUTE_NS - 1) / MINUTE_NS * MINUTE_NS; /* as the script asks for it */
    if (pending_ns && pending_ns + whole_ns < last_ns)
        last_ns = pending_ns + whole_ns;
    struct pool_script parts = {.pool = pool,
                                .agent = agent,
                                .folder = folder,
                                .log = log,
                                .experiment = self->experiment,
                                .time_limit_ns = limit_ns,
                                .deadline_s = last_ns / NS_PER_S,
                                .allocation = allocation};
    int rc = agent_program_find(agent, err);
    if (rc == 0)
        rc = path_format(log, sizeof log, err, "%s/" POOL_LOG, folder);
    buf_clear(script);
    return rc ? rc : pool_script_write(&parts, script, err);
}

/* After a lost reply: searches for the job by its name instead of submitting it again. */
static int look_for(struct slurm_client *client, const char *name, char id[64], struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + LOOK_FOR_NS;
    char lost[sizeof err->message];
    snprintf(lost, sizeof lost, "%s", err->message);
    for (;;) {
        struct slurm_jobs jobs = {0};
        bool found = false;
        if (slurm_look(client, &jobs, NULL) == 0) {
            for (size_t i = 0; i < jobs.count && !found; i++) {
                found = strcmp(jobs.items[i].name, name) == 0;
                if (found)
                    snprintf(id, 64, "%s", jobs.items[i].id);
            }
        }
        slurm_jobs_release(&jobs);
        if (found)
            return 0;
        if (clock_monotonic_ns() >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT,
                           "%s; Slurm does not list the pool's job, which may still come: `ckptbench warm list` shows "
                           "it then, `ckptbench warm stop` ends it",
                           lost);
        clock_sleep_ns(LOOK_NS);
    }
}

static int send_first(struct slurm_client *client, struct pool_request *self, const char *folder, const char *path,
                      const struct buf *script, struct cb_err *err)
{
    char cluster[64], log[PATH_MAX];
    enum submit_answer answer = SUBMIT_REFUSED;
    int rc = path_format(log, sizeof log, err, "%s/" POOL_LOG, folder);
    if (rc == 0 && *self->pool.sbcast)
        rc = slurm_allocate(client, path, log, self->pool.id, self->pool.job, &answer, err);
    else if (rc == 0)
        rc = slurm_submit(client, script->data, false, self->pool.job, cluster, &answer, err);
    if (rc && answer == SUBMIT_UNCERTAIN)
        rc = look_for(client, self->pool.id, self->pool.job, err);
    if (rc && answer == SUBMIT_REFUSED)
        (void)!pool_write_end(folder, err->message, NULL); /* otherwise `warm list` reports that the pool has no job */
    return rc ? rc : pool_write(&self->pool, folder, err);
}

static int start_pool(struct cli *cli, struct slurm_client *client, struct pool_request *self, struct cb_err *err)
{
    struct buf folder, script;
    struct pool_list pools = {0};
    struct pool_entry *known;
    char id[64], cluster[64], path[PATH_MAX];
    enum submit_answer answer;
    buf_init(&folder, PATH_MAX);
    buf_init(&script, SCRIPT_MAX_BYTES);
    int rc = slurm_ping(client, err);
    if (rc == 0)
        rc = pool_list_load(&pools, client, err);
    if (rc == 0 && pool_list_find(&pools, self->pool.name, &known, NULL) == 0 && known->verdict.state != POOL_ENDED)
        rc = cb_fail(err, CB_ERR_EXISTS, "pool %s is there (%s): `ckptbench warm stop %s` ends it", self->pool.name,
                     pool_state_name(known->verdict.state), self->pool.name);
    pool_list_release(&pools);
    if (rc == 0)
        rc = read_power(client, self, err);
    if (rc == 0)
        rc = pool_folder(self->pool.id, &folder, err);
    if (rc == 0)
        rc = write_script(self, folder.data, false, &script, err);
    if (rc == 0 && (rc = slurm_submit(client, script.data, true, id, cluster, &answer, err)) != 0)
        cb_context(err, "Slurm would not take the jobs of pool %s (nodes=%" PRIu64 ")", self->pool.name,
                   self->pool.nodes);
    bool led_here = *self->pool.sbcast != '\0';
    if (rc == 0 && led_here) /* what sbatch has checked is run by salloc */
        rc = write_script(self, folder.data, true, &script, err);
    self->pool.intent_wall_ns = clock_wall_ns();
    if (rc == 0)
        rc = pool_create(&self->pool, folder.data, err);
    if (rc == 0)
        rc = path_format(path, sizeof path, err, "%s/%s", folder.data, led_here ? POOL_ALLOCATION : POOL_SCRIPT);
    if (rc == 0)
        rc = buf_write_file(&script, path, 0666, err);
    if (rc == 0)
        rc = send_first(client, self, folder.data, path, &script, err);
    if (rc == 0 && !cli->json) {
        char until[21];
        clock_format_utc(self->pool.expires_wall_ns, until);
        buf_printf(&cli->out,
                   "pool %s: %" PRIu64 " node%s, mode=%s, until %s or %.4g node-hours, job %s     next: ckptbench "
                   "submit … --warm %s\n",
                   self->pool.name, self->pool.nodes, units_plural(self->pool.nodes), pool_mode_name(self->pool.mode),
                   until, self->budget_node_hours, self->pool.job, self->pool.name);
    }
    buf_release(&folder);
    buf_release(&script);
    return rc;
}

/* Two starts of one name at the same moment would make two pools. */
static int lock_pools(const struct pool *pool, int *fd, struct cb_err *err)
{
    struct buf path;
    buf_init(&path, PATH_MAX);
    int rc = pool_folder(pool->id, &path, err);
    if (rc == 0)
        rc = path_make_folders(path.data, 0777, err);
    buf_clear(&path);
    if (rc == 0)
        rc = pool_folder(NULL, &path, err);
    if (rc == 0)
        rc = run_folder_lock(path.data, fd, err);
    buf_release(&path);
    if (rc == 0 && *fd < 0)
        rc = cb_fail(err, CB_ERR_EXISTS, "another ckptbench is starting a pool: try again when it has");
    return rc;
}

static int start(struct cli *cli, struct slurm_client *client, struct cb_err *err)
{
    int lock = -1;
    struct pool_request request = {.pool = {.mode = POOL_TOUCH}};
    int rc = cli->word_count < 2 ? cb_fail(err, CB_ERR_USAGE, "which name? warm start POOL nodes=2 for=2h")
                                 : read_request(cli, &request, err);
    if (rc == 0)
        rc = lock_pools(&request.pool, &lock, err);
    if (rc == 0)
        rc = start_pool(cli, client, &request, err);
    run_folder_unlock(lock);
    experiment_free(request.experiment);
    return rc;
}

/* ---- listing and stopping ---- */

static int stop(struct cli *cli, struct slurm_client *client, struct pool_list *list, struct cb_err *err)
{
    struct pool_entry *entry;
    if (cli->word_count != 2)
        return cb_fail(err, CB_ERR_USAGE, "stop which pool? `ckptbench warm list` shows them");
    int rc = pool_list_find(list, cli->words[1], &entry, err);
    if (rc == 0 && entry->verdict.state == POOL_ENDED) {
        log_info("pool %s has ended already: %s", entry->pool.name, entry->verdict.note);
        return 0;
    }
    if (rc == 0)
        rc = pool_stop(client, entry, err);
    if (rc == 0 && entry->verdict.state != POOL_ENDED)
        log_info("pool %s is ending: its job %s has not left yet", entry->pool.name, entry->verdict.job);
    else if (rc == 0)
        log_info("pool %s has ended, and its nodes are free: `ckptbench warm list` has what it cost", entry->pool.name);
    return rc;
}

static int list_or_stop(struct cli *cli, struct slurm_client *client, bool stopping, struct cb_err *err)
{
    struct pool_list list;
    int rc = pool_list_load(&list, client, err);
    if (rc == 0 && stopping)
        rc = stop(cli, client, &list, err);
    if (rc == 0 && list.count) { /* pools work without a history, too: a failure is only logged */
        struct history *history = NULL;
        struct cb_err why;
        int kept = history_open(NULL, &history, &why);
        if (kept == 0)
            kept = pool_list_keep(history, &why);
        if (kept)
            log_verbose("what pools cost is not in the history: %s", why.message);
        history_close(history);
    }
    if (rc == 0 && (!stopping || cli->json)) {
        if (*list.trouble) {
            log_error("%s; what is shown was seen before", list.trouble);
            cli->exit_code = CB_EXIT_INFRASTRUCTURE;
        }
        rc = pool_list_write(cli, &list, err);
    }
    pool_list_release(&list);
    return rc;
}

static int run_warm(struct cli *cli, struct cb_err *err)
{
    struct transport *transport = NULL;
    const char *word = cli->word_count ? cli->words[0] : "";
    if (cli_flag_value(cli, "site"))
        return remote_pass(cli, cli_flag_value(cli, "site"), NULL, err);
    int rc = transport_local_open(&transport, err);
    struct slurm_client client = {.transport = transport};
    if (rc)
        return rc;
    if (strcmp(word, "start") == 0)
        rc = start(cli, &client, err);
    else if (strcmp(word, "list") == 0 && cli->word_count == 1)
        rc = list_or_stop(cli, &client, false, err);
    else if (strcmp(word, "stop") == 0)
        rc = list_or_stop(cli, &client, true, err);
    else
        rc = cb_fail(err, CB_ERR_USAGE, "warm start POOL nodes=N for=2h, warm list, or warm stop POOL");
    if (rc == 0 && cli->json && strcmp(word, "start") == 0)
        rc = list_or_stop(cli, &client, false, err);
    transport_close(transport);
    return rc;
}

static const struct verb_flag flags[] = {
    {"site", "NAME", "pools of a cluster of `ckptbench site`"},
};

const struct verb verb_warm = {
    .name = "warm",
    .arguments = "start POOL nodes=N for=TIME [budget=Nnode-hours] [mode=touch|hold] [slurm.KEY=VALUE…] | list | "
                 "stop POOL",
    .summary = "keep nodes of a cluster up, for runs that do not wait for them to boot",
    .about = "mode=touch: short jobs, more often than idle nodes are powered down; `submit --warm POOL` asks for these "
             "nodes. mode=hold: one job keeps the nodes, and `submit --warm POOL` starts runs inside it without "
             "queueing. Time and budget are looked at inside the jobs: a pool ends by itself, whoever started it.",
    .example = "ckptbench warm start night nodes=8 for=2h budget=16node-hours",
    VERB_FLAGS(flags),
    .run = run_warm,
};
