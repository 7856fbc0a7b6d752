/* Two sorted lists of pointers to jobs. If keys are equal, the job listed last wins. */
#include "jobs/slurm/job_index.h"

#include "core/alloc.h"

#include <string.h>

static int compare_places(const struct slurm_job *a, const struct slurm_job *b)
{
    return a < b ? -1 : a > b;
}

static int compare_name(const char *name, bool in_array, uint64_t task, const struct slurm_job *job)
{
    int order = strcmp(name, job->name);
    if (order == 0)
        order = (int)in_array - (int)job->in_array;
    if (order == 0 && in_array)
        order = task < job->array_task ? -1 : task > job->array_task;
    return order;
}

static int order_by_id(const void *a, const void *b)
{
    const struct slurm_job *const *one = a, *const *other = b;
    int order = strcmp((*one)->id, (*other)->id);
    return order ? order : compare_places(*one, *other);
}

static int order_by_name(const void *a, const void *b)
{
    const struct slurm_job *const *one = a, *const *other = b;
    int order = compare_name((*one)->name, (*one)->in_array, (*one)->array_task, *other);
    return order ? order : compare_places(*one, *other);
}

int job_index_make(struct job_index *self, const struct slurm_jobs *jobs, struct cb_err *err)
{
    struct job_index made = {.jobs = jobs,
                             .by_id = calloc(jobs->count + 1, sizeof(struct slurm_job *)),
                             .by_name = calloc(jobs->count + 1, sizeof(struct slurm_job *))};
    if (!made.by_id || !made.by_name) {
        job_index_release(&made);
        return alloc_fail(err, "for %zu jobs", jobs->count);
    }
    for (size_t i = 0; i < jobs->count; i++)
        made.by_id[i] = made.by_name[i] = &jobs->items[i];
    qsort(made.by_id, jobs->count, sizeof(struct slurm_job *), order_by_id);
    qsort(made.by_name, jobs->count, sizeof(struct slurm_job *), order_by_name);
    *self = made;
    return 0;
}

void job_index_release(struct job_index *self)
{
    free(self->by_id);
    free(self->by_name);
    *self = (struct job_index){0};
}

static size_t count_of(const struct job_index *self)
{
    return self->jobs ? self->jobs->count : 0;
}

const struct slurm_job *job_index_find_id(const struct job_index *self, const char *id)
{
    size_t low = 0, high = count_of(self); /* the first id larger than `id` is in [low, high] */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(id, self->by_id[middle]->id) < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low > 0 && strcmp(self->by_id[low - 1]->id, id) == 0 ? self->by_id[low - 1] : NULL;
}

static const struct slurm_job *find_name(const struct job_index *self, const struct job_record *record)
{
    size_t low = 0, high = count_of(self);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_name(record->name, record->in_array, record->array_task, self->by_name[middle]) < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low > 0 && compare_name(record->name, record->in_array, record->array_task, self->by_name[low - 1]) == 0
               ? self->by_name[low - 1]
               : NULL;
}

/* A Slurm controller that lost its state reuses job numbers, so the name must match, too. If somebody renamed our
 * job, its comment still matches. */
static bool is_somebody_elses(const struct slurm_job *job, const struct job_record *record)
{
    const char *slash = strchr(job->comment, '/');
    bool named = *record->name && *job->name && !*record->pool;
    return named && strcmp(job->name, record->name) != 0 && (!slash || strcmp(slash + 1, record->name) != 0);
}

const struct slurm_job *job_index_find(const struct job_index *self, const struct job_record *record)
{
    const struct slurm_job *job = *record->job ? job_index_find_id(self, record->job) : find_name(self, record);
    return job && is_somebody_elses(job, record) ? NULL : job;
}
