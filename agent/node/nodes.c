/* Finds the nodes of a run, from Slurm's environment or hosts=. */
#include "agent/node/nodes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/units.h"

#define LIST_MAX_BYTES (16 << 20)
#define MAX_RANGE 1000000
#define TOOL_TIMEOUT_NS (10 * NS_PER_S)

void nodes_release(struct nodes *nodes)
{
    free(nodes->name);
    *nodes = (struct nodes){.own = -1};
}

bool nodes_are_remote(const struct nodes *nodes)
{
    return nodes->count > 1 || nodes->own != 0;
}

/* Names separated by any of `separators`. */
static int read_names(struct nodes *nodes, const char *text, const char *separators, struct cb_err *err)
{
    uint32_t room = 1;
    for (const char *at = text; *at; at++)
        room += strchr(separators, *at) != NULL;
    nodes->name = calloc(room, sizeof *nodes->name);
    if (!nodes->name)
        return alloc_fail(err, "for the names of %u nodes", room);
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, separators);
        if (len >= NODE_NAME_BYTES)
            return cb_fail(err, CB_ERR_USAGE, "the name of a node has %zu characters", len);
        if (len > 0)
            memcpy(nodes->name[nodes->count++], at, len);
        at += len + (at[len] != '\0');
    }
    return nodes->count ? 0 : cb_fail(err, CB_ERR_SYSTEM, "Slurm gave an allocation without nodes");
}

static int read_hosts(struct nodes *nodes, const char *hosts, struct cb_err *err)
{
    char own[NODE_NAME_BYTES] = "";
    int rc = read_names(nodes, hosts, ",", err);
    for (uint32_t i = 0; i < nodes->count; i++)
        for (uint32_t k = i + 1; k < nodes->count && !rc; k++)
            if (strcmp(nodes->name[i], nodes->name[k]) == 0)
                rc = cb_fail(err, CB_ERR_USAGE, "hosts names %s twice: a node has one agent", nodes->name[i]);
    if (gethostname(own, sizeof own - 1))
        own[0] = '\0';
    for (uint32_t i = 0; i < nodes->count; i++)
        if (strcmp(nodes->name[i], "localhost") == 0 || strcmp(nodes->name[i], own) == 0)
            nodes->own = i;
    return rc;
}

/* Expands "7", "07-12" after a prefix: one name each, with as many digits as the first number. */
static bool expand_range(const char *prefix, size_t prefix_len, const char *range, size_t len, struct buf *names)
{
    size_t digits = strspn(range, "0123456789");
    if (digits == 0 || digits > 9 || (digits < len && range[digits] != '-'))
        return false;
    size_t end_digits = digits < len ? strspn(range + digits + 1, "0123456789") : 0;
    if (digits < len && (end_digits == 0 || end_digits > 9 || digits + 1 + end_digits != len))
        return false;
    unsigned long first = strtoul(range, NULL, 10);
    unsigned long last = digits < len ? strtoul(range + digits + 1, NULL, 10) : first;
    if (last < first || last - first >= MAX_RANGE)
        return false;
    for (unsigned long number = first; number <= last; number++)
        buf_printf(names, "%.*s%0*lu\n", (int)prefix_len, prefix, (int)digits, number);
    return true;
}

/* "n7", or "n[1-2,07]" with nothing after the bracket. */
static bool expand_word(const char *word, size_t len, struct buf *names)
{
    const char *open = memchr(word, '[', len);
    if (!open) {
        buf_printf(names, "%.*s\n", (int)len, word);
        return len > 0 && !memchr(word, ']', len);
    }
    const char *at = open + 1, *close = word + len - 1;
    if (*close != ']' || at == close || memchr(at, '[', (size_t)(close - at)) || memchr(at, ']', (size_t)(close - at)))
        return false;
    while (at < close) {
        const char *comma = memchr(at, ',', (size_t)(close - at)), *end = comma ? comma : close;
        if (!expand_range(word, (size_t)(open - word), at, (size_t)(end - at), names))
            return false;
        at = end + 1;
    }
    return close[-1] != ',';
}

