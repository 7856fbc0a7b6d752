/* ckptbench clean: removes checkpoints that runs of this history left in their stores.
 *
 * Removes data only if everything shows that it is ours: the store has our marker, the folder has a claim with the
 * name of a run whose manifest is here, and the names are those that runs use. Everything else stays. */
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "cli/cli.h"
#include "cli/jobs/pool_list.h"
#include "cli/listing.h"
#include "cli/plan/store_location.h"
#include "cli/report/history_reading.h"
#include "cli/sites/site_verb.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/path.h"
#include "core/units.h"
#include "db/history.h"
#include "run/run_folder.h"
#include "run/workload_kind.h"
#include "setup/folder/claim.h"
#include "setup/folder/folder.h"
#include "setup/s3_keys.h"
#include "store/kind.h"
#include "store/store.h"

#define RUN_LOCK ".ckptbench-lock"
#define PLAIN_DEPTH 4

/* What one run left in its store: checkpoints, or files that ops=load wrote beside its loads. */
struct leftover {
    char run[64];
    char *store;  /* without fault:SPEC:; owned */
    char *suffix; /* owned */
    bool ended;   /* if not, the run may be active, and nothing is removed */
    bool kept;    /* kept checkpoints: removed only if the user names the run */
    bool scratch; /* of ops=load: no checkpoint, but the run's own folder_scratch_name, which is `suffix` */
    bool removed;
    struct experiment *experiment; /* owned */
    uint64_t bytes;
    size_t files;
};

struct cleaning {
    struct cli *cli;
    struct history *history;
    struct leftover *items;
    size_t count;
};

/* ---- names ---- */

/* "iteration-7/…", "checkpoint/…", "baseline/…": folders that runs create inside theirs, and remains of a claim that
 * was being written. */
static bool is_in_our_folder(const char *inside)
{
    static const char *const made[] = {"baseline/", "checkpoint/", "checkpoint-0/", "checkpoint-1/", (CLAIM_NAME ".")};
    static const char iteration[] = "iteration-";
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (strncmp(inside, made[i], strlen(made[i])) == 0)
            return true;
    if (strncmp(inside, iteration, strlen(iteration)) != 0)
        return false;
    size_t digits = strspn(inside + strlen(iteration), "0123456789");
    return digits > 0 && inside[strlen(iteration) + digits] == '/';
}

/* "evict/rank-3": the files in the scratch folder of ops=load. */
static bool is_raw_file(const char *inside)
{
    static const char rank[] = "/rank-";
    const char *name = strchr(inside, '/');
    if (!name || strncmp(name, rank, strlen(rank)) != 0)
        return false;
    const char *number = name + strlen(rank);
    size_t digits = strspn(number, "0123456789");
    return digits > 0 && number[digits] == '\0';
}

struct names {
    char **items;
    size_t count;
    uint64_t bytes;
    size_t suffix_len;
    bool scratch;  /* as in struct leftover */
    bool foreign;  /* contains something that is not ours */
    bool complete; /* contains a complete checkpoint */
};

static void names_release(struct names *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i]);
    free(self->items);
}

static int take_name(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    struct names *self = context;
    const char *inside = name + self->suffix_len + 1;
    if (self->scratch ? !is_raw_file(inside) : !is_in_our_folder(inside)) {
        self->foreign = self->foreign || (strcmp(inside, CLAIM_NAME) != 0 && strcmp(inside, RUN_LOCK) != 0);
        return 0;
    }
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    self->items[self->count] = strdup(name);
    if (!self->items[self->count])
        return alloc_fail(err, "for the names of a checkpoint");
    self->count++;
    self->bytes += length;
    self->complete = self->complete || format_is_marker(name);
    return 0;
}

/* ---- searching ---- */

static int open_store(const struct leftover *item, bool read_only, struct store **store, struct cb_err *err)
{
    struct s3_options s3;
    struct store_options options = {.direct = STORE_DIRECT_NO,
                                    .depth = PLAIN_DEPTH,
                                    .threads = 1,
                                    .durable = true,
                                    .read_only = read_only,
                                    .s3 = &s3};
    int rc = s3_keys_read(item->experiment, &s3, err);
    return rc ? rc : store_open(item->store, &options, store, err);
}

/* Whether the store has our marker and the folder has this run's claim. A scratch folder has the run's name instead. */
static bool is_claimed(struct store *store, const struct leftover *item, struct claim *claim)
{
    uint64_t length;
    *claim = (struct claim){0};
    return store_stat(store, FOLDER_MARKER, &length, NULL) == 0 &&
           (item->scratch || (claim_read(store, item->suffix, claim, NULL) == 0 && strcmp(claim->run, item->run) == 0));
}

