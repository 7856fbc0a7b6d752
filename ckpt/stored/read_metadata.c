/* Finds the files that make a checkpoint in a folder.
 *
 * Without an index only the numbers in the names of safetensors files (model-00002-of-00003, shard-00002-model-…) can
 * reveal that one is missing. */
#include "ckpt/stored/read_metadata.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/catalogue.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/stored.h"
#include "ckpt/stored/read_rank_metadata.h"
#include "core/alloc.h"

#define MAX_METADATA_BYTES (UINT64_C(8) << 30)
#define MAX_INDEX_BYTES (UINT64_C(1) << 30)
#define FRONT_BYTES 65536 /* enough for the header of most files; aligned for any store */

struct file {
    char *name; /* in the checkpoint's folder */
    uint64_t bytes;
    struct safetensors_header header;
};

/* The chunk of one entry of a file's header, until all are sorted by tensor. */
struct part {
    const struct safetensors_entry *entry;
    uint32_t file;
};

struct collector {
    struct store *store;
    const char *folder;
    struct file *files;
    size_t file_count, file_capacity;
    char *index;     /* name of the index file; NULL if there is none */
    uint32_t *ranks; /* that have a DCP metadata file of their own */
    size_t rank_count, rank_capacity;
    struct safetensors_index_entry *wanted;
    size_t wanted_count;
    struct part *parts;
    size_t part_count;
    struct cb_err *err;
};

static int no_memory(struct collector *self)
{
    return alloc_fail(self->err, "for what the checkpoint in %s has", self->folder);
}

/* "FOLDER/NAME", or NAME in the store itself. */
static int name_in(const char *folder, const char *name, char text[PATH_MAX], struct cb_err *err)
{
    int len = snprintf(text, PATH_MAX, "%s%s%s", folder, *folder ? "/" : "", name);
    return len < PATH_MAX ? 0 : cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", folder, name);
}

/* --- which files there are --- */

