/* Verifies stored checkpoints: checks that concern all of the metadata, and which thread or rank checks which item. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format_ops.h"
#include "ckpt/stored/read_metadata.h"
#include "ckpt/stored/verify_internal.h"
#include "core/alloc.h"
#include "core/units.h"

#define MAX_THREADS 64
#define WORTH_THREADS_BYTES (UINT64_C(64) << 20)
#define ITEM_COST_BYTES (UINT64_C(64) << 10) /* fixed cost of a request for an item, in bytes */

const char *verify_problem_name(enum verify_problem_kind kind)
{
    static const char *const names[] = {"incomplete", "missing", "short", "twice", "corrupt", "empty"};
    return names[kind];
}

char *verify_contents(const char *format, uint64_t unproven, uint64_t proven, char text[VERIFY_CONTENTS_BYTES])
{
    const char *why = strstr(format, "safetensors") ? "the format has no checksums" : "no checksums are stored";
    if (unproven == 0)
        snprintf(text, VERIFY_CONTENTS_BYTES, "checked");
    else if (proven == 0)
        snprintf(text, VERIFY_CONTENTS_BYTES, "not checked: %s", why);
    else
        snprintf(text, VERIFY_CONTENTS_BYTES, "not checked of %" PRIu64 " item%s: %s", unproven, units_plural(unproven),
                 why);
    return text;
}

/* --- shares --- */

static uint64_t cost_of(const struct stored_chunk *chunk)
{
    return chunk->length + ITEM_COST_BYTES;
}

/* Items [first, end) belong to this part: an item belongs to the part that contains the middle of its cost. */
static void take_share(const struct verify_job *job, const struct stored_chunk **places, size_t count, size_t *first,
                       size_t *end)
{
    uint64_t all = 0, before = 0;
    *first = 0;
    *end = count;
    if (job->parts < 2)
        return;
    for (size_t i = 0; i < count; i++)
        all += cost_of(places[i]);
    *first = *end = count;
    for (size_t i = 0; i < count; i++) {
        uint64_t cost = cost_of(places[i]);
        uint64_t part = (uint64_t)((unsigned __int128)(before + cost / 2) * job->parts / all);
        before += cost;
        if (part < job->part)
            continue;
        if (part > job->part) {
            *end = i;
            break;
        }
        if (*first == count)
            *first = i;
    }
    if (*first > *end)
        *first = *end;
}

/* --- checks of the metadata --- */

static void check_files(struct verifier *self)
{
    for (uint32_t i = 0; i < self->checkpoint->file_count; i++) {
        const char *name = self->checkpoint->files[i];
        if (verify_is_mine(self->job, i) && !verify_file(self, i)->there)
            verify_report(self, VERIFY_MISSING, name, NULL, 0, "%s: the file is missing (%s)", name,
                          self->err->message);
    }
}

/* A safetensors file ends with its last tensor: stock readers reject a longer one. */
static int check_ends(struct verifier *self)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    if (!format_ops_of(checkpoint->format)->has_file_headers)
        return 0;
    uint64_t *ends = calloc(checkpoint->file_count + 1, sizeof *ends);
    if (!ends)
        return alloc_fail(self->err, "for %zu files", checkpoint->file_count);
    for (size_t i = 0; i < checkpoint->chunk_count; i++) {
        const struct stored_chunk *chunk = &checkpoint->chunks[i];
        if (chunk->offset + chunk->length > ends[chunk->file])
            ends[chunk->file] = chunk->offset + chunk->length;
    }
    for (uint32_t i = 0; i < checkpoint->file_count; i++) {
        if (!verify_is_mine(self->job, i) || ends[i] == 0)
            continue;
        const struct file_state *file = verify_file(self, i);
        if (file->there && file->length > ends[i])
            verify_report(self, VERIFY_CORRUPT, checkpoint->files[i], NULL, ends[i],
                          "%s: the file has %" PRIu64 " bytes, but its last tensor ends at %" PRIu64,
                          checkpoint->files[i], file->length, ends[i]);
    }
    free(ends);
    return 0;
}

