/* Finds the files of a checkpoint in a folder, and joins what they list.
 *
 * Without an index, only the numbers in the names of safetensors files (model-00002-of-00003, shard-00002-model-…) can
 * reveal that a file is missing. PyTorch's saves without collectives (use_collectives=False) have a metadata file for
 * each rank R, __R.metadata, but no marker to show that all ranks are present. */
#include "ckpt/stored/read_metadata.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/stored.h"
#include "core/alloc.h"
#include "core/path.h"

#define MAX_METADATA_BYTES (UINT64_C(8) << 30)
#define MAX_INDEX_BYTES (UINT64_C(1) << 30)
#define FRONT_BYTES 65536 /* enough for the header of most files; aligned for any store */
#define NO_RANK UINT32_MAX

struct file {
    char *name;    /* in the checkpoint's folder */
    uint32_t rank; /* the rank whose own metadata it is; NO_RANK: a safetensors file */
    uint64_t bytes;
    struct safetensors_header header;
    struct stored_checkpoint *contents; /* tensors and chunks that it lists */
};

/* A tensor of one file. */
struct part {
    struct stored_tensor *tensor;
    const struct file *from;
    uint32_t first_file; /* index of the first data file of `from` among all data files */
};

struct collector {
    struct store *store;
    const char *folder;
    struct file *files; /* safetensors, or metadata of ranks */
    size_t file_count;
    bool has_ranks;
    char *index;                     /* name of the index file; NULL: none */
    struct safetensors_index wanted; /* what it says; its entries sorted by name */
    struct cb_err *err;
};

static int no_memory(const struct collector *self)
{
    return alloc_fail(self->err, "for what the checkpoint in %s has", self->folder);
}

/* "FOLDER/NAME", or NAME in the store itself. */
static int name_in(const char *folder, const char *name, char text[PATH_MAX], struct cb_err *err)
{
    return path_format(text, PATH_MAX, err, "%s%s%s", folder, *folder ? "/" : "", name);
}

/* --- listing the files --- */

