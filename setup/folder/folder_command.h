/* store.prepare and store.record: commands of the user for the run's folder in a store, such as the striping of its
 * files. */
#ifndef SETUP_FOLDER_FOLDER_COMMAND_H
#define SETUP_FOLDER_FOLDER_COMMAND_H

#include "core/err.h"
#include "run/experiment.h"
#include "setup/folder/lease.h"

#define STORE_PREPARE_FILE "store-prepare.txt"
#define STORE_RECORD_FILE "store-record.txt"

/* Runs the command of `key`, if it is set, for the folder `suffix` in each mount of `store`, and writes the command
 * and its output to `file` of the attempt's folder. A command that fails is an error with its last line. For rank 0. */
int folder_run_command(const struct experiment *experiment, enum option_id key, const char *file, const char *store,
                       const char *suffix, const struct lease_owner *owner, struct cb_err *err) CB_MUST_CHECK;

#endif
