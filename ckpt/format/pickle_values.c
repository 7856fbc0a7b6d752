/* Access to the parts of pickled values. */
#include "ckpt/format/pickle_values.h"

#include <stdlib.h>
#include <string.h>

#define MAX_STATE_KEYS 64 /* keys of a dict that is an instance's state: searched linearly */

void pickle_release(struct pickle *pickle)
{
    free(pickle->nodes);
    free(pickle->pool.data);
    while (pickle->texts) {
        struct pickle_texts *block = pickle->texts;
        pickle->texts = block->next;
        free(block);
    }
}

void pickle_free(struct pickle *pickle)
{
    if (!pickle)
        return;
    pickle_release(pickle);
    free(pickle);
}

const struct pickle_node *pickle_root(const struct pickle *pickle)
{
    return &pickle->nodes[pickle->root];
}

const struct pickle_node *pickle_child(const struct pickle *pickle, const struct pickle_node *node, uint32_t index)
{
    if (!node || !pickle_has_children(node) || index >= node->count)
        return NULL;
    return &pickle->nodes[pickle->pool.data[node->value.first + index]];
}

bool pickle_is(const struct pickle *pickle, const struct pickle_node *node, enum pickle_global global)
{
    if (!node || (node->kind != PICKLE_OBJECT && node->kind != PICKLE_CALL))
        return false;
    return pickle_child(pickle, node, 0)->global == global;
}

const struct pickle_node *pickle_arguments(const struct pickle *pickle, const struct pickle_node *node)
{
    return pickle_child(pickle, node, 1);
}

const struct pickle_node *pickle_state(const struct pickle *pickle, const struct pickle_node *node)
{
    const struct pickle_node *state = pickle_child(pickle, node, 2);
    return state && state->kind != PICKLE_NONE ? state : NULL;
}

bool pickle_text_is(const struct pickle_node *node, const char *text)
{
    return node && node->kind == PICKLE_TEXT && node->count == strlen(text) &&
           memcmp(node->value.text, text, node->count) == 0;
}

const struct pickle_node *pickle_get(const struct pickle *pickle, const struct pickle_node *dict, const char *key)
{
    if (!dict || dict->kind != PICKLE_DICT || dict->count > 2 * MAX_STATE_KEYS)
        return NULL;
    size_t len = strlen(key);
    for (uint32_t i = 0; i + 1 < dict->count; i += 2) {
        const uint32_t *pair = &pickle->pool.data[dict->value.first + i];
        const struct pickle_node *found = &pickle->nodes[pair[0]];
        if (found->kind == PICKLE_TEXT && found->count == len && memcmp(found->value.text, key, len) == 0)
            return &pickle->nodes[pair[1]];
    }
    return NULL;
}
