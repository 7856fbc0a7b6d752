/* Runs a conversion: the target and its claim, threads, the commit. */
#include "ckpt/convert/convert.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/convert/convert_file.h"
#include "ckpt/format/catalogue.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/format/save_id.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/process.h"
#include "core/units.h"
#include "store/kind.h"

#define MAX_CLAIM_BYTES (UINT64_C(256) << 20)
#define MAX_METADATA_BYTES (UINT64_C(8) << 30)
#define CLAIM_EVERY_NS NS_PER_S
#define LARGEST_BLOCK (UINT64_C(4) << 20)
#define SMALLEST_BLOCK (UINT64_C(256) << 10)
#define MAX_THREADS 64

struct done {
    bool done;
    uint32_t crc;
};

struct conversion {
    const struct convert_job *job;
    struct convert_result *result;
    struct store *target;
    struct done *files; /* one per file of the plan */
    char identity[32];  /* of source, plan and format */
    uint64_t save_id;   /* of the target; the claim keeps it for the attempt that continues */
    struct read_ledger ledger;
    uint64_t block_bytes, scratch_bytes;
    bool each_core; /* a thread runs on each core, so no core is free for threads of the store */
    atomic_size_t next;
    pthread_mutex_t lock; /* files, claim, failure, result */
    uint64_t claimed_ns;
    int code; /* the first failure of a thread */
    struct cb_err failure;
    struct cb_err *err;
};

/* --- the claim --- */

static int identify(struct conversion *self)
{
    struct buf bytes;
    buf_init(&bytes, MAX_METADATA_BYTES);
    int code = catalogue_write(self->job->checkpoint, &bytes, self->err);
    if (!code)
        snprintf(self->identity, sizeof self->identity, "%016" PRIx64 "%08" PRIx32, self->job->plan->digest,
                 crc32c((uint32_t)self->job->format, bytes.data, bytes.len));
    buf_release(&bytes);
    return code;
}

static int write_claim(struct conversion *self, struct cb_err *err)
{
    char save[SAVE_ID_TEXT_BYTES];
    struct process_identity own;
    struct buf text;
    struct json_writer json;
    buf_init(&text, MAX_CLAIM_BYTES);
    json_writer_init(&json, &text, 1);
    json_write_begin_object(&json);
    json_write_key(&json, "source");
    json_write_text(&json, self->job->source);
    json_write_key(&json, "identity");
    json_write_text(&json, self->identity);
    save_id_format(self->save_id, save);
    json_member_text(&json, "save", save);
    process_identify(&own);
    json_member_text(&json, "machine", own.machine);
    json_member_u64(&json, "pid", own.pid);
    json_member_u64(&json, "start_ticks", own.start_ticks);
    json_write_key(&json, "done");
    json_write_begin_object(&json);
    for (uint32_t i = 0; i < self->job->plan->file_count; i++) {
        char name[PLAN_NAME_BYTES];
        if (!self->files[i].done)
            continue;
        plan_file_name(self->job->plan, i, name);
        json_write_key(&json, name);
        json_write_u64(&json, self->files[i].crc);
    }
    json_write_end_object(&json);
    json_write_end_object(&json);
    int code = buf_check(&text, "the claim of the conversion", err);
    if (!code)
        code = store_publish(self->target, CONVERT_CLAIM, text.data, text.len, err);
    buf_release(&text);
    self->claimed_ns = clock_monotonic_ns();
    return code;
}

