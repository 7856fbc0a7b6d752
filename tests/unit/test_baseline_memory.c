/* A baseline whose store hangs: its requests may still use the memory that they were given. This program's own pwritev
 * hangs until it is released. */
#include <sys/mman.h>

#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"
#include "worker/run.h"

/* Of comm.h, for runs that end as this test does not. */
void comm_free(struct comm *self)
{
    (void)self;
}

int comm_twin(struct comm *self, struct comm **twin, struct cb_err *err)
{
    (void)self, (void)twin;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "not here");
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_released;
static void *in_use; /* the memory of a write that hangs */

ssize_t pwritev(int fd, const struct iovec *segments, int count, off_t offset)
{
    (void)fd, (void)offset;
    ssize_t bytes = 0;
    pthread_mutex_lock(&lock);
    in_use = segments[0].iov_base;
    while (!is_released)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        bytes += (ssize_t)segments[i].iov_len;
    return bytes;
}

static void *memory_in_use(void)
{
    pthread_mutex_lock(&lock);
    void *memory = in_use;
    pthread_mutex_unlock(&lock);
    return memory;
}

static void release_writes(void)
{
    pthread_mutex_lock(&lock);
    is_released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void memory_stays_while_the_store_may_use_it(void **unused)
{
    (void)unused;
    struct world world;
    struct cb_err err = {0};
    unsigned char is_resident;
    world_open(&world, "model=gpt2-tiny io.engine=psync io.direct=false", folder, 0);
    struct world_rank *rank = &world.ranks[0];
    rank->page->sample_capacity = WORLD_SAMPLES;
    struct run run = {.comm = &rank->comm,
                      .page = rank->page,
                      .store = rank->store,
                      .experiment = world.words.experiment,
                      .layout = world.words.layout,
                      .folder = {.path = folder, .suffix = "s"},
                      .op_timeout_ns = NS_PER_S}; /* no state of its own: the baseline has memory of its own */
    assert_int_equal(run_baseline(&run, &err), CB_ERR_TIMEOUT);
    assert_true(store_in_flight(rank->store) > 0);
    assert_int_equal(mincore(memory_in_use(), 1, &is_resident), 0);
    release_writes();
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_stays_while_the_store_may_use_it),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
