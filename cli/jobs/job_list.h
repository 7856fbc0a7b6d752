/* A list of runs and their jobs, synchronised with Slurm and with the run folders.
 *
 * Shared by submit --wait, status, cancel, logs and collect. One squeue and at most one scontrol serve any number of
 * runs. If Slurm does not reply, the last known state stays, and `trouble` contains the reason. */
#ifndef CLI_JOBS_JOB_LIST_H
#define CLI_JOBS_JOB_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "db/history.h"
#include "jobs/slurm/job_state.h"
#include "jobs/slurm/slurm_client.h"
#include "run/job_record.h"

/* A site's values of its unfinished runs; NAN if the site does not know them. */
struct job_told {
    bool is;
    double queue_s, boot_s, launch_s, run_s;
    char progress[160];
};

struct job_entry {
    char run[64];
    char site[64];        /* from the history */
    char *folder;         /* owned */
    char *message;        /* from the history, "" if there is none; owned */
    char known_state[16]; /* from the history */
    char outcome[24];     /* from the history; "" if there is none */
    bool has_record;      /* it is a job, or was to become one */
    bool is_final;        /* its state is final */
    bool is_gone;         /* its folder was removed */
    bool may_requeue;
    uint64_t nodes; /* number of nodes that it requests; 0 if not specified */
    struct job_record record;
    struct job_folder seen;
    struct job_verdict verdict; /* state and note */
    struct job_told told;
    bool was_asked_for; /* this sync has queried its site */
};
/* Whether its site must be queried for its state. */
bool job_entry_is_away(const struct job_entry *entry);
bool job_entry_is_of_site(const struct job_entry *entry);
/* Reads its folder on this machine. */
void job_entry_look(struct job_entry *entry);

/* For job_list.c: an entry from a row of the history, released also after a failure, and the ways to update it. If
 * its folder is gone, the note of the entry says so. */
int job_entry_init(struct job_entry *entry, const struct run_line *line, struct cb_err *err) CB_MUST_CHECK;
void job_entry_release(struct job_entry *entry);
void job_entry_look_at(struct job_entry *entry);
/* Skips an entry that has ended. A run of a site keeps its last known state until the site has answered. */
void job_entry_look_once(struct job_entry *entry);

struct remote_sites;

struct job_list {
    struct history *history;
    bool owns_history;
    struct transport *transport;
    struct slurm_client client;
    struct remote_sites *sites; /* NULL until needed */
    struct job_entry *items;
    size_t count;
    bool asked;                /* Slurm replied to the last query */
    bool accounting_is_silent; /* Slurm replied, except for its accounting */
    bool broken;               /* a run folder is unusable: `trouble` names it */
    char trouble[512];         /* why Slurm did not reply; "" if it did or was not queried */
};

/* Opens the history unless it is given, which is then borrowed. */
int job_list_init(struct job_list *self, struct history *history, struct cb_err *err) CB_MUST_CHECK;
void job_list_release(struct job_list *self);
/* A connection to the site, opened when first needed; borrowed until the next call or sync. */
struct remote;
int job_list_site(struct job_list *self, const char *name, struct remote **remote, struct cb_err *err) CB_MUST_CHECK;

/* The next site with unfinished runs that were not queried; marks them as queried. False at the end. */
bool job_list_next_site(struct job_list *self, char name[64]);
/* Adds runs that the site has and the history lacks to the history, as remote_runs_take. */
int job_list_take(struct job_list *self, const char *site, const char *const *words, size_t count,
                  struct cb_err *err) CB_MUST_CHECK;

/* Adds the runs that the words select (history_select), oldest first. */
int job_list_add(struct job_list *self, const char *const *words, size_t count, struct cb_err *err) CB_MUST_CHECK;
/* Removes runs that are not of `site` (NULL: of any place), and with `only_jobs` those that have ended and never were
 * jobs. */
void job_list_narrow(struct job_list *self, const char *site, bool only_jobs);

/* Queries Slurm, decides the state of each run, seals attempts of dead agents, writes job.json and the history, and
 * ingests finished runs. Runs that have ended according to the history are skipped, and nothing is locked unless
 * something has changed. A run that another controller has locked is only inspected. A site does all this for its own
 * runs; runs that have finished there are fetched. */
int job_list_sync(struct job_list *self, struct cb_err *err) CB_MUST_CHECK;

bool job_list_is_final(const struct job_list *self);
/* The exit code of the worst run: 0 if all passed; 4 also for a run that is not final. */
int job_list_exit_code(const struct job_list *self);

#endif
