/* Parses Slurm's output: squeue, scontrol, sacct, sbatch. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "jobs/slurm/slurm.h"

#define MAX_FIELDS 16

/* A slice of the text, not NUL-terminated. */
struct piece {
    const char *at;
    size_t len;
};

void slurm_jobs_release(struct slurm_jobs *self)
{
    free(self->items);
    *self = (struct slurm_jobs){0};
}

/* The next line without its line feed; false at the end. */
static bool next_line(const char *text, size_t len, size_t *position, struct piece *line)
{
    if (*position >= len)
        return false;
    const char *start = text + *position, *feed = memchr(start, '\n', len - *position);
    line->at = start;
    line->len = feed ? (size_t)(feed - start) : len - *position;
    *position += line->len + 1;
    return true;
}

/* Splits at '|'; everything after the last expected separator is one field. */
static size_t split(struct piece line, struct piece *fields, size_t wanted)
{
    size_t count = 0;
    while (count < wanted) {
        const char *bar = count + 1 < wanted ? memchr(line.at, '|', line.len) : NULL;
        size_t len = bar ? (size_t)(bar - line.at) : line.len;
        fields[count++] = (struct piece){line.at, len};
        if (!bar)
            break;
        line.at += len + 1;
        line.len -= len + 1;
    }
    return count;
}

/* Replaces control characters by '?', since Slurm's output may reach a terminal. */
static void copy_cut(struct piece from, char *to, size_t bytes)
{
    size_t len = from.len < bytes ? from.len : bytes - 1;
    for (size_t i = 0; i < len; i++)
        to[i] = (unsigned char)from.at[i] < 0x20 || from.at[i] == 0x7F ? '?' : from.at[i];
    to[len] = '\0';
}

/* A name that does not fit is not ours. */
static void copy_whole(struct piece from, char *to, size_t bytes)
{
    copy_cut(from.len < bytes ? from : (struct piece){"", 0}, to, bytes);
}

static bool parse_number(struct piece from, uint64_t *number)
{
    uint64_t value = 0;
    if (from.len == 0 || from.len > 18)
        return false;
    for (size_t i = 0; i < from.len; i++) {
        if (!isdigit((unsigned char)from.at[i]))
            return false;
        value = 10 * value + (uint64_t)(from.at[i] - '0');
    }
    *number = value;
    return true;
}

/* "Unknown", "N/A" and "None" mean no time. */
static uint64_t number_or_0(struct piece from)
{
    uint64_t number = 0;
    return parse_number(from, &number) ? number : 0;
}

/* "4711", "4711_3"; not "4711_[0-5]", "4711.batch", "4711+0". */
static bool is_job_id(struct piece id, struct slurm_job *job)
{
    const char *underscore = memchr(id.at, '_', id.len);
    struct piece base = {id.at, underscore ? (size_t)(underscore - id.at) : id.len};
    uint64_t number;
    if (id.len >= sizeof job->id || !parse_number(base, &number))
        return false;
    if (underscore) {
        struct piece task = {underscore + 1, id.len - base.len - 1};
        if (!parse_number(task, &job->array_task))
            return false;
        job->in_array = true;
    }
    copy_cut(id, job->id, sizeof job->id);
    return true;
}

static void set_state(struct slurm_job *job, struct piece name)
{
    copy_cut(name, job->state_name, sizeof job->state_name);
    job->state = slurm_state_find(job->state_name);
}

/* "0:9" */
static void set_exit(struct slurm_job *job, struct piece code)
{
    const char *colon = memchr(code.at, ':', code.len);
    size_t len = colon ? (size_t)(colon - code.at) : code.len;
    job->exit_status = (int)(number_or_0((struct piece){code.at, len}) & 0xFFFF);
    if (colon)
        job->exit_signal = (int)(number_or_0((struct piece){colon + 1, code.len - len - 1}) & 0xFF);
}

