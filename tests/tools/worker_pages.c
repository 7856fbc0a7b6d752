/* Stands in for the agent in tests of ckptbench-worker:
 *   worker_pages make RUN PAGES RANKS KEY=VALUE...   a run folder and a status page a rank
 *   worker_pages stop PAGES RANKS now|later          asks the ranks to stop
 *   worker_pages show PAGES RANKS                    what the pages hold, as JSON */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "run/experiment.h"
#include "run/run_folder.h"
#include "run/status_page.h"

#define OUTPUT_MAX_BYTES (UINT64_C(256) << 20)

static int make_pages(const char *pages, uint32_t ranks, const struct experiment *experiment, struct cb_err *err)
{
    char path[4096];
    uint32_t samples =
        status_page_samples(experiment_u64(experiment, OPT_ITERATIONS), experiment_u64(experiment, OPT_WARMUP),
                            experiment_u64(experiment, OPT_DURATION) > 0);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct status_page *page;
        int rc = status_page_path(pages, rank, path, sizeof path, err);
        if (!rc)
            rc = status_page_create(path, rank, ranks, samples, &page, err);
        if (rc)
            return rc;
        status_page_close(page);
    }
    return 0;
}

static int make(int argc, char **argv, struct cb_err *err)
{
    struct experiment *experiment;
    int rc = experiment_new(&experiment, err);
    for (int i = 3; i < argc && !rc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals)
            return cb_fail(err, CB_ERR_USAGE, "%s is not KEY=VALUE", argv[i]);
        *equals = '\0';
        rc = experiment_set(experiment, argv[i], equals + 1, "test", err);
    }
    if (!rc)
        rc = run_folder_create(NULL, argv[0], experiment, err);
    if (!rc)
        rc = make_pages(argv[1], (uint32_t)strtoul(argv[2], NULL, 10), experiment, err);
    experiment_free(experiment);
    return rc;
}

static int open_page(const char *pages, uint32_t rank, struct status_page **page, struct cb_err *err)
{
    char path[4096];
    int rc = status_page_path(pages, rank, path, sizeof path, err);
    return rc ? rc : status_page_open(path, page, err);
}

static int stop(char **argv, struct cb_err *err)
{
    for (uint32_t rank = 0; rank < strtoul(argv[1], NULL, 10); rank++) {
        struct status_page *page;
        int rc = open_page(argv[0], rank, &page, err);
        if (rc)
            return rc;
        atomic_store(&page->stop, strcmp(argv[2], "now") == 0 ? STOP_NOW : STOP_AFTER_ITERATION);
        status_page_close(page);
    }
    return 0;
}

static void show_values(struct json_writer *writer, const double *values, int from, int to)
{
    for (int id = from; id < to; id++) {
        if (isnan(values[id]))
            continue;
        json_write_key(writer, metric_row((enum metric_id)id)->name);
        json_write_double(writer, values[id]);
    }
}

static void show_sample(struct json_writer *writer, const struct sample *sample)
{
    json_write_begin_object(writer);
    json_write_key(writer, "op");
    json_write_text(writer, operation_name((enum operation)sample->op));
    json_write_key(writer, "iteration");
    json_write_u64(writer, sample->iteration);
    json_write_key(writer, "flags");
    json_write_u64(writer, sample->flags);
    show_values(writer, sample->values, 0, METRIC_SAMPLE_COUNT);
    json_write_end_object(writer);
}

static void show_page(struct json_writer *writer, struct status_page *page)
{
    static const char *const phases[] = {"starting", "ready", "running", "done", "failed"};
    json_write_begin_object(writer);
    json_write_key(writer, "rank");
    json_write_u64(writer, page->rank);
    json_write_key(writer, "pid");
    json_write_u64(writer, atomic_load(&page->pid));
    json_write_key(writer, "phase");
    json_write_text(writer, phases[atomic_load(&page->phase)]);
    json_write_key(writer, "op");
    json_write_text(writer, operation_name((enum operation)atomic_load(&page->op)));
    json_write_key(writer, "state");
    json_write_text(writer, rank_state_name((enum rank_state)atomic_load(&page->state)));
    json_write_key(writer, "behind_state");
    json_write_text(writer, atomic_load(&page->behind_op) == OP_NONE
                                ? ""
                                : rank_state_name((enum rank_state)atomic_load(&page->behind_state)));
    json_write_key(writer, "behind_iteration");
    json_write_u64(writer, atomic_load(&page->behind_iteration));
    json_write_key(writer, "failure");
    json_write_text(writer, cb_code_name(-(int)atomic_load(&page->failure_code)));
    json_write_key(writer, "failures");
    json_write_text(writer, page->failures);
    json_write_key(writer, "facts");
    json_write_text(writer, page->facts);
    json_write_key(writer, "run_values");
    json_write_begin_object(writer);
    show_values(writer, page->run_values, METRIC_SAMPLE_COUNT, METRIC_COUNT);
    json_write_end_object(writer);
    json_write_key(writer, "samples");
    json_write_begin_array(writer);
    for (uint32_t i = 0; i < atomic_load(&page->sample_count); i++)
        show_sample(writer, &page->samples[i]);
    json_write_end_array(writer);
    json_write_end_object(writer);
}

static int show(char **argv, struct cb_err *err)
{
    struct buf out;
    struct json_writer writer;
    buf_init(&out, OUTPUT_MAX_BYTES);
    json_writer_init(&writer, &out, 1);
    json_write_begin_array(&writer);
    int rc = 0;
    for (uint32_t rank = 0; rank < strtoul(argv[1], NULL, 10) && !rc; rank++) {
        struct status_page *page;
        rc = open_page(argv[0], rank, &page, err);
        if (rc)
            break;
        show_page(&writer, page);
        status_page_close(page);
    }
    if (!rc) {
        json_write_end_array(&writer);
        rc = buf_check(&out, "the pages", err);
    }
    if (!rc)
        puts(out.data);
    buf_release(&out);
    return rc;
}

int main(int argc, char **argv)
{
    struct cb_err err = {0};
    const char *verb = argc > 1 ? argv[1] : "";
    int rc = CB_ERR_USAGE;
    if (strcmp(verb, "make") == 0 && argc >= 5)
        rc = make(argc - 2, argv + 2, &err);
    else if (strcmp(verb, "stop") == 0 && argc == 5)
        rc = stop(argv + 2, &err);
    else if (strcmp(verb, "show") == 0 && argc == 4)
        rc = show(argv + 2, &err);
    if (rc)
        fprintf(stderr, "worker_pages: %s\n", err.message);
    return rc ? 1 : 0;
}
