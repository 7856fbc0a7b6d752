/* Rules that turn shares of a save's time into advice. A rule counts what could be gained at most, in seconds a save. */
#include "cli/report/advice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define WORTH_SHARE 0.15  /* of a save; less than this is no advice */
#define SLOWER_STEPS 1.05 /* steps beside a save against steps alone; less than this may be chance */
#define NEAR_LIMIT 0.8    /* of what the device can do; nearer than this there is little to gain by another engine */
#define TEXT_BYTES 512
#define ASYNC_IN_PROCESS "async_save in a process" /* as share/watch/hooks/ckptbench_watch/dcp.py calls it */

struct advice {
    double seconds; /* of a save, or of a step */
    char text[TEXT_BYTES], command[768];
};

/* Whose functions save or load. Their options are not the same. */
enum caller {
    CALLER_OTHER, /* several of them, or another one */
    CALLER_DCP,   /* torch.distributed.checkpoint */
    CALLER_PACKAGE,
    CALLER_COUNT
};

/* The saves of a run. */
struct saves {
    const struct run_info *info;
    double save_s, stall_s, persist_s;
    const double *share; /* of each state */
    enum caller caller;
};

static char *duration(double seconds, char text[32])
{
    return units_format_duration(seconds * 1e9, text);
}

static void prove_by_watching(const struct saves *saves, struct advice *advice)
{
    snprintf(advice->command, sizeof advice->command, "ckptbench watch -- … && ckptbench compare %s LATEST",
             saves->info->run);
}

/* Sets the text, if the share is worth it: "31 % of a save (12.8 s) WHAT". */
static void advise(const struct saves *saves, double share, const char *what, struct advice *advice)
{
    char time[32];
    if (!(share >= WORTH_SHARE) || !(saves->save_s > 0))
        return;
    advice->seconds = share * saves->save_s;
    snprintf(advice->text, sizeof advice->text, "%.0f %% of a save (%s) %.400s", 100 * share,
             duration(advice->seconds, time), what);
    prove_by_watching(saves, advice);
}

/* "save, async_save" */
static bool are_of(const char *calls, enum caller caller)
{
    static const char *const known[CALLER_COUNT][7] = {
        [CALLER_DCP] = {"save", "save_state_dict", "async_save", ASYNC_IN_PROCESS, "load", "load_state_dict"},
        [CALLER_PACKAGE] = {"ckptbench.checkpoint.save", "ckptbench.checkpoint.load"}};
    bool all = calls && *calls;
    for (const char *at = calls; all && *at;) {
        size_t len = strcspn(at, ",");
        bool is_known = false;
        for (const char *const *name = known[caller]; *name; name++)
            is_known = is_known || (strlen(*name) == len && strncmp(at, *name, len) == 0);
        all = is_known;
        at += len + strspn(at + len, ", ");
    }
    return all;
}

static enum caller caller_of(const struct run_info *info, enum operation op)
{
    const char *calls = run_info_fact(info, op == OP_SAVE ? "watch.save_calls" : "watch.load_calls");
    return are_of(calls, CALLER_DCP) ? CALLER_DCP : are_of(calls, CALLER_PACKAGE) ? CALLER_PACKAGE : CALLER_OTHER;
}

/* Whether all saves, or loads, are calls of torch.distributed.checkpoint with its own file system: of another storage
 * the bytes are not seen. */
static bool use_files_of_dcp(const struct run_info *info, enum operation op)
{
    const struct run_metric *whole = run_info_metric(info, op, op == OP_SAVE ? METRIC_SAVE_S : METRIC_LOAD_S),
                            *seen = run_info_metric(info, op, METRIC_BYTES_MOVED);
    return caller_of(info, op) == CALLER_DCP && whole && seen && seen->summary.n == whole->summary.n;
}

static void about_planning(const struct saves *saves, struct advice *advice)
{
    if (saves->caller != CALLER_DCP)
        return;
    advise(saves, saves->share[STATE_PLAN] + saves->share[STATE_EXCHANGE],
           "is planning and sending plans: planner=DefaultSavePlanner(enable_plan_caching=True) plans once while the "
           "state keeps its names and shapes",
           advice);
}

static void about_serializing(const struct saves *saves, struct advice *advice)
{
    if (!use_files_of_dcp(saves->info, OP_SAVE))
        return;
    advise(saves, saves->share[STATE_SERIALIZE],
           "is turning tensors into bytes, one after the other: storage_writer=FileSystemWriter(path, thread_count=N) "
           "writes N files of a rank at once",
           advice);
}

