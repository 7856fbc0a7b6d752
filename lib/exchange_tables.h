/* How ranks find out who holds what: they exchange tables of their states, or find that those of the last call still
 * hold, or that all have the same table, which tells what each of them holds. */
#ifndef LIB_EXCHANGE_TABLES_H
#define LIB_EXCHANGE_TABLES_H

#include "comm/comm.h"
#include "lib/join.h"

struct tables {
    struct buf own;       /* of this rank, at the last exchange; empty before */
    struct buf described; /* room for the next one */
    struct joined joined;
    uint64_t number;     /* of exchanges so far, and so of the joined layout */
    uint64_t waited_ns;  /* of the last call of tables_exchange, for other ranks to come */
    uint64_t told_bytes; /* in the last call, by the other ranks */
};
void tables_init(struct tables *self);
void tables_release(struct tables *self);

struct table_request {
    const char *op, *path; /* must be the same on all ranks */
    uint64_t deadline_ns;
    bool saves, allows_different_values; /* as in struct join_options */
    bool alone;                          /* of a load: this rank's own state is enough */
};

/* Describes the state, agrees with the other ranks on `code` (of this rank's steps before, with its reason in `err`) and on
 * the request, and exchanges tables if any rank's has changed or a value differs, unless one table is that of all. *kept:
 * the joined layout is that of the call before. Collective. */
int tables_exchange(struct tables *self, struct comm *comm, const struct ckptbench_state *state,
                    const struct table_request *request, int code, bool *kept, struct cb_err *err) CB_MUST_CHECK;

#endif
