/* Acquires, renews, checks and releases the lease on a folder. */
#include "setup/folder/lease.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/format/format.h"
#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/rlimits.h"
#include "setup/s3_keys.h"
#include "store/kind.h"

#define MOST_TRIES 3
#define RENEWALS 4 /* renewals during the life of a lease */
/* A thread whose store hangs is abandoned; the process exits anyway. */
#define STOP_S 10

struct lease {
    char path[PATH_MAX], suffix[CLAIM_RUN_BYTES], name[PATH_MAX];
    char text[CLAIM_TEXT_BYTES]; /* of the claim in the store */
    struct claim mine;
    bool guarded;
    bool running;
    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below and the store */
    pthread_cond_t changed;
    struct store *store;
    uint64_t renewed_ns; /* monotonic; start of the last renewal that succeeded */
    bool leave;
};

/* ---- renewing ---- */

static int renew(struct lease *self, struct cb_err *err)
{
    bool guarded;
    uint64_t now_ns = clock_monotonic_ns();
    int rc = store_swap(self->store, self->name, self->text, self->text, &guarded, err);
    if (!rc)
        self->renewed_ns = now_ns;
    return rc;
}

static void *keep_renewing(void *context)
{
    struct lease *self = context;
    uint64_t every_ns = self->mine.lease.lasts_ns / RENEWALS, next_ns = clock_monotonic_ns() + every_ns;
    bool lost = false;
    pthread_mutex_lock(&self->lock);
    while (!self->leave && !lost) {
        struct timespec until = {.tv_sec = (time_t)(next_ns / NS_PER_S), .tv_nsec = (long)(next_ns % NS_PER_S)};
        pthread_cond_timedwait(&self->changed, &self->lock, &until);
        if (self->leave || clock_monotonic_ns() < next_ns)
            continue;
        lost = renew(self, NULL) == CB_ERR_EXISTS; /* lease_check reports it; other failures may be temporary */
        next_ns = clock_monotonic_ns() + every_ns;
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static int start(struct lease *self, struct cb_err *err)
{
    int failed = pthread_create(&self->thread, NULL, keep_renewing, self);
    self->running = failed == 0;
    return failed ? rlimits_fail_thread(failed, "the thread that renews the claim on the folder in the store", err) : 0;
}

/* False if the thread does not end. */
static bool stop(struct lease *self)
{
    struct timespec until;
    if (!self->running)
        return true;
    pthread_mutex_lock(&self->lock);
    self->leave = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_S;
    self->running = pthread_timedjoin_np(self->thread, NULL, &until) != 0;
    return !self->running;
}

/* ---- acquiring ---- */

static void fill_claim(struct claim *mine, const struct experiment *experiment, const struct lease_owner *owner)
{
    unsigned char random[16];
    struct claim_lease *lease = &mine->lease;
    *mine = (struct claim){.keeps = claim_is_to_keep(experiment)};
    snprintf(mine->run, sizeof mine->run, "%s", owner->run);
    random_bytes(random, sizeof random);
    hash_hex(random, sizeof random, lease->token);
    lease->attempt = owner->attempt;
    lease->since_wall_ns = clock_wall_ns();
    lease->lasts_ns = experiment_u64(experiment, OPT_TIMEOUT_LEASE);
    if (gethostname(lease->host, sizeof lease->host - 1) != 0)
        snprintf(lease->host, sizeof lease->host, "unknown");
    snprintf(lease->run_folder, sizeof lease->run_folder, "%s", owner->run_folder);
    if (owner->one_machine)
        process_identify(&lease->process);
}

/* Unfinished uploads of the last owner could still replace our objects. `checkpoint`: the folder of its data if it is
 * not the claimed one. */
static void abort_uploads(const struct lease *self, const struct experiment *experiment, const char *checkpoint)
{
    struct s3_options options;
    uint64_t count;
    const struct store_kind *kind = store_uri_of(self->path).kind;
    if (kind->abort_leftovers && s3_keys_read(experiment, &options, NULL) == 0 &&
        kind->abort_leftovers(self->path, &options, checkpoint ? checkpoint : self->suffix,
                              checkpoint ? format_is_file_within : NULL, &count, NULL))
        return; /* not every user may list uploads */
}

/* Without a guard, if two runs take over at the same time, the later one owns the folder. */
static int check_unguarded(struct lease *self, struct cb_err *err)
{
    struct claim owner;
    char text[CLAIM_TEXT_BYTES];
    int rc = claim_read(self->store, self->suffix, &owner, err);
    if (rc || strcmp(owner.lease.token, self->mine.lease.token) == 0)
        return rc;
    return cb_fail(err, CB_ERR_EXISTS, "%.300s/%.300s has been claimed just now by %s: choose another suffix",
                   self->path, self->suffix, claim_describe(&owner, text));
}

static int claim(struct lease *self, const struct experiment *experiment, const char *uploads, struct cb_err *err)
{
    struct buf before;
    struct claim owner = {0};
    bool owned = false;
    int rc = CB_ERR_EXISTS;
    buf_init(&before, CLAIM_TEXT_BYTES - 1);
    for (int tries = 0; tries < MOST_TRIES && rc == CB_ERR_EXISTS; tries++) {
        rc = lease_check_rules(self->store, self->path, self->suffix, experiment, &self->mine, &before, &owned, err);
        if (!rc)
            rc = store_make_folder(self->store, self->suffix, err);
        if (rc)
            break;
        claim_format(&self->mine, self->text);
        self->renewed_ns = clock_monotonic_ns();
        rc = store_swap(self->store, self->name, owned ? before.data : NULL, self->text, &self->guarded, err);
    }
    if (!rc && !self->guarded)
        rc = check_unguarded(self, err);
    if (owned)
        claim_parse(before.data, &owner);
    if (!rc && *owner.lease.token)
        abort_uploads(self, experiment, uploads);
    buf_release(&before);
    return rc;
}

int lease_take(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
               const struct lease_owner *owner, struct lease **lease, struct cb_err *err)
{
    pthread_condattr_t attributes;
    struct lease *self = calloc(1, sizeof *self);
    if (!self) {
        store_free(store);
        return alloc_fail(err, "for the claim on %s/%s", path, suffix);
    }
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    self->store = store;
    snprintf(self->path, sizeof self->path, "%s", path);
    snprintf(self->suffix, sizeof self->suffix, "%s", suffix);
    fill_claim(&self->mine, experiment, owner);
    int rc = claim_name(suffix, self->name, err);
    if (!rc)
        rc = claim(self, experiment, owner->uploads, err);
    if (!rc)
        rc = start(self, err);
    if (rc) {
        lease_free(self);
        return rc;
    }
    *lease = self;
    return 0;
}

/* ---- checking, and releasing ---- */

static int fail_lost(const struct lease *self, const struct claim *owner, struct cb_err *err)
{
    char text[CLAIM_TEXT_BYTES];
    if (!owner)
        return cb_fail(err, CB_ERR_EXISTS,
                       "the claim of this run on %.300s/%.300s has been removed: it commits and removes nothing there",
                       self->path, self->suffix);
    return cb_fail(err, CB_ERR_EXISTS,
                   "%.300s/%.300s is no longer this run's, but belongs to %s: it commits and removes nothing there",
                   self->path, self->suffix, claim_describe(owner, text));
}

/* With the lock held. A lease that has not been renewed for long could be taken over right after this check. */
static int check_locked(struct lease *self, struct cb_err *err)
{
    struct claim owner;
    int rc = claim_read(self->store, self->suffix, &owner, err);
    if (!rc && strcmp(owner.lease.token, self->mine.lease.token) != 0)
        return fail_lost(self, &owner, err);
    if (!rc && clock_monotonic_ns() - self->renewed_ns > self->mine.lease.lasts_ns / 2)
        rc = renew(self, err);
    return rc == CB_ERR_NOT_FOUND ? fail_lost(self, NULL, err) : rc;
}

int lease_check(struct lease *self, struct cb_err *err)
{
    if (!self)
        return 0;
    pthread_mutex_lock(&self->lock);
    int rc = check_locked(self, err);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

bool lease_is_guarded(const struct lease *self)
{
    return self->guarded;
}

int lease_release(struct lease *self, bool claim_stays, struct cb_err *err)
{
    char text[CLAIM_TEXT_BYTES];
    bool guarded;
    if (!self)
        return 0;
    int rc = lease_check(self, err);
    if (rc || !stop(self))
        return rc;
    if (!claim_stays)
        return store_remove(self->store, self->name, err);
    self->mine.lease.token[0] = '\0';
    claim_format(&self->mine, text);
    return store_swap(self->store, self->name, self->text, text, &guarded, err);
}

void lease_free(struct lease *self)
{
    if (!self || !stop(self))
        return;
    store_free(self->store);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}