static bool has_suffix(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

static int add_file(struct collector *self, const char *name, uint64_t bytes)
{
    if (self->file_count == self->file_capacity) {
        size_t capacity = self->file_capacity ? 2 * self->file_capacity : 64;
        struct file *files = realloc(self->files, capacity * sizeof *files);
        if (!files)
            return no_memory(self);
        self->files = files;
        self->file_capacity = capacity;
    }
    struct file *file = &self->files[self->file_count];
    *file = (struct file){.name = strdup(name), .bytes = bytes};
    if (!file->name)
        return no_memory(self);
    self->file_count++;
    return 0;
}

static int add_rank(struct collector *self, uint32_t rank)
{
    if (self->rank_count == self->rank_capacity) {
        size_t capacity = self->rank_capacity ? 2 * self->rank_capacity : 64;
        uint32_t *ranks = realloc(self->ranks, capacity * sizeof *ranks);
        if (!ranks)
            return no_memory(self);
        self->ranks = ranks;
        self->rank_capacity = capacity;
    }
    self->ranks[self->rank_count++] = rank;
    return 0;
}

static int look_at(void *context, const char *path, uint64_t bytes, struct cb_err *err)
{
    struct collector *self = context;
    size_t len = strlen(self->folder);
    const char *name = len > 0 && strncmp(path, self->folder, len) == 0 && path[len] == '/' ? path + len + 1 : path;
    uint32_t rank;
    if (strchr(name, '/'))
        return 0;
    if (metadata_is_of_rank(name, &rank))
        return add_rank(self, rank);
    if (has_suffix(name, SAFETENSORS_SUFFIX))
        return add_file(self, name, bytes);
    if (!has_suffix(name, SAFETENSORS_SUFFIX ".index.json"))
        return 0;
    if (self->index)
        return cb_fail(err, CB_ERR_FORMAT, "there are two indexes, %s and %s: which is meant?", self->index, name);
    self->index = strdup(name);
    return self->index ? 0 : no_memory(self);
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

static struct file *find_file(struct collector *self, const char *name)
{
    struct file key = {.name = (char *)name};
    return self->file_count > 0 ? bsearch(&key, self->files, self->file_count, sizeof key, compare_files) : NULL;
}

/* The number after the last `mark` of a name, 0 if there is none. */
static uint64_t number_after(const char *name, const char *mark)
{
    const char *at = strstr(name, mark);
    return at ? strtoull(at + strlen(mark), NULL, 10) : 0;
}

/* Numbered files must all be there: shards 1 … n, and the files 1 … n that "of-n" speaks of. */
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

/* --- headers --- */

/* The first bytes of a file, as many as are asked for and more, in memory that O_DIRECT takes. */
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

static int read_header(struct collector *self, struct file *file)
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
    return code;
}

/* --- the index --- */

static int read_index(struct collector *self)
{
    struct buf text;
    char name[PATH_MAX];
    buf_init(&text, MAX_INDEX_BYTES);
    int code = name_in(self->folder, self->index, name, self->err);
    if (!code)
        code = store_read_small(self->store, name, &text, self->err);
    if (!code)
        code = safetensors_read_index(self->index, text.data, text.len, &self->wanted, &self->wanted_count, self->err);
    buf_release(&text);
    return code;
}

static int compare_wanted(const void *a, const void *b)
{
    const struct safetensors_index_entry *x = a, *y = b;
    return strcmp(x->fqn, y->fqn);
}

/* Files that the index does not name do not belong to the checkpoint. */
static int keep_wanted_files(struct collector *self)
{
    bool *named = calloc(self->file_count + 1, sizeof *named);
    if (!named)
        return no_memory(self);
    int code = 0;
    for (size_t i = 0; i < self->wanted_count && !code; i++) {
        const struct file *file = find_file(self, self->wanted[i].file);
        if (file)
            named[file - self->files] = true;
        else
            code = cb_fail(self->err, CB_ERR_NOT_FOUND, "%s: %s should be in %s, which is missing", self->index,
                           self->wanted[i].fqn, self->wanted[i].file);
    }
    size_t kept = 0;
    for (size_t i = 0; i < self->file_count && !code; i++) {
        if (named[i])
            self->files[kept++] = self->files[i];
        else
            free(self->files[i].name);
    }
    if (!code)
        self->file_count = kept;
    free(named);
    return code;
}

/* Whether the index puts this entry of a file here; all do without an index. */
static bool is_wanted(struct collector *self, const struct safetensors_entry *entry, const struct file *file)
{
    struct safetensors_index_entry key = {.fqn = entry->fqn};
    if (!self->index)
        return true;
    const struct safetensors_index_entry *found =
        self->wanted_count > 0 ? bsearch(&key, self->wanted, self->wanted_count, sizeof key, compare_wanted) : NULL;
    return found && strcmp(found->file, file->name) == 0;
}

/* --- from headers to a stored checkpoint --- */

static int compare_parts(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->entry->fqn, y->entry->fqn);
    return order ? order : x->file < y->file ? -1 : x->file > y->file;
}

static int list_parts(struct collector *self)
{
    size_t count = 0;
    for (size_t i = 0; i < self->file_count; i++)
        count += self->files[i].header.entry_count;
    self->parts = malloc((count + 1) * sizeof *self->parts);
    if (!self->parts)
        return no_memory(self);
    for (size_t i = 0; i < self->file_count; i++) {
        const struct file *file = &self->files[i];
        for (size_t k = 0; k < file->header.entry_count; k++) {
            if (is_wanted(self, &file->header.entries[k], file))
                self->parts[self->part_count++] = (struct part){&file->header.entries[k], (uint32_t)i};
        }
    }
    qsort(self->parts, self->part_count, sizeof *self->parts, compare_parts);
    if (self->index && self->part_count < self->wanted_count)
        return cb_fail(self->err, CB_ERR_CORRUPT, "%s names %zu tensors, but its files have only %zu of them",
                       self->index, self->wanted_count, self->part_count);
    return 0;
}

