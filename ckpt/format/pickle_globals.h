/* The classes and functions that the pickle of a checkpoint may name; all others are rejected. */
#ifndef CKPT_FORMAT_PICKLE_GLOBALS_H
#define CKPT_FORMAT_PICKLE_GLOBALS_H

#include "ckpt/format/pickle.h"

/* Fills `global` and `dtype` of the node; false if the name is not on the list. */
bool pickle_find_global(const char *module, size_t module_len, const char *name, size_t name_len,
                        struct pickle_node *node);

#endif
