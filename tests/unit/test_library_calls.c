/* libckptbench through its header: calls that do not fit together, asynchronous saves, ranks that die, two programs at one
 * path, and what callers are told. */
#include "library_grid.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/claims.h"

static void disagree(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160];
    (void)context;
    describe_grid(grid, rank, ranks, 1);
    for (int i = 0; i < 2; i++) { /* without a plan that is kept, and with one */
        snprintf(where, sizeof where, "%s/other-%u", folder, rank);
        int code = ckptbench_save(handle, where, &grid->described.state, NULL, &error);
        assert_true(code == CKPTBENCH_USAGE || code == CKPTBENCH_ABORTED);
        snprintf(where, sizeof where, "%s/same-%d", folder, i);
        assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    }
    int code = rank == 0 ? ckptbench_load(handle, where, &grid->described.state, NULL, &error)
                         : ckptbench_save(handle, where, &grid->described.state, NULL, &error);
    assert_int_equal(code, CKPTBENCH_USAGE);
    assert_non_null(strstr(error.text, "ranks call differently"));
    snprintf(where, sizeof where, "%s/last", folder);
    assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    free(grid);
}

static void ranks_that_call_differently_are_refused(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, disagree, NULL);
    assert_false(exists("other-0/.metadata") || exists("other-1/.metadata"));
}

/* A value that changes on one rank only is noticed although the plan is kept. */
static void change_value(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160], value[] = VALUE;
    (void)context;
    describe_grid(grid, rank, ranks, 1);
    grid->described.values[0].bytes = value;
    snprintf(where, sizeof where, "%s/first", folder);
    assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    value[0] = 'A'; /* the same on all ranks */
    snprintf(where, sizeof where, "%s/second", folder);
    assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    value[0] = rank == 1 ? 'B' : 'A';
    snprintf(where, sizeof where, "%s/third", folder);
    int code = ckptbench_save(handle, where, &grid->described.state, NULL, &error);
    assert_int_equal(code, CKPTBENCH_USAGE);
    assert_non_null(strstr(error.text, "note: ranks 0 and 1 have different values"));
    free(grid);
}

static void a_value_that_differs_on_one_rank_is_noticed_with_a_kept_plan(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, change_value, NULL);
    assert_false(exists("third/.metadata"));
}

/* --- asynchronous saves --- */

static void save_behind(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct ckptbench_error error = {0};
    ckptbench_async *saves[3] = {0};
    char where[160];
    (void)context;
    for (uint64_t version = 1; version <= 3; version++) {
        describe_grid(grid, rank, ranks, version);
        snprintf(where, sizeof where, "%s/deep/step-%llu", folder, (unsigned long long)version);
        int code = ckptbench_save_async(handle, where, &grid->described.state, &saves[version - 1], &error);
        if (code)
            print_error("rank %u: %s\n", rank, error.text);
        assert_int_equal(code, 0);
        memset(grid->matrix, 0xff, sizeof grid->matrix);
        memset(grid->bias, 0xff, sizeof grid->bias);
        grid->step = -1;
    }
    for (size_t i = 0; i < 3; i++) {
        int ended = 0;
        assert_int_equal(ckptbench_async_wait(saves[i], -1, &ended, &result, &error), 0);
        assert_int_equal(ended, 1);
        assert_true(result.total_s >= result.stall_s && result.durable_s > 0);
        assert_int_equal(result.plan_is_kept, i > 0);
        assert_int_equal(ckptbench_async_wait(saves[i], 0, &ended, &result, &error), 0);
        ckptbench_async_free(saves[i]);
    }
    free(grid);
}

static void a_state_may_change_while_it_is_saved_behind(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, save_behind, NULL);
    for (uint64_t version = 1; version <= 3; version++)
        run_ranks(2, NULL, load_transposed, &version);
}