static bool has_suffix(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

/* The R of __R.metadata; NO_RANK for other names. */
static uint32_t rank_of(const char *name)
{
    char *end;
    if (strncmp(name, "__", 2) != 0 || name[2] < '0' || name[2] > '9')
        return NO_RANK;
    unsigned long number = strtoul(name + 2, &end, 10);
    return number < NO_RANK && strcmp(end, STORED_MARKER) == 0 ? (uint32_t)number : NO_RANK;
}

static int add_file(struct collector *self, const char *name, uint64_t bytes)
{
    int code = alloc_grow(&self->files, self->file_count, sizeof *self->files, self->err);
    if (code)
        return code;
    struct file *file = &self->files[self->file_count];
    *file = (struct file){.name = strdup(name), .rank = rank_of(name), .bytes = bytes};
    if (!file->name)
        return no_memory(self);
    self->has_ranks |= file->rank != NO_RANK;
    self->file_count++;
    return 0;
}

static void release_file(struct file *file)
{
    free(file->name);
    safetensors_header_release(&file->header);
    stored_checkpoint_free(file->contents);
}

static int look_at(void *context, const char *path, uint64_t bytes, struct cb_err *err)
{
    struct collector *self = context;
    size_t len = strlen(self->folder);
    const char *name = len > 0 && strncmp(path, self->folder, len) == 0 && path[len] == '/' ? path + len + 1 : path;
    const char *slash = strchr(name, '/');
    if (slash && (!format_is_fanned_out(name) || strchr(slash + 1, '/')))
        return 0;
    if (rank_of(name) != NO_RANK || has_suffix(name, SAFETENSORS_SUFFIX))
        return add_file(self, name, bytes);
    if (!has_suffix(name, SAFETENSORS_SUFFIX ".index.json"))
        return 0;
    if (self->index)
        return cb_fail(err, CB_ERR_FORMAT, "there are two indexes, %s and %s: which is meant?", self->index, name);
    self->index = strdup(name);
    return self->index ? 0 : no_memory(self);
}

/* Files of ranks come first. */
static int compare_files(const void *a, const void *b)
{
    const struct file *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return strcmp(x->name, y->name);
}

static struct file *find_file(struct collector *self, const char *name)
{
    struct file key = {.name = (char *)name, .rank = NO_RANK};
    return self->file_count > 0 ? bsearch(&key, self->files, self->file_count, sizeof key, compare_files) : NULL;
}

/* The number after the last `mark` of a name; 0 if there is no number. */
static uint64_t number_after(const char *name, const char *mark)
{
    const char *at = strstr(name, mark);
    return at ? strtoull(at + strlen(mark), NULL, 10) : 0;
}

/* Numbered files must be complete: shards 1 … n, and files 1 … n if names end in "of-n". */
static int check_numbers(struct collector *self, const char *mark, uint64_t count, const char *what)
{
    for (uint64_t number = 1; number <= count; number++) {
        bool found = false;
        for (size_t i = 0; i < self->file_count && !found; i++)
            found = number_after(self->files[i].name, mark) == number;
        if (!found)
            return cb_fail(self->err, CB_ERR_NOT_FOUND, "%s %" PRIu64 " of %" PRIu64 " is missing (%s%05" PRIu64 "…)",
                           what, number, count, mark, number);
    }
    return 0;
}

static int check_names(struct collector *self)
{
    uint64_t shards = 0, files = 0;
    for (size_t i = 0; i < self->file_count; i++) {
        uint64_t shard = number_after(self->files[i].name, "shard-"), of = number_after(self->files[i].name, "-of-");
        shards = shard > shards ? shard : shards;
        files = of > files ? of : files;
    }
    if (shards > self->file_count || (shards == 0 && files > self->file_count))
        return cb_fail(self->err, CB_ERR_NOT_FOUND,
                       "files are missing: their names count to %" PRIu64 ", and there are %zu",
                       shards > files ? shards : files, self->file_count);
    int code = check_numbers(self, "shard-", shards, "shard");
    return code || shards > 0 ? code : check_numbers(self, "model-", files, "file");
}

/* --- the index --- */

static int read_index(struct collector *self)
{
    char name[PATH_MAX];
    struct buf text;
    buf_init(&text, MAX_INDEX_BYTES);
    int code = name_in(self->folder, self->index, name, self->err);
    if (!code)
        code = store_read_small(self->store, name, &text, self->err);
    if (!code)
        code = safetensors_read_index(self->index, text.data, text.len, &self->wanted, self->err);
    buf_release(&text);
    return code;
}

static int compare_wanted(const void *a, const void *b)
{
    const struct safetensors_index_entry *x = a, *y = b;
    return strcmp(x->fqn, y->fqn);
}

static int mark_named(struct collector *self, const char *file, const char *what, bool *named)
{
    const struct file *found = find_file(self, file);
    if (!found)
        return cb_fail(self->err, CB_ERR_NOT_FOUND, "%s: %s should be in %s, which is missing", self->index, what,
                       file);
    named[found - self->files] = true;
    return 0;
}

/* Files that the index does not name are not part of the checkpoint. */
static int keep_wanted_files(struct collector *self)
{
    const struct safetensors_index *wanted = &self->wanted;
    bool *named = calloc(self->file_count + 1, sizeof *named);
    if (!named)
        return no_memory(self);
    int code = 0;
    for (size_t i = 0; i < wanted->count && !code; i++)
        code = mark_named(self, wanted->entries[i].file, wanted->entries[i].fqn, named);
    for (size_t i = 0; i < wanted->value_file_count && !code; i++)
        code = mark_named(self, wanted->value_files[i], "values", named);
    size_t kept = 0;
    for (size_t i = 0; i < self->file_count && !code; i++) {
        if (named[i])
            self->files[kept++] = self->files[i];
        else
            release_file(&self->files[i]);
    }
    if (!code)
        self->file_count = kept;
    free(named);
    return code;
}

/* Whether this entry of a file is the one in the index; always true without an index. */
static bool is_wanted(struct collector *self, const struct safetensors_entry *entry, const struct file *file)
{
    struct safetensors_index_entry key = {.fqn = entry->fqn};
    if (!self->index)
        return true;
    const struct safetensors_index_entry *found =
        self->wanted.count > 0 ? bsearch(&key, self->wanted.entries, self->wanted.count, sizeof key, compare_wanted)
                               : NULL;
    return found && strcmp(found->file, file->name) == 0;
}

/* --- reading each file --- */

/* Reads the first bytes of a file, at least as many as requested, to memory that O_DIRECT accepts. */
static int read_front(struct collector *self, const struct file *file, struct store_object *object, uint64_t bytes,
                      char **front, uint64_t *have)
{
    uint64_t whole = (bytes + FRONT_BYTES - 1) / FRONT_BYTES * FRONT_BYTES;
    *have = whole < file->bytes ? whole : file->bytes;
    *front = aligned_alloc(FRONT_BYTES, whole);
    if (!*front)
        return no_memory(self);
    return store_read_at(self->store, object, 0, *front, *have, NULL, NULL, self->err);
}

static int parse_front(struct collector *self, struct file *file, struct store_object *object)
{
    char *front = NULL;
    uint64_t have = 0, json_bytes = 0;
    int code = read_front(self, file, object, FRONT_BYTES, &front, &have);
    if (!code)
        code = safetensors_header_bytes(file->name, front, file->bytes, &json_bytes, self->err);
    if (!code && json_bytes + SAFETENSORS_LENGTH_BYTES > have) {
        free(front);
        code = read_front(self, file, object, json_bytes + SAFETENSORS_LENGTH_BYTES, &front, &have);
    }
    if (!code)
        code =
            safetensors_read_header(file->name, front + SAFETENSORS_LENGTH_BYTES, json_bytes, &file->header, self->err);
    free(front);
    return code;
}

static int make_room(const struct collector *self, size_t tensors, size_t chunks, size_t files,
                     struct stored_checkpoint **checkpoint)
{
    struct stored_checkpoint *made = *checkpoint = calloc(1, sizeof *made);
    if (!made)
        return no_memory(self);
    made->tensors = calloc(tensors + 1, sizeof *made->tensors);
    made->chunks = calloc(chunks + 1, sizeof *made->chunks);
    made->files = calloc(files + 1, sizeof *made->files);
    return made->tensors && made->chunks && made->files && chunks < UINT32_MAX ? 0 : no_memory(self);
}

/* A safetensors file as a checkpoint of its own: one tensor for each selected entry, which ends where the entry
 * does. */
static int list_entries(struct collector *self, struct file *file)
{
    struct safetensors_header *header = &file->header;
    struct stored_checkpoint *made;
    int code = make_room(self, header->entry_count + header->value_count, header->entry_count, 1, &file->contents);
    if (code)
        return code;
    made = file->contents;
    for (size_t i = 0; i < header->entry_count; i++) {
        struct safetensors_entry *entry = &header->entries[i];
        if (!is_wanted(self, entry, file))
            continue;
        struct stored_tensor *tensor = &made->tensors[made->tensor_count++];
        *tensor = (struct stored_tensor){.fqn = entry->fqn,
                                         .dtype = entry->dtype,
                                         .dims = entry->region.dims,
                                         .first_chunk = (uint32_t)made->chunk_count,
                                         .chunk_count = 1};
        for (uint32_t d = 0; d < tensor->dims; d++)
            tensor->shape[d] = entry->region.offset[d] + entry->region.size[d];
        made->chunks[made->chunk_count++] =
            (struct stored_chunk){.region = entry->region, .offset = entry->offset, .length = entry->bytes};
        entry->fqn = NULL; /* ownership has moved */
    }
    for (size_t i = 0; i < header->value_count; i++) {
        struct safetensors_value *value = &header->values[i];
        made->tensors[made->tensor_count++] =
            (struct stored_tensor){.is_bytes = true, .dtype = DTYPE_U8, .fqn = value->fqn, .literal = value->literal};
        *value = (struct safetensors_value){0}; /* ownership has moved */
    }
    made->files[0] = strdup(file->name);
    if (!made->files[0])
        return no_memory(self);
    made->file_count = 1;
    return 0;
}

static int read_safetensors(struct collector *self, struct file *file)
{
    char name[PATH_MAX];
    struct store_object *object = NULL;
    int code = name_in(self->folder, file->name, name, self->err);
    if (!code)
        code = store_open_read(self->store, name, &object, &file->bytes, self->err);
    if (code)
        return code;
    code = parse_front(self, file, object);
    store_close(self->store, object);
    return code ? code : list_entries(self, file);
}

static int read_rank(struct collector *self, struct file *file)
{
    char name[PATH_MAX];
    struct buf bytes;
    buf_init(&bytes, MAX_METADATA_BYTES);
    int code = name_in(self->folder, file->name, name, self->err);
    if (!code)
        code = store_read_small(self->store, name, &bytes, self->err);
    if (!code)
        code = format_read_metadata(name, bytes.data, bytes.len, &file->contents, self->err);
    buf_release(&bytes);
    return code;
}

/* --- joining the files --- */

static int compare_parts(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->tensor->fqn, y->tensor->fqn);
    return order ? order : x->from < y->from ? -1 : x->from > y->from;
}

