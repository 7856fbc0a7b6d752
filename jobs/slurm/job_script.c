/* Job scripts, with quoting for the shell and for #SBATCH lines. */
#include "jobs/slurm/job_script.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/version.h"
#include "run/run_folder.h"

#define MAX_VALUE_BYTES 1024
#define SBATCH "#SBATCH "
#define MADE_BY "# Made by ckptbench %s. What is run is frozen in experiment.yaml of the run folder.\n"

/* Slurm ends an option at blanks, interprets quotes and backslashes, and starts a comment at '#'. */
static bool is_plain(const char *text)
{
    if (*text == '-' || strlen(text) > MAX_VALUE_BYTES)
        return false;
    for (; *text; text++)
        if (!isgraph((unsigned char)*text) || strchr("\"'\\#`$;<>", *text))
            return false;
    return true;
}

/* Double quotes as Slurm reads them; '%' starts its patterns, and "%%" is a literal percent sign. */
static int add_log(const struct job_script *self, struct buf *out, struct cb_err *err)
{
    buf_append_text(out, "#SBATCH --output=\"");
    for (const char *at = self->log; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7F || strchr("\"'\\`$", *at))
            return cb_fail(err, CB_ERR_USAGE,
                           "Slurm cannot write its log to %.200s: CKPTBENCH_HOME must lie at a path without quotes, "
                           "backslashes, $ and control characters",
                           self->log);
        buf_append_text(out, *at == '%' ? "%%" : (char[]){*at, '\0'});
    }
    buf_printf(out, "%s\"\n", self->array_count ? ".%a" : "");
    return 0;
}

/* Options of sbatch that we set ourselves; overrides are rejected. */
static const char *reserved_option(const char *option, size_t len)
{
    static const char *const reserved[] = {
        "--job-name", "--comment",    "--output",    "--error",     "--nodes",     "--time",   "--array",
        "--requeue",  "--no-requeue", "--signal",    "--open-mode", "--wrap",      "--export", "--dependency",
        "--chdir",    "--parsable",   "--test-only", "--wait",      "--exclusive", "--mem",    "--input",
    };
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strlen(reserved[i]) == len && strncmp(reserved[i], option, len) == 0)
            return reserved[i];
    return NULL;
}

/* "--nice=100 --switches=1": one line per option. */
static int add_extra(struct buf *out, const struct experiment *experiment, struct cb_err *err)
{
    char word[MAX_VALUE_BYTES];
    const char *at = experiment_text(experiment, OPT_SLURM_EXTRA);
    for (at += strspn(at, " "); *at; at += strspn(at, " ")) {
        size_t len = strcspn(at, " "), name = strcspn(at, " =");
        bool fits = len < sizeof word;
        snprintf(word, sizeof word, "%.*s", (int)(fits ? len : 0), at);
        if (strncmp(word, "--", 2) != 0 || !is_plain(word + 2))
            return cb_fail(err, CB_ERR_USAGE,
                           "slurm.extra: '%.60s' is not an option of the form --name or --name=value without blanks, "
                           "quotes and shell characters",
                           at);
        if (reserved_option(word, name))
            return cb_fail(err, CB_ERR_USAGE, "slurm.extra: %s is set by this program itself",
                           reserved_option(word, name));
        buf_printf(out, "#SBATCH %s\n", word);
        at += len;
    }
    return 0;
}