static void fail_behind(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    ckptbench_async *save;
    char where[160];
    (void)context;
    snprintf(where, sizeof where, "%s/taken", folder);
    describe_grid(grid, rank, ranks, 1);
    const struct ckptbench_state *state = &grid->described.state;
    assert_int_equal(ckptbench_save(handle, where, state, NULL, &error), 0);
    /* Nobody asks: the next call returns it, once. */
    assert_int_equal(ckptbench_save_async(handle, where, state, NULL, &error), 0);
    int code = ckptbench_load(handle, where, state, NULL, &error);
    assert_int_equal(code, rank == 0 ? CKPTBENCH_EXISTS : CKPTBENCH_ABORTED);
    assert_non_null(strstr(error.text, "taken"));
    assert_int_equal(ckptbench_load(handle, where, state, NULL, &error), 0);
    /* Waiting returns the failure; the next call passes. */
    assert_int_equal(ckptbench_save_async(handle, where, state, &save, &error), 0);
    code = ckptbench_async_wait(save, -1, NULL, NULL, &error);
    assert_int_equal(code, rank == 0 ? CKPTBENCH_EXISTS : CKPTBENCH_ABORTED);
    assert_int_equal(ckptbench_load(handle, where, state, NULL, &error), 0);
    assert_int_equal(ckptbench_async_wait(save, 0, NULL, NULL, &error), code);
    ckptbench_async_free(save);
    free(grid);
}

static void a_failure_behind_is_returned_once(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, fail_behind, NULL);
}

static void close_without_waiting(void **state)
{
    (void)state;
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    ckptbench *handle;
    ckptbench_async *save;
    uint64_t offset[2] = {0}, size[2] = {ROWS, COLUMNS};
    clear();
    describe_nothing(&grid->described);
    add_tensor(&grid->described, "matrix", "float32", 2, size);
    add_region(&grid->described, grid->matrix, offset, size);
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    assert_int_equal(ckptbench_save_async(handle, place("last"), &grid->described.state, &save, &error), 0);
    assert_int_equal(ckptbench_close(handle, &error), 0);
    assert_true(exists("last/.metadata")); /* closing waits */
    assert_int_equal(ckptbench_async_wait(save, 0, NULL, NULL, &error), 0);
    ckptbench_async_free(save);
    /* A failure of the last save is returned by the close. */
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    assert_int_equal(ckptbench_save_async(handle, place("last"), &grid->described.state, NULL, &error), 0);
    assert_int_equal(ckptbench_close(handle, &error), CKPTBENCH_EXISTS);
    assert_non_null(strstr(error.text, "last"));
    free(grid);
}

static void a_folder_whose_name_ends_in_a_plus_is_one_place(void **state)
{
    (void)state;
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    ckptbench *handle;
    clear();
    describe_nothing(&grid->described);
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    for (int i = 0; i < 2; i++) { /* the first time there is no such folder yet */
        const char *name = i ? "x+/last" : "x+/first";
        if (ckptbench_save(handle, place(name), &grid->described.state, NULL, &error))
            fail_msg("%s", error.text);
        assert_true(exists(i ? "x+/last/.metadata" : "x+/first/.metadata"));
    }
    assert_int_equal(ckptbench_close(handle, &error), 0);
    free(grid);
}

static void closing_nothing_passes_and_says_so(void **state)
{
    struct ckptbench_error error = {.code = 7, .text = "before"};
    (void)state;
    assert_int_equal(ckptbench_close(NULL, NULL), 0);
    assert_int_equal(ckptbench_close(NULL, &error), 0);
    assert_int_equal(error.code, 0);
    assert_string_equal(error.text, "");
}

/* --- ranks that die --- */

static void must_say(const char *text, const char *wanted)
{
    if (!strstr(text, wanted))
        fail_msg("'%s' is not in '%s'", wanted, text);
}

static void a_rank_that_dies_is_named_and_the_others_can_close(void **state)
{
    (void)state;
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 2};
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char meeting[CKPTBENCH_MEETING_BYTES];
    ckptbench *handle = NULL;
    clear();
    assert_int_equal(ckptbench_listen("127.0.0.1", &options.listener, meeting, &error), 0);
    pid_t child = fork();
    if (child == 0) {
        struct ckptbench_open_options other = {
            .struct_bytes = sizeof other, .rank = 1, .rank_count = 2, .meeting = meeting};
        _exit(ckptbench_open(&other, &handle, NULL) ? 1 : 0); /* and dies, without a word */
    }
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    int status;
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    describe_grid(grid, 0, 2, 1);
    int code = ckptbench_save(handle, place("half"), &grid->described.state, NULL, &error);
    assert_int_equal(code, CKPTBENCH_ABORTED);
    must_say(error.text, "rank 1 is gone");
    must_say(error.text, "; " CKPTBENCH_USELESS);
    assert_true(ckptbench_save(handle, path, &grid->described.state, NULL, &error) != 0);
    must_say(error.text, "; " CKPTBENCH_USELESS);
    assert_string_equal(strstr(error.text, CKPTBENCH_USELESS), CKPTBENCH_USELESS); /* once, at the end */
    assert_false(exists("half"));
    assert_int_equal(ckptbench_close(handle, &error), 0);
    free(grid);
}

