#include "lib/exchange_tables.h"

#include <assert.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"

#define POLL_NS (50 * NS_PER_US)

void tables_init(struct tables *self)
{
    *self = (struct tables){0};
    buf_init(&self->own, DESCRIPTION_MAX_BYTES);
    buf_init(&self->described, DESCRIPTION_MAX_BYTES);
}

void tables_release(struct tables *self)
{
    buf_release(&self->own);
    buf_release(&self->described);
    joined_release(&self->joined);
}

/* --- has anything changed? --- */

static uint64_t hash_value(const struct ckptbench_value *value)
{
    return value->bytes ? hash_u64(value->bytes, value->length) : 0;
}

/* Hashes two numbers into one. Ranks add such numbers up, and sums of plain ones could cancel out. */
static uint64_t mix(uint64_t one, uint64_t other)
{
    const uint64_t pair[] = {one, other};
    return hash_u64(pair, sizeof pair);
}

static uint64_t hash_request(const struct table_request *request)
{
    return mix(hash_u64(request->op, strlen(request->op)), hash_u64(request->path, strlen(request->path)));
}

/* The sum over all ranks is 0 if they make the same request, and have equal values under one name: the rank that writes a
 * value counts it positive for each other rank, these count it negative. */
static uint64_t check_sum(const struct tables *self, const struct comm *comm, const struct ckptbench_state *state,
                          const struct table_request *request)
{
    uint32_t rank = comm_rank(comm);
    uint64_t call = hash_request(request);
    uint64_t sum = rank == 0 ? call * (comm_size(comm) - 1) : -call;
    for (size_t i = 0; request->saves && !request->allows_different_values && i < state->value_count; i++) {
        const struct joined *joined = &self->joined;
        bool owns = layout_tensor(joined->layout, joined->value_at[i])->owner == rank;
        if (joined->holders[i] > 1)
            sum +=
                (owns ? joined->holders[i] - 1 : UINT64_MAX) * mix(joined->value_at[i], hash_value(&state->values[i]));
    }
    return sum;
}

/* The sum over all ranks is 0 if they make the same request and have the same table and values. */
static uint64_t table_sum(const struct buf *table, const struct comm *comm, const struct ckptbench_state *state,
                          const struct table_request *request)
{
    uint64_t hash = mix(hash_request(request), hash_u64(table->data, table->len));
    for (size_t i = 0; request->saves && !request->allows_different_values && i < state->value_count; i++)
        hash = mix(hash, hash_value(&state->values[i]));
    return comm_rank(comm) == 0 ? hash * (comm_size(comm) - 1) : -hash;
}

/* --- exchanging --- */

/* What every rank sends to all: this, the request's words, its factors. */
struct parcel {
    uint64_t request_bytes, factors;
    uint64_t values, content_bytes, content_hash; /* of the rank's content: a number for each value, its table */
};

/* What this rank knows of another one. */
struct other {
    struct parcel parcel;
    uint32_t owner;   /* the lowest rank with the same content */
    uint32_t holders; /* ranks with its content, if it is the owner */
    uint64_t place;   /* of an owner's content among those of all owners */
    size_t table;     /* of an owner: its index in `tables` */
};

struct exchange {
    struct comm *comm;
    const struct ckptbench_state *state;
    const struct table_request *request;
    struct buf content; /* of this rank */
    struct other *others;
    struct joined_rank *ranks;
    char *contents; /* of all owners, one after the other */
    uint64_t content_bytes;
    struct described_table *tables;
    size_t table_count;
    uint64_t told_bytes; /* by other ranks */
};

static int write_content(struct exchange *self, const struct buf *table, struct cb_err *err)
{
    for (size_t i = 0; i < self->state->value_count; i++) {
        uint64_t hash = self->request->saves ? hash_value(&self->state->values[i]) : 0;
        buf_append(&self->content, &hash, sizeof hash);
    }
    buf_append(&self->content, table->data, table->len);
    return buf_check(&self->content, "the table of a rank's state", err);
}

static int write_parcel(const struct exchange *self, const struct description_factors *factors, struct buf *out,
                        struct cb_err *err)
{
    const struct table_request *request = self->request;
    struct parcel parcel = {.request_bytes = strlen(request->op) + strlen(request->path) + 2,
                            .factors = factors->count,
                            .values = self->state->value_count,
                            .content_bytes = self->content.len,
                            .content_hash = hash_u64(self->content.data, self->content.len)};
    buf_append(out, &parcel, sizeof parcel);
    buf_append(out, request->op, strlen(request->op) + 1);
    buf_append(out, request->path, strlen(request->path) + 1);
    buf_append(out, factors->factor, factors->count * sizeof *factors->factor);
    return buf_check(out, "what a rank tells of its state", err);
}

