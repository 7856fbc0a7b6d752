/* Resolves --after: the job number to wait for, and the checkpoint to load. */
#include "cli/jobs/submission_after.h"

#include <stdio.h>
#include <string.h>

#include "cli/jobs/job_list.h"

static bool only_loads(const struct setting_list *settings)
{
    bool loads = false;
    for (size_t i = 0; i < settings->count; i++)
        if (strcmp(settings->items[i].key, "ops") == 0)
            loads = settings->items[i].value_count == 1 && strcmp(settings->items[i].values[0], "load") == 0;
    return loads;
}

static bool has_key(const struct setting_list *settings, const char *key)
{
    for (size_t i = 0; i < settings->count; i++)
        if (strcmp(settings->items[i].key, key) == 0)
            return true;
    return false;
}

bool submission_lacks_suffix(const struct setting_list *settings)
{
    return only_loads(settings) && !has_key(settings, "suffix");
}

static int take_suffix(struct history *history, const char *run, struct setting_list *settings, struct cb_err *err)
{
    struct run_info *info;
    if (!submission_lacks_suffix(settings))
        return 0;
    int rc = history_load_run(history, run, &info, err);
    if (rc)
        return rc;
    const char *suffix = experiment_text(info->experiment, OPT_SUFFIX);
    rc = setting_add(settings, "suffix", *suffix ? suffix : run, "--after", err);
    run_info_free(info);
    return rc;
}

int submission_resolve_after(struct history *history, const char *word, struct setting_list *settings,
                             char job[JOB_NUMBER_BYTES], struct cb_err *err)
{
    char run[64];
    const char *const words[] = {run};
    struct run_selection selection = {0};
    struct job_list list;
    int rc = history_find_run(history, word, run, err);
    if (rc)
        return rc;
    rc = job_list_init(&list, history, err);
    if (rc == 0)
        rc = history_select(history, words, 1, &selection, err);
    if (rc == 0)
        rc = job_list_add(&list, &selection, err);
    if (rc == 0)
        rc = job_list_sync(&list, err);
    if (rc == 0 && list.count != 1)
        rc = cb_fail(err, CB_ERR_USAGE, "--after %s: one run, not a sweep", word);
    else if (rc == 0 && list.items[0].is_final && list.items[0].verdict.state != JOB_DONE)
        rc = cb_fail(err, CB_ERR_USAGE, "--after %s: that run has not passed (%s)", run, list.items[0].outcome);
    else if (rc == 0 && !list.items[0].is_final && !*list.items[0].record.job)
        rc = cb_fail(err, CB_ERR_USAGE, "--after %s: that run is not submitted (yet)", run);
    if (rc == 0 && !list.items[0].is_final)
        snprintf(job, JOB_NUMBER_BYTES, "%s", list.items[0].record.job);
    run_selection_release(&selection);
    job_list_release(&list);
    return rc ? rc : take_suffix(history, run, settings, err);
}