/* A rank that has forked a child, as it does for the workers of a DataLoader. The child stays until the pipe ends. */
static pid_t rank_with_child(const char *meeting, const int until[2])
{
    struct ckptbench_open_options options = {
        .struct_bytes = sizeof options, .rank = 1, .rank_count = 2, .meeting = meeting};
    ckptbench *handle;
    char byte;
    pid_t rank = fork();
    if (rank != 0)
        return rank;
    close(until[1]);
    pid_t child = ckptbench_open(&options, &handle, NULL) ? -1 : fork();
    if (child == 0)
        _exit(read(until[0], &byte, 1) == 0 ? 0 : 1);
    if (child > 0)
        kill(getpid(), SIGKILL);
    _exit(1);
}

static void a_child_of_a_rank_does_not_hide_that_the_rank_has_died(void **state)
{
    const char *const words[] = {"timeout.op=100s"};
    struct ckptbench_open_options options = {
        .struct_bytes = sizeof options, .rank_count = 2, .words = words, .word_count = 1};
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char meeting[CKPTBENCH_MEETING_BYTES];
    ckptbench *handle = NULL;
    int until[2], status;
    (void)state;
    clear();
    assert_int_equal(pipe(until), 0);
    assert_int_equal(ckptbench_listen("127.0.0.1", &options.listener, meeting, &error), 0);
    pid_t rank = rank_with_child(meeting, until);
    close(until[0]);
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    assert_true(waitpid(rank, &status, 0) == rank && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    describe_grid(grid, 0, 2, 1);
    assert_int_equal(ckptbench_save(handle, place("half"), &grid->described.state, NULL, &error), CKPTBENCH_ABORTED);
    must_say(error.text, "rank 1 is gone");
    assert_int_equal(ckptbench_close(handle, &error), 0);
    close(until[1]); /* ends the child */
    free(grid);
}

static void save_without_rank_2(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160];
    (void)context;
    snprintf(where, sizeof where, "%s/alone", folder);
    describe_grid(grid, rank, ranks, 1);
    if (rank != 2) { /* which closes its handle */
        assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, &error), CKPTBENCH_ABORTED);
        must_say(error.text, "rank 2 is gone");
    }
    free(grid);
}

static void a_rank_that_closes_its_handle_too_early_is_named_to_all(void **state)
{
    static const char *const words[] = {"timeout.op=100s", NULL};
    (void)state;
    clear();
    run_ranks(4, words, save_without_rank_2, NULL);
}

/* --- ranks that do not meet --- */

static void never_reached(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    (void)handle, (void)rank, (void)ranks, (void)context;
    fail();
}

static void a_wrong_word_on_one_rank_fails_the_open_of_all(void **state)
{
    static const char *const right[] = {"timeout.op=100s"}, *const wrong[] = {"timeout.op=100s", "io.blok=1MiB"};
    static struct rank_thread threads[3];
    char meeting[CKPTBENCH_MEETING_BYTES];
    (void)state;
    for (uint32_t bad = 0; bad < 3; bad++) {
        ckptbench_listener *listener = NULL;
        char named[32];
        snprintf(named, sizeof named, "rank %u failed", bad);
        assert_int_equal(ckptbench_listen("127.0.0.1", &listener, meeting, NULL), 0);
        for (uint32_t i = 0; i < 3; i++) {
            threads[i] = (struct rank_thread){.rank = i,
                                              .ranks = 3,
                                              .listener = i == 0 ? listener : NULL,
                                              .meeting = meeting,
                                              .words = i == bad ? wrong : right,
                                              .word_count = i == bad ? 2 : 1,
                                              .work = never_reached};
            assert_int_equal(pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]), 0);
        }
        for (uint32_t i = 0; i < 3; i++) {
            pthread_join(threads[i].thread, NULL);
            assert_int_equal(threads[i].code, i == bad ? CKPTBENCH_NOT_FOUND : CKPTBENCH_ABORTED);
            must_say(threads[i].error.text, "io.blok");
            must_say(threads[i].error.text, i == bad ? "" : named);
        }
    }
}

