/* Names that spread over the partitions of an object store: what differs comes first. Pure. */
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format_ops.h"
#include "ckpt/plan/plan_internal.h"
#include "store/kind.h"

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

static int check_list(const char *list, struct cb_err *err)
{
    for (const char *name = list;; name++) {
        size_t len = strcspn(name, "+");
        if (len == 0 || name[0] == '.' || memchr(name, '/', len))
            return cb_fail(err, CB_ERR_USAGE,
                           "s3.prefixes=%s: s3.prefix_strategy=round_robin needs names for its folders, as a+b+c",
                           list);
        name += len;
        if (!*name)
            return 0;
    }
}

int plan_prefix_read(const struct experiment *experiment, struct plan_options *options, struct cb_err *err)
{
    const char *list = experiment_text(experiment, OPT_S3_PREFIXES);
    if (!store_uri_of(experiment_text(experiment, OPT_STORE))
             .kind->is_objects) /* other stores have no partitions by name */
        return 0;
    options->prefix = experiment_is(experiment, OPT_S3_PREFIX_STRATEGY, "round_robin") ? PREFIX_ROUND_ROBIN
                      : experiment_is(experiment, OPT_S3_PREFIX_STRATEGY, "binary")    ? PREFIX_BINARY
                      : experiment_is(experiment, OPT_S3_PREFIX_STRATEGY, "hex")       ? PREFIX_HEX
                                                                                       : PREFIX_NONE;
    if (options->prefix == PREFIX_NONE)
        return 0;
    if (!format_ops_of(options->format)->has_folders)
        return cb_fail(err, CB_ERR_USAGE,
                       "s3.prefix_strategy needs format=dcp or raw: others keep their files in one folder");
    if (options->fanout > 0)
        return cb_fail(err, CB_ERR_USAGE, "s3.prefix_strategy and io.fanout both name the folders of files: use one");
    if (options->prefix != PREFIX_ROUND_ROBIN)
        return 0;
    if (strlen(list) >= sizeof options->prefixes)
        return cb_fail(err, CB_ERR_USAGE, "s3.prefixes is too long (%zu bytes)", strlen(list));
    snprintf(options->prefixes, sizeof options->prefixes, "%s", list);
    return check_list(list, err);
}
