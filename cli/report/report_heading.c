/* The lines above the results of a run. */
#include "cli/report/report_heading.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/plan/store_location.h"
#include "cli/report/table.h"
#include "cli/report/training_report.h"
#include "cli/workload_table.h"
#include "core/units.h"
#include "run/workload_kind.h"
#include "store/kind.h"

/* "124 M" */
static void print_millions(uint64_t count, char text[32])
{
    if (count >= UINT64_C(10000000000))
        snprintf(text, 32, "%.0f B", (double)count / 1e9);
    else if (count >= UINT64_C(1000000000))
        snprintf(text, 32, "%.2f B", (double)count / 1e9);
    else if (count >= UINT64_C(10000000))
        snprintf(text, 32, "%.0f M", (double)count / 1e6);
    else
        snprintf(text, 32, "%.2f M", (double)count / 1e6);
}

void heading_of_waiting(const struct experiment *experiment, const struct workload *workload, const char *host,
                        struct buf *out)
{
    (void)workload, (void)host;
    buf_printf(out, "waits for %s\n", experiment_text(experiment, OPT_WAIT_FOR));
}

static void write_ranks(const struct experiment *experiment, const struct workload *workload, const char *host,
                        struct buf *out)
{
    buf_printf(out, "   %s rank%s%s%s\n", experiment_text(experiment, OPT_RANKS),
               units_plural(experiment_u64(experiment, OPT_RANKS)), workload ? " on " : "", workload ? host : "");
}

void heading_of_suite(const struct experiment *experiment, const struct workload *workload, const char *host,
                      struct buf *out)
{
    buf_printf(out, "cluster suite: %s", experiment_text(experiment, OPT_SUITE_ONLY));
    write_ranks(experiment, workload, host, out);
}

void heading_of_verification(const struct experiment *experiment, const struct workload *workload, const char *host,
                             struct buf *out)
{
    buf_append_text(out, "verification");
    write_ranks(experiment, workload, host, out);
}

/* What was watched is known only at the end: the report has it. */
void heading_of_watching(const struct experiment *experiment, const struct workload *workload, const char *host,
                         struct buf *out)
{
    (void)experiment, (void)workload, (void)host;
    buf_append_text(out, "watched\n");
}

/* For a workload that is no longer known. */
static void write_unplanned(const struct experiment *experiment, struct buf *out)
{
    bool nodes = experiment_u64(experiment, OPT_NODES) > 1;
    buf_printf(out, "%s   ranks=%s%s%s\n", experiment_text(experiment, OPT_MODEL),
               experiment_text(experiment, OPT_RANKS), nodes ? " nodes=" : "",
               nodes ? experiment_text(experiment, OPT_NODES) : "");
}

void heading_of_training(const struct experiment *experiment, const struct workload *workload, const char *host,
                         struct buf *out)
{
    char count[32];
    if (!workload) {
        write_unplanned(experiment, out);
        return;
    }
    print_millions(model_parameters(workload->model), count);
    buf_printf(out, "%s, %s parameters, %s   %u rank%s on %s\ntrain  ", experiment_text(experiment, OPT_MODEL), count,
               workload->training.bf16 ? "bf16" : "fp32", workload->layouts.ranks,
               units_plural(workload->layouts.ranks), host);
    training_describe(&workload->training, out);
    buf_printf(out, ", %s step%s, checkpoints: %s\n", experiment_text(experiment, OPT_TRAIN_STEPS),
               units_plural(experiment_u64(experiment, OPT_TRAIN_STEPS)),
               strcmp(experiment_text(experiment, OPT_TRAIN_CHECKPOINT_EVERY), "0") == 0
                   ? "none"
                   : experiment_text(experiment, OPT_TRAIN_CHECKPOINT_EVERY));
}

void heading_of_state(const struct experiment *experiment, const struct workload *workload, const char *host,
                      struct buf *out)
{
    char count[32];
    if (!workload) {
        write_unplanned(experiment, out);
        return;
    }
    uint64_t parameters = model_parameters(workload->model);
    print_millions(parameters, count);
    buf_printf(out, "%s, %s parameters, %s, %s (%.3g B each)", experiment_text(experiment, OPT_MODEL), count,
               dtype_name(workload->model->dtype), layout_state_name(workload->layout),
               parameters ? (double)layout_total_bytes(workload->layout) / (double)parameters : 0.0);
    const struct layout_pair *layouts = &workload->layouts;
    uint32_t ranks = layouts->ranks;
    const char *axes = layout_describe(layouts->saved);
    bool resharded = layouts->loaded != layouts->saved;
    buf_printf(out, "   %u rank%s%s%s%s%s%s on %s\n", ranks, units_plural(ranks), *axes ? " (" : "", axes,
               resharded ? ", loaded as " : "", resharded ? layout_describe(layouts->loaded) : "", *axes ? ")" : "",
               host);
}