/* Safetensors only lists the shape of a part, so the tensor extends as far as its parts. */
static int check_alike(struct collector *self, const struct part *first, const struct part *part,
                       const struct stored_tensor *tensor)
{
    const struct stored_tensor *given = part->tensor;
    bool same_shape = memcmp(given->shape, tensor->shape, given->dims * sizeof *given->shape) == 0;
    if (given->literal || tensor->literal)
        return cb_fail(self->err, CB_ERR_FORMAT, "safetensors: %s is listed twice", tensor->fqn);
    if (given->is_bytes == tensor->is_bytes && given->dtype == tensor->dtype && given->dims == tensor->dims &&
        (same_shape || !self->has_ranks))
        return 0;
    if (self->has_ranks)
        return cb_fail(self->err, CB_ERR_CORRUPT,
                       "%s: rank %" PRIu32 " and rank %" PRIu32 " stored it with different types or shapes",
                       tensor->fqn, first->from->rank, part->from->rank);
    return cb_fail(self->err, CB_ERR_CORRUPT, "%s: its parts in %s and %s have different types or shapes", tensor->fqn,
                   first->from->name, part->from->name);
}

/* Joins the parts of one name, from *first to `end`; sets *first to the next name. */
static int join_tensor(struct collector *self, struct part **first, const struct part *end,
                       struct stored_checkpoint *all)
{
    struct part *part = *first;
    struct stored_tensor *tensor = &all->tensors[all->tensor_count++];
    *tensor = *part->tensor;
    tensor->first_chunk = (uint32_t)all->chunk_count;
    tensor->chunk_count = 0;
    part->tensor->fqn = part->tensor->literal = part->tensor->path = NULL; /* ownership has moved */
    for (; part < end && (part == *first || strcmp(part->tensor->fqn, tensor->fqn) == 0); part++) {
        const struct stored_tensor *given = part->tensor;
        int code = part == *first ? 0 : check_alike(self, *first, part, tensor);
        if (code)
            return code;
        for (uint32_t d = 0; d < tensor->dims; d++)
            tensor->shape[d] = given->shape[d] > tensor->shape[d] ? given->shape[d] : tensor->shape[d];
        for (uint32_t i = 0; i < given->chunk_count; i++) {
            struct stored_chunk *chunk = &all->chunks[all->chunk_count++];
            *chunk = part->from->contents->chunks[given->first_chunk + i];
            chunk->file += part->first_file;
            tensor->chunk_count++;
        }
    }
    *first = part;
    return 0;
}

