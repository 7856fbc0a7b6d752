/* An experiment as JSON: what documents, exports and the history hold of it. */
#ifndef RUN_EXPERIMENT_JSON_H
#define RUN_EXPERIMENT_JSON_H

#include "core/json.h"
#include "run/experiment.h"

/* {"model": "gpt2", "tp": 2, …} of every key: numbers and booleans as such, all else as its canonical text. */
void experiment_write_json(const struct experiment *self, struct json_writer *json);
/* {"kind": "nightly", …} */
void experiment_write_labels_json(const struct experiment *self, struct json_writer *json);

#endif
