/* Drives comm/comm.h for tests/e2e/test_comm.py, over MPI under a real launcher, or over TCP where the environment says
 * COMM_DRILL_TCP="RANK SIZE PORT": one exercise a run, each rank prints a line with what it learned. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/comm_tcp.h"
#include "core/clock.h"
#include "run/status_page.h"

static int report(struct comm *comm, const char *text)
{
    printf("rank %u of %u: %s\n", comm_rank(comm), comm_size(comm), text);
    fflush(stdout);
    return 0;
}

static int drill_agree(struct comm *comm, struct cb_err *err)
{
    struct agreement agreement;
    uint32_t rank = comm_rank(comm);
    int code = rank == 1 ? CB_ERR_NO_SPACE : rank == 2 ? CB_ERR_CORRUPT : 0;
    uint64_t word = 70 + rank;
    int rc = comm_agree_and_share(comm, code, 10 + rank, &word, clock_monotonic_ns() + 100 * NS_PER_S, &agreement, err);
    if (rc)
        return rc;
    char text[256];
    snprintf(text, sizeof text, "%s by %u, %u failed, sum %" PRIu64 " min %" PRIu64 " max %" PRIu64 " word %" PRIu64,
             cb_code_name(agreement.code), agreement.failed_rank, agreement.failed_count, agreement.sum, agreement.min,
             agreement.max, word);
    return report(comm, text);
}

static int drill_broadcast(struct comm *comm, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + 100 * NS_PER_S;
    char word[16] = "mine";
    if (comm_rank(comm) == 0)
        strcpy(word, "rank 0's");
    int rc = comm_broadcast(comm, word, sizeof word, deadline_ns, err);
    if (!rc)
        rc = comm_barrier(comm, deadline_ns, err);
    return rc ? rc : report(comm, word);
}

/* Agreements of two threads at once, each over its own voice: neither hears the other's numbers. */
struct talk {
    struct comm *comm;
    uint64_t number, rounds, wrong;
};

static void *talk(void *context)
{
    struct talk *self = context;
    for (uint64_t round = 0; round < self->rounds; round++) {
        struct agreement agreement;
        uint64_t number = self->number + round;
        int rc = comm_agree(self->comm, 0, number, clock_monotonic_ns() + 100 * NS_PER_S, &agreement, NULL);
        self->wrong += rc || agreement.min != number || agreement.max != number ? 1 : 0;
    }
    return NULL;
}

static int drill_twin(struct comm *comm, struct cb_err *err)
{
    struct comm *twin = NULL;
    pthread_t thread;
    int rc = comm_twin(comm, &twin, err);
    if (rc)
        return rc;
    struct talk first = {.comm = comm, .number = 1000000, .rounds = 2000};
    struct talk second = {.comm = twin, .number = 5000000, .rounds = 100};
    pthread_create(&thread, NULL, talk, &second);
    talk(&first);
    pthread_join(thread, NULL);
    comm_free(twin);
    char text[64];
    snprintf(text, sizeof text, "%" PRIu64 " and %" PRIu64 " wrong", first.wrong, second.wrong);
    return report(comm, text);
}

/* Rank 0 does not come: the others must leave by the deadline, or when their page says stop. */
static int drill_absent(struct comm *comm, struct status_page *page, bool stop, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    if (comm_rank(comm) == 0) {
        sleep(5); /* longer than another may be late */
        return 0;
    }
    comm_watch(comm, status_page_check, page);
    if (stop)
        atomic_store(&page->stop, STOP_NOW);
    int rc = comm_barrier(comm, start_ns + (stop ? 30 : 1) * NS_PER_S, err);
    report(comm, rc ? cb_code_name(rc) : "came through");
    return comm_barrier(comm, start_ns + 30 * NS_PER_S, err) == CB_ERR_ABORTED ? 0 : 1;
}

