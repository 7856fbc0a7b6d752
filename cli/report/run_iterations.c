/* Prints the measured iterations of a run. */
#include "cli/report/run_iterations.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "run/status_page.h"

/* The numbers of the measured iterations of the last attempt, by operation. */
struct iteration_numbers {
    uint32_t attempt;
    uint32_t *items[OP_COUNT]; /* owned */
    size_t count[OP_COUNT];
};

static int add_number(void *context, const struct rank_values *values, struct cb_err *err)
{
    struct iteration_numbers *self = context;
    if (values->attempt != self->attempt || values->metric != METRIC_OP_S ||
        values->flags & (SAMPLE_WARMUP | SAMPLE_FAILED))
        return 0;
    int rc = alloc_grow(&self->items[values->op], self->count[values->op], sizeof(uint32_t), err);
    if (rc == 0)
        self->items[values->op][self->count[values->op]++] = values->iteration;
    return rc;
}

static int load_numbers(struct iteration_numbers *self, struct history *history, const struct run_info *run,
                        struct cb_err *err)
{
    *self = (struct iteration_numbers){.attempt = run->attempt};
    return history_each_sample(history, run->run, add_number, self, err);
}

static void release_numbers(struct iteration_numbers *self)
{
    for (int op = 0; op < OP_COUNT; op++)
        free(self->items[op]);
}

static void add_rows(struct table *table, const struct run_info *run, enum operation op,
                     const struct iteration_numbers *numbers)
{
    const struct run_metric *time = run_info_metric(run, op, METRIC_OP_S);
    const struct run_metric *loss = run_info_metric(run, op, METRIC_LOSS);
    char text[32];
    for (size_t i = 0; time && time->iterations && i < numbers->count[op] && i < time->summary.n; i++) {
        table_add(table, TABLE_BOLD, i ? "" : operation_name(op));
        table_addf(table, TABLE_PLAIN, "%u", numbers->items[op][i]);
        table_add(table, TABLE_PLAIN, figure_text(METRIC_OP_S, time->iterations[i], text));
        bool has_loss = loss && loss->iterations && i < loss->summary.n;
        table_add_known(table, TABLE_PLAIN, has_loss, "%.4g", has_loss ? loss->iterations[i] : 0);
    }
}

int run_iterations_write(struct history *history, const struct run_info *run, bool colour, struct buf *out,
                         struct cb_err *err)
{
    struct iteration_numbers numbers;
    struct table table;
    table_init(&table, "lrrr");
    table_add_headings(&table, (const char *const[]){"", "ITERATION", "TIME", "LOSS"});
    int rc = load_numbers(&numbers, history, run, err);
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && rc == 0; op++)
        add_rows(&table, run, op, &numbers);
    release_numbers(&numbers);
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
        json_member_array(json, name);
        for (size_t j = 0; j < metric->summary.n; j++)
            json_write_double(json, metric->iterations[j]);
        json_write_end_array(json);
    }
    json_write_end_object(json);
}

int run_iterations_write_numbers_json(struct history *history, const struct run_info *run, struct json_writer *json,
                                      struct cb_err *err)
{
    struct iteration_numbers numbers;
    int rc = load_numbers(&numbers, history, run, err);
    json_member_object(json, "iteration_numbers");
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && rc == 0; op++) {
        if (!numbers.count[op])
            continue;
        json_member_array(json, operation_name(op));
        for (size_t i = 0; i < numbers.count[op]; i++)
            json_write_u64(json, numbers.items[op][i]);
        json_write_end_array(json);
    }
    json_write_end_object(json);
    release_numbers(&numbers);
    return rc;
}
