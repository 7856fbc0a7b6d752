/* libckptbench whose ranks talk by functions of the program: here through boxes in memory, matched as MPI does. */
#include "library_grid.h"

#include <stdatomic.h>

#define MOST_LETTERS 16384

struct letter {
    uint32_t from, to, tag;
    const void *sent;
    void *wanted; /* at most one of the two is set */
    uint64_t length;
    bool is_done;
};

/* The post office of all ranks. */
static struct post {
    pthread_mutex_t lock;
    struct letter letters[MOST_LETTERS]; /* in the order in which they were started */
    size_t first, count;                 /* from `first` on of the present ranks; lost ones keep their bytes in use */
    uint32_t highest_tag;
    uint64_t sent_by_rank_0; /* bytes */
    bool shall_lose;         /* from the first save of rank 1 on, … */
    atomic_bool loses;       /* … letters of rank 1 never arrive */
} post = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t numbers[MOST_RANKS];

/* Finds the other end of a message, the oldest first. */
static int start(struct letter letter, void **message)
{
    pthread_mutex_lock(&post.lock);
    assert_true(post.count < MOST_LETTERS);
    struct letter *own = &post.letters[post.count++];
    *own = letter;
    post.highest_tag = letter.tag > post.highest_tag ? letter.tag : post.highest_tag;
    post.sent_by_rank_0 += letter.sent && letter.from == 0 ? letter.length : 0;
    for (struct letter *other = post.letters + post.first; other < own && !(post.loses && letter.from == 1); other++) {
        if (other->is_done || other->from != own->from || other->to != own->to || other->tag != own->tag ||
            !other->sent == !own->sent)
            continue;
        assert_int_equal(other->length, own->length);
        memcpy(own->sent ? other->wanted : own->wanted, own->sent ? own->sent : other->sent, own->length);
        own->is_done = other->is_done = true;
        break;
    }
    *message = own;
    pthread_mutex_unlock(&post.lock);
    return 0;
}

static int send_letter(void *context, const void *bytes, uint64_t length, uint32_t to, uint32_t tag, void **message)
{
    return start((struct letter){.from = *(uint32_t *)context, .to = to, .tag = tag, .sent = bytes, .length = length},
                 message);
}

static int await_letter(void *context, void *bytes, uint64_t length, uint32_t from, uint32_t tag, void **message)
{
    return start(
        (struct letter){.from = from, .to = *(uint32_t *)context, .tag = tag, .wanted = bytes, .length = length},
        message);
}

static int test_letter(void *context, void *message, int *done)
{
    (void)context;
    pthread_mutex_lock(&post.lock);
    *done = ((struct letter *)message)->is_done;
    pthread_mutex_unlock(&post.lock);
    return 0;
}

static const struct ckptbench_messages *open_post(uint32_t ranks)
{
    static struct ckptbench_messages messages[MOST_RANKS];
    post.first = post.count;
    post.highest_tag = 0;
    post.sent_by_rank_0 = 0;
    post.loses = post.shall_lose = false;
    for (uint32_t i = 0; i < ranks; i++) {
        numbers[i] = i;
        messages[i] = (struct ckptbench_messages){.struct_bytes = sizeof *messages,
                                                  .context = &numbers[i],
                                                  .send = send_letter,
                                                  .receive = await_letter,
                                                  .test = test_letter};
    }
    return messages;
}

static void states_are_saved_and_loaded(void **unused)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t version = 2;
    (void)unused;
    clear();
    run_ranks_over(open_post(4), 4, NULL, save_grid, &counts);
    assert_int_equal(counts.bytes, 2 * (ROWS * COLUMNS * 4 + BIAS * 4 + 8));
    run_ranks_over(open_post(3), 3, NULL, load_transposed, &version);
    static const char *const words[] = {"load.exchange=broadcast", NULL};
    run_ranks_over(open_post(4), 4, words, load_transposed, &version);
    assert_true(post.highest_tag < 1 << 18);
}

static void save_behind(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    ckptbench_async *save = NULL;
    char where[160];
    (void)context;
    describe_grid(grid, rank, ranks, 1);
    snprintf(where, sizeof where, "%s/deep/step-1", folder);
    assert_int_equal(ckptbench_save_async(handle, where, &grid->described.state, &save, NULL), 0);
    memset(grid->matrix, 0xff, sizeof grid->matrix);
    assert_int_equal(ckptbench_async_wait(save, -1, NULL, NULL, NULL), 0);
    ckptbench_async_free(save);
    free(grid);
}

