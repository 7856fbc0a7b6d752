#include "core/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef alloc_fail

int alloc_fail(struct cb_err *err, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return cb_fail(err, CB_ERR_MEMORY, "no memory %s", what);
}

int alloc_grow(void *items, size_t count, size_t size, struct cb_err *err)
{
    if (count & (count - 1))
        return 0;
    void *list;
    memcpy(&list, items, sizeof list); /* a pointer of any type */
    list = realloc(list, (count ? 2 * count : 1) * size);
    if (!list)
        return alloc_fail(err, "for a list of %zu items", count + 1);
    memcpy(items, &list, sizeof list);
    return 0;
}

int alloc_add_text(char ***items, size_t *count, const char *text, size_t len, struct cb_err *err)
{
    int rc = alloc_grow(items, *count, sizeof **items, err);
    if (rc)
        return rc;
    (*items)[*count] = strndup(text, len);
    if (!(*items)[*count])
        return alloc_fail(err, "for a text of %zu bytes", len);
    ++*count;
    return 0;
}

void alloc_free_texts(char **items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(items[i]);
    free(items);
}
