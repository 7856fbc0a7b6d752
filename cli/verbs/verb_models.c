/* ckptbench models: prints the presets with their parameters and bytes. */
#include <string.h>

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "cli/cli.h"
#include "cli/report/table.h"
#include "core/json.h"
#include "core/units.h"

struct preset {
    const char *name, *about, *state;
    uint64_t parameters, bytes;
    const char *dtype;
};

/* Bytes of a whole checkpoint with the state of the preset. */
static int measure(const struct model *model, struct preset *preset, struct cb_err *err)
{
    const struct layout_options options = {.tp = 1,
                                           .pp = 1,
                                           .ep = 1,
                                           .mesh = "",
                                           .sharding = "none",
                                           .pp_split = "balanced",
                                           .state = "auto",
                                           .seed = "0"};
    struct layout *layout;
    int rc = layout_new(model, &options, &layout, err);
    if (rc)
        return rc;
    preset->bytes = layout_total_bytes(layout);
    layout_free(layout);
    return 0;
}

static int read_preset(size_t index, struct preset *preset, struct cb_err *err)
{
    struct model *model;
    *preset = (struct preset){.name = model_preset_name(index), .about = model_preset_about(index)};
    int rc = model_load(preset->name, 0, NULL, &model, err);
    if (rc)
        return rc;
    preset->parameters = model_parameters(model);
    preset->dtype = dtype_name(model->dtype);
    preset->state = model->default_state;
    rc = measure(model, preset, err);
    model_free(model);
    return rc;
}

static void add_row(struct table *table, const struct preset *preset)
{
    char text[32];
    table_add(table, TABLE_BOLD, preset->name);
    table_add(table, TABLE_PLAIN, units_format_count(preset->parameters, text));
    table_add(table, TABLE_PLAIN, preset->dtype);
    table_add(table, TABLE_PLAIN, preset->state);
    table_add(table, TABLE_PLAIN, units_format_bytes((double)preset->bytes, text));
    table_add(table, TABLE_PLAIN, preset->about);
}

static void write_json(struct json_writer *writer, const struct preset *preset)
{
    json_write_begin_object(writer);
    json_member_text(writer, "name", preset->name);
    json_member_u64(writer, "params", preset->parameters);
    json_member_text(writer, "dtype", preset->dtype);
    json_member_text(writer, "state", preset->state);
    json_member_u64(writer, "bytes", preset->bytes);
    json_member_text(writer, "about", preset->about);
    json_write_end_object(writer);
}

static bool is_wanted(const struct cli *cli, size_t index)
{
    bool wanted = cli->word_count == 0;
    for (size_t i = 0; !wanted && i < cli->word_count; i++)
        wanted =
            strcasestr(model_preset_name(index), cli->words[i]) || strcasestr(model_preset_about(index), cli->words[i]);
    return wanted;
}

static int run_models(struct cli *cli, struct cb_err *err)
{
    static const char *const headings[] = {"model", "parameters", "dtype", "state", "checkpoint", "about"};
    struct table table;
    struct json_writer writer;
    size_t found = 0;
    int rc = 0;
    table_init(&table, "lrllrl");
    table_add_headings(&table, headings);
    json_writer_init(&writer, &cli->out, 2);
    if (cli->json)
        json_write_begin_array(&writer);
    for (size_t i = 0; rc == 0 && i < model_preset_count(); i++) {
        struct preset preset;
        if (!is_wanted(cli, i))
            continue;
        found++;
        rc = read_preset(i, &preset, err);
        if (rc == 0 && cli->json)
            write_json(&writer, &preset);
        else if (rc == 0)
            add_row(&table, &preset);
    }
    if (rc == 0 && found == 0) {
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no preset has '%s'; `ckptbench models` lists all", cli->words[0]);
    } else if (rc == 0 && cli->json) {
        json_write_end_array(&writer);
        rc = cli_end_json(cli, err);
    } else if (rc == 0) {
        rc = table_write(&table, 0, cli->colour, &cli->out, err);
    }
    table_release(&table);
    return rc;
}

const struct verb verb_models = {
    .name = "models",
    .arguments = "[WORD…]",
    .summary = "the presets, with parameters and bytes",
    .about = "Shows the presets whose name or description has a WORD. model= takes a preset, the path of an HF "
             "config.json, or a YAML list of name, shape and dtype.",
    .run = run_models,
};
