/* Multiplies small matrices on all cores of a rank, as a stand-in for training. */
#include "worker/compute.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/rlimits.h"

#define SIDE 96 /* three matrices of floats: 108 KiB, in a core's own caches */
#define MAX_THREADS 256

struct matrices {
    float a[SIDE][SIDE], b[SIDE][SIDE], c[SIDE][SIDE];
};

struct helper {
    struct compute *compute;
    pthread_t thread;
    sem_t start;
    struct matrices *matrices;
    uint64_t units;
};

struct compute {
    uint32_t count; /* helpers: [0] is the caller, without a thread */
    struct helper *helpers;
    sem_t done;
    bool leave;
    uint64_t until_ns;
};

/* One unit of work. It uses the result of the previous one, so that the compiler cannot omit any. */
static void multiply(struct matrices *m)
{
    for (int i = 0; i < SIDE; i++) {
        for (int k = 0; k < SIDE; k++) {
            float factor = m->a[i][k];
            for (int j = 0; j < SIDE; j++)
                m->c[i][j] += factor * m->b[k][j];
        }
    }
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++)
            m->a[i][j] = m->c[i][j] * 0.0009765625f + 0.5f;
    }
}

static void work(struct helper *self)
{
    self->units = 0;
    while (clock_monotonic_ns() < self->compute->until_ns) {
        multiply(self->matrices);
        self->units++;
    }
}

static void *help(void *context)
{
    struct helper *self = context;
    for (;;) {
        while (sem_wait(&self->start) != 0)
            ;
        if (self->compute->leave)
            return NULL;
        work(self);
        sem_post(&self->compute->done);
    }
}

static int add_helper(struct compute *self, struct cb_err *err)
{
    struct helper *helper = &self->helpers[self->count];
    helper->compute = self;
    helper->matrices = calloc(1, sizeof *helper->matrices);
    if (!helper->matrices)
        return alloc_fail(err, "to compute with");
    for (int i = 0; i < SIDE * SIDE; i++)
        helper->matrices->a[i / SIDE][i % SIDE] = helper->matrices->b[i / SIDE][i % SIDE] = 1.0f / (float)(i + 1);
    sem_init(&helper->start, 0, 0);
    int failed = self->count > 0 ? pthread_create(&helper->thread, NULL, help, helper) : 0;
    if (failed) {
        sem_destroy(&helper->start);
        free(helper->matrices);
        return rlimits_fail_thread(failed, "a computing thread", err);
    }
    self->count++;
    return 0;
}

int compute_new(uint32_t threads, struct compute **compute, struct cb_err *err)
{
    uint32_t wanted = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    struct compute *self = calloc(1, sizeof *self);
    struct helper *helpers = calloc(wanted, sizeof *helpers);
    if (!self || !helpers) {
        free(self);
        free(helpers);
        return alloc_fail(err, "to compute with");
    }
    self->helpers = helpers;
    sem_init(&self->done, 0, 0);
    int rc = 0;
    for (uint32_t i = 0; i < wanted && !rc; i++)
        rc = add_helper(self, err);
    if (rc)
        compute_free(self);
    else
        *compute = self;
    return rc;
}

void compute_free(struct compute *self)
{
    if (!self)
        return;
    self->leave = true;
    for (uint32_t i = 0; i < self->count; i++) {
        struct helper *helper = &self->helpers[i];
        if (i > 0) {
            sem_post(&helper->start);
            pthread_join(helper->thread, NULL);
        }
        sem_destroy(&helper->start);
        free(helper->matrices);
    }
    sem_destroy(&self->done);
    free(self->helpers);
    free(self);
}

uint64_t compute_until(struct compute *self, uint64_t until_ns)
{
    self->until_ns = until_ns;
    for (uint32_t i = 1; i < self->count; i++)
        sem_post(&self->helpers[i].start);
    work(&self->helpers[0]);
    uint64_t units = self->helpers[0].units;
    for (uint32_t i = 1; i < self->count; i++) {
        while (sem_wait(&self->done) != 0)
            ;
    }
    for (uint32_t i = 1; i < self->count; i++)
        units += self->helpers[i].units;
    return units;
}
