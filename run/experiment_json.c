/* An experiment as JSON; decides which types stay numbers and booleans. */
#include "run/experiment_json.h"

static void write_value(const struct experiment *self, enum option_id id, struct json_writer *json)
{
    enum option_type type = option_row(id)->type;
    if (type == OPTION_BOOL)
        json_write_bool(json, experiment_bool(self, id));
    else if (type == OPTION_U64)
        json_write_u64(json, experiment_u64(self, id));
    else if (type == OPTION_DOUBLE)
        json_write_double(json, experiment_double(self, id));
    else
        json_write_text(json, experiment_text(self, id));
}

void experiment_write_json(const struct experiment *self, struct json_writer *json)
{
    json_write_begin_object(json);
    for (int i = 0; i < OPTION_COUNT; i++) {
        json_write_key(json, option_row((enum option_id)i)->name);
        write_value(self, (enum option_id)i, json);
    }
    json_write_end_object(json);
}

void experiment_write_labels_json(const struct experiment *self, struct json_writer *json)
{
    json_write_begin_object(json);
    for (size_t i = 0; i < experiment_label_count(self); i++)
        json_member_text(json, experiment_label_key(self, i), experiment_label_value(self, i));
    json_write_end_object(json);
}