static int add_tensor(struct collector *self, struct stored_checkpoint *checkpoint, size_t *next)
{
    const struct safetensors_entry *first = self->parts[*next].entry;
    struct stored_tensor *tensor = &checkpoint->tensors[checkpoint->tensor_count];
    *tensor = (struct stored_tensor){.fqn = strdup(first->fqn),
                                     .dtype = first->dtype,
                                     .dims = first->region.dims,
                                     .first_chunk = (uint32_t)checkpoint->chunk_count};
    if (!tensor->fqn)
        return no_memory(self);
    checkpoint->tensor_count++;
    for (; *next < self->part_count && strcmp(self->parts[*next].entry->fqn, tensor->fqn) == 0; ++*next) {
        const struct safetensors_entry *entry = self->parts[*next].entry;
        if (entry->dtype != tensor->dtype || entry->region.dims != tensor->dims)
            return cb_fail(self->err, CB_ERR_CORRUPT, "%s: its parts in %s and %s have different types or shapes",
                           tensor->fqn, self->files[self->parts[tensor->first_chunk].file].name,
                           self->files[self->parts[*next].file].name);
        for (uint32_t i = 0; i < tensor->dims; i++) {
            uint64_t end = entry->region.offset[i] + entry->region.size[i];
            tensor->shape[i] = end > tensor->shape[i] ? end : tensor->shape[i];
        }
        checkpoint->chunks[checkpoint->chunk_count++] = (struct stored_chunk){
            .region = entry->region, .file = self->parts[*next].file, .offset = entry->offset, .length = entry->bytes};
        tensor->chunk_count++;
    }
    return 0;
}

static int add_values(struct collector *self, struct stored_checkpoint *checkpoint)
{
    for (size_t i = 0; i < self->file_count; i++) {
        struct safetensors_header *header = &self->files[i].header;
        for (size_t k = 0; k < header->value_count; k++) {
            struct stored_tensor *tensor = &checkpoint->tensors[checkpoint->tensor_count++];
            *tensor = (struct stored_tensor){.is_bytes = true,
                                             .dtype = DTYPE_U8,
                                             .fqn = header->values[k].fqn,
                                             .literal = header->values[k].literal};
            header->values[k] = (struct safetensors_value){0}; /* handed over */
        }
    }
    return 0;
}

static int build(struct collector *self, struct stored_checkpoint *checkpoint)
{
    size_t tensors = self->part_count;
    bool parts = false;
    for (size_t i = 0; i < self->file_count; i++) {
        tensors += self->files[i].header.value_count;
        parts |= self->files[i].header.parts;
    }
    /* PyTorch gives its sharding info to whole tensors, too: an index says that they are. */
    checkpoint->format = safetensors_format_of(parts && !self->index);
    checkpoint->marked = self->index != NULL;
    checkpoint->tensors = calloc(tensors + 1, sizeof *checkpoint->tensors);
    checkpoint->chunks = calloc(self->part_count + 1, sizeof *checkpoint->chunks);
    checkpoint->files = calloc(self->file_count + 1, sizeof *checkpoint->files);
    if (!checkpoint->tensors || !checkpoint->chunks || !checkpoint->files || self->part_count >= UINT32_MAX)
        return no_memory(self);
    int code = 0;
    for (size_t next = 0; next < self->part_count && !code;)
        code = add_tensor(self, checkpoint, &next);
    for (size_t i = 0; i < self->file_count && !code; i++) {
        checkpoint->files[checkpoint->file_count++] = self->files[i].name;
        self->files[i].name = NULL; /* handed over */
    }
    if (!code)
        code = add_values(self, checkpoint);
    return code ? code : stored_checkpoint_settle(checkpoint, "safetensors", self->err);
}

/* Files of ours name what commits them: without it a save or a conversion ended before its end, however whole the
 * files look. Others' files need no marker. */
static int check_committed(struct collector *self)
{
    for (size_t i = 0; i < self->file_count; i++)
        if (self->files[i].header.marker)
            return cb_fail(self->err, CB_ERR_CORRUPT,
                           "%s is of a checkpoint that was never committed: there is no %s beside it",
                           self->files[i].name, self->files[i].header.marker);
    return 0;
}