bool nodes_expand(const char *list, struct buf *names)
{
    for (const char *at = list; *at;) {
        size_t len = 0, depth = 0;
        while (at[len] && (at[len] != ',' || depth > 0)) {
            depth += at[len] == '[';
            depth -= at[len] == ']' && depth > 0;
            len++;
        }
        if (!expand_word(at, len, names))
            return false;
        at += len;
        if (*at == ',' && !*++at)
            return false;
    }
    return names->len > 0 && buf_check(names, "the names of nodes", NULL) == 0;
}

/* Parse the list directly if we can, which avoids a fork. */
static int read_allocation(struct nodes *nodes, const char *list, struct cb_err *err)
{
    struct buf text;
    const char *own = getenv("SLURMD_NODENAME");
    struct child_options options = {.argv = (const char *const[]){"scontrol", "show", "hostnames", list, NULL},
                                    .stdin_fd = -1};
    nodes->slurm = true;
    buf_init(&text, LIST_MAX_BYTES);
    int rc = 0;
    if (!nodes_expand(list, &text)) {
        buf_clear(&text);
        rc = child_capture(&options, TOOL_TIMEOUT_NS, &text, err);
    }
    if (!rc)
        rc = read_names(nodes, text.data, ",\n", err);
    buf_release(&text);
    for (uint32_t i = 0; i < nodes->count; i++)
        if (own && strcmp(nodes->name[i], own) == 0)
            nodes->own = i;
    return rc ? cb_context(err, "finding the nodes of this allocation") : 0;
}

/* Keeps as many nodes as requested, from the front: the first node of an allocation runs its script. */
static int choose(struct nodes *nodes, uint64_t wanted, uint32_t ranks, struct cb_err *err)
{
    if (wanted > nodes->count)
        return cb_fail(err, CB_ERR_USAGE, "nodes=%llu, but there %s %u: %s", (unsigned long long)wanted,
                       nodes->count == 1 ? "is" : "are", nodes->count,
                       nodes->slurm ? "ask for a larger allocation"
                                    : "run it in a Slurm allocation (ckptbench submit), or name hosts=a,b");
    if (wanted > ranks)
        return cb_fail(err, CB_ERR_USAGE, "nodes=%llu for %u rank%s: a node without a rank measures nothing",
                       (unsigned long long)wanted, ranks, units_plural(ranks));
    uint32_t most = wanted ? (uint32_t)wanted : ranks;
    if (nodes->count > most)
        nodes->count = most;
    if (nodes->own >= nodes->count)
        nodes->own = -1;
    return 0;
}

int nodes_find(const struct experiment *experiment, uint32_t ranks, struct nodes *nodes, struct cb_err *err)
{
    const char *hosts = experiment_text(experiment, OPT_HOSTS), *chosen = getenv(NODES_CHOSEN);
    const char *list = chosen ? chosen : getenv("SLURM_JOB_NODELIST");
    struct nodes found = {.own = -1};
    int rc;
    if (*hosts)
        rc = read_hosts(&found, hosts, err);
    else if (getenv("SLURM_JOB_ID") && list && !experiment_is(experiment, OPT_LAUNCHER, "none"))
        rc = read_allocation(&found, list, err);
    else if (experiment_is(experiment, OPT_LAUNCHER, "srun"))
        rc = cb_fail(err, CB_ERR_USAGE, "launcher=srun needs a Slurm allocation (ckptbench submit, or salloc)");
    else {
        rc = read_names(&found, "localhost", ",", err);
        found.own = 0;
    }
    if (!rc)
        rc = choose(&found, experiment_u64(experiment, OPT_NODES), ranks, err);
    if (rc)
        nodes_release(&found);
    else
        *nodes = found;
    return rc;
}

void nodes_split_host(const char *word, char *destination, char port[8])
{
    const char *colon = strrchr(word, ':');
    bool bracketed = colon && colon > word && colon[-1] == ']';
    bool digits = colon && isdigit((unsigned char)colon[1]) && strlen(colon + 1) < 6;
    for (const char *at = colon ? colon + 1 : ""; *at; at++)
        digits = digits && isdigit((unsigned char)*at);
    bool has_port = digits && (bracketed || strchr(word, ':') == colon);
    snprintf(destination, NODE_NAME_BYTES, "%.*s", has_port ? (int)(colon - word) : NODE_NAME_BYTES - 1, word);
    snprintf(port, 8, "%s", has_port ? colon + 1 : "");
}
