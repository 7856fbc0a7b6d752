/* Memory: one message for running out of it, and lists that grow. Includes <stdlib.h> for its users. Thread-safe. */
#ifndef CORE_ALLOC_H
#define CORE_ALLOC_H

#include <stdlib.h>

#include "core/err.h"

/* Fails with CB_ERR_MEMORY and "no memory " followed by the text: "for 12 files", "to list /data". Returns the code. */
int alloc_fail(struct cb_err *err, const char *format, ...) CB_PRINTF(2, 3);

/* Makes room for one more item in a list of `count` items of `size` bytes. `items` is the address of the pointer to
 * the list (NULL if empty), which changes when the list is reallocated: at 0 items and at powers of two, so only this
 * function may grow the list. On failure the list is unchanged. */
int alloc_grow(void *items, size_t count, size_t size, struct cb_err *err) CB_MUST_CHECK;

/* A list of owned texts: the first function appends a copy of the first `len` bytes, the second frees all. */
int alloc_add_text(char ***items, size_t *count, const char *text, size_t len, struct cb_err *err) CB_MUST_CHECK;
void alloc_free_texts(char **items, size_t count);

#ifdef __clang_analyzer__ /* for the static analyzer, which does not see across files: this never returns 0 */
#define alloc_fail(err, ...) (alloc_fail(err, __VA_ARGS__), CB_ERR_MEMORY)
#endif

#endif