/* Everything that adds up, gathers or shares out, of values that say whose they are. */
static int drill_collectives(struct comm *comm, struct cb_err *err)
{
    enum { VALUES = 70000 };
    uint32_t rank = comm_rank(comm), size = comm_size(comm), wrong = 0;
    uint64_t deadline_ns = clock_monotonic_ns() + 100 * NS_PER_S;
    float *mine = calloc(VALUES, sizeof *mine), *all = calloc((size_t)VALUES * size, sizeof *all);
    struct comm_message message;
    double sums[2] = {rank, 0.5};
    int rc = mine && all ? comm_sum(comm, sums, 2, deadline_ns, err) : CB_ERR_MEMORY;
    wrong += sums[0] != size * (size - 1) / 2.0 || sums[1] != 0.5 * size;
    for (uint32_t i = 0; i < VALUES && !rc; i++)
        mine[i] = (float)(rank * 10 + i % 7);
    rc = rc ? rc : comm_start_all_gather(comm, mine, all, VALUES, &message, err);
    for (bool done = false; !rc && !done;)
        rc = comm_message_test(comm, &message, &done, err);
    for (uint32_t i = 0; i < VALUES * size && !rc; i++)
        wrong += all[i] != (float)(i / VALUES * 10 + i % VALUES % 7);
    rc = rc ? rc : comm_start_reduce_scatter(comm, all, mine, VALUES, &message, err);
    for (bool done = false; !rc && !done;)
        rc = comm_message_test(comm, &message, &done, err);
    for (uint32_t i = 0; i < VALUES && !rc; i++)
        wrong += mine[i] != (float)(size * (rank * 10 + i % 7));
    rc = rc ? rc : comm_start_all_reduce(comm, mine, mine, VALUES, &message, err);
    for (bool done = false; !rc && !done;)
        rc = comm_message_test(comm, &message, &done, err);
    for (uint32_t i = 0; i < VALUES && !rc; i++)
        wrong += mine[i] != (float)(size * (size * (size - 1) / 2 * 10 + size * (i % 7)));
    free(mine);
    free(all);
    char text[64];
    snprintf(text, sizeof text, "%u wrong", wrong);
    return rc ? rc : report(comm, text);
}

/* To the next rank and from the one before, itself included where there is one rank: many small messages, an empty one
 * and a large one, some sent before they are expected, with two tags that must not mix. */
static int drill_messages(struct comm *comm, struct cb_err *err)
{
    enum { COUNT = 64, LARGE = 20 << 20 };
    uint32_t rank = comm_rank(comm), size = comm_size(comm), wrong = 0;
    uint32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    struct comm_message sends[COUNT + 2], receives[COUNT + 2];
    uint32_t out[COUNT], in[COUNT];
    char *large = malloc(LARGE), *larger = calloc(1, LARGE);
    int rc = large && larger ? 0 : CB_ERR_MEMORY;
    if (!rc)
        memset(large, (int)rank + 1, LARGE);
    for (uint32_t i = 0; i < COUNT && !rc; i++) {
        out[i] = rank * 1000 + i;
        rc = comm_send(comm, &out[i], sizeof out[i], next, i % 2, &sends[i], err);
    }
    rc = rc ? rc : comm_send(comm, large, LARGE, next, 5, &sends[COUNT], err);
    rc = rc ? rc : comm_send(comm, large, 0, next, 6, &sends[COUNT + 1], err);
    if (rank == 0)
        usleep(50000);                        /* what came before is kept for it */
    for (uint32_t i = COUNT; i-- > 0 && !rc;) /* the odd ones of all first: in the order of a tag, not of all */
        rc = comm_receive(comm, &in[i], sizeof in[i], before, (COUNT - 1 - i) % 2, &receives[i], err);
    rc = rc ? rc : comm_receive(comm, larger, LARGE, before, 5, &receives[COUNT], err);
    rc = rc ? rc : comm_receive(comm, larger, 0, before, 6, &receives[COUNT + 1], err);
    for (uint32_t i = 0; i < 2 * (COUNT + 2) && !rc; i++)
        for (bool done = false; !rc && !done;)
            rc = comm_message_test(comm, i < COUNT + 2 ? &sends[i] : &receives[i - COUNT - 2], &done, err);
    for (uint32_t i = 0; i < COUNT && !rc; i++)
        wrong += in[i] != before * 1000 + (COUNT - 1 - i);
    for (uint32_t i = 0; i < LARGE && !rc; i++)
        wrong += larger[i] != (char)(before + 1);
    free(large);
    free(larger);
    char text[64];
    snprintf(text, sizeof text, "%u wrong", wrong);
    return rc ? rc : report(comm, text);
}

