/* UTF-8. Knows nothing but bytes. */
#include "core/utf8.h"

size_t utf8_length(const unsigned char *at)
{
    size_t len = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : at[0] < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < len; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
        (at[0] == 0xF4 && at[1] > 0x8F))
        return 0;
    return len;
}