/* A process that opens a handle, which shall fail, and ends with status 0 if the text of its error contains `wanted`. */
static pid_t open_in_child(const struct ckptbench_open_options *options, const char *word, const char *wanted)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    struct ckptbench_open_options own = *options;
    struct ckptbench_error error = {0};
    ckptbench *handle;
    own.words = &word;
    own.word_count = 1;
    bool failed = ckptbench_open(&own, &handle, &error) != 0;
    if (failed && !strstr(error.text, wanted))
        print_message("rank %u: '%s' is not in '%s'\n", own.rank, wanted, error.text);
    _exit(failed && strstr(error.text, wanted) ? 0 : 1);
}

/* Rank 3 never comes. Rank 1 does, and ends: again and again, since it may end before it has met rank 0. */
static bool rank_1_that_ended_is_named(const char *wanted)
{
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 4};
    char meeting[CKPTBENCH_MEETING_BYTES];
    int status, first_status = 1;
    assert_int_equal(ckptbench_listen("127.0.0.1", &options.listener, meeting, NULL), 0);
    pid_t first = open_in_child(&options, "timeout.op=100s", wanted);
    ckptbench_listener_free(options.listener);
    options.listener = NULL;
    options.meeting = meeting;
    options.rank = 2;
    pid_t other = open_in_child(&options, "timeout.op=100s", wanted);
    options.rank = 1;
    while (waitpid(first, &first_status, WNOHANG) == 0) {
        pid_t child = open_in_child(&options, "timeout.op=1s", "");
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    assert_int_equal(first_status, 0);
    assert_int_equal(waitpid(other, &status, 0), other);
    return status == 0;
}

static void a_rank_that_ends_while_they_meet_is_named_to_all(void **state)
{
    bool named = false;
    (void)state;
    for (int i = 0; i < 10 && !named; i++) /* rank 2 may come too late to hear of it */
        named = rank_1_that_ended_is_named("rank 1 is gone");
    assert_true(named);
}

static void a_rank_0_that_has_ended_is_not_awaited(void **state)
{
    const char *const words[] = {"timeout.op=10m"};
    struct ckptbench_open_options options = {
        .struct_bytes = sizeof options, .rank = 1, .rank_count = 2, .words = words, .word_count = 1};
    struct ckptbench_error error = {0};
    char meeting[CKPTBENCH_MEETING_BYTES];
    ckptbench_listener *listener;
    ckptbench *handle;
    (void)state;
    assert_int_equal(ckptbench_listen("127.0.0.1", &listener, meeting, &error), 0);
    ckptbench_listener_free(listener);
    options.meeting = meeting;
    assert_int_equal(ckptbench_open(&options, &handle, &error), CKPTBENCH_ABORTED);
    must_say(error.text, "rank 0 is gone: 127.0.0.1 port ");
    must_say(error.text, "refuses connections");
}

/* Rank 0 alone has a listener, whose text the others can read. */
static void what_no_ranks_could_meet_by_is_refused_at_once(void **state)
{
    static const char *const hosts[] = {"", "two words", "tab\t", "line\n"}, *const words[] = {"timeout.op=1s"};
    struct ckptbench_open_options options = {
        .struct_bytes = sizeof options, .rank = 1, .rank_count = 2, .words = words, .word_count = 1};
    struct ckptbench_error error = {0};
    char meeting[CKPTBENCH_MEETING_BYTES];
    ckptbench *handle;
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        assert_int_equal(ckptbench_listen(hosts[i], &options.listener, meeting, &error), CKPTBENCH_USAGE);
    assert_int_equal(ckptbench_listen("127.0.0.1", &options.listener, meeting, &error), 0);
    options.meeting = meeting;
    assert_int_equal(ckptbench_open(&options, &handle, &error), CKPTBENCH_USAGE);
    must_say(error.text, "rank 1 has a listener");
}

/* --- other programs --- */