static int list_names(struct store *store, const struct leftover *item, struct names *names, struct cb_err *err)
{
    *names = (struct names){.suffix_len = strlen(item->suffix), .scratch = item->scratch};
    return store_list(store, item->suffix, take_name, names, err);
}

/* Whether the run's folder exists, even if it is empty. A store that cannot be reached from here is reported, and
 * its runs are skipped. */
static bool look_at(struct leftover *item)
{
    struct store *store;
    struct names names;
    struct claim claim;
    struct cb_err why;
    bool is_there;
    int rc = open_store(item, true, &store, &why);
    if (rc) {
        if (rc != CB_ERR_NOT_FOUND)
            log_info("run %s: %s", item->run, why.message);
        return false;
    }
    is_there = is_claimed(store, item, &claim);
    if (is_there) {
        if (list_names(store, item, &names, &why))
            log_info("run %s: %s", item->run, why.message);
        item->files = names.count;
        item->bytes = names.bytes;
        item->kept = item->kept || (claim.keeps && names.complete);
        is_there = !item->scratch || item->files > 0;
        names_release(&names);
    }
    store_free(store);
    item->kept = item->kept && item->files > 0;
    return is_there;
}

/* What a killed measurement of the device's limit left lies beside the checkpoints of the watched program, which this
 * history does not know before the run is sealed. Sealing removes it. */
static void name_watched(const struct run_info *info, bool ended)
{
    uint32_t last = 0;
    if (!ended && run_folder_last_attempt(info->folder, &last, NULL) == 0 && last > 0)
        log_info("run %s has not ended, or was not seen to: `ckptbench collect` seals it, and removes what a killed "
                 "measurement left",
                 info->run);
}

/* Appends the run if it left something. */
static int take_run(void *context, struct run_info *info, struct cb_err *err)
{
    struct cleaning *self = context;
    struct store_uri uri = store_uri_of(experiment_text(info->experiment, OPT_STORE));
    const char *suffix = experiment_text(info->experiment, OPT_SUFFIX);
    bool scratch = experiment_is(info->experiment, OPT_OPS, "load");
    char name[FOLDER_NAME_BYTES];
    struct folder folder = {.reads_only = true};
    bool ended =
        strcmp(info->state, "done") == 0 || strcmp(info->state, "failed") == 0 || strcmp(info->state, "cancelled") == 0;
    if (workload_kind_of(info->experiment)->watches) {
        name_watched(info, ended);
        return 0;
    }
    if ((ended && info->attempt == 0) || !uri.kind->keeps_data ||
        (scratch && !workload_kind_of(info->experiment)->has_layout))
        return 0;
    snprintf(folder.run, sizeof folder.run, "%s", info->run);
    folder_scratch_name(&folder, name);
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct leftover *item = &self->items[self->count];
    *item = (struct leftover){
        .store = strdup(uri.inner),
        .suffix = strdup(scratch   ? name
                         : *suffix ? suffix
                                   : info->run),
        .ended = ended,
        .scratch = scratch,
        .kept = workload_kind_of(info->experiment)->trains || /* the training may resume from them after a failure */
                (!scratch && strcmp(info->outcome, "pass") == 0 && claim_is_to_keep(info->experiment)),
        .experiment = info->experiment};
    snprintf(item->run, sizeof item->run, "%s", info->run);
    info->experiment = NULL;
    self->count++;
    if (!item->store || !item->suffix)
        return alloc_fail(err, "for a path");
    if (!look_at(item)) {
        free(item->store);
        free(item->suffix);
        experiment_free(item->experiment);
        self->count--;
    }
    return 0;
}

/* ---- removing ---- */

static int remove_names(struct store *store, const struct names *names, bool markers, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names->count; i++) {
        if (format_is_marker(names->items[i]) == markers)
            rc = store_remove(store, names->items[i], err);
        rc = rc == CB_ERR_NOT_FOUND ? 0 : rc; /* as what another run left here for a moment, when it was refused */
    }
    return rc;
}

/* Removes empty folders, innermost first. */
static void remove_folders(struct store *store, const struct names *names, const char *suffix)
{
    for (size_t i = 0; i < names->count; i++) {
        for (char *slash; (slash = strrchr(names->items[i], '/'));) {
            *slash = '\0';
            if (strlen(names->items[i]) <= strlen(suffix) || store_remove_folder(store, names->items[i], NULL))
                break;
        }
    }
}

