/* Prometheus' text format (exposition format 0.0.4), for node_exporter's textfile collector. */
#include "cli/report/prometheus.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "core/alloc.h"
#include "run/workload_kind.h"

#define PREFIX "ckptbench_"

struct newest {
    struct run_info **runs;
    size_t count;
};

static bool is_same_line(const struct run_info *a, const struct run_info *b)
{
    return strcmp(a->hash, b->hash) == 0 && strcmp(a->site, b->site) == 0 &&
           strcmp(experiment_text(a->experiment, OPT_STORE), experiment_text(b->experiment, OPT_STORE)) == 0;
}

/* Takes ownership of the run. Keeps it if it passed and no newer run of its experiment, store and site was kept. */
static int take_run(struct newest *self, struct run_info *run, struct cb_err *err)
{
    bool is_wanted = strcmp(run->outcome, "pass") == 0;
    for (size_t i = 0; i < self->count && is_wanted; i++)
        is_wanted = !is_same_line(self->runs[i], run);
    int rc = is_wanted ? alloc_grow(&self->runs, self->count, sizeof(struct run_info *), err) : 0;
    if (is_wanted && rc == 0)
        self->runs[self->count++] = run;
    else
        run_info_free(run);
    return rc;
}

static void write_label(struct buf *out, const char *key, const char *value, bool is_first)
{
    buf_printf(out, "%s%s=\"", is_first ? "" : ",", key);
    for (; *value; value++) {
        if (*value == '\n')
            buf_append_text(out, "\\n");
        else if (*value == '"' || *value == '\\')
            buf_printf(out, "\\%c", *value);
        else
            buf_append_char(out, *value);
    }
    buf_append_char(out, '"');
}

/* Nothing here changes from run to run of an experiment, except `name`, so a series continues with the next run. */
static void write_labels(struct buf *out, const struct run_info *run)
{
    write_label(out, "experiment", run->hash, true);
    write_label(out, "workload", workload_kind_of(run->experiment)->name, false);
    if (!workload_kind_of(run->experiment)->watches) { /* the command decides these, not the keys */
        write_label(out, "model", experiment_text(run->experiment, OPT_MODEL), false);
        write_label(out, "ranks", experiment_text(run->experiment, OPT_RANKS), false);
        write_label(out, "store", experiment_text(run->experiment, OPT_STORE), false);
    }
    write_label(out, "site", run->site, false);
    if (*experiment_text(run->experiment, OPT_NAME))
        write_label(out, "name", experiment_text(run->experiment, OPT_NAME), false);
}

static void write_head(struct buf *out, const char *name, const char *meaning)
{
    buf_printf(out, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s gauge\n", name, meaning, name);
}

static bool is_exported(enum metric_id metric)
{
    return metric_row(metric)->primary || metric_row(metric)->scope == METRIC_OF_ITERATION ||
           metric_in_report(metric) || metric_in_list(metric);
}

/* Names in Prometheus have no dots: "save.throughput_mibs" becomes save_throughput_mibs. */
static void write_metric(struct buf *out, const struct newest *newest, enum operation op, enum metric_id metric)
{
    char name[64];
    bool has_head = false;
    metric_full_name(op, metric, name);
    for (char *dot = name; (dot = strchr(dot, '.'));)
        *dot = '_';
    for (size_t i = 0; i < newest->count; i++) {
        const struct run_metric *found = run_info_metric(newest->runs[i], op, metric);
        if (!found || !isfinite(found->summary.median))
            continue;
        if (!has_head)
            write_head(out, name, metric_row(metric)->meaning);
        has_head = true;
        buf_printf(out, PREFIX "%s{", name);
        write_labels(out, newest->runs[i]);
        buf_printf(out, "} %.17g\n", found->summary.median);
    }
}

static void write_ends(struct buf *out, const struct newest *newest)
{
    write_head(out, "run_ended_seconds", "when the newest run that passed ended, since 1970");
    for (size_t i = 0; i < newest->count; i++) {
        buf_append_text(out, PREFIX "run_ended_seconds{");
        write_labels(out, newest->runs[i]);
        buf_printf(out, "} %.3f\n", (double)newest->runs[i]->ended_wall_ns / 1e9);
    }
}

int prometheus_write(struct history *history, const char *const *words, size_t count, struct buf *out,
                     struct cb_err *err)
{
    struct run_selection selection = {0};
    struct newest newest = {0};
    int rc = history_select(history, words, count, &selection, err);
    for (size_t i = 0; i < selection.count && rc == 0; i++) {
        struct run_info *run = NULL;
        rc = history_load_run(history, selection.runs[i], &run, err);
        if (rc == 0)
            rc = take_run(&newest, run, err);
    }
    if (rc == 0 && newest.count)
        write_ends(out, &newest);
    for (int metric = 0; metric < METRIC_COUNT && rc == 0; metric++)
        for (int op = 0; op < OP_COUNT && is_exported((enum metric_id)metric); op++)
            write_metric(out, &newest, (enum operation)op, (enum metric_id)metric);
    if (rc == 0)
        rc = buf_check(out, "the figures", err);
    for (size_t i = 0; i < newest.count; i++)
        run_info_free(newest.runs[i]);
    free(newest.runs);
    run_selection_release(&selection);
    return rc;
}