static ckptbench *open_alone(struct described_state *described, float *matrix)
{
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    ckptbench *handle = NULL;
    describe_nothing(described);
    add_tensor(described, "matrix", "float32", 2, (uint64_t[]){8, 8});
    add_region(described, matrix, NULL, NULL);
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    return handle;
}

static struct claims *open_other(void)
{
    struct experiment *experiment;
    struct claims *other;
    assert_int_equal(experiment_new(&experiment, NULL), 0);
    assert_int_equal(experiment_set(experiment, "store", folder, "test", NULL), 0);
    assert_int_equal(claims_new(experiment, true, &other, NULL), 0);
    experiment_free(experiment);
    return other;
}

static bool leaves_claims(void)
{
    return exists(".ckptbench-saving-step") || exists("step/.ckptbench-run");
}

static void a_path_that_another_program_is_saving_to_is_refused(void **state)
{
    (void)state;
    struct described_state described;
    struct ckptbench_error error = {0};
    float matrix[64] = {0};
    clear();
    ckptbench *handle = open_alone(&described, matrix);
    struct claims *other = open_other();
    assert_int_equal(claims_enter(other, "step", NULL), 0);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), CKPTBENCH_EXISTS);
    assert_non_null(strstr(error.text, "step is being saved by another program"));
    assert_false(exists("step"));
    assert_int_equal(ckptbench_save(handle, place("other"), &described.state, NULL, &error), 0);
    claims_leave(other);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), 0);
    assert_false(leaves_claims());
    claims_free(other);
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

static void a_save_leaves_checkpoints_in_folders_below_alone(void **state)
{
    (void)state;
    static const char *const below[] = {"run/optim", "run/copy", "run"};
    struct described_state described;
    float matrix[64] = {0};
    clear();
    ckptbench *handle = open_alone(&described, matrix);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ckptbench_save(handle, place(below[i]), &described.state, NULL, NULL), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ckptbench_load(handle, place(below[i]), &described.state, NULL, NULL), 0);
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

/* transformers, and torch.distributed.checkpoint's HuggingFaceStorageWriter, write safetensors files without a marker. */
static void safetensors_files_of_another_program_are_a_complete_checkpoint(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "shard-00001-model-00001-of-00001.safetensors"};
    struct described_state described;
    float matrix[64] = {0};
    for (size_t i = 0; i < 2; i++) {
        struct ckptbench_error error = {0};
        char file[64];
        clear();
        ckptbench *handle = open_alone(&described, matrix);
        assert_int_equal(mkdir(place("hf"), 0777), 0);
        snprintf(file, sizeof file, "hf/%s", files[i]);
        FILE *theirs = fopen(place(file), "w");
        assert_true(theirs && fclose(theirs) == 0);
        assert_int_equal(ckptbench_save(handle, place("hf"), &described.state, NULL, &error), CKPTBENCH_EXISTS);
        assert_non_null(strstr(error.text, "hf holds a complete checkpoint"));
        assert_true(exists(file));
        assert_int_equal(ckptbench_close(handle, NULL), 0);
    }
}

static void a_claim_that_cannot_be_written_leaves_nothing(void **state)
{
    (void)state;
    struct rlimit before, none;
    struct cb_err err = {0};
    clear();
    struct claims *claims = open_other();
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0; /* as on a full disk, no file gets any byte */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    int rc = claims_enter(claims, "step", &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_true(rc != 0 && rc != CB_ERR_EXISTS);
    assert_false(exists(".ckptbench-saving-step"));
    claims_free(claims);
}

static void the_claim_of_a_program_that_died_is_taken_over(void **state)
{
    (void)state;
    struct described_state described;
    struct ckptbench_error error = {0};
    float matrix[64] = {0};
    int status;
    clear();
    pid_t child = fork();
    if (child == 0)
        _exit(claims_enter(open_other(), "step", NULL) ? 1 : 0);
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_true(leaves_claims());
    ckptbench *handle = open_alone(&described, matrix);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), 0);
    assert_false(leaves_claims());
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

