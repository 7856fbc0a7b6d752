/* Power cuts while ranks save, some after a process that was killed: afterwards each checkpoint that has its marker is whole and of one save, and where older
 * ones are kept, the newest that was reported as saved is there. Each cut has a seed, which is printed when it finds
 * something: CKPTBENCH_CUT_SEED=N CKPTBENCH_CUTS=1 repeats it. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "ckpt/format/format.h"
#include "core/hash.h"
#include "setup/folder/folder.h"
#include "store/fault/power_cut.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

#define CUTS 200
#define SAVES 4  /* of each process */
#define ROUNDS 3 /* processes that save to the same folder, one after the other */
#define RUN "20261125-cuts"

/* `keeps`: an older checkpoint stays until a newer one is durable. */
static const struct mode {
    const char *words;
    uint32_t keep_last;
    bool keeps;
    uint64_t changes; /* of a process that nothing cuts short; measured */
    bool has_mounts;  /* the store is spread over two folders */
} all_modes[] = {
    {"tp=2 folder=overwrite", 0, false, 0},
    {"tp=2 folder=overwrite copies=2 format=raw", 0, false, 0},
    {"dp=2 folder=overwrite format=safetensors io.files=item", 0, false, 0},
    {"tp=2 folder=overwrite save.async=true save.inflight=2 format=dcp+safetensors", 0, false, 0},
    {"tp=2 folder=overwrite io.files=shared", 0, false, 0},
    {"tp=2 folder=rotate", 0, true, 0},
    {"tp=2 folder=rotate copies=2 io.files=2", 0, true, 0},
    {"dp=2 folder=rotate format=safetensors", 0, true, 0},
    {"tp=2 folder=rotate format=dcp+safetensors io.files=item", 0, true, 0},
    {"tp=2 folder=rotate save.async=true save.inflight=2", 0, true, 0},
    {"tp=2 folder=rotate save.async=true save.inflight=2 format=raw io.files=shared", 0, true, 0},
    {"tp=2 folder=rotate io.engine=io_uring", 0, true, 0},
    {"tp=2 keep.last=1", 1, true, 0},
    {"dp=2 keep.last=2 format=safetensors io.files=item", 2, true, 0},
    {"tp=2 keep.last=1 save.async=true format=raw", 1, true, 0},
    {"tp=2 keep.last=2 save.async=true save.inflight=2 copies=2", 2, true, 0},
    {"tp=2 keep.last=1 io.files=item", 1, true, 0},
    {"tp=2 folder=overwrite", 0, false, 0, true},
    {"tp=2 folder=rotate io.files=2 io.fanout=2", 0, true, 0, true},
    {"dp=2 keep.last=1 format=safetensors io.files=item", 1, true, 0, true},
    {"tp=2 folder=rotate save.async=true save.inflight=2 copies=2", 0, true, 0, true},
};
#define MODES (sizeof all_modes / sizeof *all_modes)

/* What the process that saves tells: the number of the save that began last, and of the one that was done last. */
static struct progress {
    atomic_uint begun, done, has_claimed;
    _Atomic uint64_t changes;
} * progress;

static unsigned number(const char *name, unsigned fallback)
{
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : fallback;
}

static int make_place(void **state)
{
    snprintf(folder, sizeof folder, "/dev/shm/ckptbench-unit-XXXXXX"); /* where a sync takes no time */
    if (!mkdtemp(folder) && make_folder(state) != 0)
        return -1;
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return progress == MAP_FAILED ? -1 : 0;
}

static void write_model(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/model.yaml", folder);
    FILE *list = fopen(path, "w");
    assert_non_null(list);
    fprintf(list, "- {name: first, dtype: fp32, layer: 0, shape: [30, 70], tp_dim: 0}\n"
                  "- {name: second, dtype: bf16, layer: 0, shape: [128, 64], tp_dim: 1}\n"
                  "- {name: third, dtype: fp32, layer: 0, shape: [301]}\n");
    assert_int_equal(fclose(list), 0);
}

/* --- the process that saves --- */

/* What the worker does when a save is durable. */
static void note_done(const struct mode *mode, const struct folder *place, const struct experiment *experiment,
                      unsigned first, uint32_t iteration)
{
    char name[FOLDER_NAME_BYTES];
    struct cb_err err;
    atomic_store(&progress->done, first + iteration);
    if (mode->keep_last == 0 || iteration < mode->keep_last)
        return;
    folder_checkpoint_name(place, experiment, iteration - mode->keep_last, name);
    if (folder_remove(place, name, &err) != 0)
        fail_msg("%s", err.message);
}