static int collect_safetensors(struct collector *self, struct stored_checkpoint **checkpoint)
{
    int code = 0;
    if (self->file_count > 0)
        qsort(self->files, self->file_count, sizeof *self->files, compare_files);
    if (self->index) {
        code = read_index(self);
        if (!code && self->wanted_count > 0)
            qsort(self->wanted, self->wanted_count, sizeof *self->wanted, compare_wanted);
        if (!code)
            code = keep_wanted_files(self);
    } else {
        code = check_names(self);
    }
    for (size_t i = 0; i < self->file_count && !code; i++)
        code = read_header(self, &self->files[i]);
    if (!code && !self->index)
        code = check_committed(self);
    if (!code)
        code = list_parts(self);
    struct stored_checkpoint *made = code ? NULL : calloc(1, sizeof *made);
    if (!code)
        code = made ? build(self, made) : no_memory(self);
    if (code)
        stored_checkpoint_free(made);
    else
        *checkpoint = made;
    return code;
}

static void release(struct collector *self)
{
    for (size_t i = 0; i < self->file_count; i++) {
        free(self->files[i].name);
        safetensors_header_release(&self->files[i].header);
    }
    free(self->files);
    free(self->index);
    free(self->ranks);
    free(self->parts);
    safetensors_index_free(self->wanted, self->wanted_count);
}

/* --- the calls --- */

/* Without a .metadata: ranks' own, or safetensors. */
static int open_unmarked(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                         struct cb_err *err)
{
    struct collector self = {.store = store, .folder = folder, .err = err};
    int code = store_list_near(store, folder, 0, look_at, &self, err);
    if (!code && self.file_count == 0 && !self.index && self.rank_count == 0)
        code = cb_fail(err, CB_ERR_NOT_FOUND, "there is no complete checkpoint at %s: it has no %s and no safetensors",
                       *folder ? folder : "this place", STORED_MARKER);
    if (!code)
        code = self.rank_count > 0 ? metadata_read_ranks(store, folder, self.ranks, self.rank_count, checkpoint, err)
                                   : collect_safetensors(&self, checkpoint);
    release(&self);
    return code;
}

int metadata_read(struct store *store, const char *folder, struct buf *out, struct cb_err *err)
{
    char marker[PATH_MAX];
    size_t begin = out->len;
    int code = name_in(folder, STORED_MARKER, marker, err);
    if (!code)
        code = store_read_small(store, marker, out, err);
    if (code != CB_ERR_NOT_FOUND)
        return code;
    out->len = begin;
    struct stored_checkpoint *checkpoint;
    code = open_unmarked(store, folder, &checkpoint, err);
    if (code)
        return code;
    code = catalogue_write(checkpoint, out, err);
    stored_checkpoint_free(checkpoint);
    return code;
}

int metadata_read_checkpoint(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                             struct cb_err *err)
{
    char marker[PATH_MAX];
    struct buf bytes;
    buf_init(&bytes, MAX_METADATA_BYTES);
    int code = name_in(folder, STORED_MARKER, marker, err);
    if (!code)
        code = store_read_small(store, marker, &bytes, err);
    if (code == CB_ERR_NOT_FOUND)
        code = open_unmarked(store, folder, checkpoint, err);
    else if (!code)
        code = format_read_metadata(marker, bytes.data, bytes.len, checkpoint, err);
    buf_release(&bytes);
    return code;
}

int metadata_read_file(struct store *store, const char *file, struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct collector self = {.store = store, .folder = "", .err = err};
    int code = add_file(&self, file, 0);
    if (!code)
        code = read_header(&self, &self.files[0]);
    if (!code)
        code = list_parts(&self);
    struct stored_checkpoint *made = code ? NULL : calloc(1, sizeof *made);
    if (!code)
        code = made ? build(&self, made) : no_memory(&self);
    release(&self);
    if (code)
        stored_checkpoint_free(made);
    else
        *checkpoint = made;
    return code;
}