static void the_folder_of_a_run_is_refused(void **state)
{
    (void)state;
    struct described_state described;
    struct ckptbench_error error = {0};
    float matrix[64] = {0};
    clear();
    ckptbench *handle = open_alone(&described, matrix);
    FILE *claim = fopen(place(".ckptbench-run"), "w");
    assert_true(claim && fputs("20261121-k3f9\ntemporary\n", claim) >= 0 && fclose(claim) == 0);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), CKPTBENCH_EXISTS);
    assert_non_null(strstr(error.text, "run 20261121-k3f9"));
    assert_false(exists("step") || leaves_claims());
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

/* --- the rest --- */

static void list_contents(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    static const char *const names[] = {"bias", "matrix", "note", "nothing", "step"};
    struct ckptbench_entry entry = {.struct_bytes = sizeof entry};
    ckptbench_checkpoint *checkpoint;
    struct ckptbench_error error;
    char where[160];
    (void)rank, (void)ranks, (void)context;
    snprintf(where, sizeof where, "%s/deep/step-1/", folder);
    assert_int_equal(ckptbench_inspect(handle, where, &checkpoint, &error), 0);
    assert_int_equal(ckptbench_checkpoint_count(checkpoint), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(ckptbench_checkpoint_entry(checkpoint, i, &entry, &error), 0);
        assert_string_equal(entry.fqn, names[i]);
        assert_int_equal(entry.is_value, i == 2);
    }
    assert_int_equal(ckptbench_checkpoint_entry(checkpoint, 1, &entry, &error), 0);
    assert_string_equal(ckptbench_dtype_name(entry.dtype), "float32");
    assert_string_equal(entry.path, MATRIX_PATH);
    assert_true(entry.dims == 2 && entry.shape[0] == ROWS && entry.shape[1] == COLUMNS);
    assert_int_equal(entry.bytes, ROWS * COLUMNS * 4);
    assert_int_equal(ckptbench_checkpoint_entry(checkpoint, 5, &entry, &error), CKPTBENCH_USAGE);
    ckptbench_checkpoint_free(checkpoint);
    snprintf(where, sizeof where, "%s/deep/step-7", folder);
    assert_int_equal(ckptbench_inspect(handle, where, &checkpoint, &error), CKPTBENCH_NOT_FOUND);
    assert_non_null(strstr(error.text, "step-7"));
}

static void a_checkpoint_can_be_listed(void **state)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    clear();
    run_ranks(2, NULL, save_grid, &counts);
    run_ranks(1, NULL, list_contents, NULL);
}

static void load_what_is_not_there(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct described_state described;
    struct ckptbench_error error = {0};
    float memory[64];
    (void)rank, (void)ranks, (void)context;
    const struct {
        const char *fqn, *dtype, *value, *error;
        uint64_t length;
    } wishes[] = {
        {"bias", "float32", NULL, "bias: the checkpoint has shape", 64},
        {"bias", "float16", NULL, "bias: the checkpoint has fp32", BIAS},
        {"absent", "float32", NULL, "absent: not in the checkpoint", 64},
        {"note", "float32", NULL, "note: the checkpoint has a value", 64},
        {NULL, NULL, "absent", "absent: not in the checkpoint", 0},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        describe_nothing(&described);
        if (wishes[i].fqn) {
            add_tensor(&described, wishes[i].fqn, wishes[i].dtype, 1, &wishes[i].length);
            add_region(&described, memory, (uint64_t[]){0}, (uint64_t[]){64});
        } else {
            add_value(&described, wishes[i].value, NULL, 0);
        }
        int code = ckptbench_load(handle, context, &described.state, NULL, &error);
        assert_int_equal(code, CKPTBENCH_CORRUPT);
        must_say(error.text, wishes[i].error);
        must_say(error.text, context); /* the path */
        assert_null(strstr(error.text, CKPTBENCH_USELESS));
    }
}

static void a_load_names_what_the_checkpoint_lacks(void **state)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    clear();
    run_ranks(2, NULL, save_grid, &counts);
    run_ranks(1, NULL, load_what_is_not_there, (void *)place("deep/step-1"));
}

