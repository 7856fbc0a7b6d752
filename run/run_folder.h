/* The run folder: the contract between controller, agent and history. docs/run-folder.md describes it.
 *
 * RUN/experiment.yaml, RUN/labels.yaml, RUN/attempts/N/{fingerprint.json, host.json, progress.json, records, logs/,
 * manifest.json}. The manifest is written last, by an exclusive link: the first process to seal wins. */
#ifndef RUN_RUN_FOLDER_H
#define RUN_RUN_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/file_batch.h"
#include "run/experiment.h"

#define RUN_ID_BYTES 48
#define LINES_FOLDER "watch"              /* in an attempt: what its processes report (docs/watch.md) */
#define SENT_FOLDER "ckptbench-programs-" /* on a node, of sent programs; the run, attempt and job follow */
#define MANIFEST_VERSION 1
#define RUN_FOLDER_FILE_MAX_BYTES (1 << 20) /* size limit of experiment, manifest and progress */

struct name_list;

enum outcome {
    OUTCOME_PASS,
    OUTCOME_BENCHMARK_FAILED,
    OUTCOME_INFRASTRUCTURE,
    OUTCOME_TIMEOUT,
    OUTCOME_CANCELLED,
    OUTCOME_PREEMPTED,
    OUTCOME_LOST,
    OUTCOME_COUNT
};
extern const struct name_list outcome_names;
const char *outcome_name(enum outcome outcome);
bool outcome_find(const char *name, enum outcome *outcome);
int outcome_exit_code(enum outcome outcome);

/* $CKPTBENCH_HOME, else $XDG_DATA_HOME/ckptbench, else ~/.local/share/ckptbench; created (0700). */
int home_folder(struct buf *path, struct cb_err *err) CB_MUST_CHECK;

/* "20261121-k3f9": UTC date and 4 random letters. A sweep's members are SWEEP.01, SWEEP.02, … */
void run_id_new(char id[RUN_ID_BYTES]);

/* Creates the folder (and missing parents) with the frozen experiment; its files join a batch (NULL: written at
 * once). CB_ERR_EXISTS if the folder exists. */
int run_folder_create(struct file_batch *batch, const char *path, const struct experiment *experiment,
                      struct cb_err *err) CB_MUST_CHECK;
/* Removes the folder with its contents; removes symbolic links, not their targets. What cannot be removed stays. */
void run_folder_discard(const char *path);
int run_folder_read_experiment(const char *path, struct experiment **experiment, struct cb_err *err) CB_MUST_CHECK;

/* Creates attempts/N with the next N (exclusively) and returns its path. */
int run_folder_new_attempt(const char *path, uint32_t *attempt, struct buf *attempt_path,
                           struct cb_err *err) CB_MUST_CHECK;
/* The highest N, 0 if there is no attempt. */
int run_folder_last_attempt(const char *path, uint32_t *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Creates the folders above a path that are missing, as mkdir -p. */
int run_folder_make_parents(const char *path, unsigned mode, struct cb_err *err) CB_MUST_CHECK;
/* FOLDER/NAME. */
int run_folder_join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err) CB_MUST_CHECK;

/* Writes the state of a run without a job to the file `state`, for other machines: "running", or the state that its
 * site reports. It is valid until a later attempt is sealed. Not synced, and errors are ignored:
 * without the file, other machines see the run as planned. */
void run_folder_write_state(const char *path, const char *state);
/* "" if there is no file, or if attempt `sealed`, the newest sealed one, is later than the state. */
void run_folder_read_state(const char *path, uint32_t sealed, char state[16]);

/* Locks the run folder against other controllers, also those on other machines: *fd is -1 if another
 * controller holds the lock. It ends with run_folder_unlock, or when the last process that has the descriptor closes it.
 * CB_ERR_NOT_FOUND if there is no such folder. */
int run_folder_lock(const char *path, int *fd, struct cb_err *err) CB_MUST_CHECK;
/* The same lock, shared: several may hold it at once, and none of them while run_folder_lock does. A caller that holds
 * the whole lock passes its descriptor in *fd, which then shares the lock; else *fd is -1. If it cannot be locked, the
 * descriptor is closed and *fd is -1. */
int run_folder_share_lock(const char *path, int *fd, struct cb_err *err) CB_MUST_CHECK;
/* Unlocks and closes. Other processes that have the descriptor lose the lock, too. Does nothing if fd is -1. */
void run_folder_unlock(int fd);

struct manifest {
    char run[RUN_ID_BYTES];
    uint32_t attempt;
    enum outcome outcome;
    char message[1024]; /* "" for a pass */
    uint64_t started_wall_ns, ended_wall_ns;
    char records_sha256[65]; /* "" if there are no records */
    uint32_t ranks, samples;
    char sealed_by[16]; /* "agent" or "collect" */
};

/* Writes manifest.json exclusively: CB_ERR_EXISTS if another process has sealed the attempt. The loser changes
 * nothing, since the winner may have sealed the loser's records. */
int manifest_write(const char *attempt_path, const struct manifest *manifest, struct cb_err *err) CB_MUST_CHECK;
/* Seals on behalf of an agent that is gone. Fills in sealed_by, and hash and counts from the records that the agent
 * left; damaged records are left out, and the message says so. */
int manifest_write_for_agent(const char *attempt_path, struct manifest *manifest, struct cb_err *err) CB_MUST_CHECK;
/* CB_ERR_NOT_FOUND: not sealed. Verifies the hash of the records; if none were sealed, a records file was written too
 * late by a dead agent and is ignored. */
int manifest_read(const char *attempt_path, struct manifest *manifest, struct cb_err *err) CB_MUST_CHECK;
/* Parses it from bytes, without checking the records. */
int manifest_parse(const char *name, const char *text, size_t len, struct manifest *manifest,
                   struct cb_err *err) CB_MUST_CHECK;
/* Hash of an attempt's records as in a manifest; "" if there are no records. */
int manifest_hash_records(const char *attempt_path, char hex[65], struct cb_err *err) CB_MUST_CHECK;

/* The contents of progress.json; the agent replaces the file by rename about twice a second. */
struct progress {
    char state[16]; /* "launching", "running", "sealing" */
    char op[16];
    uint32_t iteration, iterations; /* measured iterations, from 1 */
    uint64_t bytes_done, bytes_total;
    double bytes_per_s;
    int slowest_rank;
    char nodes[192]; /* rates of the nodes, "n1 1.10 GiB/s, n2 953 MiB/s"; of more than four the slowest one */
    char note[256];  /* a warning, such as the name of a stalled rank */
};
int progress_write(const char *attempt_path, const struct progress *progress, struct cb_err *err) CB_MUST_CHECK;
int progress_read(const char *attempt_path, struct progress *progress, struct cb_err *err) CB_MUST_CHECK;

#endif