static void add_size(const struct job_script *self, struct buf *out)
{
    const struct experiment *experiment = self->experiment;
    uint64_t nodes = experiment_u64(experiment, OPT_NODES), ranks = experiment_u64(experiment, OPT_RANKS);
    uint64_t a_node = experiment_u64(experiment, OPT_RANKS_PER_NODE),
             cpus = experiment_u64(experiment, OPT_SLURM_CPUS_PER_TASK);
    uint64_t gpus = experiment_u64(experiment, OPT_SLURM_GPUS_PER_NODE);
    bool exclusive = experiment_bool(experiment, OPT_SLURM_EXCLUSIVE);
    nodes = nodes ? nodes : 1;
    if (a_node == 0)
        a_node = (ranks + nodes - 1) / nodes;
    buf_printf(out, "#SBATCH --nodes=%" PRIu64 "\n", self->most_nodes ? self->most_nodes : nodes);
    if (exclusive)
        buf_append_text(out, "#SBATCH --exclusive\n#SBATCH --mem=0\n");
    if (!exclusive || cpus) /* whole nodes may run more ranks than they have cores */
        buf_printf(out, "#SBATCH --ntasks-per-node=%" PRIu64 "\n", a_node ? a_node : 1);
    if (cpus)
        buf_printf(out, "#SBATCH --cpus-per-task=%" PRIu64 "\n", cpus);
    if (gpus)
        buf_printf(out, "#SBATCH --gpus-per-node=%" PRIu64 "\n", gpus);
}

static void add_time(const struct job_script *self, struct buf *out)
{
    const uint64_t minute_ns = 60 * NS_PER_S;
    uint64_t minutes = (self->time_limit_ns + minute_ns - 1) / minute_ns;
    buf_printf(out, "#SBATCH --time=%" PRIu64 "\n", minutes ? minutes : 1);
    buf_printf(out, "#SBATCH --signal=B:USR1@%d\n", SCRIPT_WARN_S);
}

/* Slurm itself ends a job that can no longer finish by its deadline, so nobody has to watch the queue. */
static int add_deadline(const struct job_script *self, struct buf *out, struct cb_err *err)
{
    const uint64_t minute_ns = 60 * NS_PER_S;
    uint64_t pending_ns = experiment_u64(self->experiment, OPT_SLURM_PENDING);
    uint64_t minutes = (self->time_limit_ns + minute_ns - 1) / minute_ns;
    if (pending_ns == 0)
        return 0;
    if (experiment_bool(self->experiment, OPT_SLURM_REQUEUE))
        return cb_fail(err, CB_ERR_USAGE,
                       "slurm.pending does not go with slurm.requeue=true: a job that is put back into the queue would "
                       "be given up for the time that it has already run");
    buf_printf(out, "#SBATCH --deadline=now+%" PRIu64 "\n",
               (pending_ns + NS_PER_S - 1) / NS_PER_S + 60 * (minutes ? minutes : 1));
    return 0;
}

