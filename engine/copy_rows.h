/* Copies rows in this machine's memory, of which most are one element. */
#ifndef ENGINE_COPY_ROWS_H
#define ENGINE_COPY_ROWS_H

#include <stdint.h>
#include <string.h>

/* `rows` rows of `row_bytes`; the strides are the distances from row to row. A constant length is a single move. */
static inline void copy_rows(char *to, uint64_t to_stride, const char *from, uint64_t from_stride, uint64_t row_bytes,
                             uint64_t rows)
{
    for (uint64_t i = 0; i < rows; i++, from += from_stride, to += to_stride) {
        switch (row_bytes) {
        case 1:
            *to = *from;
            break;
        case 2:
            memcpy(to, from, 2);
            break;
        case 4:
            memcpy(to, from, 4);
            break;
        case 8:
            memcpy(to, from, 8);
            break;
        default:
            memcpy(to, from, row_bytes);
        }
    }
}

#endif
