/* Drives comm/comm.h under a real launcher, for tests/e2e/test_comm.py: one exercise a run, each rank
 * prints a line with what it learned. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
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
    int rc = comm_agree(comm, code, 10 + rank, clock_monotonic_ns() + 20 * NS_PER_S, &agreement, err);
    if (rc)
        return rc;
    char text[256];
    snprintf(text, sizeof text, "%s by %u, %u failed, sum %" PRIu64 " min %" PRIu64 " max %" PRIu64,
             cb_code_name(agreement.code), agreement.failed_rank, agreement.failed_count, agreement.sum, agreement.min,
             agreement.max);
    return report(comm, text);
}

static int drill_broadcast(struct comm *comm, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + 20 * NS_PER_S;
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
        int rc = comm_agree(self->comm, 0, number, clock_monotonic_ns() + 20 * NS_PER_S, &agreement, NULL);
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
        sleep(2);
        return 0;
    }
    comm_watch(comm, status_page_check, page);
    if (stop)
        atomic_store(&page->stop, STOP_NOW);
    int rc = comm_barrier(comm, start_ns + (stop ? 30 : 1) * NS_PER_S, err);
    report(comm, rc ? cb_code_name(rc) : "came through");
    return comm_barrier(comm, start_ns + 30 * NS_PER_S, err) == CB_ERR_ABORTED ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct comm *comm = NULL;
    struct status_page *page = calloc(1, sizeof *page);
    struct cb_err err = {0};
    const char *drill = argc > 1 ? argv[1] : "";
    int rc = !page || comm_new(0, &comm, &err) ? 1 : 0;
    if (!rc && strcmp(drill, "agree") == 0)
        rc = drill_agree(comm, &err);
    else if (!rc && strcmp(drill, "broadcast") == 0)
        rc = drill_broadcast(comm, &err);
    else if (!rc && strcmp(drill, "twin") == 0)
        rc = drill_twin(comm, &err);
    else if (!rc && strcmp(drill, "absent") == 0)
        rc = drill_absent(comm, page, false, &err);
    else if (!rc && strcmp(drill, "stop") == 0)
        rc = drill_absent(comm, page, true, &err);
    else
        rc = 2;
    if (rc)
        fprintf(stderr, "comm_drill: %s\n", err.message);
    /* After an exercise without rank 0 MPI cannot end in order. */
    if (strcmp(drill, "absent") == 0 || strcmp(drill, "stop") == 0)
        _exit(rc ? 1 : 0);
    comm_free(comm);
    free(page);
    return rc ? 1 : 0;
}
