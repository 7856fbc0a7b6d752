/* Processes that replace the same small object at the same moment, each in a store of its own: "swap_race ROUNDS STORE…".
 * Fails unless exactly one succeeds in each round. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/store.h"

#define NAME "race/object"
#define MOST 64

/* Waits for a byte (the start of a round), swaps, and answers "1" if it was the one, "0" if it was not, "x" if it
 * failed, "?" if nothing guarded it. */
static int contend(const char *uri, int number, uint64_t rounds, int from, int to)
{
    const struct store_options options = {.depth = 1, .in_caller = true, .direct = STORE_DIRECT_NO};
    struct store *store;
    struct cb_err err;
    char before[64], after[64], winner;
    bool guarded;
    if (store_open(uri, &options, &store, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int last = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        if (read(from, &winner, 1) != 1)
            return 1;
        last = round ? winner : 0;
        snprintf(before, sizeof before, "%d in round %d", last, (int)round - 1);
        snprintf(after, sizeof after, "%d in round %d", number, (int)round);
        int rc = store_swap(store, NAME, round ? before : NULL, after, &guarded, &err);
        if (rc && rc != CB_ERR_EXISTS)
            fprintf(stderr, "%s: %s\n", uri, err.message);
        const char *answer = rc == 0 ? (guarded ? "1" : "?") : rc == CB_ERR_EXISTS ? "0" : "x";
        if (write(to, answer, 1) != 1)
            return 1;
    }
    store_free(store);
    return 0;
}

/* Plays one round. Returns the number of the process that succeeded, or -1 if it was not exactly one. answers[i] receives
 * the answer of process i. */
static int run_round(int count, int to[][2], int from[][2], char last, char *answers)
{
    int winner = -1, winners = 0;
    bool failed = false;
    for (int i = 0; i < count; i++)
        failed |= write(to[i][1], &last, 1) != 1;
    for (int i = 0; i < count; i++) {
        answers[i] = 'x';
        failed |= read(from[i][0], &answers[i], 1) != 1 || answers[i] == 'x' || answers[i] == '?';
        if (answers[i] == '1') {
            winner = i;
            winners++;
        }
    }
    return winners == 1 && !failed ? winner : -1;
}

int main(int argc, char **argv)
{
    int to[MOST][2], from[MOST][2], count = argc - 2, winner = 0, bad = 0;
    char answers[MOST];
    pid_t contenders[MOST];
    if (argc < 3 || count > MOST)
        return 2;
    uint64_t rounds = strtoull(argv[1], NULL, 10);
    for (int i = 0; i < count; i++) {
        if (pipe(to[i]) || pipe(from[i]))
            return 1;
        contenders[i] = fork();
        if (contenders[i] == 0)
            _exit(contend(argv[i + 2], i, rounds, to[i][0], from[i][1]));
    }
    for (uint64_t round = 0; round < rounds && !bad; round++) {
        winner = run_round(count, to, from, (char)winner, answers);
        bad = winner < 0;
        if (bad)
            printf("round %d: not exactly one succeeded: %.*s\n", (int)round, count, answers);
    }
    if (!bad)
        printf("%d rounds, one of %d succeeded in each\n", (int)rounds, count);
    for (int i = 0; i < count; i++)
        kill(contenders[i], SIGKILL); /* it may wait for another round */
    while (wait(NULL) > 0)
        ;
    return bad;
}
