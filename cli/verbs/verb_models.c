/* ckptbench models: prints the presets with their parameters and bytes. */
#include <string.h>

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "cli/cli.h"
#include "cli/listing.h"
#include "core/units.h"

/* Adds a preset, with the bytes of a complete checkpoint of its default state. */
static int add_preset(struct listing *list, size_t index, struct cb_err *err)
{
    const struct layout_options options = {.tp = 1,
                                           .pp = 1,
                                           .ep = 1,
                                           .mesh = "",
                                           .sharding = "none",
                                           .pp_split = "balanced",
                                           .state = "auto",
                                           .seed = "0"};
    char text[32];
    struct model *model;
    struct layout *layout = NULL;
    int rc = model_load(model_preset_name(index), 0, NULL, &model, err);
    if (rc)
        return rc;
    rc = layout_new(model, &options, &layout, err);
    if (rc == 0) {
        listing_begin_row(list);
        listing_text(list, "name", TABLE_BOLD, model_preset_name(index));
        listing_u64_as(list, "params", model_parameters(model), units_format_count(model_parameters(model), text));
        listing_text(list, "dtype", TABLE_PLAIN, dtype_name(model->dtype));
        listing_text(list, "state", TABLE_PLAIN, model->default_state);
        listing_bytes(list, "bytes", layout_total_bytes(layout));
        listing_text(list, "about", TABLE_PLAIN, model_preset_about(index));
        listing_end_row(list);
    }
    layout_free(layout);
    model_free(model);
    return rc;
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
    struct listing list;
    int rc = 0;
    listing_init(&list, cli, 2, "lrllrl", headings);
    for (size_t i = 0; rc == 0 && i < model_preset_count(); i++)
        if (is_wanted(cli, i))
            rc = add_preset(&list, i, err);
    if (rc == 0 && list.count == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no preset has '%s'; `ckptbench models` lists all", cli->words[0]);
    return listing_end(&list, rc, err);
}

const struct verb verb_models = {
    .name = "models",
    .arguments = "[WORD…]",
    .summary = "the presets, with parameters and bytes",
    .about = "Shows the presets whose name or description has a WORD. model= takes a preset, the path of an HF "
             "config.json, or a YAML list of name, shape and dtype.",
    .run = run_models,
};