static void asynchronous_saves_use_the_functions_from_a_thread(void **unused)
{
    uint64_t version = 1;
    (void)unused;
    clear();
    run_ranks_over(open_post(2), 2, NULL, save_behind, NULL);
    run_ranks_over(open_post(2), 2, NULL, load_transposed, &version);
}

/* Tensors that all ranks share by rows, as FSDP does. */
#define SHARED_TENSORS 400
#define NAME_BYTES 100
struct shared_state {
    char names[SHARED_TENSORS][NAME_BYTES + 1];
    struct ckptbench_tensor tensors[SHARED_TENSORS];
    struct ckptbench_region regions[SHARED_TENSORS];
    float rows[SHARED_TENSORS][4];
};

/* How the ranks hold them: `rows` of each tensor, and with or without a split that says so. */
struct sharing {
    uint64_t rows;
    bool has_split;
    uint64_t told_bytes[MOST_RANKS]; /* of the save's result */
};

static void save_shared(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct sharing *sharing = context;
    struct shared_state *shared = calloc(1, sizeof *shared);
    uint64_t index[MOST_RANKS];
    const struct ckptbench_split split = {.pieces = ranks, .index = index};
    const struct ckptbench_state state = {.struct_bytes = sizeof state,
                                          .tensors = shared->tensors,
                                          .tensor_count = SHARED_TENSORS,
                                          .regions = shared->regions,
                                          .region_count = SHARED_TENSORS,
                                          .splits = &split,
                                          .split_count = sharing->has_split};
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct ckptbench_error error;
    char where[160];
    uint64_t step = (sharing->rows + ranks - 1) / ranks,
             first = rank * step < sharing->rows ? rank * step : sharing->rows,
             rows = sharing->rows - first < step ? sharing->rows - first : step;
    for (uint32_t i = 0; i < ranks; i++)
        index[i] = i;
    for (uint64_t i = 0; i < SHARED_TENSORS; i++) {
        snprintf(shared->names[i], sizeof shared->names[i], "%0*llu", NAME_BYTES, (unsigned long long)i);
        shared->tensors[i] = (struct ckptbench_tensor){
            .fqn = shared->names[i], .dtype = ckptbench_dtype("float32"), .dims = 2, .shape = {sharing->rows, 2}};
        shared->regions[i] = (struct ckptbench_region){.tensor = i,
                                                       .address = shared->rows[i],
                                                       .offset = {first},
                                                       .size = {rows, 2},
                                                       .stride = {2, 1},
                                                       .split = {sharing->has_split}};
        for (uint64_t row = 0; row < rows; row++)
            shared->rows[i][2 * row] = shared->rows[i][2 * row + 1] = (float)(i + first + row);
    }
    snprintf(where, sizeof where, "%s/shared", folder);
    int code = ckptbench_save(handle, where, &state, &result, &error);
    if (code)
        print_error("rank %u: %s\n", rank, error.text);
    assert_int_equal(code, 0);
    sharing->told_bytes[rank] = result.told_bytes;
    free(shared);
}

/* Each rank loads all of the tensors. */
static void load_shared(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    const struct sharing *sharing = context;
    float *rows = calloc(2 * sharing->rows, sizeof *rows);
    char name[NAME_BYTES + 1], where[160];
    (void)rank, (void)ranks;
    snprintf(name, sizeof name, "%0*d", NAME_BYTES, 7);
    const struct ckptbench_tensor tensor = {
        .fqn = name, .dtype = ckptbench_dtype("float32"), .dims = 2, .shape = {sharing->rows, 2}};
    const struct ckptbench_region region = {.address = rows, .size = {sharing->rows, 2}, .stride = {2, 1}};
    const struct ckptbench_state state = {
        .struct_bytes = sizeof state, .tensors = &tensor, .tensor_count = 1, .regions = &region, .region_count = 1};
    snprintf(where, sizeof where, "%s/shared", folder);
    assert_int_equal(ckptbench_load(handle, where, &state, NULL, NULL), 0);
    for (uint64_t row = 0; row < sharing->rows; row++)
        assert_true(rows[2 * row] == (float)(7 + row) && rows[2 * row + 1] == (float)(7 + row));
    free(rows);
}