/* Whether a file that the claim lists as done is unchanged. */
static int check_kept(struct conversion *self, uint32_t file, const char *name, uint32_t crc, bool *right)
{
    uint64_t planned = plan_file_length(self->job->plan, file);
    struct store_object *object;
    uint64_t length = 0;
    uint32_t found = 0;
    *right = false;
    int code = store_open_read(self->target, name, &object, &length, self->err);
    if (code == CB_ERR_NOT_FOUND)
        return 0;
    if (code)
        return code;
    unsigned char *block = malloc(self->block_bytes);
    if (!block)
        code = alloc_fail(self->err, "to look at %s", name);
    for (uint64_t done = 0; length == planned && done < length && !code;) {
        uint64_t bytes = length - done < self->block_bytes ? length - done : self->block_bytes;
        code = store_read_at(self->target, object, done, block, bytes, NULL, NULL, self->err);
        if (!code)
            found = crc32c(found, block, bytes);
        done += bytes;
    }
    *right = !code && length == planned && found == crc;
    free(block);
    store_close(self->target, object);
    return code;
}

static int keep_file(struct conversion *self, const char *name, uint64_t crc)
{
    for (uint32_t i = 0; i < self->job->plan->file_count; i++) {
        char planned[PLAN_NAME_BYTES];
        bool right;
        plan_file_name(self->job->plan, i, planned);
        if (strcmp(planned, name) != 0)
            continue;
        int code = check_kept(self, i, name, (uint32_t)crc, &right);
        if (!code && right) {
            self->files[i] = (struct done){true, (uint32_t)crc};
            self->result->files_kept++;
        }
        return code;
    }
    return 0;
}

/* Whether a process on another machine lives cannot be known. */
static int refuse_live(const struct conversion *self, const struct json_value *claim)
{
    struct process_identity own, other = {0};
    const char *machine = "";
    process_identify(&own);
    (void)json_as_text(json_get(claim, "machine"), &machine);
    snprintf(other.machine, sizeof other.machine, "%s", machine);
    if (!*machine || !json_as_u64(json_get(claim, "pid"), &other.pid) ||
        !json_as_u64(json_get(claim, "start_ticks"), &other.start_ticks) || strcmp(other.machine, own.machine) != 0 ||
        process_has_ended(&other))
        return 0;
    return cb_fail(self->err, CB_ERR_EXISTS,
                   "%s: process %" PRIu64 " is converting to it: wait until it has ended, or name another folder",
                   self->job->target, other.pid);
}

static int read_claim(struct conversion *self, const struct buf *text)
{
    struct json_value *root = NULL;
    size_t position = 0;
    const char *identity = "", *save = "", *name;
    const struct json_value *value;
    uint64_t crc;
    int code = json_parse(text->data, text->len, &root, self->err);
    if (!code && (!json_as_text(json_get(root, "identity"), &identity) || strcmp(identity, self->identity) != 0)) {
        const char *source = "another";
        (void)json_as_text(json_get(root, "source"), &source);
        code = cb_fail(self->err, CB_ERR_EXISTS,
                       "%s holds an unfinished conversion of %s with other settings: finish it, remove the folder, or "
                       "name another",
                       self->job->target, source);
    }
    if (!code)
        code = refuse_live(self, root);
    if (!code) {
        (void)json_as_text(json_get(root, "save"), &save);
        self->save_id = save_id_parse(save, strlen(save));
        if (!self->save_id)
            code = cb_fail(self->err, CB_ERR_FORMAT, "%s/" CONVERT_CLAIM " has no save id: remove the folder",
                           self->job->target);
    }
    const struct json_value *done = json_get(root, "done");
    while (!code && json_next(done, &position, &name, &value)) {
        if (json_as_u64(value, &crc) && crc <= UINT32_MAX)
            code = keep_file(self, name, crc);
    }
    json_value_free(root);
    return code;
}

/* --- the target --- */

static int count_file(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)length, (void)err;
    /* Also ours: a claim that was interrupted before it was renamed. */
    *(uint64_t *)context += strncmp(name, CONVERT_CLAIM, strlen(CONVERT_CLAIM)) != 0;
    return 0;
}

static bool is_complete(struct conversion *self)
{
    uint64_t length;
    for (size_t i = 0; format_marker_at(i); i++) {
        if (store_stat(self->target, format_marker_at(i), &length, NULL) == 0)
            return true;
    }
    return false;
}

