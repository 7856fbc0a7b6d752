/* The words that start a program inside a container image. */
#include "run/container.h"

#include <stdio.h>
#include <string.h>

int container_parse(const char *text, struct container *self, struct cb_err *err)
{
    *self = (struct container){0};
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f || strchr("\"'\\`", *at))
            return cb_fail(err, CB_ERR_USAGE,
                           "container=%.100s: words with blanks between them; quotes, backslashes and control "
                           "characters have no meaning there, since no shell reads it",
                           text);
    if (strlen(text) >= sizeof self->text)
        return cb_fail(err, CB_ERR_USAGE, "container=%.100s…: more than %d bytes", text, CONTAINER_MAX_BYTES - 1);
    snprintf(self->text, sizeof self->text, "%s", text);
    for (char *rest = self->text, *word; (word = strtok_r(rest, " ", &rest));) {
        if (self->count == CONTAINER_MAX_WORDS)
            return cb_fail(err, CB_ERR_USAGE, "container=%.100s…: more than %d words", text, CONTAINER_MAX_WORDS);
        self->words[self->count++] = word;
    }
    if (self->count && self->words[0][0] == '-')
        return cb_fail(err, CB_ERR_USAGE, "container=%.100s: the first word is the program that starts the image",
                       text);
    return 0;
}
