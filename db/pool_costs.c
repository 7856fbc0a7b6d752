/* What warm pools cost and saved, one row each; their folders are authoritative. */
#include "db/connection.h"
#include "db/history.h"

int history_keep_pool(struct history *self, const struct pool_cost *cost, struct cb_err *err)
{
    return db_run(
        self, err,
        "INSERT OR REPLACE INTO pool VALUES(?1,?2,?3,?4,?5,?6,nullif(?7,0),?8,?9,?10,?11,?12,?13,?14,?15,?16)",
        "tttuuuuddduududt", cost->id, cost->pool, cost->mode, cost->nodes, cost->created_wall_ns, cost->expires_wall_ns,
        cost->ended_wall_ns, cost->budget_node_hours, cost->node_hours, cost->job_node_hours, cost->jobs,
        cost->failed_boots, cost->boot_s, cost->runs, cost->saved_s, cost->note);
}
