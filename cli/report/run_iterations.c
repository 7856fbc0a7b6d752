/* Prints the measured iterations of a run. */
#include "cli/report/run_iterations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "run/status_page.h"

/* The numbers of the measured iterations of the last attempt in which some rank has a value, by operation and metric. */
struct numbers {
    uint32_t *items; /* owned */
    size_t count;
};
struct iteration_numbers {
    uint32_t attempt;
    struct numbers of[OP_COUNT][METRIC_SAMPLE_COUNT];
};

static int add_number(void *context, const struct rank_values *values, struct cb_err *err)
{
    struct iteration_numbers *self = context;
    bool has_value = false;
    for (size_t rank = 0; rank < values->rank_count && !has_value; rank++)
        has_value = isfinite(values->ranks[rank]);
    if (values->attempt != self->attempt || !has_value || values->flags & (SAMPLE_WARMUP | SAMPLE_FAILED))
        return 0;
    struct numbers *numbers = &self->of[values->op][values->metric];
    int rc = alloc_grow(&numbers->items, numbers->count, sizeof(uint32_t), err);
    if (rc == 0)
        numbers->items[numbers->count++] = values->iteration;
    return rc;
}

static int load_numbers(struct iteration_numbers **numbers, struct history *history, const struct run_info *run,
                        struct cb_err *err)
{
    *numbers = calloc(1, sizeof **numbers);
    if (!*numbers)
        return alloc_fail(err, "for iterations");
    (*numbers)->attempt = run->attempt;
    return history_each_sample(history, run->run, add_number, *numbers, err);
}

static void free_numbers(struct iteration_numbers *self)
{
    for (int op = 0; self && op < OP_COUNT; op++)
        for (int metric = 0; metric < METRIC_SAMPLE_COUNT; metric++)
            free(self->of[op][metric].items);
    free(self);
}

static void add_rows(struct table *table, const struct run_info *run, enum operation op, const struct numbers *numbers)
{
    const struct run_metric *time = run_info_metric(run, op, METRIC_OP_S);
    const struct run_metric *loss = run_info_metric(run, op, METRIC_LOSS);
    char text[32];
    for (size_t i = 0; time && time->iterations && i < numbers->count && i < time->summary.n; i++) {
        table_add(table, TABLE_BOLD, i ? "" : operation_name(op));
        table_addf(table, TABLE_PLAIN, "%u", numbers->items[i]);
        table_add(table, TABLE_PLAIN, figure_text(METRIC_OP_S, time->iterations[i], text));
        bool has_loss = loss && loss->iterations && i < loss->summary.n;
        table_add_known(table, TABLE_PLAIN, has_loss, "%.4g", has_loss ? loss->iterations[i] : 0);
    }
}

int run_iterations_write(struct history *history, const struct run_info *run, bool colour, struct buf *out,
                         struct cb_err *err)
{
    struct iteration_numbers *numbers;
    struct table table;
    table_init(&table, "lrrr");
    table_add_headings(&table, (const char *const[]){"", "ITERATION", "TIME", "LOSS"});
    int rc = load_numbers(&numbers, history, run, err);
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && rc == 0; op++)
        add_rows(&table, run, op, &numbers->of[op][METRIC_OP_S]);
    free_numbers(numbers);
    const char *same = table_same_cell(&table, 3);
    if (same && same[0] == '-')
        table_drop_column(&table, 3);
    int finished = table_finish(&table, colour, out, rc ? NULL : err);
    return rc ? rc : finished;
}

void run_iterations_write_json(const struct run_info *run, struct json_writer *json)
{
    char name[64];
    json_member_object(json, "iterations");
    for (size_t i = 0; i < run->metric_count; i++) {
        const struct run_metric *metric = &run->metrics[i];
        if (!metric->iterations || metric->op == OP_NONE)
            continue;
        snprintf(name, sizeof name, "%s.%s", operation_name(metric->op), metric_row(metric->metric)->name);
        json_member_doubles(json, name, metric->iterations, metric->summary.n);
    }
    json_write_end_object(json);
}

static void write_numbers(struct json_writer *json, const char *name, const struct numbers *numbers)
{
    json_member_array(json, name);
    for (size_t i = 0; i < numbers->count; i++)
        json_write_u64(json, numbers->items[i]);
    json_write_end_array(json);
}

int run_iterations_write_numbers_json(struct history *history, const struct run_info *run, struct json_writer *json,
                                      struct cb_err *err)
{
    struct iteration_numbers *numbers;
    char name[64];
    int rc = load_numbers(&numbers, history, run, err);
    json_member_object(json, "iteration_numbers");
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && rc == 0; op++) {
        const struct numbers *all = &numbers->of[op][METRIC_OP_S];
        if (all->count)
            write_numbers(json, operation_name(op), all);
        for (int metric = 0; metric < METRIC_SAMPLE_COUNT; metric++) {
            const struct numbers *some = &numbers->of[op][metric];
            snprintf(name, sizeof name, "%s.%s", operation_name(op), metric_row((enum metric_id)metric)->name);
            if (some->count && some->count < all->count)
                write_numbers(json, name, some);
        }
    }
    json_write_end_object(json);
    free_numbers(numbers);
    return rc;
}
