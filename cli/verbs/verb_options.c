/* ckptbench options: prints every key of the option table. */
#include <string.h>
#include <strings.h>

#include "cli/cli.h"
#include "cli/listing.h"
#include "core/nearest_word.h"
#include "core/units.h"
#include "run/aliases.h"
#include "run/options.h"

/* Settings that are accepted in addition to keys of an experiment. They have no value to check. */
static const struct option beside[] = {
    {.name = "label.NAME",
     .type = OPTION_TEXT,
     .class = OPTION_COSMETIC,
     .fallback = "",
     .choices = "",
     .unit = "",
     .help = "a label of yours, to find and to compare runs by"},
    {.name = "zip",
     .type = OPTION_TEXT,
     .class = OPTION_EXECUTION,
     .fallback = "",
     .choices = "",
     .unit = "",
     .help = "keys that sweep together: zip=ranks,tp"},
};

/* The allowed values of a key, in a few words. */
static void describe_values(const struct option *row, struct buf *out)
{
    char min[32], max[32];
    switch (row->type) {
    case OPTION_ENUM:
        buf_append_text(out, row->choices);
        break;
    case OPTION_BOOL:
        buf_append_text(out, "true|false");
        break;
    case OPTION_BYTES:
        buf_printf(out, "%s … %s", units_format_bytes_exact(row->min, min),
                   row->max ? units_format_bytes_exact(row->max, max) : "");
        break;
    case OPTION_U64:
        if (row->max)
            buf_printf(out, "%llu … %llu", (unsigned long long)row->min, (unsigned long long)row->max);
        else
            buf_printf(out, "%llu …", (unsigned long long)row->min);
        break;
    case OPTION_DURATION:
        buf_printf(out, "%s …", units_format_duration_exact(row->min, min));
        break;
    default:
        buf_append_text(out, option_type_name(row->type));
    }
}

/* Names of keys in other tools. */
static bool is_alias_of(const struct alias *alias, const struct option *row)
{
    return option_row(alias->id) == row;
}

static bool has_alias(const struct option *row, const char *word)
{
    const struct alias *found = alias_find(word);
    bool has = found && is_alias_of(found, row);
    for (size_t i = 0; !has && i < alias_count(); i++)
        has = is_alias_of(alias_row(i), row) &&
              (strcasestr(alias_row(i)->word, word) || strcasestr(alias_row(i)->tool, word));
    return has;
}

static void write_aliases(const struct option *row, struct buf *out)
{
    size_t count = 0;
    for (size_t i = 0; i < alias_count(); i++)
        if (is_alias_of(alias_row(i), row))
            buf_printf(out, "%s%s", count++ ? ", " : " (also ", alias_row(i)->word);
    if (count)
        buf_append_char(out, ')');
}

static bool is_wanted(const struct option *row, const struct cli *cli)
{
    bool wanted = cli->word_count == 0;
    for (size_t i = 0; !wanted && i < cli->word_count; i++)
        wanted = strcasestr(row->name, cli->words[i]) || strcasestr(row->help, cli->words[i]) ||
                 strcasestr(row->choices, cli->words[i]) || strcmp(option_class_name(row->class), cli->words[i]) == 0 ||
                 has_alias(row, cli->words[i]);
    return wanted;
}

static int add_row(struct listing *list, const struct option *row, struct cb_err *err)
{
    bool json = list->cli->json;
    struct buf values, help;
    buf_init(&values, 1024);
    buf_init(&help, 4096);
    describe_values(row, &values);
    buf_append_text(&help, row->help);
    if (!json)
        write_aliases(row, &help);
    listing_begin_row(list);
    listing_text(list, "name", TABLE_BOLD, row->name);
    if (json) {
        json_member_text(&list->json, "type", option_type_name(row->type));
        json_member_text(&list->json, "class", option_class_name(row->class));
        json_member_text(&list->json, "default", row->fallback);
    } else {
        table_add(&list->table, TABLE_PLAIN, *row->fallback ? row->fallback : "''");
    }
    listing_text(list, "values", TABLE_PLAIN, values.data);
    listing_text(list, "unit", TABLE_PLAIN, row->unit);
    if (!json)
        table_add(&list->table, TABLE_DIM, option_class_name(row->class));
    listing_text(list, "help", TABLE_PLAIN, help.data);
    if (json) {
        json_member_array(&list->json, "aliases");
        for (size_t i = 0; i < alias_count(); i++)
            if (is_alias_of(alias_row(i), row))
                json_write_text(&list->json, alias_row(i)->word);
        json_write_end_array(&list->json);
    }
    listing_end_row(list);
    int rc = buf_check(&values, row->name, err);
    if (!rc)
        rc = buf_check(&help, row->name, err);
    buf_release(&values);
    buf_release(&help);
    return rc;
}

/* Without a match: the words are search terms, but the user may have meant a key, so a similar key is suggested. */
static int fail_unmatched(const struct cli *cli, struct cb_err *err)
{
    const char *names[OPTION_COUNT];
    for (size_t i = 0; i < OPTION_COUNT; i++)
        names[i] = option_row((enum option_id)i)->name;
    const char *nearest = nearest_word(cli->words[0], names, OPTION_COUNT);
    return cb_fail(err, CB_ERR_NOT_FOUND, "no key has %s%s in its name, meaning, choices, class or aliases%s%s%s",
                   cli->words[0], cli->word_count > 1 ? " or another of these words" : "",
                   nearest ? ": did you mean '" : "", nearest ? nearest : "",
                   nearest ? "'?" : "; `ckptbench options` lists all");
}

static int run_options(struct cli *cli, struct cb_err *err)
{
    static const char *const headings[] = {"key", "default", "values", "unit", "class", "meaning"};
    struct listing list;
    int rc = 0;
    listing_init(&list, cli, 2, "llllll", headings);
    for (size_t i = 0; rc == 0 && i < OPTION_COUNT + sizeof beside / sizeof *beside; i++) {
        const struct option *row = i < OPTION_COUNT ? option_row((enum option_id)i) : &beside[i - OPTION_COUNT];
        if (is_wanted(row, cli))
            rc = add_row(&list, row, err);
    }
    if (rc == 0 && list.count == 0)
        rc = fail_unmatched(cli, err);
    return listing_end(&list, rc, err);
}

const struct verb verb_options = {
    .name = "options",
    .arguments = "[WORD…]",
    .summary = "every key: type, range, unit, default, meaning",
    .about =
        "Shows the keys whose name, meaning, choices, class (identity, place, execution, cosmetic) or name in another "
        "tool have a WORD. Names of other tools (world_size, thread_count, s3.uri, num_checkpoints_write) are "
        "accepted when settings are read, and what they mean is said once.",
    .example = "ckptbench options io",
    .run = run_options,
};