static bool parse_queue_line(struct piece line, struct slurm_job *job)
{
    struct piece fields[MAX_FIELDS];
    if (split(line, fields, 10) != 10 || !is_job_id(fields[0], job))
        return false;
    set_state(job, fields[2]);
    job->node_count = number_or_0(fields[3]);
    job->submit_s = number_or_0(fields[4]);
    job->start_s = number_or_0(fields[5]);
    copy_cut(fields[6], job->nodes, sizeof job->nodes);
    copy_whole(fields[7], job->name, sizeof job->name);
    copy_whole(fields[8], job->comment, sizeof job->comment);
    copy_cut(fields[9], job->reason, sizeof job->reason);
    return true;
}

static int parse_lines(const char *text, size_t len, bool (*parse)(struct piece line, struct slurm_job *job),
                       struct slurm_jobs *jobs, struct cb_err *err)
{
    size_t position = 0;
    struct piece line;
    while (next_line(text, len, &position, &line)) {
        struct slurm_job job = {0};
        if (line.len == 0)
            continue;
        if (!parse(line, &job)) {
            jobs->left_out++;
            continue;
        }
        if (alloc_grow(&jobs->items, jobs->count, sizeof *jobs->items, err))
            return CB_ERR_MEMORY;
        jobs->items[jobs->count++] = job;
    }
    return 0;
}

int slurm_parse_queue(const char *text, size_t len, struct slurm_jobs *jobs, struct cb_err *err)
{
    return parse_lines(text, len, parse_queue_line, jobs, err);
}

/* The value after the first " KEY=", up to the next blank. Keys with free text (paths, comments) come after all keys
 * that we search for, except the job's name. */
static bool find_value(struct piece line, const char *key, struct piece *value)
{
    size_t key_len = strlen(key);
    for (size_t i = 0; i + key_len < line.len; i++) {
        if ((i > 0 && line.at[i - 1] != ' ') || line.at[i + key_len] != '=' || memcmp(line.at + i, key, key_len) != 0)
            continue;
        const char *start = line.at + i + key_len + 1;
        size_t left = line.len - i - key_len - 1;
        const char *blank = memchr(start, ' ', left);
        *value = (struct piece){start, blank ? (size_t)(blank - start) : left};
        return true;
    }
    *value = (struct piece){"", 0};
    return false;
}

/* A member of an array is ArrayJobId_ArrayTaskId; its still pending part has no single task number. */
static bool read_details_id(struct piece line, struct slurm_job *job)
{
    struct piece id, base, task;
    if (!find_value(line, "JobId", &id))
        return false;
    if (!find_value(line, "ArrayTaskId", &task))
        return is_job_id(id, job);
    if (!find_value(line, "ArrayJobId", &base) || !parse_number(task, &job->array_task))
        return false;
    job->in_array = true;
    int used = snprintf(job->id, sizeof job->id, "%.*s_%.*s", (int)(base.len < 20 ? base.len : 20), base.at,
                        (int)(task.len < 20 ? task.len : 20), task.at);
    return used < (int)sizeof job->id;
}

static bool parse_details_line(struct piece line, struct slurm_job *job)
{
    struct piece value;
    if (!read_details_id(line, job) || !find_value(line, "JobState", &value))
        return false;
    set_state(job, value);
    if (find_value(line, "JobName", &value))
        copy_whole(value, job->name, sizeof job->name);
    if (find_value(line, "Comment", &value))
        copy_whole(value, job->comment, sizeof job->comment);
    if (find_value(line, "Reason", &value))
        copy_cut(value, job->reason, sizeof job->reason);
    if (find_value(line, "Restarts", &value))
        job->restarts = number_or_0(value);
    if (find_value(line, "ExitCode", &value))
        set_exit(job, value);
    if (find_value(line, "SubmitTime", &value))
        job->submit_s = number_or_0(value);
    if (find_value(line, "StartTime", &value))
        job->start_s = number_or_0(value);
    if (find_value(line, "LastSchedEval", &value))
        job->scheduled_s = number_or_0(value);
    if (find_value(line, "EndTime", &value))
        job->end_s = number_or_0(value);
    if (find_value(line, "NodeList", &value) && value.len && value.at[0] != '(') /* "(null)" */
        copy_cut(value, job->nodes, sizeof job->nodes);
    if (find_value(line, "BatchHost", &value))
        copy_cut(value, job->head, sizeof job->head);
    if (find_value(line, "NumNodes", &value))
        job->node_count = number_or_0(value);
    job->has_details = true;
    return true;
}

