/* Watches ranks that have started but not reported, among the launcher's descendants. */
#include "agent/attempt/startup_watch.h"

#include <stdlib.h>
#include <string.h>

#include "agent/attempt/launch_ranks.h"
#include "core/clock.h"
#include "core/procfs.h"

#define LOOK_EVERY_NS (200 * NS_PER_MS)
#define AFTER_DEATH_NS (3 * NS_PER_S)      /* time for a launcher to notice by itself */
#define AFTER_LAST_BIRTH_NS (8 * NS_PER_S) /* launchers start ranks in quick succession */
#define ENVIRONMENT_MAX_BYTES (4 << 20)

/* Variables by which launchers number ranks: Open MPI, PMIx, MPICH, Slurm. */
static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

static bool read_rank(pid_t pid, uint32_t count, uint32_t *rank)
{
    struct buf environment;
    bool found = false;
    buf_init(&environment, ENVIRONMENT_MAX_BYTES);
    procfs_read_all(pid, "environ", &environment);
    for (size_t i = 0; i < sizeof rank_names / sizeof *rank_names && !found; i++) {
        const char *text = procfs_find_variable(environment.data, environment.len, rank_names[i]);
        char *end = NULL;
        unsigned long number = text ? strtoul(text, &end, 10) : 0;
        found = text && end != text && *end == '\0' && number < count;
        if (found)
            *rank = (uint32_t)number;
    }
    buf_release(&environment);
    return found;
}

static bool is_known(const struct startup_watch *self, uint32_t count, pid_t pid)
{
    for (uint32_t rank = 0; rank < count; rank++)
        if (self->pid[rank] == pid)
            return true;
    return false;
}

/* A process counts once it has settled: before that it may be a copy of its launcher that has not yet become a rank. */
static void look(struct startup_watch *self, const struct attempt *attempt, uint64_t now_ns)
{
    size_t room = (size_t)attempt->ranks * 2 + 64; /* ranks and the launcher's own processes */
    pid_t *found = calloc(room, sizeof *found);
    size_t count = found ? procfs_descendants(attempt->launcher.pid, found, room) : 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t rank;
        if (is_known(self, attempt->ranks, found[i]) || !launch_is_ours(attempt, found[i]) ||
            !read_rank(found[i], attempt->ranks, &rank))
            continue;
        self->pid[rank] = found[i];
        self->born_ns = now_ns;
    }
    free(found);
}

static bool is_alive(pid_t pid)
{
    char state = pid ? procfs_state(pid) : '\0';
    return state && state != 'Z' && state != 'X';
}

static bool is_dead(struct startup_watch *self, uint32_t rank, uint64_t now_ns)
{
    if (is_alive(self->pid[rank])) {
        self->missing_ns[rank] = 0;
        return false;
    }
    if (!self->missing_ns[rank])
        self->missing_ns[rank] = now_ns;
    if (self->pid[rank])
        return now_ns - self->missing_ns[rank] > AFTER_DEATH_NS;
    return now_ns - self->born_ns > AFTER_LAST_BIRTH_NS;
}

bool startup_watch_find_dead(struct startup_watch *self, const struct attempt *attempt, uint64_t now_ns, uint32_t *rank)
{
    if (!attempt->has_launcher || attempt->launcher.exited || now_ns - self->look_ns < LOOK_EVERY_NS)
        return false;
    self->look_ns = now_ns;
    if (!self->pid) {
        self->pid = calloc(attempt->ranks, sizeof *self->pid);
        self->missing_ns = calloc(attempt->ranks, sizeof *self->missing_ns);
    }
    if (!self->pid || !self->missing_ns)
        return false; /* timeout.launch still applies */
    look(self, attempt, now_ns);
    if (!self->born_ns)
        return false;
    for (uint32_t i = 0; i < attempt->ranks; i++) {
        const struct status_page *page = attempt->pages.page[i];
        if (atomic_load(&page->pid) == 0 && atomic_load(&page->phase) == PHASE_STARTING && is_dead(self, i, now_ns)) {
            *rank = i;
            return true;
        }
    }
    return false;
}

void startup_watch_release(struct startup_watch *self)
{
    free(self->pid);
    free(self->missing_ns);
    *self = (struct startup_watch){0};
}
