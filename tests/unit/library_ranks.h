/* For tests of libckptbench: ranks as threads of one process, each with a handle of its own, that meet over TCP. */
#ifndef TESTS_UNIT_LIBRARY_RANKS_H
#define TESTS_UNIT_LIBRARY_RANKS_H

#include "own_folder.h"

#include <pthread.h>
#include <string.h>

#include "include/ckptbench.h"

#define MOST_RANKS 8
#define MOST_TENSORS 16
#define MOST_REGIONS 64

struct rank_thread {
    pthread_t thread;
    uint32_t rank, ranks;
    ckptbench_listener *listener;
    const char *meeting;
    const struct ckptbench_messages *messages; /* NULL: they meet over TCP */
    const char *const *words;
    size_t word_count;
    void (*work)(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context);
    void *context;
    struct ckptbench_error error; /* of opening or closing */
    int code;
};

static inline void *run_rank(void *context)
{
    struct rank_thread *self = context;
    struct ckptbench_open_options options = {.struct_bytes = sizeof options,
                                             .rank = self->rank,
                                             .rank_count = self->ranks,
                                             .listener = self->listener,
                                             .meeting = self->meeting,
                                             .words = self->words,
                                             .word_count = self->word_count,
                                             .messages = self->messages};
    ckptbench *handle = NULL;
    self->code = ckptbench_open(&options, &handle, &self->error);
    if (self->code)
        return NULL;
    self->work(handle, self->rank, self->ranks, self->context);
    self->code = ckptbench_close(handle, &self->error);
    return NULL;
}

/* Opens a handle a rank with the words (ended by NULL), calls `work` on each, and closes them, which must pass. */
typedef void (*rank_work)(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context);
static inline void run_ranks_over(const struct ckptbench_messages *messages, uint32_t ranks, const char *const *words,
                                  rank_work work, void *context)
{
    static struct rank_thread threads[MOST_RANKS];
    char meeting[CKPTBENCH_MEETING_BYTES];
    ckptbench_listener *listener = NULL;
    size_t word_count = 0;
    while (words && words[word_count])
        word_count++;
    assert_true(ranks <= MOST_RANKS);
    if (!messages)
        assert_int_equal(ckptbench_listen("127.0.0.1", &listener, meeting, NULL), 0);
    for (uint32_t i = 0; i < ranks; i++) {
        threads[i] = (struct rank_thread){.rank = i,
                                          .ranks = ranks,
                                          .listener = i == 0 ? listener : NULL,
                                          .meeting = messages ? NULL : meeting,
                                          .messages = messages ? &messages[i] : NULL,
                                          .words = words,
                                          .word_count = word_count,
                                          .work = work,
                                          .context = context};
        assert_int_equal(pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]), 0);
    }
    for (uint32_t i = 0; i < ranks; i++)
        pthread_join(threads[i].thread, NULL);
    for (uint32_t i = 0; i < ranks; i++) {
        if (threads[i].code)
            print_error("rank %u: %s\n", i, threads[i].error.text);
        assert_int_equal(threads[i].code, 0);
    }
}

static inline void run_ranks(uint32_t ranks, const char *const *words, rank_work work, void *context)
{
    run_ranks_over(NULL, ranks, words, work, context);
}

/* A description that is filled step by step. */
struct described_state {
    struct ckptbench_tensor tensors[MOST_TENSORS];
    struct ckptbench_region regions[MOST_REGIONS];
    struct ckptbench_value values[MOST_TENSORS];
    struct ckptbench_state state;
};

static inline void describe_nothing(struct described_state *self)
{
    memset(self, 0, sizeof *self);
    self->state = (struct ckptbench_state){
        .struct_bytes = sizeof self->state, .tensors = self->tensors, .regions = self->regions, .values = self->values};
}

static inline void add_tensor(struct described_state *self, const char *fqn, const char *dtype, uint64_t dims,
                              const uint64_t *shape)
{
    struct ckptbench_tensor *tensor = &self->tensors[self->state.tensor_count++];
    *tensor = (struct ckptbench_tensor){.fqn = fqn, .dtype = ckptbench_dtype(dtype), .dims = dims};
    for (uint64_t i = 0; i < dims; i++)
        tensor->shape[i] = shape[i];
}

/* A region of the last tensor, row-major; NULL for offset and size is all of it. */
static inline struct ckptbench_region *add_region(struct described_state *self, void *address, const uint64_t *offset,
                                                  const uint64_t *size)
{
    const struct ckptbench_tensor *tensor = &self->tensors[self->state.tensor_count - 1];
    struct ckptbench_region *region = &self->regions[self->state.region_count++];
    uint64_t stride = 1;
    *region = (struct ckptbench_region){.tensor = self->state.tensor_count - 1, .address = address};
    for (uint64_t i = tensor->dims; i-- > 0;) {
        region->offset[i] = offset ? offset[i] : 0;
        region->size[i] = size ? size[i] : tensor->shape[i];
        region->stride[i] = stride;
        stride *= region->size[i];
    }
    return region;
}

static inline void add_value(struct described_state *self, const char *fqn, const void *bytes, size_t length)
{
    self->values[self->state.value_count++] = (struct ckptbench_value){.fqn = fqn, .bytes = bytes, .length = length};
}

#endif