/* If several ranks stored an item, the lowest rank's is used and the others are counted as duplicates. */
static int join(struct collector *self, struct stored_checkpoint **checkpoint)
{
    size_t tensors = 0, chunks = 0, files = 0, part_count = 0;
    bool parts_listed = false;
    for (size_t i = 0; i < self->file_count; i++) {
        tensors += self->files[i].contents->tensor_count;
        chunks += self->files[i].contents->chunk_count;
        files += self->files[i].contents->file_count;
        parts_listed |= self->files[i].header.parts;
    }
    if (self->index && chunks < self->wanted.count)
        return cb_fail(self->err, CB_ERR_CORRUPT, "%s names %zu tensors, but its files have only %zu of them",
                       self->index, self->wanted.count, chunks);
    struct part *parts = calloc(tensors + 1, sizeof *parts), *next = parts;
    int code = make_room(self, tensors, chunks, files, checkpoint);
    if (code || !parts) {
        free(parts);
        return code ? code : no_memory(self);
    }
    struct stored_checkpoint *all = *checkpoint;
    /* PyTorch writes sharding info for whole tensors, too; an index shows that they are whole. */
    all->format =
        self->has_ranks ? self->files[0].contents->format : safetensors_format_of(parts_listed && !self->index);
    all->marked = self->index && !self->has_ranks;
    all->save_id = self->wanted.save_id;
    for (size_t i = 0; i < self->file_count; i++) {
        struct stored_checkpoint *from = self->files[i].contents;
        for (size_t k = 0; k < from->tensor_count; k++)
            parts[part_count++] = (struct part){&from->tensors[k], &self->files[i], (uint32_t)all->file_count};
        for (size_t k = 0; k < from->file_count; k++) {
            all->files[all->file_count++] = from->files[k];
            from->files[k] = NULL; /* ownership has moved */
        }
    }
    qsort(parts, part_count, sizeof *parts, compare_parts);
    while (next < parts + part_count && !code)
        code = join_tensor(self, &next, parts + part_count, all);
    free(parts);
    return code ? code
                : stored_checkpoint_settle(all, self->has_ranks ? "__R" STORED_MARKER : "safetensors", self->err);
}

