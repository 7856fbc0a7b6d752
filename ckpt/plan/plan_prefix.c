/* Names that spread over the partitions of an object store: what differs comes first. Pure. */
#include <stdio.h>
#include <string.h>

#include "ckpt/plan/plan_internal.h"

/* "a+b+c", number `index` modulo how many there are. */
static void pick(const char *list, uint32_t index, char *folder, size_t room)
{
    uint32_t count = 1;
    for (const char *c = list; *c; c++)
        count += *c == '+';
    for (index %= count; index > 0; index--)
        list = strchr(list, '+') + 1;
    snprintf(folder, room, "%.*s/", (int)strcspn(list, "+"), list);
}

/* The digits of the rank, the last first, as many as the highest rank has. */
static void reverse_digits(uint32_t rank, uint32_t ranks, uint32_t base, char *folder)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t highest = ranks > 1 ? ranks - 1 : 1;
    for (; highest > 0; highest /= base, rank /= base)
        *folder++ = digits[rank % base];
    *folder++ = '/';
    *folder = '\0';
}

void plan_prefix(const struct plan_options *options, uint32_t rank, uint32_t ranks, char folder[PLAN_PREFIX_BYTES])
{
    folder[0] = '\0';
    if (options->prefix == PREFIX_ROUND_ROBIN)
        pick(options->prefixes, rank, folder, PLAN_PREFIX_BYTES);
    else if (options->prefix == PREFIX_BINARY || options->prefix == PREFIX_HEX)
        reverse_digits(rank, ranks, options->prefix == PREFIX_HEX ? 16 : 2, folder);
}
