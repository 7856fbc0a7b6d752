/* The table of workloads. */
#include "cli/workload_table.h"

#include <string.h>

#include "cli/report/report.h"
#include "cli/report/report_heading.h"
#include "run/workload_kind.h"

static const struct workload_row rows[] = {
    {"checkpoint", workload_plan_state, heading_of_state, report_checkpoints, true, true},
    {"raw", workload_plan_state, heading_of_state, report_checkpoints, true, true},
    {"suite", workload_plan_ranks, heading_of_suite, report_suite, true, false},
    {"verify", workload_plan_ranks, heading_of_verification, report_verification, true, false},
    {"train", workload_plan_training, heading_of_training, report_training, true, true},
    {"watch", workload_plan_watching, heading_of_watching, report_watch, false, false},
    {"wait", workload_plan_waiting, heading_of_waiting, NULL, false, false},
};

const struct workload_row *workload_row_named(const char *name)
{
    size_t i = sizeof rows / sizeof *rows;
    while (--i > 0 && strcmp(rows[i].name, name) != 0)
        ;
    return &rows[i];
}

const struct workload_row *workload_row_of(const struct experiment *experiment)
{
    return workload_row_named(workload_kind_of(experiment)->name);
}
