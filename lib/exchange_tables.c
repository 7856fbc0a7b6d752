#include "lib/exchange_tables.h"

#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"

#define POLL_NS (50 * NS_PER_US)

/* What a rank sends: this, the request's words, a number for each value, its table. */
struct parcel {
    uint64_t request_bytes, values, table_bytes;
};

void tables_init(struct tables *self)
{
    *self = (struct tables){0};
    buf_init(&self->own, DESCRIPTION_MAX_BYTES);
}

void tables_release(struct tables *self)
{
    buf_release(&self->own);
    joined_release(&self->joined);
}

/* --- has anything changed? --- */

static uint64_t hash_value(const struct ckptbench_value *value)
{
    return value->bytes ? hash_u64(value->bytes, value->length) : 0;
}

/* The sum over all ranks is 0 if they make the same request, and have equal values under one name: the rank that writes a
 * value counts it positive for each other rank, these count it negative. */
static uint64_t check_sum(const struct tables *self, const struct comm *comm, const struct ckptbench_state *state,
                          const struct table_request *request)
{
    uint32_t rank = comm_rank(comm);
    uint64_t call = hash_u64(request->op, strlen(request->op)) ^ (3 * hash_u64(request->path, strlen(request->path)));
    uint64_t sum = rank == 0 ? call * (comm_size(comm) - 1) : -call;
    for (size_t i = 0; request->saves && !request->allows_different_values && i < state->value_count; i++) {
        const struct joined *joined = &self->joined;
        bool owns = layout_tensor(joined->layout, joined->value_at[i])->owner == rank;
        if (joined->holders[i] > 1)
            sum += (owns ? joined->holders[i] - 1 : UINT64_MAX) * hash_value(&state->values[i]);
    }
    return sum;
}

/* --- exchanging --- */

static int write_parcel(const struct ckptbench_state *state, const struct table_request *request,
                        const struct buf *table, struct buf *out, struct cb_err *err)
{
    struct parcel parcel = {strlen(request->op) + strlen(request->path) + 2, state->value_count, table->len};
    buf_append(out, &parcel, sizeof parcel);
    buf_append(out, request->op, strlen(request->op) + 1);
    buf_append(out, request->path, strlen(request->path) + 1);
    for (size_t i = 0; i < state->value_count; i++) {
        uint64_t hash = request->saves ? hash_value(&state->values[i]) : 0;
        buf_append(out, &hash, sizeof hash);
    }
    buf_append(out, table->data, table->len);
    return buf_check(out, "the table of a rank's state", err);
}

