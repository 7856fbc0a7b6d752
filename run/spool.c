/* The spool: file names, renames, and the order of tickets. */
#include "run/spool.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/json_fields.h"
#include "core/path.h"

#define TICKET_VERSION 1
#define TICKET_MAX_BYTES (1u << 16)
#define NAME_DIGITS 20 /* digits of the time in front of a run's id */
#define CANCEL "cancel"
#define REJECTED "rejected"
#define TEMPORARY ".ckptbench-" /* hidden: not a ticket yet */

/* One folder for each state of a ticket, then two others. */
static const char *const folders[] = {"spool", "claimed", "done", "returned", REJECTED, CANCEL};

static int join(char path[PATH_MAX], const char *pool, const char *folder, const char *name, struct cb_err *err)
{
    return path_format(path, PATH_MAX, err, "%s/%s/%s", pool, folder, name);
}

int spool_create(const char *pool_folder, struct cb_err *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int rc = join(path, pool_folder, folders[i], "", err);
        if (rc)
            return rc;
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "creating the folder %s", path);
    }
    return 0;
}

static const struct json_field ticket_fields[] = {
    JSON_FIELD(struct ticket, FIELD_U64, put_wall_ns),   JSON_FIELD(struct ticket, FIELD_U64, started_wall_ns),
    JSON_FIELD(struct ticket, FIELD_U64, ended_wall_ns), JSON_FIELD(struct ticket, FIELD_U64, pid),
    JSON_FIELD(struct ticket, FIELD_TEXT, run),          JSON_FIELD(struct ticket, FIELD_TEXT, run_folder),
    JSON_FIELD(struct ticket, FIELD_TEXT, job),          JSON_FIELD(struct ticket, FIELD_TEXT, step),
    JSON_FIELD(struct ticket, FIELD_TEXT, note),         JSON_FIELD(struct ticket, FIELD_U64, exit_status),
};

static int ticket_write(const char *path, const struct ticket *ticket, struct cb_err *err)
{
    return json_write_file(NULL, path, TICKET_VERSION, JSON_FIELDS(ticket_fields), ticket, err);
}

/* The run id in "TIME.RUN"; NULL if the name is malformed. */
static const char *run_of(const char *name)
{
    for (size_t i = 0; i < NAME_DIGITS; i++)
        if (!isdigit((unsigned char)name[i]))
            return NULL;
    return name[NAME_DIGITS] == '.' && name[NAME_DIGITS + 1] && strlen(name) < SPOOL_TICKET_BYTES
               ? name + NAME_DIGITS + 1
               : NULL;
}

int spool_parse(const char *name, const char *text, size_t len, struct ticket *ticket, struct cb_err *err)
{
    struct ticket parsed = {0};
    struct cb_err own;
    const char *run = run_of(name);
    if (!run)
        return cb_fail(err, CB_ERR_FORMAT, "%.80s: no name of a ticket", name);
    char file[81];
    snprintf(file, sizeof file, "%.80s", name);
    int rc = json_read_document(file, text, len, TICKET_VERSION, JSON_FIELDS(ticket_fields), &parsed, &own);
    const char *last = rc ? NULL : strrchr(parsed.run_folder, '/');
    if (rc == 0 && (strcmp(parsed.run, run) != 0 || parsed.run_folder[0] != '/' || strcmp(last + 1, run) != 0))
        rc = cb_fail(&own, CB_ERR_FORMAT, "%s: its name, its run and its folder do not agree", file);
    if (rc)
        return cb_fail(err, CB_ERR_FORMAT, "%s", own.message);
    snprintf(parsed.name, sizeof parsed.name, "%.*s", (int)sizeof parsed.name - 1, name);
    *ticket = parsed;
    return 0;
}