static int remove_unfinished(struct conversion *self)
{
    int code = 0;
    for (uint32_t i = 0; i < self->job->plan->file_count && !code; i++) {
        char name[PLAN_NAME_BYTES];
        plan_file_name(self->job->plan, i, name);
        if (!self->files[i].done)
            code = store_remove(self->target, name, self->err);
        if (code == CB_ERR_NOT_FOUND)
            code = 0;
    }
    return code;
}

/* Aborts the uploads of an attempt that was killed: no other program will. */
static int forget_uploads(struct conversion *self)
{
    const char *target = self->job->target;
    struct store_uri uri = store_uri_of(target);
    uint64_t count;
    if (!uri.kind->abort_leftovers || uri.has_faults)
        return 0;
    int code = uri.kind->abort_leftovers(target, NULL, "", format_is_file_within, &count, self->err);
    return code ? cb_context(self->err, "ending what an earlier attempt had begun to send") : 0;
}

static int open_target(const struct conversion *self, struct store **store, struct cb_err *err)
{
    struct store_options options = {.direct = STORE_DIRECT_NO,
                                    .depth = CONVERT_BLOCKS + 1,
                                    .threads = 1,
                                    .in_caller = self->each_core,
                                    .durable = self->job->durable};
    return store_open(self->job->target, &options, store, err);
}

static int take_claim(struct conversion *self)
{
    struct buf text;
    uint64_t found = 0;
    buf_init(&text, MAX_CLAIM_BYTES);
    int code = store_read_small(self->target, CONVERT_CLAIM, &text, self->err);
    if (!code) {
        code = read_claim(self, &text);
        self->result->was_complete = !code && is_complete(self);
        if (!code && !self->result->was_complete)
            code = forget_uploads(self);
        if (!code && !self->result->was_complete)
            code = remove_unfinished(self);
        if (!code && !self->result->was_complete)
            code = write_claim(self, self->err);
    } else if (code == CB_ERR_NOT_FOUND) {
        code = store_list(self->target, "", count_file, &found, self->err);
        if (!code && found > 0)
            code = cb_fail(self->err, CB_ERR_EXISTS, "%s holds %" PRIu64 " file%s already: name a new folder",
                           self->job->target, found, units_plural(found));
        if (!code) {
            self->save_id = save_id_draw();
            code = write_claim(self, self->err);
        }
    }
    buf_release(&text);
    return code;
}

/* --- threads --- */

static void fail(struct conversion *self, int code, const struct cb_err *why)
{
    pthread_mutex_lock(&self->lock);
    if (!self->code) {
        self->code = code;
        self->failure = *why;
    }
    pthread_mutex_unlock(&self->lock);
}

static int file_done(struct conversion *self, size_t file, uint32_t crc, struct cb_err *err)
{
    int code = 0;
    pthread_mutex_lock(&self->lock);
    self->files[file] = (struct done){true, crc};
    self->result->bytes_written += plan_file_length(self->job->plan, (uint32_t)file);
    if (clock_monotonic_ns() - self->claimed_ns >= CLAIM_EVERY_NS)
        code = write_claim(self, err);
    pthread_mutex_unlock(&self->lock);
    return code;
}

static bool has_failed(struct conversion *self)
{
    pthread_mutex_lock(&self->lock);
    bool failed = self->code != 0;
    pthread_mutex_unlock(&self->lock);
    return failed;
}

/* For convert_file.h: the reason comes from the thread that failed first. */
static int check_watch(void *context, struct cb_err *err)
{
    struct conversion *self = context;
    if (has_failed(self))
        return CB_ERR_ABORTED;
    return self->job->watch ? self->job->watch(self->job->watch_context, err) : 0;
}

