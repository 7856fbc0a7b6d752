/* An experiment as JSON, as used by documents, exports and the history. */
#ifndef RUN_EXPERIMENT_JSON_H
#define RUN_EXPERIMENT_JSON_H

#include "core/json.h"
#include "run/experiment.h"

/* {"model": "gpt2", "tp": 2, …} with every key: numbers and booleans as such, other types as their canonical text. */
void experiment_write_json(const struct experiment *self, struct json_writer *json);
/* {"kind": "nightly", …} */
void experiment_write_labels_json(const struct experiment *self, struct json_writer *json);

#endif