static int remove_claim(struct store *store, struct lease *lease, const char *suffix, struct cb_err *err)
{
    const char *const names[] = {RUN_LOCK, lease ? NULL : CLAIM_NAME}; /* RUN_LOCK: of earlier versions */
    char name[PATH_MAX];
    for (size_t i = 0; i < 2 && names[i]; i++)
        if (path_format(name, sizeof name, NULL, "%s/%s", suffix, names[i]) == 0)
            (void)!store_remove(store, name, NULL); /* it may be gone */
    int rc = lease_release(lease, false, err);
    if (!rc && store_remove_folder(store, suffix, NULL))
        log_verbose("the folder %s stays", suffix);
    return rc;
}

/* As another attempt of the run, but one that takes over no other run's folder. */
static int take_lease(struct leftover *item, struct lease **lease, struct cb_err *err)
{
    struct store *store;
    const struct lease_owner owner = {.run = item->run, .run_folder = "", .one_machine = true};
    int rc = experiment_set(item->experiment, "folder", "per_iteration", "clean", err);
    if (!rc)
        rc = experiment_set(item->experiment, "train.resume", "none", "clean", err);
    if (!rc)
        rc = open_store(item, false, &store, err);
    return rc ? rc : lease_take(store, item->store, item->suffix, item->experiment, &owner, lease, err);
}

/* Removes commit markers first, and durably, so that a half-removed checkpoint never counts as complete. */
static int remove_leftover(struct leftover *item, struct cb_err *err)
{
    struct store *store;
    struct lease *lease = NULL; /* none for a scratch folder, whose name is the run's own, and in a full store */
    struct names names = {0};
    struct claim claim;
    char lasts[32];
    int rc = open_store(item, false, &store, err);
    if (rc)
        return rc;
    if (!is_claimed(store, item, &claim)) {
        rc = cb_fail(err, CB_ERR_EXISTS, "%s/%s is not run %s's any more", item->store, item->suffix, item->run);
        goto out;
    }
    bool may_live = *claim.lease.token && !claim_has_ended(&claim.lease);
    if (may_live)
        log_info("%s/%s: looking for up to %s whether a run still renews its claim", item->store, item->suffix,
                 units_format_duration_exact(claim.lease.lasts_ns + claim.lease.lasts_ns / 2, lasts));
    if (!item->scratch)
        rc = take_lease(item, &lease, err);
    if (rc == CB_ERR_NO_SPACE && !may_live)
        rc = 0; /* it takes no new claim, and cleaning is the cure */
    if (rc == 0)
        rc = list_names(store, item, &names, err);
    if (rc == 0)
        rc = remove_names(store, &names, true, err);
    if (rc == 0)
        rc = store_sync_folder(store, "", err);
    if (rc == 0)
        rc = remove_names(store, &names, false, err);
    if (rc)
        goto out;
    item->removed = true;
    remove_folders(store, &names, item->suffix);
    if (names.foreign)
        log_info("%s/%s holds files that no run made: they stay", item->store, item->suffix);
    rc = names.foreign ? lease_release(lease, true, err) : remove_claim(store, lease, item->suffix, err);
out:
    lease_free(lease);
    names_release(&names);
    store_free(store);
    return rc;
}

/* Whether to remove the checkpoints of an ended run: the user named the run or, without names, did not keep them. */
static bool is_wanted(const struct cleaning *self, const struct leftover *item)
{
    return item->ended && (self->cli->word_count > 0 || !item->kept);
}

/* ---- output ---- */

/* How much removing frees, and how much is kept. */
static void write_sums(const struct cleaning *self, struct buf *out)
{
    struct {
        size_t runs;
        uint64_t bytes;
    } wanted = {0}, kept = {0};
    size_t unfinished = 0;
    char size[32];
    for (size_t i = 0; i < self->count; i++) {
        const struct leftover *item = &self->items[i];
        if (is_wanted(self, item))
            wanted.runs++, wanted.bytes += item->bytes;
        else if (item->ended)
            kept.runs++, kept.bytes += item->bytes;
        else
            unfinished++;
    }
    buf_printf(out, "\n%s of %zu run%s to be freed", units_format_bytes((double)wanted.bytes, size), wanted.runs,
               units_plural(wanted.runs));
    if (kept.runs)
        buf_printf(out, "; %s of %zu run%s kept on purpose", units_format_bytes((double)kept.bytes, size), kept.runs,
                   units_plural(kept.runs));
    if (unfinished)
        buf_printf(out, "; %zu run%s not ended, or not seen to: `ckptbench collect` looks", unfinished,
                   units_plural(unfinished));
    buf_append_char(out, '\n');
}