static int ticket_read(const char *pool_folder, enum ticket_state state, const char *name, struct ticket *ticket,
                       struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct stat facts;
    int rc = join(path, pool_folder, folders[state], name, err);
    if (rc)
        return rc;
    if (lstat(path, &facts) < 0)
        return cb_fail_errno(err, errno, "%s", path);
    if (!S_ISREG(facts.st_mode)) /* so that a pipe does not block us */
        return cb_fail(err, CB_ERR_FORMAT, "%.80s: not a file", name);
    buf_init(&text, TICKET_MAX_BYTES);
    rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = spool_parse(name, text.data, text.len, ticket, err);
    if (rc == 0)
        ticket->state = state;
    buf_release(&text);
    return rc;
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Names in a folder, sorted; freed with free_names. */
static int list(const char *pool_folder, enum ticket_state state, struct dirent ***names)
{
    char path[PATH_MAX];
    *names = NULL;
    int count = join(path, pool_folder, folders[state], "", NULL) ? -1 : scandir(path, names, not_hidden, alphasort);
    return count < 0 ? 0 : count;
}

static void free_names(struct dirent **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* Finds the ticket of a run in a folder, and counts the waiting tickets that sort before it. Does not sort, since this
 * runs for every run of a pool. */
static bool find_name(const char *pool_folder, enum ticket_state state, const char *run, char name[SPOOL_TICKET_BYTES],
                      size_t *before)
{
    char path[PATH_MAX];
    bool found = false;
    DIR *folder = join(path, pool_folder, folders[state], "", NULL) ? NULL : opendir(path);
    *before = 0;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        const char *own = run_of(entry->d_name);
        found = own && strcmp(own, run) == 0;
        if (found)
            snprintf(name, SPOOL_TICKET_BYTES, "%.*s", SPOOL_TICKET_BYTES - 1, entry->d_name);
    }
    if (found && state == TICKET_WAITS) {
        rewinddir(folder);
        for (struct dirent *entry; (entry = readdir(folder));)
            *before += run_of(entry->d_name) && strcmp(entry->d_name, name) < 0;
    }
    if (folder)
        closedir(folder);
    return found;
}

/* Searches the folders from the last state to the first: a ticket that is moved meanwhile is found in the next
 * round. */
int spool_find(const char *pool_folder, const char *run, struct ticket *ticket, struct cb_err *err)
{
    static const enum ticket_state order[] = {TICKET_DONE,    TICKET_CLAIMED, TICKET_WAITS,
                                              TICKET_CLAIMED, TICKET_DONE,    TICKET_RETURNED};
    char name[SPOOL_TICKET_BYTES];
    size_t before;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (!find_name(pool_folder, order[i], run, name, &before))
            continue;
        int rc = ticket_read(pool_folder, order[i], name, ticket, err);
        if (rc == CB_ERR_NOT_FOUND)
            continue;
        if (rc == 0)
            ticket->before = before;
        return rc;
    }
    return cb_fail(err, CB_ERR_NOT_FOUND, "run %s is not in this pool", run);
}

void spool_count(const char *pool_folder, size_t *waiting, size_t *started)
{
    struct dirent **names;
    size_t counts[4];
    for (size_t state = 0; state < 4; state++) {
        int count = list(pool_folder, (enum ticket_state)state, &names);
        counts[state] = 0;
        for (int i = 0; i < count; i++)
            counts[state] += run_of(names[i]->d_name) != NULL;
        free_names(names, count);
    }
    *waiting = counts[TICKET_WAITS];
    *started = counts[TICKET_CLAIMED] + counts[TICKET_DONE];
}

/* CB_ERR_NOT_FOUND if another process moved it first. */
static int move(const char *pool_folder, const char *from, const char *to, const char *name, struct cb_err *err)
{
    char old[PATH_MAX], new[PATH_MAX];
    int rc = join(old, pool_folder, from, name, err);
    if (rc == 0)
        rc = join(new, pool_folder, to, name, err);
    if (rc == 0 && rename(old, new) < 0)
        rc = cb_fail_errno(err, errno, "moving %s to %s", old, to);
    return rc;
}

int spool_put(const char *pool_folder, const char *run, const char *run_folder, struct cb_err *err)
{
    char hidden[PATH_MAX], path[PATH_MAX], name[SPOOL_TICKET_BYTES];
    struct ticket ticket = {.put_wall_ns = clock_wall_ns()}, known;
    if (spool_find(pool_folder, run, &known, NULL) == 0 && known.state != TICKET_RETURNED)
        return cb_fail(err, CB_ERR_EXISTS, "run %s is in the pool already", run);
    int len = snprintf(name, sizeof name, "%0*" PRIu64 ".%s", NAME_DIGITS, ticket.put_wall_ns, run);
    if (len >= (int)sizeof name || strlen(run) >= sizeof ticket.run || strlen(run_folder) >= sizeof ticket.run_folder)
        return cb_fail(err, CB_ERR_USAGE, "the name or folder of run %.60s is too long", run);
    snprintf(ticket.run, sizeof ticket.run, "%.63s", run);
    snprintf(ticket.run_folder, sizeof ticket.run_folder, "%.*s", (int)sizeof ticket.run_folder - 1, run_folder);
    int rc = join(path, pool_folder, "spool", name, err);
    if (rc == 0)
        rc = path_format(hidden, sizeof hidden, err, "%s/spool/" TEMPORARY "%s", pool_folder, run);
    if (rc == 0)
        rc = ticket_write(hidden, &ticket, err);
    if (rc == 0 && rename(hidden, path) < 0)
        rc = cb_fail_errno(err, errno, "putting run %s into the spool", run);
    return rc;
}

static bool has_ended(const char *run_folder)
{
    uint32_t attempt;
    char path[PATH_MAX];
    struct manifest manifest;
    return run_folder_last_attempt(run_folder, &attempt, NULL) == 0 && attempt > 0 &&
           path_format(path, sizeof path, NULL, "%s/attempts/%u", run_folder, attempt) == 0 &&
           manifest_read(path, &manifest, NULL) == 0;
}

