/* Runs and their jobs, brought up to date: what Slurm says, what the folders hold, what follows from both.
 *
 * Shared by submit --wait, status, cancel, logs and collect. One squeue and at most one scontrol for any
 * number of runs; where Slurm does not answer, what was seen last stands, and `trouble` says why. */
#ifndef CLI_JOBS_JOB_LIST_H
#define CLI_JOBS_JOB_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "db/history.h"
#include "jobs/slurm/job_state.h"
#include "jobs/slurm/slurm_client.h"
#include "run/job_record.h"

/* What a site says of a run of its own that has not ended; NAN where it does not know. */
struct job_told {
    bool is;
    double queue_s, boot_s, launch_s, run_s;
    char progress[160];
};

struct job_entry {
    char run[64];
    char site[64];        /* in the history */
    char *folder;         /* owned */
    char *message;        /* in the history, "" for none; owned */
    char known_state[16]; /* in the history */
    char outcome[24];     /* in the history; "" for none */
    bool has_record;      /* it is or was to be a job */
    bool is_final;        /* nothing will change any more */
    bool is_gone;         /* its folder was removed */
    bool may_requeue;
    uint64_t nodes; /* that it asks for; 0: not said */
    struct job_record record;
    struct job_folder seen;
    struct job_verdict verdict; /* state and note */
    struct job_told told;
    bool was_asked_for; /* its site was asked in this look */
};
/* Whether a site has to be asked how the run is. */
bool job_entry_is_away(const struct job_entry *entry);
bool job_entry_is_of_site(const struct job_entry *entry);
/* Reads its folder here. */
void job_entry_look(struct job_entry *entry);

/* For the list: an entry of a line of the history, released whatever was returned; and how it is looked at. A folder that
 * is gone says so in the entry's note. */
int job_entry_init(struct job_entry *entry, const struct run_line *line, struct cb_err *err) CB_MUST_CHECK;
void job_entry_release(struct job_entry *entry);
void job_entry_look_at(struct job_entry *entry);
void job_entry_look_once(struct job_entry *entry); /* what has ended stays as it is */
void job_entry_look_away(struct job_entry *entry); /* of a site: as it was seen last, until that has answered */

struct remote_sites;

struct job_list {
    struct history *history; /* borrowed */
    struct transport *transport;
    struct slurm_client client;
    struct remote_sites *sites; /* NULL until one is needed */
    struct job_entry *items;
    size_t count;
    bool asked;                /* Slurm answered the last time it was needed */
    bool accounting_is_silent; /* but for its accounting */
    bool broken;               /* the folder of a run cannot be used: `trouble` says which */
    char trouble[512];         /* why it did not; "" where it did, or was not needed */
};

int job_list_init(struct job_list *self, struct history *history, struct cb_err *err) CB_MUST_CHECK;
void job_list_release(struct job_list *self);
/* The site of that name, opened when it is first needed; borrowed until the next call or look. */
struct remote;
int job_list_site(struct job_list *self, const char *name, struct remote **remote, struct cb_err *err) CB_MUST_CHECK;

/* Takes the runs of a selection, oldest first. */
int job_list_add(struct job_list *self, const struct run_selection *selection, struct cb_err *err) CB_MUST_CHECK;

/* Asks, judges, seals for dead agents, writes job.json and the history, ingests what is finished. What has ended in
 * the history is not looked at again, and where nothing has changed nothing is locked. A run that another controller
 * holds at this moment is only looked at. Of runs of a site, the site does all that; what is
 * finished there is fetched. */
int job_list_sync(struct job_list *self, struct cb_err *err) CB_MUST_CHECK;

/* Forgets runs of other places. */
void job_list_keep_site(struct job_list *self, const char *site);
/* Forgets runs that have ended and never were jobs. */
void job_list_drop_others(struct job_list *self);

bool job_list_is_final(const struct job_list *self);
/* The exit code of the worst of them: 0 where all passed, 4 also for one that is not final. */
int job_list_exit_code(const struct job_list *self);

#endif