/* Not if what the storage can do was measured. */
static void about_writing(const struct saves *saves, struct advice *advice)
{
    char rate[32];
    double share = saves->share[STATE_IO] + saves->share[STATE_FSYNC];
    double bytes_per_s = metric_median(saves->info, METRIC_SAVE_BYTES_PER_S);
    if (isfinite(metric_median(saves->info, METRIC_SAVE_LIMIT_FRACTION)) || !isfinite(bytes_per_s))
        return;
    advise(saves, share, "", advice);
    if (!*advice->text)
        return;
    size_t used = strlen(advice->text);
    snprintf(advice->text + used, sizeof advice->text - used,
             "is writing and fsync, and the whole save has %s: find out what the storage can do",
             units_format_rate(bytes_per_s, rate));
    const char *place = run_info_fact(saves->info, "watch.place");
    snprintf(advice->command, sizeof advice->command, "ckptbench run workload=raw ranks=N model=… store=%s",
             place ? place : "DIR");
}

static void about_waiting(const struct saves *saves, struct advice *advice)
{
    char slowest[64], text[TEXT_BYTES];
    if (saves->info->slowest_rank[OP_SAVE] < 0)
        return;
    snprintf(text, sizeof text, "is waiting for other ranks; the slowest is %s",
             metric_slowest(saves->info, OP_SAVE, slowest));
    advise(saves, saves->share[STATE_WAIT], text, advice);
    snprintf(advice->command, sizeof advice->command, "ckptbench show %s --ranks --phases", saves->info->run);
}

static void about_standing_still(const struct saves *saves, struct advice *advice)
{
    static const char *const behind[CALLER_COUNT] = {
        [CALLER_OTHER] = "a save behind it (as by dcp.async_save)",
        [CALLER_DCP] = "dcp.async_save",
        [CALLER_PACKAGE] = "async_checkpoint=True",
    };
    char stall[32];
    if (isfinite(saves->persist_s) || !(saves->stall_s > 0))
        return;
    advice->seconds = saves->stall_s;
    snprintf(advice->text, sizeof advice->text,
             "the training stands still for all of a save (%s): %s keeps it only for a copy to host memory; "
             "wait for its result before the next save and before destroy_process_group",
             duration(saves->stall_s, stall), behind[saves->caller]);
    prove_by_watching(saves, advice);
}

static void about_steps(const struct saves *saves, struct advice *advice)
{
    double alone_s = metric_median(saves->info, METRIC_STEP_ALONE_S),
           behind_s = metric_median(saves->info, METRIC_STEP_BEHIND_S);
    const char *calls = run_info_fact(saves->info, "watch.save_calls");
    char one[32], other[32];
    if (!use_files_of_dcp(saves->info, OP_SAVE) || (calls && strstr(calls, ASYNC_IN_PROCESS)) ||
        !(behind_s > SLOWER_STEPS * alone_s) || !(alone_s > 0) || !(saves->persist_s > 0))
        return;
    advice->seconds = saves->persist_s * (1 - alone_s / behind_s);
    snprintf(advice->text, sizeof advice->text,
             "a step takes %s while a save goes on behind it and %s without (%+.0f %%): "
             "async_checkpointer_type=AsyncCheckpointerType.PROCESS keeps the save out of the training's interpreter",
             duration(behind_s, one), duration(alone_s, other), 100 * (behind_s / alone_s - 1));
    prove_by_watching(saves, advice);
}

/* Proposes ckptbench.checkpoint if the run's own figures carry it: the storage was measured in the same place and can do
 * more, and what the saves or loads spend beside it is what the package does not do. It plans without messages and moves
 * tensors as they are; its Writer and Reader leave the planning to PyTorch. */