static int add_keys(const struct experiment *experiment, struct buf *out, struct cb_err *err)
{
    static const struct {
        enum option_id id;
        const char *option;
    } rows[] = {
        {OPT_SLURM_PARTITION, "partition"},   {OPT_SLURM_ACCOUNT, "account"},         {OPT_SLURM_QOS, "qos"},
        {OPT_SLURM_CONSTRAINT, "constraint"}, {OPT_SLURM_RESERVATION, "reservation"}, {OPT_SLURM_MAIL, "mail-user"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *value = experiment_text(experiment, rows[i].id);
        if (*value && !is_plain(value))
            return cb_fail(err, CB_ERR_USAGE,
                           "%s=%.60s: blanks, quotes and shell characters cannot be in an option of sbatch",
                           option_row(rows[i].id)->name, value);
        if (*value)
            buf_printf(out, "#SBATCH --%s=%s\n", rows[i].option, value);
    }
    if (*experiment_text(experiment, OPT_SLURM_MAIL))
        buf_append_text(out, "#SBATCH --mail-type=END,FAIL\n");
    return add_extra(out, experiment, err);
}

/* The requested resources, one line each. */
static int add_request(const struct job_script *self, struct buf *out, struct cb_err *err)
{
    buf_printf(out, "#SBATCH --job-name=%s\n#SBATCH --comment=ckptbench/%s\n", self->name, self->name);
    if (self->array_count)
        buf_printf(out, "#SBATCH --array=0-%zu\n", self->array_count - 1);
    add_size(self, out);
    add_time(self, out);
    buf_printf(out, "#SBATCH --%srequeue\n", experiment_bool(self->experiment, OPT_SLURM_REQUEUE) ? "" : "no-");
    if (self->after)
        buf_printf(out, "#SBATCH --dependency=afterok:%s\n#SBATCH --kill-on-invalid-dep=yes\n", self->after);
    if (self->node_list)
        buf_printf(out, "#SBATCH --nodelist=%s\n", self->node_list);
    int rc = add_deadline(self, out, err);
    return rc ? rc : add_keys(self->experiment, out, err);
}

/* The rest of a script: `launcher`, and the agent with its runs. */
static int add_command(const struct job_script *self, const char *launcher, struct buf *out, struct cb_err *err)
{
    buf_append_text(out, launcher);
    buf_append_quoted(out, self->agent);
    buf_append_text(out, " run ");
    buf_append_quoted(out, self->run_folder);
    if (self->array_count)
        buf_append_text(out, "/\"$SLURM_ARRAY_TASK_ID\"");
    for (size_t i = 0; i < self->other_count; i++) {
        buf_append_char(out, ' ');
        buf_append_quoted(out, self->others[i]);
    }
    buf_append_char(out, '\n');
    return buf_check(out, "the job script", err);
}

int job_script_write(const struct job_script *self, struct buf *out, struct cb_err *err)
{
    buf_append_text(out, "#!/bin/sh\n");
    int rc = add_request(self, out, err);
    if (rc)
        return rc;
    buf_append_text(out, "#SBATCH --open-mode=append\n");
    rc = add_log(self, out, err);
    if (rc)
        return rc;
    buf_printf(out, MADE_BY, version_text());
    return add_command(self, "exec ", out, err);
}

/* An interactive allocation is never requeued, and only its steps are warned before its end. */
static bool is_of_sbatch_alone(const char *option)
{
    static const char *const options[] = {"--requeue", "--no-requeue", "--signal=", "--kill-on-invalid-dep="};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strncmp(option, options[i], strlen(options[i])) == 0)
            return true;
    return false;
}

/* Turns "#SBATCH --nodes=2" lines into arguments of salloc. */
static void add_words(const char *lines, struct buf *out)
{
    char option[MAX_VALUE_BYTES + 64];
    for (const char *at = lines; *at; at += strcspn(at, "\n") + 1) {
        snprintf(option, sizeof option, "%.*s", (int)(strcspn(at, "\n") - strlen(SBATCH)), at + strlen(SBATCH));
        if (is_of_sbatch_alone(option))
            continue;
        buf_append_text(out, " \\\n    ");
        buf_append_quoted(out, option);
    }
}

static void add_salloc(const char *lines, struct buf *out)
{
    buf_append_text(out, "exec salloc --kill-command=TERM --wait-all-nodes=1");
    add_words(lines, out);
}

/* The script of an array's task, on its first node. Nothing of ours is there but a folder with the job's number, once
 * the run's agent has made it; SIGUSR2 says that the run has passed, SIGHUP that it has not. Without an agent the nodes
 * are given back: five times rendezvous.timeout after their start, or ten times after the folder was removed. */
static void add_holder(const struct job_script *self, struct buf *out)
{
    uint64_t timeout_s = (experiment_u64(self->experiment, OPT_RENDEZVOUS_TIMEOUT) + NS_PER_S - 1) / NS_PER_S;
    buf_printf(out,
               "#SBATCH --output=/dev/null\n"
               "trap 'exit 0' USR2\n"
               "trap 'exit 1' HUP\n"
               "trap '' USR1\n"
               "n=0\n"
               "set --\n"
               "until [ -d \"$1\" ]; do\n"
               "    [ \"$n\" -lt %" PRIu64 " ] || exit 1\n"
               "    n=$((n + 1))\n"
               "    sleep 1\n"
               "    set -- ",
               5 * timeout_s);
    buf_append_quoted(out, experiment_text(self->experiment, OPT_SLURM_SBCAST));
    buf_printf(out,
               "/" SENT_FOLDER "*.\"$SLURM_JOB_ID\"\n"
               "done\n"
               "while [ -d \"$1\" ]; do sleep 1; done\n"
               "n=0\n"
               "while [ \"$n\" -lt %" PRIu64 " ]; do n=$((n + 1)); sleep 1; done\n"
               "exit 1\n",
               10 * timeout_s);
}