static int report_overlap(void *context, const struct stored_chunk *a, const struct stored_chunk *b, uint64_t elements,
                          struct cb_err *err)
{
    struct verifier *self = context;
    const char *fqn = self->checkpoint->tensors[b->tensor].fqn;
    (void)err; /* a finding about the checkpoint, not a failure of this program */
    verify_report(self, VERIFY_TWICE, self->checkpoint->files[b->file], fqn, b->offset,
                  "%s: %" PRIu64 " elements are stored twice, in %s at byte %" PRIu64 " and in %s at byte %" PRIu64,
                  fqn, elements, self->checkpoint->files[a->file], a->offset, self->checkpoint->files[b->file],
                  b->offset);
    return 0;
}

static int check_coverage(struct verifier *self, const struct stored_tensor *tensor)
{
    struct region whole = region_whole(tensor->dims, tensor->shape);
    uint64_t elements = 0, before = self->result->problems;
    if (tensor->literal)
        return 0;
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        elements += region_elements(&self->checkpoint->chunks[tensor->first_chunk + i].region);
    int code = stored_each_overlap(self->checkpoint, tensor, report_overlap, self, self->err);
    if (!code && self->result->problems == before && elements < region_elements(&whole))
        verify_report(self, VERIFY_MISSING, NULL, tensor->fqn, 0,
                      "%s: %" PRIu64 " of %" PRIu64 " elements are in no stored chunk", tensor->fqn,
                      region_elements(&whole) - elements, region_elements(&whole));
    return code;
}

/* --- items --- */

