/* One run of a list: its state according to the history, its record and its folder. */
#include "cli/jobs/job_list.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "jobs/slurm/run_follow.h"
#include "run/site.h"

/* The value of a key given with its quotes and colon, or "". Searches the text, because parsing a thousand
 * experiments is slow; quotes inside a value would be escaped, so only the key matches. */
static const char *find_value(const char *experiment_json, const char *key)
{
    const char *found = strstr(experiment_json, key);
    return found ? found + strlen(key) + strspn(found + strlen(key), " ") : "";
}

int job_entry_init(struct job_entry *entry, const struct run_line *line, struct cb_err *err)
{
    *entry = (struct job_entry){.may_requeue =
                                    strncmp(find_value(line->experiment_json, "\"slurm.requeue\":"), "true", 4) == 0,
                                .nodes = strtoull(find_value(line->experiment_json, "\"nodes\":"), NULL, 10)};
    job_record_init(&entry->record);
    snprintf(entry->run, sizeof entry->run, "%s", line->run);
    snprintf(entry->site, sizeof entry->site, "%s", line->site);
    snprintf(entry->known_state, sizeof entry->known_state, "%s", line->state);
    snprintf(entry->outcome, sizeof entry->outcome, "%s", line->outcome);
    entry->folder = strdup(line->folder);
    entry->message = strdup(line->message);
    return entry->folder && entry->message ? 0 : alloc_fail(err, "for a path");
}

void job_entry_release(struct job_entry *entry)
{
    job_record_release(&entry->record);
    free(entry->folder);
    free(entry->message);
}

bool job_entry_is_of_site(const struct job_entry *entry)
{
    return *entry->site && strcmp(entry->site, SITE_LOCAL) != 0;
}

bool job_entry_is_away(const struct job_entry *entry)
{
    enum job_state state;
    bool ended = job_state_find(entry->known_state, &state) && job_state_is_final(state);
    return job_entry_is_of_site(entry) && !ended && !entry->is_final;
}

/* A run without a job (a local run) has the state of its folder and of the history. */
static void judge_without_job(struct job_entry *entry)
{
    enum job_state state;
    entry->verdict = (struct job_verdict){.state = JOB_PLANNED};
    if (job_state_find(entry->known_state, &state))
        entry->verdict.state = state;
    if (entry->seen.sealed)
        snprintf(entry->verdict.note, sizeof entry->verdict.note, "%s", entry->seen.manifest.message);
    else if (entry->verdict.state == JOB_PLANNED)
        snprintf(entry->verdict.note, sizeof entry->verdict.note, "not submitted");
    entry->is_final = job_state_is_final(entry->verdict.state);
}

/* True only if the run folder itself is missing, not the folder that contains all runs. */
static bool was_removed(const char *folder)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(folder, '/');
    if (!slash || snprintf(parent, sizeof parent, "%.*s", (int)(slash - folder), folder) >= (int)sizeof parent)
        return false;
    return access(folder, F_OK) < 0 && errno == ENOENT && access(parent, F_OK) == 0;
}

/* Fails only on errors that affect all runs. If the folder is gone, the note of the entry says so. */
void job_entry_look_at(struct job_entry *entry)
{
    struct cb_err why;
    struct job_record fresh;
    entry->seen = (struct job_folder){0};
    int rc = job_record_read(entry->folder, &fresh, &why);
    if (rc == 0) {
        job_record_release(&entry->record);
        entry->record = fresh;
    }
    entry->has_record = rc == 0;
    if (rc == 0 || rc == CB_ERR_NOT_FOUND)
        rc = job_folder_look(entry->folder, &entry->seen, &why);
    if (entry->has_record && rc == 0)
        entry->is_final = job_state_is_final(entry->record.state) && *entry->outcome;
    else
        judge_without_job(entry);
    if (rc == CB_ERR_NOT_FOUND && was_removed(entry->folder)) {
        entry->is_gone = entry->is_final = true;
        entry->verdict.state = JOB_LOST;
        snprintf(entry->outcome, sizeof entry->outcome, "%s", outcome_name(OUTCOME_LOST));
        snprintf(entry->verdict.note, sizeof entry->verdict.note, "its run folder %s was removed", entry->folder);
    } else if (rc) {
        snprintf(entry->verdict.note, sizeof entry->verdict.note, "%s", why.message);
    }
}

/* Until its site replies, a remote run keeps its last known state. */
static void look_away(struct job_entry *entry)
{
    entry->was_asked_for = false;
    if (entry->told.is)
        return;
    entry->verdict = (struct job_verdict){.state = JOB_PLANNED};
    if (!job_state_find(entry->known_state, &entry->verdict.state))
        entry->verdict.state = JOB_PLANNED;
}

/* If a run has ended in the history, only the job's own record is read from the folder. */
void job_entry_look_once(struct job_entry *entry)
{
    enum job_state state = JOB_PLANNED;
    struct job_record fresh;
    bool ended = job_state_find(entry->known_state, &state) && job_state_is_final(state) && *entry->outcome;
    if (job_entry_is_away(entry))
        look_away(entry);
    if (job_entry_is_away(entry) || entry->is_final)
        return;
    int rc = ended ? job_record_read(entry->folder, &fresh, NULL) : CB_ERR_USAGE;
    if (rc == 0) {
        job_record_release(&entry->record);
        entry->record = fresh;
        state = fresh.state;
    }
    if ((rc && rc != CB_ERR_NOT_FOUND) || !job_state_is_final(state)) {
        job_entry_look_at(entry);
        return;
    }
    entry->has_record = rc == 0;
    entry->is_final = true;
    entry->verdict = (struct job_verdict){.state = state};
    snprintf(entry->verdict.note, sizeof entry->verdict.note, "%s", entry->message);
}

void job_entry_look(struct job_entry *entry)
{
    entry->told.is = false;
    job_entry_look_at(entry);
}