/* Whatever else has the name of a file of a checkpoint, a load says so, and does not wait for somebody to write to it. */
static void what_is_no_regular_file_is_refused(void **state)
{
    static const struct {
        const char *file;
        mode_t kind; /* 0: a folder */
    } others[] = {{"deep/step-1/.metadata", S_IFIFO},
                  {"deep/step-1/__1_0.distcp", S_IFIFO},
                  {"deep/step-1/__0_0.distcp", S_IFSOCK},
                  {"deep/step-1/.metadata", 0}};
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    struct described_state described;
    struct ckptbench_error error = {0};
    ckptbench_checkpoint *checkpoint;
    ckptbench *handle;
    float bias[BIAS];
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        clear();
        run_ranks(2, NULL, save_grid, &counts);
        assert_int_equal(unlink(place(others[i].file)), 0);
        assert_int_equal(others[i].kind ? mknod(place(others[i].file), others[i].kind | 0600, 0)
                                        : mkdir(place(others[i].file), 0700),
                         0);
        assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
        describe_nothing(&described);
        add_tensor(&described, "bias", "float32", 1, (uint64_t[]){BIAS});
        add_region(&described, bias, NULL, NULL);
        assert_true(ckptbench_load(handle, place("deep/step-1"), &described.state, NULL, &error) < 0);
        must_say(error.text, "is not a regular file");
        must_say(error.text, strrchr(others[i].file, '/') + 1);
        if (strstr(others[i].file, ".metadata")) {
            assert_true(ckptbench_inspect(handle, place("deep/step-1"), &checkpoint, &error) < 0);
            must_say(error.text, ".metadata in store");
            must_say(error.text, "is not a regular file");
        }
        assert_int_equal(ckptbench_close(handle, NULL), 0);
    }
}

static void an_error_is_one_line_whatever_a_path_contains(void **state)
{
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    struct described_state described;
    struct ckptbench_error error = {0};
    ckptbench *handle;
    (void)state;
    clear();
    describe_nothing(&described);
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    assert_true(ckptbench_load(handle, place("two\nlines\033[31m"), &described.state, NULL, &error) < 0);
    must_say(error.text, "two?lines?[31m");
    for (const char *at = error.text; *at; at++)
        assert_true((unsigned char)*at >= ' ');
    assert_int_equal(ckptbench_close(handle, NULL), 0);
    /* So is what a save that passes says of its record. */
    const char *const words[] = {"record=/dev/null/two\nlines/run"};
    options.words = words;
    options.word_count = 1;
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), 0);
    must_say(error.text, "/dev/null/two?lines");
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

static void a_save_replaces_a_checkpoint_only_if_told(void **state)
{
    const char *const words[] = {"folder=overwrite", NULL};
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t version = 1;
    (void)state;
    clear();
    run_ranks(4, NULL, save_grid, &counts);
    run_ranks(2, words, save_grid, &counts);
    run_ranks(2, NULL, load_transposed, &version);
}

/* First rank 0 has the reason, then the last rank. */
static void fail_on_one_rank(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_state *state = &grid->described.state;
    struct ckptbench_error error = {0};
    ckptbench_async *save = NULL;
    const char *where = context;
    describe_grid(grid, rank, ranks, 1);
    assert_int_equal(ckptbench_save(handle, where, state, NULL, &error), 0);
    int wanted = rank == 0 ? CKPTBENCH_EXISTS : CKPTBENCH_ABORTED;
    assert_int_equal(ckptbench_save(handle, where, state, NULL, &error), wanted);
    must_say(error.text, "holds a complete checkpoint; folder=overwrite replaces it");
    int code = ckptbench_save_async(handle, where, state, &save, &error);
    if (!code) {
        code = ckptbench_async_wait(save, -1, NULL, NULL, &error);
        ckptbench_async_free(save);
    }
    assert_int_equal(code, wanted);
    must_say(error.text, "holds a complete checkpoint; folder=overwrite replaces it");
    if (rank == ranks - 1)
        grid->described.tensors[0].dtype = 77777;
    wanted = rank == ranks - 1 ? CKPTBENCH_USAGE : CKPTBENCH_ABORTED;
    assert_int_equal(ckptbench_save(handle, where, state, NULL, &error), wanted);
    must_say(error.text, "there is no type 77777");
    free(grid);
}

static void every_rank_is_told_why_one_failed(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, fail_on_one_rank, (void *)place("taken"));
    clear();
    run_ranks(4, NULL, fail_on_one_rank, (void *)place("taken"));
}