static void save_all(const struct mode *mode, struct world *world, const struct folder *place, unsigned first)
{
    const struct experiment *experiment = world->words.experiment;
    uint32_t done = 0;
    for (uint32_t i = 0; i < SAVES; i++) {
        char name[FOLDER_NAME_BYTES];
        folder_checkpoint_name(place, experiment, i, name);
        world->payload.seed = first + i;
        for (uint32_t rank = 0; rank < world->size; rank++)
            assert_int_equal(state_set_values(&world->ranks[rank].state, &world->payload, NULL), 0);
        atomic_store(&progress->begun, first + i);
        world_pass(world, OP_SAVE, name);
        uint32_t under_way = world->async ? engine_native_ops.under_way(world->ranks[0].engine) : 0;
        for (; done + under_way < i + 1; done++)
            note_done(mode, place, experiment, first, done);
    }
    assert_int_equal(world->async ? world_wait(world) : 0, 0);
    for (; done < SAVES; done++)
        note_done(mode, place, experiment, first, done);
}

/* Of all processes that follow the disk; 0 where none does. */
static uint64_t changes_so_far(void)
{
    char path[96];
    uint64_t changes = 0;
    snprintf(path, sizeof path, "%s/store.powercut/state", folder);
    FILE *state = fopen(path, "r");
    if (state && fread(&changes, sizeof changes, 1, state) != 1)
        changes = 0;
    if (state)
        fclose(state);
    return changes;
}

/* The store, which a cut hits as a whole. */
static const char *format_store(const struct mode *mode, const char *faults, char store[300])
{
    if (mode->has_mounts)
        snprintf(store, 300, "%s%s/store/a+%s/store/b", faults, folder, folder);
    else
        snprintf(store, 300, "%s%s/store", faults, folder);
    return store;
}

static void format_words(const struct mode *mode, const char *store, char words[500])
{
    snprintf(words, 500, "io.engine=psync model=%s/model.yaml state=weights io.direct=false store=%s suffix=s %s",
             folder, store, mode->words);
}

/* In a process of its own: saves until the power is cut, or to the end. */
static void run_saves(const struct mode *mode, uint64_t at, unsigned seed, unsigned first)
{
    char store[300], faults[100], words[500];
    struct cb_err err = {0};
    const struct lease_owner owner = {.run = RUN, .run_folder = "", .attempt = 1, .one_machine = true};
    struct folder place = {0};
    struct world world;
    struct words own;
    snprintf(faults, sizeof faults, "fault:powercut_at=%llu+seed=%u:", (unsigned long long)at, seed);
    format_store(mode, faults, store);
    format_words(mode, store, words);
    assert_int_equal(words_make(&own, words, &err), 0);
    if (folder_prepare(&place, own.experiment, &owner, 0, &err) != 0) {
        atomic_store(&progress->has_claimed, 0);
        _exit(0);
    }
    atomic_store(&progress->has_claimed, 1);
    if (folder_open(&place, own.experiment, RUN, &err) != 0 ||
        (experiment_is(own.experiment, OPT_FOLDER, "rotate") && folder_choose_slot(&place, &err) != 0))
        fail_msg("%s", err.message);
    world_open(&world, words, store, 0);
    save_all(mode, &world, &place, first);
    _exit(0);
}

/* A process that has the store open, so that what one process did not sync is still known when the next one saves. */
static pid_t follow_disk(void)
{
    char store[200];
    int ready[2];
    snprintf(store, sizeof store, "fault:powercut_at=%llu:%s/store", UINT64_MAX - 1ULL, folder);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct store_options options = {.depth = 1, .direct = STORE_DIRECT_NO, .in_caller = true};
        struct store *opened;
        int failed = store_open(store, &options, &opened, NULL);
        (void)!write(ready[1], &failed, sizeof failed);
        for (;;)
            pause();
    }
    int failed = -1;
    assert_int_equal(read(ready[0], &failed, sizeof failed), sizeof failed);
    assert_int_equal(failed, 0);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void unfollow(pid_t follower)
{
    assert_int_equal(kill(follower, SIGKILL), 0);
    assert_int_equal(waitpid(follower, NULL, 0), follower);
}

/* The linker puts this before power_cut_count: it kills the process before its change `kill_at` (0: none). */
static uint64_t kill_at;
void __real_power_cut_count(struct power_cut *self);
void __wrap_power_cut_count(struct power_cut *self);
void __wrap_power_cut_count(struct power_cut *self)
{
    static atomic_ullong changes;
    if (atomic_fetch_add(&changes, 1) + 1 == kill_at)
        kill(getpid(), SIGKILL);
    __real_power_cut_count(self);
}

/* True if it did not come to its end: the power is cut at its change `cut_at`, or it is killed at `own_kill_at`; 0: not. */
static bool save_in_a_process(const struct mode *mode, uint64_t cut_at, uint64_t own_kill_at, unsigned seed,
                              unsigned first)
{
    uint64_t before = changes_so_far();
    pid_t child = fork();
    kill_at = child == 0 ? own_kill_at : 0;
    if (child == 0)
        run_saves(mode, cut_at ? before + cut_at : UINT64_MAX - 1, seed, first);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    atomic_store(&progress->changes, changes_so_far() - before);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    assert_int_equal(status, 0);
    return false;
}

/* --- what is left --- */