int spool_claim(const char *pool_folder, struct ticket *ticket, char *rejected, size_t bytes, struct cb_err *err)
{
    struct dirent **names;
    struct ticket found;
    struct cb_err why;
    int rc = CB_ERR_NOT_FOUND, count = list(pool_folder, TICKET_WAITS, &names);
    rejected[0] = '\0';
    for (int i = 0; i < count && rc == CB_ERR_NOT_FOUND; i++) {
        const char *name = names[i]->d_name;
        int read = ticket_read(pool_folder, TICKET_WAITS, name, &found, &why);
        if (read == CB_ERR_NOT_FOUND)
            continue;
        if (read == 0 && has_ended(found.run_folder))
            read = cb_fail(&why, CB_ERR_EXISTS, "run %s has ended already", found.run);
        if (read == 0 && access(found.run_folder, F_OK) < 0)
            read = cb_fail(&why, CB_ERR_FORMAT, "there is no run folder %.200s", found.run_folder);
        if (read == 0)
            rc = move(pool_folder, folders[TICKET_WAITS], folders[TICKET_CLAIMED], name, &why);
        else if (move(pool_folder, folders[TICKET_WAITS], REJECTED, name, NULL) == 0)
            snprintf(rejected, bytes, "%s", why.message);
        /* if not, another process moved it, or renames fail here: the next round shows which */
    }
    free_names(names, count);
    if (rc == CB_ERR_NOT_FOUND)
        return cb_fail(err, rc, "no run waits");
    if (rc)
        return cb_fail(err, rc, "%s", why.message);
    found.state = TICKET_CLAIMED;
    *ticket = found;
    return 0;
}

int spool_update(const char *pool_folder, const struct ticket *ticket, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, pool_folder, folders[TICKET_CLAIMED], ticket->name, err);
    return rc ? rc : ticket_write(path, ticket, err);
}

int spool_read_claimed(const char *pool_folder, const char *name, struct ticket *ticket, struct cb_err *err)
{
    return ticket_read(pool_folder, TICKET_CLAIMED, name, ticket, err);
}

int spool_finish(const char *pool_folder, const struct ticket *ticket, struct cb_err *err)
{
    int rc = spool_update(pool_folder, ticket, err);
    return rc ? rc : move(pool_folder, folders[TICKET_CLAIMED], folders[TICKET_DONE], ticket->name, err);
}

/* The note is written after the rename has decided: nobody else touches the file in its new place. */
static int return_ticket(const char *pool_folder, const char *name, const char *note, struct cb_err *err)
{
    char path[PATH_MAX];
    struct ticket ticket;
    int rc = move(pool_folder, folders[TICKET_WAITS], folders[TICKET_RETURNED], name, err);
    if (rc == 0)
        rc = ticket_read(pool_folder, TICKET_RETURNED, name, &ticket, err);
    if (rc)
        return rc;
    snprintf(ticket.note, sizeof ticket.note, "%s", note);
    rc = join(path, pool_folder, folders[TICKET_RETURNED], name, err);
    return rc ? rc : ticket_write(path, &ticket, err);
}

int spool_return(const char *pool_folder, const char *run, const char *note, struct cb_err *err)
{
    char name[SPOOL_TICKET_BYTES];
    size_t before;
    if (!find_name(pool_folder, TICKET_WAITS, run, name, &before))
        return cb_fail(err, CB_ERR_NOT_FOUND, "run %s does not wait in this pool", run);
    return return_ticket(pool_folder, name, note, err);
}

int spool_return_all(const char *pool_folder, const char *note, struct cb_err *err)
{
    struct dirent **names;
    int rc = 0, count = list(pool_folder, TICKET_WAITS, &names);
    for (int i = 0; i < count; i++) {
        struct cb_err own;
        int returned = return_ticket(pool_folder, names[i]->d_name, note, &own);
        if (returned && returned != CB_ERR_NOT_FOUND && returned != CB_ERR_FORMAT)
            rc = cb_fail(err, returned, "%s", own.message);
    }
    free_names(names, count);
    return rc;
}

int spool_abandon_claimed(const char *pool_folder, const char *note, struct cb_err *err)
{
    struct dirent **names;
    int rc = 0, count = list(pool_folder, TICKET_CLAIMED, &names);
    for (int i = 0; rc == 0 && i < count; i++) {
        struct ticket ticket;
        if (ticket_read(pool_folder, TICKET_CLAIMED, names[i]->d_name, &ticket, NULL))
            continue; /* not one of our files: left alone */
        ticket.ended_wall_ns = clock_wall_ns();
        ticket.exit_status = 1;
        snprintf(ticket.note, sizeof ticket.note, "%s", note);
        rc = spool_finish(pool_folder, &ticket, err);
    }
    free_names(names, count);
    return rc;
}

int spool_ask_cancel(const char *pool_folder, const char *run, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = join(path, pool_folder, CANCEL, run, err);
    if (rc)
        return rc;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    close(fd);
    return 0;
}

bool spool_is_cancelled(const char *pool_folder, const char *run)
{
    char path[PATH_MAX];
    return join(path, pool_folder, CANCEL, run, NULL) == 0 && access(path, F_OK) == 0;
}