/* Waits for all messages. After a failure the communicator is given up, since some may still be in progress. */
static int await_messages(struct comm *comm, struct comm_message *messages, size_t count, int rc, uint64_t deadline_ns,
                          struct cb_err *err)
{
    for (size_t i = 0; i < count && !rc;) {
        bool done = false;
        rc = comm_message_test(comm, &messages[i], &done, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the tables of the other ranks did not come in time");
        if (!rc && !done)
            clock_sleep_ns(POLL_NS);
        i += done ? 1 : 0;
    }
    if (rc)
        comm_give_up(comm);
    return rc;
}

static int read_parcel(struct exchange *self, const char *bytes, uint64_t each, uint32_t rank, struct cb_err *err)
{
    const struct table_request *request = self->request;
    struct parcel parcel;
    memcpy(&parcel, bytes, sizeof parcel);
    const char *words = bytes + sizeof parcel;
    if (parcel.request_bytes > each || parcel.factors > DESCRIPTION_FACTORS || parcel.values > DESCRIPTION_MAX_BYTES ||
        parcel.content_bytes > COMM_MESSAGE_MAX_BYTES || 8 * parcel.values > parcel.content_bytes ||
        sizeof parcel + parcel.request_bytes + 8 * parcel.factors > each)
        return cb_fail(err, CB_ERR_FORMAT, "what rank %u tells of its state is malformed", rank);
    size_t op_bytes = strlen(request->op) + 1;
    if (parcel.request_bytes != op_bytes + strlen(request->path) + 1 || memcmp(words, request->op, op_bytes) != 0 ||
        strcmp(words + op_bytes, request->path) != 0)
        return cb_fail(err, CB_ERR_USAGE, "ranks call differently: this one would %s %.300s, rank %u does not",
                       request->op, request->path, rank);
    struct description_factors *factors = &self->ranks[rank].factors;
    factors->count = parcel.factors;
    memcpy(factors->factor, words + parcel.request_bytes, parcel.factors * sizeof *factors->factor);
    self->others[rank].parcel = parcel;
    return 0;
}

/* The lowest rank with the content of `rank`. */
static uint32_t find_owner(const struct exchange *self, uint32_t rank)
{
    const struct parcel *own = &self->others[rank].parcel;
    for (uint32_t i = 0; i < rank; i++) {
        const struct parcel *other = &self->others[i].parcel;
        if (self->others[i].owner == i && other->content_hash == own->content_hash &&
            other->content_bytes == own->content_bytes && other->values == own->values)
            return i;
    }
    return rank;
}

/* Reads what all ranks have told, and finds out which contents there are. */
static int read_parcels(struct exchange *self, const char *all, uint64_t each, struct cb_err *err)
{
    uint32_t count = comm_size(self->comm);
    int rc = 0;
    for (uint32_t i = 0; i < count && !rc; i++) {
        rc = read_parcel(self, all + i * each, each, i, err);
        self->others[i].owner = rc ? i : find_owner(self, i);
        struct other *owner = &self->others[self->others[i].owner];
        if (owner->holders++ == 0) {
            owner->place = self->content_bytes;
            owner->table = self->table_count++;
            self->content_bytes += owner->parcel.content_bytes;
        }
    }
    self->contents = rc ? NULL : malloc(self->content_bytes + 1);
    return rc || self->contents
               ? rc
               : alloc_fail(err, "for %llu bytes of tables of other ranks", (unsigned long long)self->content_bytes);
}

/* Each content goes from its owner to rank 0, and from there to all. */
static int share_contents(struct exchange *self, struct cb_err *err)
{
    uint32_t rank = comm_rank(self->comm), count = comm_size(self->comm);
    struct comm_message *messages = calloc(count, sizeof *messages);
    size_t started = 0;
    int rc = messages ? 0 : alloc_fail(err, "for %u messages", count);
    assert(self->contents); /* else all ranks have failed */
    for (uint32_t i = 0; i < count && !rc; i++) {
        const struct other *owner = &self->others[i];
        if (owner->owner != i || (rank != 0 && rank != i))
            continue;
        if (rank == i)
            memcpy(self->contents + owner->place, self->content.data, self->content.len);
        if (i > 0 && rank == 0)
            rc = comm_receive(self->comm, self->contents + owner->place, owner->parcel.content_bytes, i, 0,
                              &messages[started++], err);
        else if (i > 0)
            rc = comm_send(self->comm, self->content.data, self->content.len, 0, 0, &messages[started++], err);
    }
    rc = await_messages(self->comm, messages, started, rc, self->request->deadline_ns, err);
    free(messages);
    rc = agree(self->comm, rc, self->request->deadline_ns, err);
    return rc ? rc : comm_broadcast(self->comm, self->contents, self->content_bytes, self->request->deadline_ns, err);
}

static int gather(struct exchange *self, const struct description_factors *factors, struct cb_err *err)
{
    struct agreement agreement = {0};
    struct comm_message message;
    struct buf mine;
    char *all = NULL;
    uint64_t deadline_ns = self->request->deadline_ns;
    buf_init(&mine, DESCRIPTION_MAX_BYTES);
    int rc = write_parcel(self, factors, &mine, err);
    rc = agree_number(self->comm, rc, (mine.len + 7) / 8 * 8, deadline_ns, &agreement, err);
    uint64_t each = agreement.max, more = !rc ? each - mine.len : 0;
    char *padding = buf_extend(&mine, more);
    if (padding)
        memset(padding, 0, more);
    if (!rc) {
        all = malloc(each * comm_size(self->comm));
        rc = agree(self->comm, all && padding ? 0 : alloc_fail(err, "for what %u ranks tell", comm_size(self->comm)),
                   deadline_ns, err);
    }
    if (!rc) {
        assert(all); /* else this rank has failed */
        rc = comm_start_all_gather(self->comm, mine.data, all, each / 4, &message, err);
        rc = await_messages(self->comm, &message, 1, rc, deadline_ns, err);
    }
    if (!rc)
        rc = agree(self->comm, read_parcels(self, all, each, err), deadline_ns, err);
    if (!rc) {
        uint32_t rank = comm_rank(self->comm);
        uint64_t own = self->others[rank].owner == rank ? self->content.len : 0;
        self->told_bytes = each * (comm_size(self->comm) - 1) + self->content_bytes - own;
    }
    free(all);
    buf_release(&mine);
    return rc ? rc : share_contents(self, err);
}

/* Where a rank's knowledge of the others comes from. */
enum source {
    FROM_OTHERS,   /* they tell */
    FROM_NOBODY,   /* this rank's own state is enough */
    FROM_OWN_TABLE /* all have the same */
};

/* Takes this rank's table alone. If it is not that of all, the others stay without one, each its own owner, for nothing is
 * known of them. */
static int take_own(struct exchange *self, bool is_of_all, const struct description_factors *factors,
                    struct cb_err *err)
{
    uint32_t rank = comm_rank(self->comm), count = comm_size(self->comm), owner = is_of_all ? 0 : rank;
    for (uint32_t i = 0; i < count; i++)
        self->others[i].owner = is_of_all ? 0 : i;
    self->others[owner] =
        (struct other){.parcel = {.values = self->state->value_count, .content_bytes = self->content.len},
                       .owner = owner,
                       .holders = is_of_all ? count : 1};
    self->ranks[rank].factors = *factors;
    self->table_count = 1;
    self->contents = malloc(self->content.len + 1);
    if (!self->contents)
        return alloc_fail(err, "for the table of this rank");
    memcpy(self->contents, self->content.data, self->content.len);
    return 0;
}

static int read_tables(struct exchange *self, struct cb_err *err)
{
    uint32_t count = comm_size(self->comm), mine = self->others[comm_rank(self->comm)].owner;
    self->tables = calloc(self->table_count + 1, sizeof *self->tables);
    int rc = self->tables ? 0 : alloc_fail(err, "for %zu tables", self->table_count);
    for (uint32_t i = 0; i < count && !rc; i++) {
        const struct other *owner = &self->others[self->others[i].owner];
        struct described_table *table = &self->tables[owner->table];
        if (owner->holders == 0)
            continue;
        const char *content = self->contents + owner->place;
        uint64_t hashes = 8 * owner->parcel.values;
        const struct buf text = {.data = (char *)content + hashes, .len = owner->parcel.content_bytes - hashes};
        if (self->others[i].owner == i) {
            rc = description_read(&text, content, owner->parcel.values, i, owner->holders, count, table, err);
            if (!rc && !self->request->saves && i != mine)
                table->entry_count = table->tensor_count; /* a rank loads its own values only */
        }
        self->ranks[i].table = table;
    }
    return rc;
}

static int join(struct exchange *self, struct joined *joined, struct cb_err *err)
{
    const struct join_options options = {.rank = comm_rank(self->comm),
                                         .rank_count = comm_size(self->comm),
                                         .saves = self->request->saves,
                                         .allows_different_values = self->request->allows_different_values};
    int rc = read_tables(self, err);
    return rc ? rc
              : join_descriptions(self->ranks, self->tables, self->table_count, self->state, &options, joined, err);
}

static void release_exchange(struct exchange *self)
{
    for (size_t i = 0; self->tables && i < self->table_count; i++)
        description_release(&self->tables[i]);
    free(self->tables);
    free(self->contents);
    free(self->ranks);
    free(self->others);
    buf_release(&self->content);
}

/* Makes the layout anew. `table` has this rank's description. */
static int exchange(struct tables *self, struct comm *comm, const struct ckptbench_state *state,
                    const struct table_request *request, enum source source, const struct buf *table,
                    const struct description_factors *factors, struct cb_err *err)
{
    struct exchange exchange = {.comm = comm, .state = state, .request = request};
    struct joined joined = {0};
    buf_init(&exchange.content, COMM_MESSAGE_MAX_BYTES);
    exchange.others = calloc(comm_size(comm), sizeof *exchange.others);
    exchange.ranks = calloc(comm_size(comm), sizeof *exchange.ranks);
    int rc = exchange.others && exchange.ranks ? write_content(&exchange, table, err)
                                               : alloc_fail(err, "for the tables of %u ranks", comm_size(comm));
    bool asks = source == FROM_OTHERS;
    if (asks)
        rc = agree(comm, rc, request->deadline_ns, err);
    assert(rc || (exchange.others && exchange.ranks));
    if (!rc)
        rc = asks ? gather(&exchange, factors, err) : take_own(&exchange, source == FROM_OWN_TABLE, factors, err);
    if (!rc)
        rc = agree(comm, join(&exchange, &joined, err), request->deadline_ns, err);
    else if (!asks)
        rc = agree(comm, rc, request->deadline_ns, err);
    self->told_bytes = exchange.told_bytes;
    release_exchange(&exchange);
    if (rc) { /* maybe of another rank */
        joined_release(&joined);
    } else {
        joined_release(&self->joined);
        self->joined = joined;
        self->number++;
    }
    return rc;
}

int tables_exchange(struct tables *self, struct comm *comm, const struct ckptbench_state *state,
                    const struct table_request *request, int code, bool *kept, struct cb_err *err)
{
    struct agreement agreement;
    struct description_factors factors = {0};
    struct buf *table = &self->described;
    uint64_t number = 0;
    buf_clear(table);
    int rc = code ? code : description_write(state, comm_size(comm), table, &factors, err);
    size_t table_bytes = table->len;
    buf_append(table, factors.factor, factors.count * sizeof *factors.factor); /* for the comparison */
    bool same = !rc && self->joined.layout && table->len == self->own.len &&
                memcmp(table->data, self->own.data, table->len) == 0;
    bool tells = !rc && factors.count == 0 && !same && !request->alone;
    self->told_bytes = 0;
    if (same || request->alone)
        number = rc ? 0 : check_sum(self, comm, state, request);
    else if (tells)
        number = table_sum(table, comm, state, request);
    else
        random_bytes(&number, sizeof number); /* so that the sum is not 0 */
    uint64_t ready_ns = clock_monotonic_ns();
    rc = agree_number(comm, rc, number, request->deadline_ns, &agreement, err);
    self->waited_ns = clock_monotonic_ns() - ready_ns;
    *kept = !rc && same && agreement.sum == 0;
    if (!rc && !*kept) {
        buf_clear(&self->own);
        const struct buf described = {.data = table->data, .len = table_bytes};
        enum source source = agreement.sum != 0 ? FROM_OTHERS : tells ? FROM_OWN_TABLE : FROM_NOBODY;
        rc = exchange(self, comm, state, request, source, &described, &factors, err);
        if (!rc)
            rc = buf_check(table, "the table of this rank's state", err);
    }
    if (!rc && !*kept) {
        struct buf spare = self->own;
        self->own = self->described;
        self->described = spare;
    }
    return rc;
}