static void write_store_line(const struct experiment *experiment, bool is_here, struct buf *out)
{
    char block[32], shown[PATH_MAX];
    struct store_location place;
    const char *store = experiment_text(experiment, OPT_STORE);
    buf_printf(out, "store  %s", store_location_shorten(store, shown, sizeof shown));
    if (is_here && store_location_find(store, &place, NULL) == 0 && *place.filesystem)
        buf_printf(out, "  %s%s%s", place.filesystem, place.device[0] == '/' ? " on " : "",
                   place.device[0] == '/' ? strrchr(place.device, '/') + 1 : "");
    if (workload_kind_of(experiment)->inspects_checkpoint) { /* this workload has its own way to read */
        buf_printf(out, ", %s thread%s a rank to read with\n", experiment_text(experiment, OPT_IO_DEPTH),
                   units_plural(experiment_u64(experiment, OPT_IO_DEPTH)));
        return;
    }
    if (!experiment_is(experiment, OPT_ENGINE, "native")) { /* other engines have their own ways to write */
        buf_printf(out, ", engine=%s\n", experiment_text(experiment, OPT_ENGINE));
        return;
    }
    const char *direct = experiment_text(experiment, OPT_IO_DIRECT);
    if (store_uri_of(store).kind->is_objects) {
        buf_printf(out, ", %s part%s of %s in flight, checksum %s\n", experiment_text(experiment, OPT_IO_DEPTH),
                   units_plural(experiment_u64(experiment, OPT_IO_DEPTH)),
                   units_format_bytes((double)experiment_u64(experiment, OPT_S3_PART_SIZE), block),
                   experiment_is(experiment, OPT_S3_CHECKSUM, "auto")
                       ? "auto: CRC-32C of unsigned bodies (\"used\" says whether the server checks it)"
                       : experiment_text(experiment, OPT_S3_CHECKSUM));
        return;
    }
    buf_printf(out, ", %s, %s, depth %s x %s, %s\n", experiment_text(experiment, OPT_IO_ENGINE),
               strcmp(direct, "true") == 0    ? "O_DIRECT"
               : strcmp(direct, "false") == 0 ? "buffered"
                                              : "O_DIRECT where it can",
               experiment_text(experiment, OPT_IO_DEPTH),
               units_format_bytes((double)experiment_u64(experiment, OPT_IO_BLOCK), block),
               experiment_bool(experiment, OPT_IO_FSYNC) ? "fsync" : "no fsync");
}

/* False for a training that neither saves nor resumes. */
static bool uses_store(const struct experiment *experiment)
{
    return workload_row_of(experiment)->needs_store &&
           (!workload_kind_of(experiment)->trains ||
            strcmp(experiment_text(experiment, OPT_TRAIN_CHECKPOINT_EVERY), "0") != 0 ||
            !experiment_is(experiment, OPT_TRAIN_RESUME, "none"));
}

static void write_plan_line(const struct plan *plan, struct buf *out)
{
    char time[32], items[32], bytes[32], files[32];
    buf_printf(out, "plan   %s   %s item%s, %s, %s file%s, largest rank %.3f x mean\n",
               units_format_duration((double)plan->compute_ns, time), units_format_count(plan->item_count, items),
               units_plural(plan->item_count), units_format_bytes((double)plan->payload_bytes, bytes),
               units_format_count(plan->file_count + 1, files), units_plural(plan->file_count + 1), plan->imbalance);
}

void report_write_heading(const char *run, const struct experiment *experiment, const struct workload *workload,
                          bool is_here, bool colour, struct buf *out)
{
    char host[256] = "";
    if (colour)
        buf_append_text(out, table_style_start(TABLE_BOLD));
    if (gethostname(host, sizeof host - 1) < 0)
        snprintf(host, sizeof host, "this machine");
    buf_printf(out, "run %s  ", run);
    workload_row_of(experiment)->heading(experiment, workload, host, out);
    if (colour)
        buf_append_text(out, table_style_end());
    if (uses_store(experiment))
        write_store_line(experiment, is_here, out);
    if (workload && workload->plan && !experiment_is(experiment, OPT_ENGINE, "command")) /* makes its own plan */
        write_plan_line(workload->plan, out);
}
