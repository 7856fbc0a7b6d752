/* store.prepare: a command of the user for the run's new folder in a store, such as the striping of its files. */
#ifndef SETUP_FOLDER_FOLDER_COMMAND_H
#define SETUP_FOLDER_FOLDER_COMMAND_H

#include "core/err.h"
#include "run/experiment.h"
#include "setup/folder/lease.h"

/* Runs store.prepare, if it is set, for the folder `suffix` of the store at `path`, and writes the command and its
 * output to STORE_PREPARE_FILE of the attempt's folder. A command that fails is an error with its last line. For rank
 * 0, which has claimed the folder. */
int folder_run_command(const struct experiment *experiment, const char *path, const char *suffix,
                       const struct lease_owner *owner, struct cb_err *err) CB_MUST_CHECK;

#define STORE_PREPARE_FILE "store-prepare.txt"

#endif
