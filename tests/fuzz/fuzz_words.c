/* key=value words, a line each, through to the expanded sweep. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "run/sweep.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct setting_list list = {0};
    struct sweep sweep = {0};
    struct cb_err err;
    char *text = malloc(len + 1);
    if (!text)
        return 0;
    memcpy(text, bytes, len);
    text[len] = '\0';
    size_t members = 1;
    char *rest = text;
    for (char *word; (word = strsep(&rest, "\n"));)
        if (strncmp(word, "repeat", 6) != 0 && /* large ones are slow, not wrong */
            setting_parse_word(word, &list, &err) == 0)
            members *= list.items[list.count - 1].value_count;
    if (members < 1000 && sweep_expand(&list, &sweep, &err) == 0 && sweep.count == 0)
        __builtin_trap();
    sweep_release(&sweep);
    setting_list_release(&list);
    free(text);
    return 0;
}