/* Even and odd ranks apart: each part counts and adds up its own. */
static int drill_part(struct comm *comm, struct cb_err *err)
{
    struct comm *part = NULL;
    struct agreement agreement = {0};
    char text[64];
    int rc = comm_part(comm, comm_rank(comm) % 2, &part, err);
    if (rc)
        return rc;
    rc = comm_agree(part, 0, comm_rank(comm), clock_monotonic_ns() + 100 * NS_PER_S, &agreement, err);
    snprintf(text, sizeof text, "%u of %u, sum %" PRIu64, comm_rank(part), comm_size(part), agreement.sum);
    comm_free(part);
    return rc ? rc : report(comm, text);
}

/* Rank 1 dies: what the others wait for ends, and says so. */
static int drill_dead(struct comm *comm, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + 100 * NS_PER_S;
    int rc = comm_barrier(comm, deadline_ns, err);
    if (comm_rank(comm) == 1)
        _exit(0);
    return rc ? rc : report(comm, comm_barrier(comm, deadline_ns, err) ? err->message : "came through");
}

/* Rank 1 dies while rank 0 sends it more than its connection takes: that must fail, not end rank 0 by a signal. */
static int drill_closed(struct comm *comm, struct cb_err *err)
{
    enum { LARGE = 20 << 20 };
    struct comm_message message;
    char *large = calloc(1, LARGE);
    int rc = large ? comm_barrier(comm, clock_monotonic_ns() + 100 * NS_PER_S, err) : CB_ERR_MEMORY;
    if (comm_rank(comm) == 1)
        _exit(0);
    for (int i = 0; i < 100 && !rc; i++) {
        rc = comm_send(comm, large, LARGE, 1, 0, &message, err);
        for (bool done = false; !rc && !done;)
            rc = comm_message_test(comm, &message, &done, err);
    }
    report(comm, rc ? err->message : "came through");
    free(large);
    return 0;
}

static int start(struct comm **comm, struct cb_err *err)
{
    const char *words = getenv("COMM_DRILL_TCP");
    struct comm_tcp_place place = {.address = "localhost"};
    if (!words)
        return comm_new(0, comm, err);
    const char *key = getenv("COMM_DRILL_KEY");
    memset(&place.key, key ? *key : 'k', sizeof place.key);
    if (sscanf(words, "%u %u %hu", &place.rank, &place.size, &place.port) != 3)
        return cb_fail(err, CB_ERR_USAGE, "COMM_DRILL_TCP=\"RANK SIZE PORT\"");
    return comm_tcp_new(&place, clock_monotonic_ns() + (key ? 6 : 100) * NS_PER_S, comm, err);
}

int main(int argc, char **argv)
{
    struct comm *comm = NULL;
    struct status_page *page = calloc(1, sizeof *page);
    struct cb_err err = {0};
    const char *drill = argc > 1 ? argv[1] : "";
    int rc = !page || start(&comm, &err) ? 1 : 0;
    if (!rc && strcmp(drill, "agree") == 0)
        rc = drill_agree(comm, &err);
    else if (!rc && strcmp(drill, "broadcast") == 0)
        rc = drill_broadcast(comm, &err);
    else if (!rc && strcmp(drill, "twin") == 0)
        rc = drill_twin(comm, &err);
    else if (!rc && strcmp(drill, "collectives") == 0)
        rc = drill_collectives(comm, &err);
    else if (!rc && strcmp(drill, "messages") == 0)
        rc = drill_messages(comm, &err);
    else if (!rc && strcmp(drill, "part") == 0)
        rc = drill_part(comm, &err);
    else if (!rc && strcmp(drill, "dead") == 0)
        rc = drill_dead(comm, &err);
    else if (!rc && strcmp(drill, "closed") == 0)
        rc = drill_closed(comm, &err);
    else if (!rc && strcmp(drill, "absent") == 0)
        rc = drill_absent(comm, page, false, &err);
    else if (!rc && strcmp(drill, "stop") == 0)
        rc = drill_absent(comm, page, true, &err);
    else if (!rc)
        rc = 2;
    if (rc)
        fprintf(stderr, "comm_drill: %s\n", err.message);
    /* After an exercise without rank 0 MPI cannot end in order. */
    if (strcmp(drill, "absent") == 0 || strcmp(drill, "stop") == 0 || strcmp(drill, "dead") == 0 ||
        strcmp(drill, "closed") == 0)
        _exit(rc ? 1 : 0);
    if (comm)
        comm_free(comm);
    free(page);
    return rc ? 1 : 0;
}