static void add_row(struct listing *list, const struct leftover *item)
{
    char place[1024];
    listing_begin_row(list);
    listing_text(list, "run", TABLE_BOLD, item->run);
    if (list->cli->json)
        json_member_text(&list->json, "store", item->store);
    else
        table_add(&list->table, TABLE_PLAIN, store_location_shorten(item->store, place, sizeof place));
    listing_text(list, "checkpoint", TABLE_PLAIN, item->suffix);
    listing_u64(list, "files", item->files);
    listing_bytes(list, "bytes", item->bytes);
    if (list->cli->json) {
        json_member_bool(&list->json, "ended", item->ended);
        json_member_bool(&list->json, "kept", item->kept);
        json_member_bool(&list->json, "removed", item->removed);
    } else {
        table_add(&list->table, TABLE_PLAIN,
                  !item->ended       ? "not ended"
                  : item->kept       ? "kept on purpose"
                  : item->files == 0 ? "an empty folder"
                                     : "left behind");
    }
    listing_end_row(list);
}

static int write_list(struct cleaning *self, struct cb_err *err)
{
    static const char *const headings[] = {"RUN", "STORE", "CHECKPOINT", "FILES", "SIZE", "WHY"};
    struct listing list;
    listing_init(&list, self->cli, 2, "lllrrl", headings);
    for (size_t i = 0; i < self->count; i++)
        add_row(&list, &self->items[i]);
    int rc = listing_end(&list, 0, err);
    if (rc || self->cli->json)
        return rc;
    write_sums(self, &self->cli->out);
    return cli_flush(self->cli, err);
}

/* ---- the verb ---- */

static int clean(struct cleaning *self, struct cb_err *err)
{
    char question[64];
    size_t wanted = 0, kept = 0, removed = 0;
    int rc = for_each_run(self->history, self->cli->words, self->cli->word_count, take_run, self, err);
    if (rc == 0 && self->count == 0)
        log_info("no run left a checkpoint that is in reach");
    if (rc == 0 && self->count && !self->cli->json)
        rc = write_list(self, err);
    for (size_t i = 0; i < self->count; i++)
        wanted += is_wanted(self, &self->items[i]);
    while (kept < self->count && !self->items[kept].kept)
        kept++;
    if (rc == 0 && wanted == 0 && kept < self->count)
        log_info("nothing was removed: `ckptbench clean %s` removes that of one run", self->items[kept].run);
    else if (rc == 0 && wanted == 0 && self->count > 0)
        log_info("nothing was removed");
    snprintf(question, sizeof question, "remove the checkpoints of %zu run%s?", wanted, units_plural(wanted));
    bool remove = rc == 0 && wanted > 0 && cli_confirms(self->cli, question, "nothing removed: --yes removes");
    for (size_t i = 0; rc == 0 && remove && i < self->count; i++) {
        if (!is_wanted(self, &self->items[i]))
            continue;
        rc = remove_leftover(&self->items[i], err);
        removed += self->items[i].removed;
        if (rc == CB_ERR_EXISTS) { /* it is in use, or another run's by now */
            log_info("%s", err->message);
            rc = 0;
        }
    }
    if (rc == 0 && remove)
        log_info("removed the checkpoints of %zu run%s", removed, units_plural(removed));
    return rc || !self->cli->json ? rc : write_list(self, err);
}

static int run_clean(struct cli *cli, struct cb_err *err)
{
    struct cleaning self = {.cli = cli};
    if (cli_flag_value(cli, "site"))
        return remote_pass(cli, cli_flag_value(cli, "site"), NULL, err);
    pool_list_cancel_outlived();
    int rc = history_open_read_only(NULL, &self.history, err);
    if (rc == 0)
        rc = clean(&self, err);
    for (size_t i = 0; i < self.count; i++) {
        free(self.items[i].store);
        free(self.items[i].suffix);
        experiment_free(self.items[i].experiment);
    }
    free(self.items);
    history_close(self.history);
    return rc;
}

static const struct verb_flag flags[] = {
    {"yes", NULL, "remove without asking"},
    SITE_FLAG,
};

const struct verb verb_clean = {
    .name = "clean",
    .arguments = "[RUN|SWEEP…] [key=value…]",
    .summary = "list and remove checkpoints that runs left in their stores",
    .about =
        "Only what a run of this history claims, by the names that runs give; other files stay where they are. What "
        "was to be kept (ops=save, keep=true) is listed, and removed only where its run is named; what a run "
        "that has not ended is writing is listed, and stays. Run folders are the history itself: no verb removes them.",
    .example = "ckptbench clean store=/shared/ckpt since=30d",
    VERB_FLAGS(flags),
    .run = run_clean,
};