int slurm_parse_details(const char *text, size_t len, struct slurm_jobs *jobs, struct cb_err *err)
{
    return parse_lines(text, len, parse_details_line, jobs, err);
}

static bool parse_accounting_line(struct piece line, struct slurm_job *job)
{
    struct piece fields[MAX_FIELDS];
    if (split(line, fields, 9) != 9 || !is_job_id(fields[0], job))
        return false;
    set_state(job, fields[1]);
    set_exit(job, fields[2]);
    job->submit_s = number_or_0(fields[3]);
    job->start_s = number_or_0(fields[4]);
    job->end_s = number_or_0(fields[5]);
    job->node_count = number_or_0(fields[6]);
    if (!memchr(fields[7].at, ' ', fields[7].len)) /* "None assigned" */
        copy_cut(fields[7], job->nodes, sizeof job->nodes);
    copy_whole(fields[8], job->name, sizeof job->name);
    job->has_details = true;
    return true;
}

int slurm_parse_accounting(const char *text, size_t len, struct slurm_jobs *jobs, struct cb_err *err)
{
    return parse_lines(text, len, parse_accounting_line, jobs, err);
}

static bool has_name(const char *names, struct piece name)
{
    for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == name.len && memcmp(at, name.at, name.len) == 0)
            return true;
    return false;
}

void slurm_parse_names(const char *text, size_t len, char *names, size_t bytes)
{
    size_t position = 0, used = 0;
    struct piece line;
    char name[256];
    names[0] = '\0';
    while (next_line(text, len, &position, &line)) {
        while (line.len && line.at[line.len - 1] == ' ')
            line.len--;
        if (line.len == 0 || line.len >= sizeof name || used + line.len + 2 > bytes)
            continue;
        copy_cut(line, name, sizeof name);
        if (has_name(names, (struct piece){name, strlen(name)}))
            continue;
        used += (size_t)snprintf(names + used, bytes - used, "%s%s", used ? "," : "", name);
    }
}

int slurm_parse_submitted(const char *text, size_t len, char id[64], char cluster[64], struct cb_err *err)
{
    size_t position = 0;
    struct piece line;
    bool found = false;
    while (next_line(text, len, &position, &line)) {
        const char *semicolon = memchr(line.at, ';', line.len);
        struct piece number = {line.at, semicolon ? (size_t)(semicolon - line.at) : line.len};
        uint64_t value;
        if (!parse_number(number, &value))
            continue;
        copy_cut(number, id, 64);
        copy_cut(semicolon ? (struct piece){semicolon + 1, line.len - number.len - 1} : (struct piece){"", 0}, cluster,
                 64);
        found = true;
    }
    if (!found)
        return cb_fail(err, CB_ERR_FORMAT, "sbatch has not said a job's number: %.*s", (int)(len < 200 ? len : 200),
                       text);
    return 0;
}

bool slurm_parse_setting(const char *text, size_t len, const char *key, uint64_t *number)
{
    size_t key_len = strlen(key);
    for (const char *at = text; (at = memmem(at, len - (size_t)(at - text), key, key_len)); at += key_len) {
        const char *value = at + key_len;
        value += strspn(value, " ");
        if (*value != '=' || (at > text && !strchr(" \n", at[-1])))
            continue;
        value += 1 + strspn(value + 1, " ");
        char *end;
        unsigned long long found = strtoull(value, &end, 10);
        if (end == value || *value == '-')
            return false;
        *number = found;
        return true;
    }
    return false;
}

bool slurm_parse_ping(const char *text, size_t len)
{
    size_t position = 0;
    struct piece line;
    while (next_line(text, len, &position, &line))
        if (line.len > 6 && memmem(line.at, line.len, "Slurmctld", 9) &&
            memcmp(line.at + line.len - 5, "is UP", 5) == 0)
            return true;
    return false;
}
