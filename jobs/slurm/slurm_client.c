/* Runs commands of Slurm and interprets their results. */
#include "jobs/slurm/slurm_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define PING_NS (20 * NS_PER_S)
#define COMMAND_NS (60 * NS_PER_S)
#define ANSWER_BYTES (32u << 20) /* for some 100,000 jobs */
#define IDS_A_CALL 500

static const char *const times_in_seconds[] = {"SLURM_TIME_FORMAT=%s", NULL};

static int run(struct slurm_client *self, const char *const *argv, const char *input, uint64_t timeout_ns,
               struct transport_answer *answer, struct cb_err *err)
{
    const struct transport_command command = {.argv = argv,
                                              .environment = times_in_seconds,
                                              .without_slurm = true,
                                              .input = input,
                                              .input_bytes = input ? strlen(input) : 0,
                                              .max_bytes = ANSWER_BYTES,
                                              .timeout_ns = timeout_ns};
    return self->transport->run(self->transport, &command, answer, err);
}

static int fail_with_answer(const struct transport_answer *answer, const char *what, struct cb_err *err)
{
    char line[512];
    transport_answer_last_line(answer, line, sizeof line);
    return cb_fail(err, CB_ERR_SYSTEM, "%s: %s (exit status %d)", what, *line ? line : "no word", answer->exit_status);
}

/* Runs a command whose status must be 0. The caller releases the answer. */
static int ask(struct slurm_client *self, const char *const *argv, const char *what, struct transport_answer *answer,
               struct cb_err *err)
{
    transport_answer_init(answer);
    int rc = run(self, argv, NULL, COMMAND_NS, answer, err);
    return rc == 0 && answer->exit_status != 0 ? fail_with_answer(answer, what, err) : rc;
}

int slurm_ping(struct slurm_client *self, struct cb_err *err)
{
    static const char *const argv[] = {"scontrol", "ping", NULL};
    struct transport_answer answer;
    char line[300] = "";
    transport_answer_init(&answer);
    int rc = run(self, argv, NULL, PING_NS, &answer, err);
    if (rc == CB_ERR_NOT_FOUND || (rc == 0 && answer.exit_status == 127))
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "there is no Slurm here: scontrol is not in PATH");
    else if (rc == 0 && !slurm_parse_ping(answer.out.data, answer.out.len)) {
        /* "Slurmctld(primary) at vm is DOWN", without the frame that scontrol prints around it */
        const char *start = strstr(answer.out.data, "Slurmctld(");
        if (start)
            snprintf(line, sizeof line, "%.*s", (int)strcspn(start, "\n"), start);
        else
            transport_answer_last_line(&answer, line, sizeof line);
        rc = cb_fail(err, CB_ERR_SYSTEM, "Slurm's controller does not answer: %s",
                     *line ? line : "scontrol ping says nothing");
    }
    transport_answer_release(&answer);
    return rc;
}

int slurm_look(struct slurm_client *self, struct slurm_jobs *jobs, struct cb_err *err)
{
    static const char *const argv[] = {"squeue", "-h", "-a", "-r", "--me", "-t", "all", "-o", SLURM_QUEUE_FORMAT, NULL};
    struct transport_answer answer;
    int rc = ask(self, argv, "squeue", &answer, err);
    if (rc == 0)
        rc = slurm_parse_queue(answer.out.data, answer.out.len, jobs, err);
    transport_answer_release(&answer);
    return rc;
}

int slurm_look_closely(struct slurm_client *self, struct slurm_jobs *jobs, struct cb_err *err)
{
    static const char *const argv[] = {"scontrol", "show", "job", "-o", NULL};
    struct transport_answer answer;
    int rc = ask(self, argv, "scontrol show job", &answer, err);
    if (rc == 0)
        rc = slurm_parse_details(answer.out.data, answer.out.len, jobs, err);
    transport_answer_release(&answer);
    return rc;
}