/* Our files name their commit marker: without it, a save or a conversion did not finish, even if all files look
 * complete. Files of other programs need no marker. */
static int check_committed(struct collector *self)
{
    for (size_t i = 0; i < self->file_count; i++)
        if (self->files[i].header.marker)
            return cb_fail(self->err, CB_ERR_CORRUPT,
                           "%s is of a checkpoint that was never committed: there is no %s beside it",
                           self->files[i].name, self->files[i].header.marker);
    return 0;
}

static int read_files(struct collector *self)
{
    int code = 0;
    if (self->file_count > 0)
        qsort(self->files, self->file_count, sizeof *self->files, compare_files);
    while (self->has_ranks && self->files[self->file_count - 1].rank == NO_RANK)
        release_file(&self->files[--self->file_count]);
    if (self->index && !self->has_ranks) {
        code = read_index(self);
        if (!code && self->wanted.count > 0)
            qsort(self->wanted.entries, self->wanted.count, sizeof *self->wanted.entries, compare_wanted);
        if (!code)
            code = keep_wanted_files(self);
    } else if (!self->has_ranks) {
        code = check_names(self);
    }
    for (size_t i = 0; i < self->file_count && !code; i++)
        code = self->has_ranks ? read_rank(self, &self->files[i]) : read_safetensors(self, &self->files[i]);
    return code || self->index ? code : check_committed(self);
}

/* --- public functions --- */

static int finish(struct collector *self, int code, struct stored_checkpoint **checkpoint)
{
    struct stored_checkpoint *made = NULL;
    if (!code)
        code = join(self, &made);
    for (size_t i = 0; i < self->file_count; i++)
        release_file(&self->files[i]);
    free(self->files);
    free(self->index);
    safetensors_index_release(&self->wanted);
    if (code)
        stored_checkpoint_free(made);
    else
        *checkpoint = made;
    return code;
}