static int convert_files(struct conversion *self, struct convert_writer *writer, struct stored_reader *reader,
                         struct cb_err *err)
{
    const struct plan *plan = self->job->plan;
    int code = 0;
    while (!code && !has_failed(self)) {
        size_t file = atomic_fetch_add(&self->next, 1);
        uint32_t crc = 0;
        if (file >= plan->file_count)
            break;
        if (self->files[file].done)
            continue;
        code = convert_file(writer, self->job, self->save_id, reader, (uint32_t)file, &crc, err);
        if (!code)
            code = file_done(self, file, crc, err);
    }
    return code ? code : stored_reader_flush(reader, err);
}

static int open_source(struct conversion *self, struct store **store, struct stored_reader **reader, struct cb_err *err)
{
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = 1, .in_caller = true, .read_only = true};
    int code = store_open(self->job->source, &options, store, err);
    return code ? code
                : stored_reader_new(*store, self->job->checkpoint, self->scratch_bytes, &self->ledger, reader, err);
}

/* Bytes of a block: the longest part if the target is an object store. */
static uint64_t block_of(const struct conversion *self, const struct store *target)
{
    const struct plan *plan = self->job->plan;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < plan->file_count; i++) {
        uint64_t length = plan_file_length(plan, i);
        longest = length > longest ? length : longest;
    }
    uint64_t part_bytes = store_part_bytes(store_capabilities(target), longest);
    return part_bytes > 0 ? part_bytes : self->block_bytes;
}

static void *run_thread(void *context)
{
    struct conversion *self = context;
    struct store *source = NULL, *target = NULL;
    struct stored_reader *reader = NULL;
    struct convert_writer *writer = NULL;
    const struct convert_watch watch = {check_watch, self};
    struct cb_err err;
    int code = open_source(self, &source, &reader, &err);
    if (!code)
        code = open_target(self, &target, &err);
    if (!code)
        code = convert_writer_new(target, block_of(self, target), &watch, &writer, &err);
    if (!code)
        code = convert_files(self, writer, reader, &err);
    if (code)
        fail(self, code, &err);
    if (reader) {
        pthread_mutex_lock(&self->lock);
        self->result->bytes_read += stored_reader_bytes(reader);
        pthread_mutex_unlock(&self->lock);
    }
    convert_writer_free(writer);
    stored_reader_free(reader);
    if (source)
        store_free(source);
    if (target)
        store_free(target);
    return NULL;
}

/* As many threads as there are files to write, if the memory suffices for each thread's blocks and as much scratch
 * memory for its reader. */
static uint32_t share_memory(struct conversion *self)
{
    const struct convert_job *job = self->job;
    uint64_t threads = job->threads < MAX_THREADS ? job->threads : MAX_THREADS, left = 0;
    for (size_t i = 0; i < job->plan->file_count; i++)
        left += !self->files[i].done;
    threads = threads < left ? threads : left;
    while (threads > 1 && job->memory_bytes / threads < 2 * CONVERT_BLOCKS * SMALLEST_BLOCK)
        threads--;
    uint64_t each = job->memory_bytes / (threads ? threads : 1);
    uint64_t block = each / (2 * CONVERT_BLOCKS) / 65536 * 65536;
    self->block_bytes = block < SMALLEST_BLOCK ? SMALLEST_BLOCK : block > LARGEST_BLOCK ? LARGEST_BLOCK : block;
    self->scratch_bytes = each - CONVERT_BLOCKS * self->block_bytes;
    self->each_core = threads >= job->threads;
    return (uint32_t)threads;
}

static int run_threads(struct conversion *self)
{
    pthread_t threads[MAX_THREADS];
    uint32_t count = share_memory(self), started = 0;
    for (; started < count; started++) {
        if (pthread_create(&threads[started], NULL, run_thread, self) != 0)
            break;
    }
    if (count > 0 && started == 0)
        return cb_fail(self->err, CB_ERR_SYSTEM, "no thread to convert with");
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (self->code)
        *self->err = self->failure;
    return self->code;
}

/* --- steps of a conversion --- */

