/* Verifies that files belong to the same save as the metadata: those of the checkpoint, and those in its folders
 * copy-N/. */
#include <stdio.h>
#include <string.h>

#include "ckpt/format/save_id.h"
#include "ckpt/stored/save_places.h"
#include "ckpt/stored/verify_internal.h"
#include "core/alloc.h"
#include "store/name_list.h"

static const char copy[] = "copy-";

/* The part of a name after "copy-N/", or NULL. */
static const char *inside_copy(const char *name)
{
    if (strncmp(name, copy, strlen(copy)) != 0)
        return NULL;
    const char *number = name + strlen(copy), *end = number + strspn(number, "0123456789");
    return end > number && *end == '/' ? end + 1 : NULL;
}

static void check_file(struct verifier *self, const char *name, const struct save_place *place)
{
    char front[SAVE_ID_FRONT_BYTES];
    if (place->bytes == 0)
        return;
    int code = verify_read_front(self, name, place->offset, front, place->bytes);
    if (code && !inside_copy(name))
        return; /* its items are reported */
    if (!code)
        code = format_check_save(self->checkpoint, place->is_value, front, place->bytes, self->err);
    if (code && !atomic_load(&self->shared->stopped))
        verify_report(self, VERIFY_CORRUPT, name, NULL, place->offset, "%s: %s", name, self->err->message);
}

/* --- copies --- */

static int collect_copy(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)length;
    return inside_copy(name) ? name_list_add(context, name, err) : 0;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(**(char **const *)a, **(char **const *)b);
}

static void check_listed(struct verifier *self, const struct name_list *copies, char ***files,
                         const struct save_place *places)
{
    size_t count = self->checkpoint->file_count;
    for (size_t i = 0; i < count; i++)
        files[i] = &self->checkpoint->files[i];
    if (count > 0)
        qsort(files, count, sizeof *files, compare_files);
    for (size_t i = 0; i < copies->count && !atomic_load(&self->shared->stopped); i++) {
        char *inside = (char *)inside_copy(copies->names[i]), **key = &inside;
        char ***found = count > 0 ? bsearch(&key, files, count, sizeof *files, compare_files) : NULL;
        if (found)
            check_file(self, copies->names[i], &places[*found - self->checkpoint->files]);
    }
}

static int check_copies(struct verifier *self, const struct save_place *places)
{
    struct name_list copies = {0};
    char ***files = NULL;
    int code = store_list(self->store, "", collect_copy, &copies, self->err);
    if (!code && copies.count > 0) {
        name_list_sort(&copies);
        files = malloc((self->checkpoint->file_count + 1) * sizeof *files);
        if (files)
            check_listed(self, &copies, files, places);
        else
            code = alloc_fail(self->err, "for %zu files", self->checkpoint->file_count);
    }
    free(files);
    name_list_release(&copies);
    return code;
}

int verify_saves(struct verifier *self)
{
    const struct verify_job *job = self->job;
    struct save_place *places = NULL;
    if (!self->checkpoint->save_id)
        return 0;
    int code = save_places_of(self->checkpoint, &places, self->err);
    for (uint32_t i = 0; i < self->checkpoint->file_count && !code; i++) {
        if (verify_is_mine(job, i) && verify_file(self, i)->there && !atomic_load(&self->shared->stopped))
            check_file(self, self->checkpoint->files[i], &places[i]);
    }
    if (!code && verify_is_mine(job, 0))
        code = check_copies(self, places);
    free(places);
    return code;
}