/* Without a .metadata: metadata of ranks, or safetensors. */
static int open_unmarked(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                         struct cb_err *err)
{
    struct collector self = {.store = store, .folder = folder, .err = err};
    int code = store_list_near(store, folder, 1, look_at, &self, err);
    if (!code && self.file_count == 0 && !self.index)
        code = cb_fail(err, CB_ERR_NOT_FOUND, "there is no complete checkpoint at %s: it has no %s and no safetensors",
                       *folder ? folder : "this place", STORED_MARKER);
    return finish(&self, code ? code : read_files(&self), checkpoint);
}

static int read_piece(void *context, uint64_t offset, void *memory, uint64_t bytes, struct cb_err *err)
{
    struct metadata *self = context;
    return store_read_at(self->store, self->object, offset, memory, bytes, NULL, NULL, err);
}

/* A longer one is read in pieces, if the store can. */
static int open_marked(struct metadata *self, struct cb_err *err)
{
    bool in_pieces = store_capabilities(self->store)->ranged_reads;
    buf_init(&self->bytes, in_pieces ? METADATA_WHOLE_BYTES : MAX_METADATA_BYTES);
    int code = store_read_small(self->store, self->name, &self->bytes, err);
    self->source = byte_source_of(self->bytes.data, self->bytes.len);
    if (!in_pieces || self->bytes.code == 0)
        return code;
    buf_release(&self->bytes);
    buf_init(&self->bytes, 0);
    self->source = (struct byte_source){.read = read_piece, .context = self};
    return store_open_read(self->store, self->name, &self->object, &self->source.len, err);
}

int metadata_open(struct metadata *self, struct store *store, const char *folder, struct cb_err *err)
{
    *self = (struct metadata){.store = store};
    int code = name_in(folder, STORED_MARKER, self->name, err);
    if (!code)
        code = open_marked(self, err);
    if (code == CB_ERR_NOT_FOUND)
        code = open_unmarked(store, folder, &self->joined, err);
    if (code)
        metadata_close(self);
    return code;
}

int metadata_pass(struct metadata *self, const struct stored_sink *sink, struct cb_err *err)
{
    return self->joined ? stored_checkpoint_pass(self->joined, sink, err)
                        : format_pass_metadata(self->name, &self->source, sink, err);
}

void metadata_close(struct metadata *self)
{
    if (self->object && store_in_flight(self->store) == 0)
        store_close(self->store, self->object);
    self->object = NULL;
    if (self->bytes.data)
        buf_release(&self->bytes);
    stored_checkpoint_free(self->joined);
    self->joined = NULL;
}

int metadata_read_needed(struct store *store, const char *folder, stored_need_fn need, void *context,
                         struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct metadata metadata;
    int code = metadata_open(&metadata, store, folder, err);
    if (code)
        return code;
    struct stored_collector collector = {.name = metadata.name, .need = need, .context = context};
    struct stored_sink sink = stored_collector_sink(&collector);
    if (metadata.joined && !need) {
        *checkpoint = metadata.joined;
        metadata.joined = NULL;
    } else {
        code = metadata_pass(&metadata, &sink, err);
        code = code ? code : stored_collector_take(&collector, checkpoint, err);
    }
    stored_collector_release(&collector);
    metadata_close(&metadata);
    return code;
}

int metadata_read_checkpoint(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                             struct cb_err *err)
{
    return metadata_read_needed(store, folder, NULL, NULL, checkpoint, err);
}

int metadata_read_file(struct store *store, const char *file, struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct collector self = {.store = store, .folder = "", .err = err};
    int code = add_file(&self, file, 0);
    if (!code)
        code = read_safetensors(&self, &self.files[0]);
    return finish(&self, code, checkpoint);
}
