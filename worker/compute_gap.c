/* Computes between iterations, and measures how much a save in the background slows that down. */
#include "worker/compute_gap.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "engine/device.h"

#define SLICE_NS (10 * NS_PER_MS)
#define SLEEP_NS (50 * NS_PER_MS)
#define CALIBRATE_NS (500 * NS_PER_MS)
/* A compute_rate of a shorter time is noise. */
#define LEAST_NS (20 * NS_PER_MS)

int compute_gap_init(struct compute_gap *self, const struct experiment *experiment, struct cb_err *err)
{
    *self = (struct compute_gap){.gap_ns = experiment_u64(experiment, OPT_COMPUTE_GAP)};
    if (experiment_is(experiment, OPT_INTERFERENCE, "none"))
        return 0;
    if (self->gap_ns == 0)
        return cb_fail(err, CB_ERR_USAGE, "interference=compute needs compute_gap=TIME to compute in");
    return compute_new(device_host_cores(), &self->compute, err);
}

void compute_gap_release(struct compute_gap *self)
{
    compute_free(self->compute);
    memset(self, 0, sizeof *self);
}

static int look_around(struct comm *comm, struct status_page *page, struct cb_err *err)
{
    atomic_store_explicit(&page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
    return comm_check(comm, err);
}

static void add_slice(struct compute_rate *compute_rate, uint64_t units, uint64_t spent_ns)
{
    compute_rate->units += units;
    compute_rate->spent_ns += spent_ns;
}

static double units_per_s(const struct compute_rate *compute_rate)
{
    return (double)compute_rate->units / ((double)compute_rate->spent_ns / 1e9);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int compute_gap_calibrate(struct compute_gap *self, struct comm *comm, struct status_page *page, struct cb_err *err)
{
    uint64_t now_ns = clock_monotonic_ns(), end_ns = now_ns + CALIBRATE_NS;
    int rc = 0;
    compute_until(self->compute, now_ns + SLICE_NS); /* lets clocks and caches warm up */
    for (now_ns = clock_monotonic_ns(); now_ns < end_ns && !rc;) {
        uint64_t units = compute_until(self->compute, now_ns + SLICE_NS), after_ns = clock_monotonic_ns();
        add_slice(&self->alone, units, after_ns - now_ns);
        now_ns = after_ns;
        rc = look_around(comm, page, err);
    }
    return rc;
}

static int compute_gap(struct compute_gap *self, struct engine *engine, struct comm *comm, struct status_page *page,
                       struct compute_rate *beside, struct cb_err *err)
{
    uint64_t now_ns = clock_monotonic_ns(), end_ns = now_ns + self->gap_ns;
    bool busy = engine && engine_under_way(engine) > 0;
    int rc = 0;
    while (now_ns < end_ns && !rc) {
        uint64_t units = compute_until(self->compute, earlier(now_ns + SLICE_NS, end_ns));
        uint64_t after_ns = clock_monotonic_ns();
        bool still_busy = engine && engine_under_way(engine) > 0;
        if (busy == still_busy) /* a slice during which a save ended counts as neither */
            add_slice(busy ? beside : &self->alone, units, after_ns - now_ns);
        busy = still_busy;
        now_ns = after_ns;
        rc = look_around(comm, page, err);
    }
    return rc;
}

static int sleep_gap(const struct compute_gap *self, struct comm *comm, struct status_page *page, struct cb_err *err)
{
    uint64_t now_ns = clock_monotonic_ns(), end_ns = now_ns + self->gap_ns;
    int rc = 0;
    while (now_ns < end_ns && !rc) {
        uint64_t left_ns = earlier(SLEEP_NS, end_ns - now_ns);
        struct timespec pause = {.tv_nsec = (long)left_ns};
        nanosleep(&pause, NULL);
        now_ns = clock_monotonic_ns();
        rc = look_around(comm, page, err);
    }
    return rc;
}

int compute_gap_pass(struct compute_gap *self, struct engine *engine, struct comm *comm, struct status_page *page,
                     double *fraction, struct cb_err *err)
{
    struct compute_rate beside = {0};
    *fraction = NAN;
    if (self->gap_ns == 0)
        return 0;
    if (!self->compute)
        return sleep_gap(self, comm, page, err);
    int rc = compute_gap(self, engine, comm, page, &beside, err);
    if (!rc && beside.spent_ns >= LEAST_NS && self->alone.spent_ns >= LEAST_NS)
        *fraction = 1 - units_per_s(&beside) / units_per_s(&self->alone);
    return rc;
}
