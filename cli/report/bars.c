/* Draws bars of text. */
#include "cli/report/bars.h"

#include <math.h>
#include <unistd.h>

#include "cli/report/blocks.h"

#define HEIGHTS 8

bool bars_have_blocks(FILE *stream)
{
    return !isatty(fileno(stream)) || blocks_locale_is_utf8();
}

void bars_write(const double *values, size_t count, bool blocks, struct buf *out)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    for (size_t i = 0; i < count; i++) {
        double height = most > least ? (values[i] - least) / (most - least) * (HEIGHTS - 1) : 3;
        size_t bar = (size_t)(height + 0.5);
        if (blocks)
            buf_append_text(out, bars[bar]);
        else
            buf_append_char(out, (char)('1' + bar));
    }
}