static bool has_marker(const struct mode *mode, const char *checkpoint)
{
    bool found = false;
    for (size_t i = 0; format_marker_at(i); i++) {
        char path[400];
        snprintf(path, sizeof path, "store/%s%s/%s", mode->has_mounts ? "a/" : "", checkpoint, format_marker_at(i));
        found |= exists(path);
    }
    return found;
}

static bool is_of_save(const struct world *world, unsigned save)
{
    struct payload_settings payload = world->payload;
    uint64_t wrong;
    payload.seed = save;
    for (uint32_t i = 0; i < world->size; i++) {
        const struct state *state = &world->ranks[i].loaded;
        for (size_t j = 0; j < state->piece_count; j++) {
            const struct state_tensor *tensor = layout_tensor(state->layout, state->pieces[j].tensor);
            struct payload_source source = state_payload_source(tensor, &payload);
            if (!payload_check_region(&source, tensor->shape, &state->pieces[j].region, state->memory[j], &wrong))
                return false;
        }
    }
    return true;
}

/* The number of the save that a checkpoint is of; fails if there is none. */
static unsigned whole_save(const struct mode *mode, const char *checkpoint, unsigned newest)
{
    char store[300], words[500];
    struct world world;
    format_store(mode, "", store);
    format_words(mode, store, words);
    world_open(&world, words, store, 0);
    world_pass(&world, OP_LOAD, checkpoint);
    unsigned save = newest;
    while (save > 0 && !is_of_save(&world, save))
        save--;
    world_close(&world);
    if (save == 0)
        fail_msg("%s is not of one save", checkpoint);
    return save;
}

/* The newest save that is there whole; 0: none is. */
static unsigned check_checkpoints(const struct mode *mode)
{
    static const char *const names[] = {"s/checkpoint",  "s/checkpoint-0", "s/checkpoint-1", "s/iteration-0",
                                        "s/iteration-1", "s/iteration-2",  "s/iteration-3"};
    unsigned newest = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsigned save = has_marker(mode, names[i]) ? whole_save(mode, names[i], atomic_load(&progress->begun)) : 0;
        newest = save > newest ? save : newest;
    }
    return newest;
}

static void begin_empty(void)
{
    static const char *const folders[] = {"store", "store/a", "store/b"};
    char path[96];
    clear();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    write_model();
    atomic_store(&progress->begun, 0);
    atomic_store(&progress->done, 0);
}

static uint64_t mixed(unsigned seed, unsigned round)
{
    const unsigned both[] = {seed, round};
    return hash_u64(both, sizeof both);
}

/* Processes that save to one folder, each until a cut; returns how many cuts there were. */
static unsigned cut_in_rounds(const struct mode *mode, unsigned seed)
{
    unsigned rounds =
        mode->keep_last > 0 ? 1 : ROUNDS; /* a run that begins again in iteration-0 needs an empty folder */
    unsigned cuts = 0;
    begin_empty();
    for (unsigned round = 0; round < rounds; round++) {
        uint64_t at = 1 + mixed(seed, round) % mode->changes;
        unsigned first = 2 * round * SAVES + 1;
        print_message("seed %u round %u: %s, cut at %llu\n", seed, round, mode->words, (unsigned long long)at);
        pid_t follower = follow_disk();
        if (mixed(seed, round) >> 63 && mode->keep_last == 0) {
            save_in_a_process(mode, 0, 1 + mixed(round, seed) % mode->changes, 0, first);
            first += SAVES;
        }
        bool was_cut = save_in_a_process(mode, at, 0, seed * ROUNDS + round, first);
        unfollow(follower);
        unsigned newest = check_checkpoints(mode), done = atomic_load(&progress->done);
        if (!was_cut && atomic_load(&progress->has_claimed) && newest != done)
            fail_msg("save %u is lost without a cut", done);
        if (mode->keeps && newest < done)
            fail_msg("save %u was done, but the newest that is there is %u", done, newest);
        cuts += was_cut;
    }
    return cuts;
}

static void every_marked_checkpoint_is_whole_and_the_newest_is_kept(void **unused)
{
    (void)unused;
    struct mode modes[MODES];
    memcpy(modes, all_modes, sizeof modes);
    for (size_t i = 0; i < MODES; i++) {
        begin_empty();
        pid_t follower = follow_disk();
        assert_false(save_in_a_process(&modes[i], 0, 0, 0, 1));
        unfollow(follower);
        modes[i].changes = atomic_load(&progress->changes);
        assert_true(check_checkpoints(&modes[i]) == SAVES);
    }
    unsigned seed = number("CKPTBENCH_CUT_SEED", 1), cuts = number("CKPTBENCH_CUTS", CUTS);
    for (unsigned done = 0; done < cuts; seed++)
        done += cut_in_rounds(&modes[seed % MODES], seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_marked_checkpoint_is_whole_and_the_newest_is_kept),
    };
    return cmocka_run_group_tests(tests, make_place, remove_folder);
}