int slurm_look_back(struct slurm_client *self, const char *ids, struct slurm_jobs *jobs, struct cb_err *err)
{
    const char *const argv[] = {"sacct", "-X", "-P", "-n", "-j", ids, "-o", SLURM_ACCOUNTING_FORMAT, NULL};
    struct transport_answer answer;
    if (self->without_accounting)
        return 0;
    transport_answer_init(&answer);
    size_t known = jobs->count;
    int rc = run(self, argv, NULL, COMMAND_NS, &answer, err);
    if (rc == CB_ERR_NOT_FOUND || (rc == 0 && answer.exit_status != 0 && /* "Slurm accounting storage is disabled" */
                                   (strstr(answer.errors.data, "disabled") || strstr(answer.out.data, "disabled")))) {
        self->without_accounting = true; /* squeue's reply is complete then */
        rc = 0;
    } else if (rc == 0 && answer.exit_status != 0) {
        rc = fail_with_answer(&answer, "Slurm's accounting does not answer: sacct", err);
    } else if (rc == 0) {
        rc = slurm_parse_accounting(answer.out.data, answer.out.len, jobs, err);
        size_t kept = known;
        for (size_t i = known; i < jobs->count; i++)
            if (slurm_state_phase(jobs->items[i].state) >= SLURM_IS_UNSETTLED)
                jobs->items[kept++] = jobs->items[i];
        jobs->count = kept;
    }
    transport_answer_release(&answer);
    return rc;
}

int slurm_most_array_tasks(struct slurm_client *self, size_t *most, struct cb_err *err)
{
    static const char *const argv[] = {"scontrol", "show", "config", NULL};
    struct transport_answer answer;
    uint64_t tasks;
    int rc = ask(self, argv, "scontrol show config", &answer, err);
    if (rc == 0)
        *most = slurm_parse_setting(answer.out.data, answer.out.len, "MaxArraySize", &tasks) ? (size_t)tasks : 0;
    transport_answer_release(&answer);
    return rc;
}

int slurm_down_nodes(struct slurm_client *self, const char *nodes, char *names, size_t bytes, struct cb_err *err)
{
    const char *const argv[] = {"sinfo", "-h", "-a", "-N", "-n", nodes, "-t", "down", "-o", "%N", NULL};
    struct transport_answer answer;
    int rc = ask(self, argv, "sinfo", &answer, err);
    if (rc == 0)
        slurm_parse_names(answer.out.data, answer.out.len, names, bytes);
    transport_answer_release(&answer);
    return rc;
}

/* Errors of sbatch after which the controller may have accepted the job and only the reply was lost. */
static bool is_uncertain(const struct transport_answer *answer)
{
    static const char *const words[] = {"timed out",          "Zero Bytes",        "Unexpected message",
                                        "Transport endpoint", "Connection reset",  "(send failure)",
                                        "(receive failure)",  "(shutdown failure)"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasestr(answer->errors.data, words[i]))
            return true;
    return answer->exit_status >= 128; /* sbatch itself was killed */
}

/* "sbatch: error: Batch job submission failed: Invalid account", without the prefix. */
static const char *without_prefix(const char *line)
{
    static const char *const prefixes[] = {"sbatch: error: ",
                                           "sbatch: ",
                                           "salloc: error: ",
                                           "salloc: ",
                                           "Batch job submission failed: ",
                                           "Job submit/allocate failed: ",
                                           "allocation failure: "};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(line, prefixes[i], strlen(prefixes[i])) == 0)
            line += strlen(prefixes[i]);
    return line;
}

/* Determines the result of a submission by `program`, whose output starts with the job's number unless `id` is NULL. */
static int judge_submission(const struct transport_answer *said, const char *program, char id[64], char cluster[64],
                            enum submit_answer *answer, struct cb_err *err)
{
    char line[512];
    if (said->exit_status == 0) {
        int rc = id ? slurm_parse_submitted(said->out.data, said->out.len, id, cluster, err) : 0;
        *answer = rc ? SUBMIT_UNCERTAIN : SUBMIT_ACCEPTED;
        return rc;
    }
    *answer = is_uncertain(said) ? SUBMIT_UNCERTAIN : SUBMIT_REFUSED;
    transport_answer_last_line(said, line, sizeof line);
    int code = *answer == SUBMIT_UNCERTAIN                      ? CB_ERR_TIMEOUT
               : strstr(said->errors.data, "(connect failure)") ? CB_ERR_SYSTEM /* Slurm has failed, not the job */
                                                                : CB_ERR_USAGE;
    return cb_fail(err, code, "%s: %s", program, without_prefix(line));
}