static void names_that_ranks_share_reach_each_rank_once(void **unused)
{
    (void)unused;
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        struct sharing sharing = {.rows = 2 * (uint64_t)ranks};
        clear();
        run_ranks_over(open_post(ranks), ranks, NULL, save_shared, &sharing);
        uint64_t names = (uint64_t)(ranks - 1) * SHARED_TENSORS * NAME_BYTES;
        assert_true(post.sent_by_rank_0 >= names && post.sent_by_rank_0 < 2 * names);
        assert_true(sharing.told_bytes[1] >= SHARED_TENSORS * NAME_BYTES);
    }
}

/* 7 rows over 4 ranks are 2, 2, 2 and 1; 3 rows over 4 ranks 1, 1, 1 and none. */
static void a_first_save_whose_splits_tell_who_holds_what_exchanges_no_names(void **unused)
{
    (void)unused;
    for (uint64_t rows = 3; rows <= 8; rows++) {
        struct sharing sharing = {.rows = rows, .has_split = true};
        clear();
        run_ranks_over(open_post(4), 4, NULL, save_shared, &sharing);
        assert_true(post.sent_by_rank_0 < 3 * SHARED_TENSORS * NAME_BYTES / 4);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(sharing.told_bytes[i], 0);
        run_ranks_over(open_post(2), 2, NULL, load_shared, &sharing);
    }
}

/* Of rank 1: passes until its first save. */
static int fail_to_send(void *context, const void *bytes, uint64_t length, uint32_t to, uint32_t tag, void **message)
{
    return post.loses ? 77 : send_letter(context, bytes, length, to, tag, message);
}

/* Each rank says what its save returned. */
static void save_once(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct ckptbench_error *errors = context;
    struct grid_state *grid = calloc(1, sizeof *grid);
    char where[160];
    describe_grid(grid, rank, ranks, 1);
    snprintf(where, sizeof where, "%s/step", folder);
    if (rank == 1)
        post.loses = post.shall_lose;
    assert_true(ckptbench_save(handle, where, &grid->described.state, NULL, &errors[rank]) < 0);
    free(grid);
}

static void a_function_that_fails_fails_the_save_and_others_time_out(void **unused)
{
    static const char *const words[] = {"timeout.op=2s", NULL};
    struct ckptbench_messages messages[2];
    struct ckptbench_error errors[2] = {0};
    (void)unused;
    clear();
    memcpy(messages, open_post(2), sizeof messages);
    messages[1].send = fail_to_send;
    post.shall_lose = true;
    run_ranks_over(messages, 2, words, save_once, errors);
    assert_int_equal(errors[1].code, CKPTBENCH_SYSTEM);
    assert_non_null(strstr(errors[1].text, "send a message failed (77): to rank 0"));
    assert_int_equal(errors[0].code, CKPTBENCH_TIMEOUT);
    assert_false(exists("step/.metadata"));
}

static void a_rank_whose_messages_are_lost_is_waited_for_until_the_timeout(void **unused)
{
    static const char *const words[] = {"timeout.op=2s", NULL};
    struct ckptbench_error errors[2] = {0};
    (void)unused;
    clear();
    const struct ckptbench_messages *messages = open_post(2);
    post.shall_lose = true;
    run_ranks_over(messages, 2, words, save_once, errors);
    assert_int_equal(errors[0].code, CKPTBENCH_TIMEOUT);
    assert_int_equal(errors[1].code, CKPTBENCH_TIMEOUT);
}

static void incomplete_functions_and_old_options_are_told_apart(void **unused)
{
    struct ckptbench_messages messages = {.struct_bytes = sizeof messages, .send = send_letter};
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1, .messages = &messages};
    struct ckptbench_error error;
    ckptbench *handle = NULL;
    (void)unused;
    assert_int_equal(ckptbench_open(&options, &handle, &error), CKPTBENCH_USAGE);
    options.struct_bytes = offsetof(struct ckptbench_open_options, messages); /* does not know of messages */
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    assert_int_equal(ckptbench_close(handle, &error), 0);
    options.struct_bytes = sizeof options + 8;
    assert_int_equal(ckptbench_open(&options, &handle, &error), CKPTBENCH_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_saved_and_loaded),
        cmocka_unit_test(asynchronous_saves_use_the_functions_from_a_thread),
        cmocka_unit_test(names_that_ranks_share_reach_each_rank_once),
        cmocka_unit_test(a_first_save_whose_splits_tell_who_holds_what_exchanges_no_names),
        cmocka_unit_test(a_function_that_fails_fails_the_save_and_others_time_out),
        cmocka_unit_test(a_rank_whose_messages_are_lost_is_waited_for_until_the_timeout),
        cmocka_unit_test(incomplete_functions_and_old_options_are_told_apart),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
