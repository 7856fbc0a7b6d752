/* Draws bars of text. */
#include "cli/report/bars.h"

#include <math.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define HEIGHTS 8

bool bars_have_blocks(FILE *stream)
{
    static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    if (!isatty(fileno(stream)))
        return true;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *locale = getenv(variables[i]); /* as "en_GB.UTF-8@euro" */
        if (!locale || !*locale)
            continue;
        for (; *locale; locale++)
            if (strncasecmp(locale, ".utf-8", 6) == 0 || strncasecmp(locale, ".utf8", 5) == 0)
                return true;
        return false;
    }
    return false;
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