static int compare_places(const void *a, const void *b)
{
    const struct stored_chunk *x = *(const struct stored_chunk *const *)a, *y = *(const struct stored_chunk *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void look_at_all(struct verifier *self)
{
    struct shared *shared = self->shared;
    for (size_t i = atomic_fetch_add(&shared->next, 1); i < shared->count && !atomic_load(&shared->stopped);
         i = atomic_fetch_add(&shared->next, 1))
        verify_item(self, shared->places[i]);
}

/* Another thread's verifier: shares the first one's facts, and has its own store, memory and result. */
static void *run_thread(void *context)
{
    struct verifier self = *(const struct verifier *)context;
    struct verify_result own = {0}, *sum = self.result;
    struct cb_err err;
    self.result = &own;
    self.err = &err;
    int code = verify_open(&self);
    if (!code)
        look_at_all(&self);
    verify_close(&self);
    pthread_mutex_lock(&self.shared->lock);
    sum->payload_bytes += own.payload_bytes;
    sum->right_bytes += own.right_bytes;
    sum->checksums += own.checksums;
    sum->values_checked += own.values_checked;
    sum->unproven += own.unproven;
    sum->problems += own.problems;
    sum->store_bytes += own.store_bytes;
    sum->requests += own.requests;
    sum->read_ns += own.read_ns;
    if (code && !self.shared->code) {
        self.shared->code = code;
        self.shared->failure = err;
    }
    pthread_mutex_unlock(&self.shared->lock);
    return NULL;
}

/* The first verifier waits for the others: its result is the sum. */
static int run_threads(struct verifier *self)
{
    pthread_t threads[MAX_THREADS];
    uint32_t started = 0, wanted = self->job->threads < MAX_THREADS ? self->job->threads : MAX_THREADS;
    bool few = wanted < 2 || self->result->share_bytes < WORTH_THREADS_BYTES;
    while (!few && started < wanted && pthread_create(&threads[started], NULL, run_thread, self) == 0)
        started++;
    self->result->threads = started ? started : 1;
    if (started == 0)
        look_at_all(self);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (self->shared->code)
        *self->err = self->shared->failure;
    return self->shared->code;
}

/* Items that share bytes of a file: one of them must be wrong. `places` are all items, [first, end) this part's. */
static void check_places(struct verifier *self, const struct stored_chunk **places, size_t first, size_t end)
{
    const struct stored_chunk *before = NULL; /* the item that extends farthest */
    for (size_t i = 0; i < end; i++) {
        const struct stored_chunk *chunk = places[i];
        if (before && before->file != chunk->file)
            before = NULL;
        if (i >= first && before && chunk->length > 0 && chunk->offset < before->offset + before->length)
            verify_report(self, VERIFY_CORRUPT, self->checkpoint->files[chunk->file],
                          self->checkpoint->tensors[chunk->tensor].fqn, chunk->offset,
                          "%s: the items of %s at byte %" PRIu64 " and of %s at byte %" PRIu64
                          " share bytes of the file",
                          self->checkpoint->files[chunk->file], self->checkpoint->tensors[before->tensor].fqn,
                          before->offset, self->checkpoint->tensors[chunk->tensor].fqn, chunk->offset);
        if (!before || chunk->offset + chunk->length > before->offset + before->length)
            before = chunk;
    }
}

/* Items in storage order. */
static int check_items(struct verifier *self)
{
    size_t count = self->checkpoint->chunk_count, first, end;
    const struct stored_chunk **places = malloc((count + 1) * sizeof *places);
    if (!places)
        return alloc_fail(self->err, "for %zu items", count);
    for (size_t i = 0; i < count; i++)
        places[i] = &self->checkpoint->chunks[i];
    qsort(places, count, sizeof *places, compare_places);
    take_share(self->job, places, count, &first, &end);
    check_places(self, places, first, end);
    verify_find_kind(self, places + first, end - first);
    verify_find_kind(self, places, count);
    for (size_t i = first; i < end; i++) {
        self->result->share_bytes += places[i]->length;
        (void)verify_file(self, places[i]->file); /* threads only read shared facts */
    }
    self->result->share_items = end - first;
    self->shared->places = places + first;
    self->shared->count = end - first;
    int code = run_threads(self);
    free(places);
    return code;
}

static int check_all(struct verifier *self)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    self->files = calloc(checkpoint->file_count + 1, sizeof *self->files);
    if (!self->files)
        return alloc_fail(self->err, "for %zu files", checkpoint->file_count);
    self->result->format = format_name(checkpoint->format);
    stored_count(checkpoint, &self->result->counts);
    if (checkpoint->tensor_count == 0 && verify_is_mine(self->job, 0))
        verify_report(self, VERIFY_EMPTY, NULL, NULL, 0, "there is nothing in it: no tensor and no value");
    check_files(self);
    int code = check_ends(self);
    if (!code)
        code = verify_saves(self);
    for (size_t i = 0; i < checkpoint->tensor_count && !code; i++) {
        if (verify_is_mine(self->job, i))
            code = check_coverage(self, &checkpoint->tensors[i]);
    }
    if (code)
        return code;
    verify_find_seed(self);
    code = check_items(self);
    static const char *const names[] = {"weights", "random", "zero"};
    if (self->has_kind)
        self->result->values = names[self->kind];
    return code;
}

static int read_metadata(struct verifier *self)
{
    const struct verify_job *job = self->job;
    if (!job->checkpoint)
        return *job->file ? metadata_read_file(self->store, job->file, &self->read, self->err)
                          : metadata_read_checkpoint(self->store, "", &self->read, self->err);
    return 0;
}

static int verify(struct verifier *self)
{
    int code = verify_open(self);
    if (code)
        return code;
    if (read_metadata(self)) {
        if (verify_is_mine(self->job, 0)) /* every part finds this */
            verify_report(self, VERIFY_INCOMPLETE, STORED_MARKER, NULL, 0, "the checkpoint is not complete: %s",
                          self->err->message);
        return 0;
    }
    self->checkpoint = self->job->checkpoint ? self->job->checkpoint : self->read;
    return check_all(self);
}

int verify_checkpoint(const struct verify_job *job, verify_problem_fn report, void *context,
                      struct verify_result *result, struct cb_err *err)
{
    struct cb_err own;
    struct shared shared = {0};
    *result = (struct verify_result){0};
    struct verifier self = {
        .job = job, .shared = &shared, .report = report, .context = context, .result = result, .err = &own};
    self.has_seed = job->seed != NULL;
    self.seed = job->seed ? *job->seed : 0;
    if (pthread_mutex_init(&shared.lock, NULL))
        return cb_fail(err, CB_ERR_SYSTEM, "no lock to verify with");
    int code = verify(&self);
    if (code && err)
        *err = own;
    verify_close(&self);
    pthread_mutex_destroy(&shared.lock);
    free(self.files);
    stored_checkpoint_free(self.read);
    return code;
}