int slurm_submit(struct slurm_client *self, const char *script, bool test_only, char id[64], char cluster[64],
                 enum submit_answer *answer, struct cb_err *err)
{
    const char *const argv[] = {"sbatch", test_only ? "--test-only" : "--parsable", NULL};
    struct transport_answer said;
    transport_answer_init(&said);
    int rc = run(self, argv, script, COMMAND_NS, &said, err);
    *answer = test_only || rc == CB_ERR_NOT_FOUND ? SUBMIT_REFUSED : SUBMIT_UNCERTAIN;
    if (rc == 0)
        rc = judge_submission(&said, "sbatch", test_only ? NULL : id, cluster, answer, err);
    transport_answer_release(&said);
    return rc;
}

/* $1 the script, $2 the log, $3 the job's name. If salloc dies before it receives the reply, an allocation without an
 * owner may remain: cancel it by name. */
static const char allocate_script[] =
    ": >> \"$2\" || exit 1\n"
    "from=$(($(wc -c < \"$2\") + 1))\n"
    "setsid sh \"$1\" < /dev/null >> \"$2\" 2>&1 &\n"
    "child=$! ended=\n"
    "while :; do\n"
    "    said=$(tail -c \"+$from\" \"$2\")\n"
    "    id=$(printf '%s\\n' \"$said\" | sed -n 's/^[a-z]*: .*job allocation \\([0-9][0-9]*\\).*/\\1/p' | head -n 1)\n"
    "    [ -z \"$id\" ] || { echo \"$id\"; exit 0; }\n"
    "    [ -z \"$ended\" ] || { printf '%s\\n' \"$said\" >&2; scancel -Q -n \"$3\"; exit 1; }\n"
    "    kill -0 \"$child\" 2>/dev/null || ended=1\n"
    "    sleep 0.05\n"
    "done\n";

int slurm_allocate(struct slurm_client *self, const char *script, const char *log, const char *name, char id[64],
                   enum submit_answer *answer, struct cb_err *err)
{
    const char *const argv[] = {"sh", "-c", allocate_script, "ckptbench-allocate", script, log, name, NULL};
    struct transport_answer said;
    char cluster[64];
    transport_answer_init(&said);
    int rc = run(self, argv, NULL, COMMAND_NS, &said, err);
    *answer = SUBMIT_UNCERTAIN;
    if (rc == 0)
        rc = judge_submission(&said, "salloc", id, cluster, answer, err);
    transport_answer_release(&said);
    return rc;
}

static int cancel_some(struct slurm_client *self, const char *const *ids, size_t count, struct cb_err *err)
{
    const char *argv[IDS_A_CALL + 3] = {"scancel", "-Q"};
    struct transport_answer answer;
    for (size_t i = 0; i < count; i++)
        argv[2 + i] = ids[i];
    transport_answer_init(&answer);
    int rc = run(self, argv, NULL, COMMAND_NS, &answer, err);
    if (rc == 0 && answer.exit_status != 0 && !strcasestr(answer.errors.data, "invalid job id") &&
        !strcasestr(answer.errors.data, "already completing") && !strcasestr(answer.errors.data, "already completed"))
        rc = fail_with_answer(&answer, "scancel", err);
    transport_answer_release(&answer);
    return rc;
}

int slurm_cancel(struct slurm_client *self, const char *const *ids, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t done = 0; rc == 0 && done < count; done += IDS_A_CALL)
        rc = cancel_some(self, ids + done, count - done < IDS_A_CALL ? count - done : IDS_A_CALL, err);
    return rc;
}