/* The signals that the process ignores, and those that it handles. */
static void read_dispositions(char ignored[32], char caught[32])
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    ignored[0] = caught[0] = '\0';
    while (fgets(line, sizeof line, file)) {
        (void)sscanf(line, "SigIgn: %31s", ignored);
        (void)sscanf(line, "SigCgt: %31s", caught);
    }
    fclose(file);
    assert_true(*ignored && *caught);
}

static void what_signals_do_stays_as_it_is(void **state)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t version = 1;
    char ignored[2][32], caught[2][32];
    (void)state;
    clear();
    read_dispositions(ignored[0], caught[0]);
    run_ranks(2, NULL, save_grid, &counts);
    run_ranks(1, NULL, load_transposed, &version);
    read_dispositions(ignored[1], caught[1]);
    assert_string_equal(ignored[0], ignored[1]);
    assert_string_equal(caught[0], caught[1]);
}

static void keys_without_meaning_are_refused(void **state)
{
    static const char *const wrong[] = {"model=gpt2", "save.async=true", "load.dp=2",          "format=raw",
                                        "io.depth",   "io.depht=3",      "folder=rotate",      "store=/tmp",
                                        "io.depth=0", "timeout.run=3s",  "load.exchange=auto", "io.gds=auto"};
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1, .word_count = 1};
    struct ckptbench_error error;
    ckptbench *handle;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.words = &wrong[i];
        error.code = 0;
        int code = ckptbench_open(&options, &handle, &error);
        if (code != CKPTBENCH_USAGE && code != CKPTBENCH_NOT_FOUND)
            fail_msg("%s is accepted", wrong[i]);
        assert_int_equal(error.code, code);
    }
    options.word_count = 0;
    options.rank = 1;
    assert_int_equal(ckptbench_open(&options, &handle, NULL), CKPTBENCH_USAGE);
    options = (struct ckptbench_open_options){.struct_bytes = sizeof options, .rank = 1, .rank_count = 2};
    options.meeting = "somewhere 1 00";
    assert_int_equal(ckptbench_open(&options, &handle, &error), CKPTBENCH_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_call_differently_are_refused),
        cmocka_unit_test(a_value_that_differs_on_one_rank_is_noticed_with_a_kept_plan),
        cmocka_unit_test(a_state_may_change_while_it_is_saved_behind),
        cmocka_unit_test(a_failure_behind_is_returned_once),
        cmocka_unit_test(close_without_waiting),
        cmocka_unit_test(a_folder_whose_name_ends_in_a_plus_is_one_place),
        cmocka_unit_test(closing_nothing_passes_and_says_so),
        cmocka_unit_test(a_rank_that_dies_is_named_and_the_others_can_close),
        cmocka_unit_test(a_child_of_a_rank_does_not_hide_that_the_rank_has_died),
        cmocka_unit_test(a_rank_that_closes_its_handle_too_early_is_named_to_all),
        cmocka_unit_test(a_wrong_word_on_one_rank_fails_the_open_of_all),
        cmocka_unit_test(a_rank_that_ends_while_they_meet_is_named_to_all),
        cmocka_unit_test(a_rank_0_that_has_ended_is_not_awaited),
        cmocka_unit_test(what_no_ranks_could_meet_by_is_refused_at_once),
        cmocka_unit_test(a_path_that_another_program_is_saving_to_is_refused),
        cmocka_unit_test(a_save_leaves_checkpoints_in_folders_below_alone),
        cmocka_unit_test(safetensors_files_of_another_program_are_a_complete_checkpoint),
        cmocka_unit_test(a_claim_that_cannot_be_written_leaves_nothing),
        cmocka_unit_test(the_claim_of_a_program_that_died_is_taken_over),
        cmocka_unit_test(the_folder_of_a_run_is_refused),
        cmocka_unit_test(a_checkpoint_can_be_listed),
        cmocka_unit_test(a_load_names_what_the_checkpoint_lacks),
        cmocka_unit_test(an_error_is_one_line_whatever_a_path_contains),
        cmocka_unit_test(what_is_no_regular_file_is_refused),
        cmocka_unit_test(a_save_replaces_a_checkpoint_only_if_told),
        cmocka_unit_test(every_rank_is_told_why_one_failed),
        cmocka_unit_test(what_signals_do_stays_as_it_is),
        cmocka_unit_test(keys_without_meaning_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
