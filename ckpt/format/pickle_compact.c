/* Removes values of a pickle that are no longer in use, by copying the others: breadth first, so that nothing recurses
 * and values that contain each other are copied once. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/pickle_values.h"

#define TEXT_BLOCK_BYTES ((size_t)64 << 10)

const char *pickle_keep_text(struct pickle *pickle, const char *text, size_t len)
{
    struct pickle_texts *block = pickle->texts;
    if (!block || len > block->capacity - block->len) {
        size_t capacity = len > TEXT_BLOCK_BYTES ? len : TEXT_BLOCK_BYTES;
        block = malloc(sizeof *block + capacity);
        if (!block)
            return NULL;
        *block = (struct pickle_texts){.next = pickle->texts, .capacity = capacity};
        pickle->texts = block;
        pickle->text_bytes += capacity;
    }
    char *kept = block->bytes + block->len;
    memcpy(kept, text, len);
    block->len += len;
    return kept;
}

struct copy {
    const struct pickle *from;
    struct pickle to;
    uint32_t *moved; /* for each old index its new one, or PICKLE_NOWHERE */
    bool failed;
};

static uint32_t copy_node(struct copy *self, uint32_t index)
{
    if (index == PICKLE_NOWHERE)
        return index;
    if (self->moved[index] != PICKLE_NOWHERE)
        return self->moved[index];
    struct pickle_node *node = &self->to.nodes[self->to.node_count];
    *node = self->from->nodes[index];
    if (node->kind == PICKLE_TEXT && self->from->texts) {
        node->value.text = pickle_keep_text(&self->to, node->value.text, node->count);
        self->failed |= !node->value.text;
    }
    return self->moved[index] = self->to.node_count++;
}

/* Each container needs at most the words that it has now, so the new pool has room. */
static void copy_children(struct copy *self, struct pickle_node *node)
{
    struct words *pool = &self->to.pool;
    const uint32_t *children = self->from->pool.data + node->value.first;
    if (node->count == 0)
        return;
    if (node->kind == PICKLE_LIST || node->kind == PICKLE_DICT)
        pool->data[pool->count++] = node->count; /* its capacity */
    node->value.first = pool->count;
    for (uint32_t i = 0; i < node->count; i++)
        pool->data[pool->count++] = copy_node(self, children[i]);
}

bool pickle_compact(struct pickle *pickle, const struct pickle_roots *roots, size_t root_count)
{
    struct copy copy = {.from = pickle};
    struct pickle *to = &copy.to;
    to->node_capacity = pickle->node_count;
    to->pool.capacity = pickle->pool.count;
    to->nodes = malloc((to->node_capacity + 1) * sizeof *to->nodes);
    to->pool.data = malloc((to->pool.capacity + 1) * sizeof *to->pool.data);
    copy.moved = malloc((to->node_capacity + 1) * sizeof *copy.moved);
    copy.failed = !to->nodes || !to->pool.data || !copy.moved;
    if (!copy.failed) {
        memset(copy.moved, 0xff, to->node_capacity * sizeof *copy.moved);
        for (size_t i = 0; i < root_count; i++)
            for (size_t k = 0; k < roots[i].count; k++)
                (void)copy_node(&copy, roots[i].indices[k]);
        for (uint32_t i = 0; i < to->node_count; i++)
            if (pickle_has_children(&to->nodes[i]))
                copy_children(&copy, &to->nodes[i]);
    }
    for (size_t i = 0; i < root_count && !copy.failed; i++)
        for (size_t k = 0; k < roots[i].count; k++)
            roots[i].indices[k] = copy_node(&copy, roots[i].indices[k]);
    free(copy.moved);
    struct pickle unused = copy.failed ? *to : *pickle;
    if (!copy.failed)
        *pickle = *to;
    pickle_release(&unused);
    return !copy.failed;
}