static int gather(struct comm *comm, const struct buf *mine, uint64_t each, char *all, uint64_t deadline_ns,
                  struct cb_err *err)
{
    struct comm_message message;
    bool done = false;
    int rc = comm_start_all_gather(comm, mine->data, all, each / 4, &message, err);
    while (!rc && !done) {
        rc = comm_message_test(comm, &message, &done, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the tables of the other ranks did not come in time");
        if (!rc && !done)
            clock_sleep_ns(POLL_NS);
    }
    if (rc)
        comm_give_up(comm);
    return rc;
}

static int read_parcel(const char *bytes, uint64_t each, uint32_t rank, const struct table_request *request,
                       struct described_rank *described, struct cb_err *err)
{
    struct parcel parcel;
    memcpy(&parcel, bytes, sizeof parcel);
    const char *words = bytes + sizeof parcel;
    if (parcel.request_bytes > each || parcel.values > each || parcel.table_bytes > each ||
        sizeof parcel + parcel.request_bytes + 8 * parcel.values + parcel.table_bytes > each)
        return cb_fail(err, CB_ERR_FORMAT, "the table of rank %u is malformed", rank);
    size_t op_bytes = strlen(request->op) + 1;
    if (parcel.request_bytes != op_bytes + strlen(request->path) + 1 || memcmp(words, request->op, op_bytes) != 0 ||
        strcmp(words + op_bytes, request->path) != 0)
        return cb_fail(err, CB_ERR_USAGE, "ranks call differently: this one would %s %.300s, rank %u does not",
                       request->op, request->path, rank);
    const char *hashes = words + parcel.request_bytes;
    struct buf table = {.data = (char *)hashes + 8 * parcel.values, .len = parcel.table_bytes};
    uint64_t *numbers = malloc((parcel.values + 1) * sizeof *numbers); /* aligned */
    if (!numbers)
        return alloc_fail(err, "for the values of rank %u", rank);
    memcpy(numbers, hashes, 8 * parcel.values);
    int rc = description_read(&table, numbers, parcel.values, rank, described, err);
    free(numbers);
    return rc;
}

static int join(const char *all, uint64_t each, bool alone, struct comm *comm, const struct ckptbench_state *state,
                const struct table_request *request, struct joined *joined, struct cb_err *err)
{
    struct join_options options = {.rank = comm_rank(comm),
                                   .rank_count = comm_size(comm),
                                   .saves = request->saves,
                                   .allows_different_values = request->allows_different_values};
    struct described_rank *ranks = calloc(options.rank_count, sizeof *ranks);
    int rc = ranks ? 0 : alloc_fail(err, "for the tables of %u ranks", options.rank_count);
    for (uint32_t i = 0; i < options.rank_count && !rc; i++) {
        if (alone && i != options.rank)
            continue;
        rc = read_parcel(alone ? all : all + i * each, each, i, request, &ranks[i], err);
        if (!rc && !request->saves && i != options.rank)
            ranks[i].entry_count = ranks[i].tensor_count; /* a rank loads its own values only */
    }
    if (!rc)
        rc = join_descriptions(ranks, state, &options, joined, err);
    for (uint32_t i = 0; ranks && i < options.rank_count; i++)
        description_release(&ranks[i]);
    free(ranks);
    return rc;
}

/* Makes the layout anew. `table` has this rank's description; `alone`: it is enough. */
static int exchange(struct tables *self, struct comm *comm, const struct ckptbench_state *state,
                    const struct table_request *request, bool alone, const struct buf *table, struct cb_err *err)
{
    struct agreement agreement = {0};
    struct buf mine;
    char *all = NULL;
    buf_init(&mine, 2 * DESCRIPTION_MAX_BYTES);
    int rc = write_parcel(state, request, table, &mine, err);
    uint64_t each = (mine.len + 7) / 8 * 8;
    if (!alone) {
        rc = agree_number(comm, rc, each, request->deadline_ns, &agreement, err);
        each = agreement.max;
    }
    uint64_t more = !rc && each > mine.len ? each - mine.len : 0;
    char *padding = buf_extend(&mine, more);
    if (padding)
        memset(padding, 0, more);
    if (!rc && alone && !padding)
        rc = alloc_fail(err, "for the table of this rank");
    if (!rc && !alone) {
        all = malloc(each * comm_size(comm));
        rc = agree(comm, all && padding ? 0 : alloc_fail(err, "for the tables of %u ranks", comm_size(comm)),
                   request->deadline_ns, err);
        if (!rc)
            rc = gather(comm, &mine, each, all, request->deadline_ns, err);
    }
    struct joined joined = {0};
    if (!rc)
        rc = agree(comm, join(all ? all : mine.data, each, alone, comm, state, request, &joined, err),
                   request->deadline_ns, err);
    if (rc) { /* maybe of another rank */
        joined_release(&joined);
    } else {
        joined_release(&self->joined);
        self->joined = joined;
    }
    free(all);
    buf_release(&mine);
    return rc;
}

int tables_exchange(struct tables *self, struct comm *comm, const struct ckptbench_state *state,
                    const struct table_request *request, int code, bool *kept, struct cb_err *err)
{
    struct agreement agreement;
    struct buf table;
    uint64_t number = 0;
    buf_init(&table, DESCRIPTION_MAX_BYTES);
    int rc = code ? code : description_write(state, &table, err);
    bool same =
        !rc && self->joined.layout && table.len == self->own.len && memcmp(table.data, self->own.data, table.len) == 0;
    if (same || request->alone)
        number = rc ? 0 : check_sum(self, comm, state, request);
    else
        random_bytes(&number, sizeof number); /* so that the sum is not 0 */
    rc = agree_number(comm, rc, number, request->deadline_ns, &agreement, err);
    *kept = !rc && same && agreement.sum == 0;
    if (!rc && !*kept) {
        buf_clear(&self->own);
        rc = exchange(self, comm, state, request, request->alone && agreement.sum == 0, &table, err);
        if (!rc)
            buf_append(&self->own, table.data, table.len);
        if (!rc)
            rc = buf_check(&self->own, "the table of this rank's state", err);
    }
    buf_release(&table);
    return rc;
}
