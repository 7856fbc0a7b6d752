/* Binds ranks to cores with sched_setaffinity. */
#include "engine/affinity.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/hash.h"
#include "engine/gpu_place.h"

#define TEXT_MAX_BYTES 4096

void affinity_share(uint32_t cores, uint32_t index, uint32_t shares, uint32_t *first, uint32_t *count)
{
    if (shares >= cores) {
        *first = index % cores;
        *count = 1;
        return;
    }
    uint64_t begin = (uint64_t)cores * index / shares, end = (uint64_t)cores * (index + 1) / shares;
    *first = (uint32_t)begin;
    *count = (uint32_t)(end - begin);
}

/* "0-3,8" */
static void append_set(struct buf *out, const cpu_set_t *set)
{
    const char *comma = "";
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set))
            continue;
        size_t last = cpu;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        if (last > cpu)
            buf_printf(out, "%s%zu-%zu", comma, cpu, last);
        else
            buf_printf(out, "%s%zu", comma, cpu);
        comma = ",";
        cpu = last;
    }
}

/* Cores [first, first + count) of the allowed ones, in order. */
static void choose(const cpu_set_t *allowed, uint32_t first, uint32_t count, cpu_set_t *chosen)
{
    CPU_ZERO(chosen);
    uint32_t index = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed))
            continue;
        if (index >= first && index < first + count)
            CPU_SET(cpu, chosen);
        index++;
    }
}

static int describe(const cpu_set_t *used, const cpu_set_t *allowed, const char *how, char *text, size_t text_bytes,
                    struct cb_err *err)
{
    struct buf out;
    buf_init(&out, TEXT_MAX_BYTES);
    append_set(&out, used);
    buf_append_text(&out, " of ");
    append_set(&out, allowed);
    buf_append_text(&out, how);
    int rc = buf_check(&out, "the list of cores", err);
    if (!rc)
        snprintf(text, text_bytes, "%s", out.data);
    buf_release(&out);
    return rc;
}

/* Reads the cores that may be used. *how is the reason to leave the binding alone, or NULL. If the ranks' sets differ,
 * the launcher has already bound them. */
static int look(struct comm *comm, bool pin, uint64_t deadline_ns, cpu_set_t *allowed, const char **how,
                struct cb_err *err)
{
    struct agreement agreement;
    CPU_ZERO(allowed);
    if (sched_getaffinity(0, sizeof *allowed, allowed))
        CPU_ZERO(allowed); /* more cores than cpu_set_t holds: change nothing */
    int rc = comm_agree_local(comm, 0, hash_u64(allowed, sizeof *allowed), deadline_ns, &agreement, err);
    *how = NULL;
    if (!rc && agreement.min != agreement.max)
        *how = " (by the launcher)";
    else if (!rc && !pin)
        *how = " (not pinned)";
    return rc;
}

int affinity_apply(struct comm *comm, bool pin, const char *cores, const char *near, uint64_t deadline_ns, char *text,
                   size_t text_bytes, struct cb_err *err)
{
    cpu_set_t allowed, chosen;
    const char *how;
    char reason[128] = "";
    int rc = cores ? gpu_place_parse_cores(cores, &chosen, err) : 0;
    if (!rc)
        rc = look(comm, pin, deadline_ns, &allowed, &how, err);
    if (rc)
        return rc;
    if (!cores && CPU_COUNT(&allowed) == 0) {
        snprintf(text, text_bytes, "unknown");
        return 0;
    }
    if (how)
        return describe(&allowed, &allowed, how, text, text_bytes, err);
    if (cores) {
        CPU_AND(&chosen, &chosen, &allowed);
    } else {
        uint32_t first, count;
        affinity_share((uint32_t)CPU_COUNT(&allowed), comm_local_rank(comm), comm_local_size(comm), &first, &count);
        choose(&allowed, first, count, &chosen);
    }
    bool done = CPU_COUNT(&chosen) > 0 && sched_setaffinity(0, sizeof chosen, &chosen) == 0;
    if (cores)
        snprintf(reason, sizeof reason, done ? " (near %.64s)" : " (those near %.64s may not be used)", near);
    else if (!done)
        snprintf(reason, sizeof reason, " (pinning was refused)");
    return describe(done ? &chosen : &allowed, &allowed, reason, text, text_bytes, err);
}