static void about_package(const struct saves *saves, enum operation op, struct advice *advice)
{
    const struct run_info *info = saves->info;
    const char *name = operation_name(op);
    const double *shares = info->state_share[op];
    double whole_s = op == OP_SAVE ? saves->save_s : metric_median(info, METRIC_LOAD_S);
    double of_limit = metric_median(info, op == OP_SAVE ? METRIC_SAVE_LIMIT_FRACTION : METRIC_LOAD_LIMIT_FRACTION);
    double planning = shares[STATE_PLAN] + shares[STATE_EXCHANGE], share = planning + shares[STATE_SERIALIZE];
    bool plans = planning >= WORTH_SHARE;
    char time[32], call[96];
    share = plans ? share : shares[STATE_SERIALIZE];
    if (!use_files_of_dcp(info, op) || !(share >= WORTH_SHARE) || !(of_limit < NEAR_LIMIT) || !(whole_s > 0))
        return;
    if (plans)
        snprintf(call, sizeof call, "checkpoint.%s(path, state%s)", name,
                 op == OP_SAVE && saves->persist_s > 0 ? ", async_checkpoint=True" : "");
    else
        snprintf(call, sizeof call,
                 op == OP_SAVE ? "storage_writer=checkpoint.Writer(path)" : "storage_reader=checkpoint.Reader(path)");
    advice->seconds = whole_s * fmin(share, 1 - of_limit);
    snprintf(advice->text, sizeof advice->text,
             "%.0f %% of a %s (%s) is %sturning %s, and the whole %s has %.2f of what this place can do: %s of "
             "ckptbench.checkpoint %smoves tensors as they are",
             100 * share, name, duration(share * whole_s, time), plans ? "planning, sending plans and " : "",
             op == OP_SAVE ? "tensors into bytes" : "bytes into tensors", name, of_limit, call,
             plans ? "plans from the layout and " : "");
    prove_by_watching(saves, advice);
}

static void about_package_for_saves(const struct saves *saves, struct advice *advice)
{
    about_package(saves, OP_SAVE, advice);
}

static void about_package_for_loads(const struct saves *saves, struct advice *advice)
{
    about_package(saves, OP_LOAD, advice);
}

/* Fills `advice` with the best first; returns how many there are. */
static size_t collect(const struct run_info *info, struct advice advice[ADVICE_MOST])
{
    static void (*const rules[])(const struct saves *saves, struct advice *advice) = {
        about_standing_still, about_package_for_saves, about_package_for_loads, about_planning,
        about_serializing,    about_writing,           about_waiting,           about_steps};
    enum { RULES = sizeof rules / sizeof *rules };
    const struct saves saves = {.info = info,
                                .save_s = metric_median(info, METRIC_SAVE_S),
                                .stall_s = metric_median(info, METRIC_STALL_S),
                                .persist_s = metric_median(info, METRIC_PERSIST_S),
                                .share = info->state_share[OP_SAVE],
                                .caller = caller_of(info, OP_SAVE)};
    struct advice all[RULES] = {0};
    size_t count = 0;
    for (size_t i = 0; i < RULES; i++)
        rules[i](&saves, &all[i]);
    for (; count < ADVICE_MOST; count++) {
        struct advice *best = all;
        for (size_t i = 1; i < RULES; i++)
            best = all[i].seconds > best->seconds ? &all[i] : best; /* of two equal ones the first */
        if (!(best->seconds > 0))
            break;
        advice[count] = *best;
        best->seconds = 0;
    }
    return count;
}

static int check_workload(const struct run_info *info, struct cb_err *err)
{
    return workload_kind_of(info->experiment)->watches
               ? 0
               : cb_fail(err, CB_ERR_USAGE, "%s is no watched training: --advise is for workload=watch", info->run);
}

int advice_write(const struct run_info *info, struct buf *out, struct cb_err *err)
{
    struct advice advice[ADVICE_MOST];
    int rc = check_workload(info, err);
    if (rc)
        return rc;
    size_t count = collect(info, advice);
    if (count == 0)
        buf_printf(out, "advice        none: %s\n",
                   metric_median(info, METRIC_SAVE_S) > 0 ? "no part of a save costs enough" : "no save was measured");
    for (size_t i = 0; i < count; i++)
        buf_printf(out, "advice        %s\n              to prove it: %s\n", advice[i].text, advice[i].command);
    return 0;
}

int advice_write_json(const struct run_info *info, struct json_writer *json, struct cb_err *err)
{
    struct advice advice[ADVICE_MOST];
    int rc = check_workload(info, err);
    if (rc)
        return rc;
    size_t count = collect(info, advice);
    json_member_array(json, "advice");
    for (size_t i = 0; i < count; i++) {
        json_write_begin_object(json);
        json_member_double(json, "seconds", advice[i].seconds);
        json_member_text(json, "text", advice[i].text);
        json_member_text(json, "command", advice[i].command);
        json_write_end_object(json);
    }
    json_write_end_array(json);
    return 0;
}
