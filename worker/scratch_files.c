#include "worker/scratch_files.h"

#include <stdio.h>

void scratch_files_name(const struct run *run, const char *purpose, char name[FOLDER_NAME_BYTES + 32])
{
    char scratch[FOLDER_NAME_BYTES];
    folder_scratch_name(&run->folder, scratch);
    snprintf(name, FOLDER_NAME_BYTES + 32, "%s/%s", scratch, purpose);
}

int scratch_files_check(const struct run *run, const char *key, struct cb_err *err)
{
    if (!run->folder.reads_only || run->folder.ours)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "%s writes files, and the store's folder is not ours to write to", key);
}

int scratch_files_write(struct run *run, struct raw *raw, const char *folder, struct cb_err *err)
{
    struct sample unmeasured = {.op = OP_BASELINE_WRITE, .flags = SAMPLE_WARMUP};
    raw->unseen = true;
    run->has_scratch_files = true;
    int rc = raw_write(raw, folder, &unmeasured, run_deadline(run), err);
    if (rc)
        scratch_files_abandon(run);
    return rc;
}

void scratch_files_abandon(struct run *run)
{
    char scratch[FOLDER_NAME_BYTES];
    bool has_files = run->has_scratch_files;
    run->has_scratch_files = run->has_evict_files = run->has_dataset_files = false;
    if (!has_files || comm_rank(run->comm) != 0)
        return;
    folder_scratch_name(&run->folder, scratch);
    (void)!folder_remove(&run->folder, scratch, NULL);
}

int scratch_files_finish(struct run *run, struct cb_err *err)
{
    char scratch[FOLDER_NAME_BYTES];
    if (!run->has_scratch_files)
        return 0;
    folder_scratch_name(&run->folder, scratch);
    return run_join(run, comm_rank(run->comm) == 0 ? folder_remove(&run->folder, scratch, err) : 0, err);
}
