/* Blocks of a terminal, or ASCII letters in their place. */
#include "cli/report/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/ioctl.h>

#define COLUMNS_DEFAULT 80
#define BARS 8 /* heights */

bool blocks_locale_is_utf8(void)
{
    static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *name = getenv(variables[i]);
        if (!name || !*name)
            continue;
        for (; *name; name++)
            if (strncasecmp(name, "utf-8", 5) == 0 || strncasecmp(name, "utf8", 4) == 0)
                return true;
        return false;
    }
    return false;
}

struct blocks blocks_of(int fd)
{
    struct winsize size;
    bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return (struct blocks){.columns = known ? size.ws_col : COLUMNS_DEFAULT, .unicode = blocks_locale_is_utf8()};
}

void blocks_add(const struct blocks *self, enum blocks_kind kind, double share, struct buf *out)
{
    static const struct {
        size_t count;
        const char *blocks[8];
    } sets[2][2] = {
        [BLOCKS_HEIGHT] = {{5, {"_", "-", "=", "+", "#"}}, {8, {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}}},
        [BLOCKS_SHADE] = {{5, {"-", ":", "=", "+", "#"}}, {4, {"░", "▒", "▓", "█"}}},
    };
    size_t count = sets[kind][self->unicode].count;
    if (!(share > 0)) {
        buf_append_char(out, ' ');
        return;
    }
    size_t level = share >= 1 ? count - 1 : (size_t)(share * (double)count);
    buf_append_text(out, sets[kind][self->unicode].blocks[level]);
}

void blocks_add_waiting(const struct blocks *self, struct buf *out)
{
    buf_append_text(out, self->unicode ? "·" : ".");
}

void blocks_add_bars(const struct blocks *self, const double *values, size_t count, struct buf *out)
{
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    for (size_t i = 0; i < count; i++) {
        int bar = most > least ? (int)((values[i] - least) / (most - least) * (BARS - 1) + 0.5) : 3;
        if (self->unicode)
            blocks_add(self, BLOCKS_HEIGHT, (bar + 0.5) / BARS, out);
        else
            buf_append_char(out, (char)('1' + bar));
    }
}