/* The ledger lacks what an earlier attempt read, so those items are read again here. */
static int check_source(struct conversion *self)
{
    struct store *store = NULL;
    struct stored_reader *reader = NULL;
    int code = open_source(self, &store, &reader, self->err);
    if (!code)
        code = stored_reader_check(reader, &self->result->checksums, self->err);
    if (reader)
        self->result->bytes_read += stored_reader_bytes(reader);
    stored_reader_free(reader);
    if (store)
        store_free(store);
    return code ? cb_context(self->err, "%s is damaged, so nothing was made of it", self->job->source) : 0;
}

/* Makes the names of all files durable: those in the folders of io.fanout, too. */
static int sync_names(struct conversion *self)
{
    const struct plan *plan = self->job->plan;
    int code = store_sync_folder(self->target, "", self->err);
    for (uint32_t i = 0; i < plan->options.fanout && i < plan->file_count && !code; i++) {
        char folder[PLAN_NAME_BYTES];
        plan_file_name(plan, i, folder);
        *strrchr(folder, '/') = '\0';
        code = store_sync_folder(self->target, folder, self->err);
    }
    return code;
}

static int pass_metadata(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    const struct conversion *self = context;
    const struct convert_job *job = self->job;
    struct metadata_sink sink = {.write = put, .context = to};
    return format_write_metadata(job->format, job->layout, job->plan, job->target, self->save_id, &sink, err);
}

static int commit(struct conversion *self)
{
    int code = sync_names(self);
    if (!code)
        code = check_source(self);
    if (!code)
        code = store_publish_pieces(self->target, format_marker(self->job->format), pass_metadata, self, self->err);
    return code;
}

static int run(struct conversion *self)
{
    const struct plan *plan = self->job->plan;
    self->files = calloc(plan->file_count + 1, sizeof *self->files);
    if (!self->files)
        return alloc_fail(self->err, "for %zu files", plan->file_count);
    int code = identify(self);
    if (code)
        return code;
    (void)share_memory(self); /* sets block_bytes, with which kept files are checked */
    const char *target = self->job->target;
    if (!strchr(target, ':') && mkdir(target, 0777) != 0 && errno != EEXIST)
        return cb_fail_errno(self->err, errno, "making %s", target);
    code = open_target(self, &self->target, self->err);
    if (!code)
        code = take_claim(self);
    if (!code && !self->result->was_complete) {
        code = run_threads(self);
        if (!code)
            code = commit(self);
    }
    if (!code)
        code = store_remove(self->target, CONVERT_CLAIM, self->err);
    return code ? code : store_sync_folder(self->target, "", self->err);
}

int convert_checkpoint(const struct convert_job *job, struct convert_result *result, struct cb_err *err)
{
    struct conversion self = {.job = job, .result = result, .err = err};
    *result = (struct convert_result){.files = job->plan->file_count};
    if (job->memory_bytes < CONVERT_LEAST_MEMORY)
        return cb_fail(err, CB_ERR_USAGE, "a conversion needs at least %" PRIu64 " bytes of memory",
                       CONVERT_LEAST_MEMORY);
    int code = read_ledger_init(&self.ledger, err);
    if (code)
        return code;
    if (pthread_mutex_init(&self.lock, NULL))
        code = cb_fail(err, CB_ERR_SYSTEM, "no lock for a conversion");
    if (!code) {
        code = run(&self);
        pthread_mutex_destroy(&self.lock);
    }
    if (self.target)
        store_free(self.target);
    read_ledger_release(&self.ledger);
    free(self.files);
    return code;
}

const char *convert_refuses(enum plan_format format, const struct stored_tensor *tensor)
{
    bool has_names = format_ops_of(format)->has_file_headers; /* for its types, in the headers */
    return !tensor->is_bytes && has_names && !dtype_safetensors_name(tensor->dtype) ? dtype_name(tensor->dtype) : NULL;
}