static void add_array(const struct job_script *self, const char *lines, struct buf *out)
{
    /* as salloc: a task must not begin to wait for its run while other nodes boot */
    buf_printf(out, "id=$(sbatch --parsable <<'TASK'\n#!/bin/sh\n%s#SBATCH --wait-all-nodes=1\n", lines);
    add_holder(self, out);
    buf_append_text(out, "TASK\n) || exit 1\nid=${id%%;*}\necho \"sbatch: job allocation $id\"\nexec ");
    buf_append_quoted(out, self->agent);
    buf_append_text(out, " array ");
    buf_append_quoted(out, self->run_folder);
    buf_append_text(out, " \"$id\" ");
    buf_append_quoted(out, self->name);
    buf_append_char(out, '\n');
}

int job_script_write_allocation(const struct job_script *self, struct buf *out, struct cb_err *err)
{
    struct buf lines;
    buf_init(&lines, out->max);
    int rc = add_request(self, &lines, err);
    if (rc == 0)
        rc = buf_check(&lines, "the job script", err);
    if (rc == 0) {
        buf_append_text(out, "#!/bin/sh\n");
        buf_printf(out, MADE_BY, version_text());
        if (self->array_count)
            add_array(self, lines.data, out);
        else
            add_salloc(lines.data, out);
        rc = self->array_count ? buf_check(out, "the job script", err) : add_command(self, " \\\n    ", out, err);
    }
    buf_release(&lines);
    return rc;
}

/* A touch uses one core per node for a moment and shares the node; a hold job has its nodes exclusively for the
 * runs. */
static int add_pool_request(const struct pool_script *self, const struct job_script *parts, struct buf *out,
                            struct cb_err *err)
{
    const struct pool *pool = self->pool;
    buf_printf(out, "#SBATCH --job-name=%s\n#SBATCH --comment=ckptbench-warm/%s\n", pool->id, pool->id);
    if (pool->mode == POOL_HOLD)
        add_size(parts, out);
    else
        buf_printf(out, "#SBATCH --nodes=%" PRIu64 "\n#SBATCH --ntasks-per-node=1\n", pool->nodes);
    add_time(parts, out);
    buf_printf(out, "#SBATCH --deadline=now+%" PRIu64 "\n#SBATCH --requeue\n", self->deadline_s);
    return add_keys(self->experiment, out, err);
}

int pool_script_write(const struct pool_script *self, struct buf *out, struct cb_err *err)
{
    const struct job_script parts = {
        .log = self->log, .experiment = self->experiment, .time_limit_ns = self->time_limit_ns};
    struct buf lines;
    buf_init(&lines, out->max);
    int rc = add_pool_request(self, &parts, &lines, err);
    if (rc == 0 && !self->allocation) {
        buf_append_text(&lines, "#SBATCH --open-mode=append\n");
        rc = add_log(&parts, &lines, err);
    }
    if (rc == 0)
        rc = buf_check(&lines, "the job script", err);
    if (rc == 0) {
        buf_printf(out, "#!/bin/sh\n%s", self->allocation ? "" : lines.data);
        buf_printf(
            out, "# Made by ckptbench %s: a job of warm pool %s. Its end and its budget are in pool.json beside it.\n",
            version_text(), self->pool->name);
        if (self->allocation)
            add_salloc(lines.data, out);
        buf_append_text(out, self->allocation ? " \\\n    \"$@\" " : "exec ");
        buf_append_quoted(out, self->agent);
        buf_append_text(out, " warm ");
        buf_append_quoted(out, self->folder);
        buf_append_char(out, '\n');
        rc = buf_check(out, "the job script", err);
    }
    buf_release(&lines);
    return rc;
}
