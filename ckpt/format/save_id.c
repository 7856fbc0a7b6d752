/* Generates save ids, and writes and reads them as text. */
#include "ckpt/format/save_id.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"

uint64_t save_id_draw(void)
{
    uint64_t save_id = 0;
    while (save_id == 0)
        random_bytes(&save_id, sizeof save_id);
    return save_id;
}

void save_id_format(uint64_t save_id, char text[SAVE_ID_TEXT_BYTES])
{
    snprintf(text, SAVE_ID_TEXT_BYTES, "%016" PRIx64, save_id);
}

uint64_t save_id_parse(const char *text, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t save_id = 0;
    if (len != SAVE_ID_TEXT_BYTES - 1)
        return 0;
    for (size_t i = 0; i < len; i++) {
        const char *digit = memchr(digits, text[i], sizeof digits - 1);
        if (!digit)
            return 0;
        save_id = save_id << 4 | (uint64_t)(digit - digits);
    }
    return save_id;
}
