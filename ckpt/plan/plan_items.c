/* Reads a plan: the items of a rank or a file, and the files' names and lengths. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/safetensors.h"
#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"

static const struct plan_pattern *pattern_of(const struct plan *plan, uint32_t rank)
{
    return &plan->patterns[plan->ranks[rank].pattern];
}

/* --- items --- */

size_t plan_rank_items(const struct plan *plan, uint32_t rank)
{
    if (rank >= plan->world_size)
        return 0;
    const struct plan_pattern *pattern = pattern_of(plan, rank);
    return pattern[1].first_item - pattern->first_item;
}

struct plan_item plan_item_at(const struct plan *plan, uint32_t rank, size_t index)
{
    assert(index < plan_rank_items(plan, rank));
    const struct plan_pattern *pattern = pattern_of(plan, rank);
    const struct plan_rank *place = &plan->ranks[rank];
    struct plan_item item = plan->items[pattern->first_item + index];
    item.file = plan->options.files == FILES_SHARED ? 0 : place->first_file + item.file;
    item.offset += place->first_byte;
    item.payload_offset += place->first_byte;
    if (rank != pattern->rank)
        item.region.offset[0] += (rank - pattern->rank) / plan->rank_step * item.row_step;
    item.row_step = 0;
    return item;
}

int plan_items_of_rank(const struct plan *plan, uint32_t rank, struct plan_item **items, size_t *count,
                       struct cb_err *err)
{
    size_t found = plan_rank_items(plan, rank);
    struct plan_item *made = malloc((found + 1) * sizeof *made);
    if (!made)
        return alloc_fail(err, "for %zu items", found);
    for (size_t i = 0; i < found; i++)
        made[i] = plan_item_at(plan, rank, i);
    *items = made;
    *count = found;
    return 0;
}

int plan_items_of_file(const struct plan *plan, uint32_t file, struct plan_item **items, size_t *count,
                       struct cb_err *err)
{
    uint32_t rank = plan_file_rank(plan, file), end = rank + 1;
    size_t used = 0;
    int code = 0;
    *items = NULL;
    if (plan->options.files == FILES_SHARED)
        end = plan->world_size;
    for (; rank < end && !code; rank++) {
        for (size_t i = 0; i < plan_rank_items(plan, rank) && !code; i++) {
            struct plan_item item = plan_item_at(plan, rank, i);
            if (item.file != file)
                continue;
            code = alloc_grow(items, used, sizeof **items, err);
            if (!code)
                (*items)[used++] = item;
        }
    }
    *count = used;
    return code;
}

/* --- files --- */

uint32_t plan_file_rank(const struct plan *plan, uint32_t file)
{
    uint32_t low = 0, high = plan->world_size; /* the last rank whose first file is not above it */
    assert(file < plan->file_count);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (plan->ranks[middle].first_file <= file)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint64_t plan_file_length(const struct plan *plan, uint32_t file)
{
    uint32_t rank = plan_file_rank(plan, file);
    if (plan->options.files == FILES_SHARED)
        return plan->ranks[plan->world_size].first_byte;
    return plan->lengths[pattern_of(plan, rank)->first_length + file - plan->ranks[rank].first_file];
}

/* --- names; in an object store the varying part comes first, to spread them over its partitions --- */

/* Element `index` modulo their number of "a+b+c". */
static void pick(const char *list, uint32_t index, char *folder, size_t room)
{
    uint32_t count = 1;
    for (const char *c = list; *c; c++)
        count += *c == '+';
    for (index %= count; index > 0; index--)
        list = strchr(list, '+') + 1;
    snprintf(folder, room, "%.*s/", (int)strcspn(list, "+"), list);
}

/* The digits of the rank, the last first, as many as the highest rank has. */
static void reverse_digits(uint32_t rank, uint32_t ranks, uint32_t base, char *folder)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t highest = ranks > 1 ? ranks - 1 : 1;
    for (; highest > 0; highest /= base, rank /= base)
        *folder++ = digits[rank % base];
    *folder++ = '/';
    *folder = '\0';
}

void plan_prefix(const struct plan_options *options, uint32_t rank, uint32_t ranks, char folder[PLAN_PREFIX_BYTES])
{
    folder[0] = '\0';
    if (options->prefix == PREFIX_ROUND_ROBIN)
        pick(options->prefixes, rank, folder, PLAN_PREFIX_BYTES);
    else if (options->prefix == PREFIX_BINARY || options->prefix == PREFIX_HEX)
        reverse_digits(rank, ranks, options->prefix == PREFIX_HEX ? 16 : 2, folder);
}

void plan_file_name(const struct plan *plan, uint32_t file, char name[PLAN_NAME_BYTES])
{
    const struct plan_options *options = &plan->options;
    uint32_t rank = plan_file_rank(plan, file), number = file - plan->ranks[rank].first_file;
    char folder[PLAN_PREFIX_BYTES];
    plan_prefix(options, rank, plan->world_size, folder);
    if (options->fanout)
        snprintf(folder, sizeof folder, "d%05u/", file % options->fanout);
    if (plan->suffix)
        snprintf(name, PLAN_NAME_BYTES, "%s__%u_%u.%s", folder, rank, number, plan->suffix);
    else if (plan->has_parts) /* as other readers expect: the name contains the number of files */
        snprintf(name, PLAN_NAME_BYTES, "%sshard-%05u-model-%05u-of-%05u" SAFETENSORS_SUFFIX, folder, rank + 1,
                 number + 1, plan->most_files);
    else
        snprintf(name, PLAN_NAME_BYTES, "%smodel-%05u-of-%05u" SAFETENSORS_SUFFIX, folder, file + 1,
                 (uint32_t)plan->file_count);
}
