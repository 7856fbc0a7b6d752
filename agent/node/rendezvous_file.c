/* Writes rendezvous.json: who joined, when, and with which clock offset. */
#include <math.h>

#include "agent/node/rendezvous.h"
#include "core/clock.h"
#include "core/json.h"

#define JSON_MAX_BYTES (64 << 20)

static void write_node(const struct rendezvous *self, const struct nodes *nodes, uint32_t index,
                       struct json_writer *json)
{
    static const char *const states[] = {"missing", "missing", "joined", "joined", "lost"};
    const struct node_report *report = rendezvous_report(self, index);
    bool own = nodes->own == (int64_t)index, joined = !own && report->joined_wall_ns;
    char joined_at[32];
    json_write_begin_object(json);
    json_write_key(json, "node");
    json_write_text(json, nodes->name[index]);
    json_write_key(json, "host");
    json_write_text(json, *report->host ? report->host : NULL);
    json_write_key(json, "state");
    json_write_text(json, own ? "head" : states[report->state]);
    json_write_key(json, "first_rank");
    json_write_u64(json, report->first_rank);
    json_write_key(json, "ranks");
    json_write_u64(json, report->rank_count);
    if (joined)
        clock_format_utc(report->joined_wall_ns, joined_at);
    json_write_key(json, "joined");
    json_write_text(json, joined ? joined_at : NULL);
    json_write_key(json, "clock_offset_s");
    json_write_double(json, own ? 0 : joined ? (double)report->joined.wall_offset_ns / (double)NS_PER_S : NAN);
    json_write_key(json, "round_trip_s");
    json_write_double(json, joined ? (double)report->joined.round_trip_ns / (double)NS_PER_S : NAN);
    json_write_key(json, "store_free_bytes");
    if (joined && report->joined.store_free_bytes != UINT64_MAX)
        json_write_u64(json, report->joined.store_free_bytes);
    else
        json_write_null(json);
    json_write_key(json, "trouble");
    json_write_text(json, *report->trouble ? report->trouble : NULL);
    json_write_end_object(json);
}

int rendezvous_write(const struct rendezvous *self, const struct nodes *nodes, const char *path, double rendezvous_s,
                     struct cb_err *err)
{
    struct buf text;
    struct json_writer json;
    buf_init(&text, JSON_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    json_write_key(&json, "version");
    json_write_u64(&json, 1);
    json_write_key(&json, "rendezvous_s");
    json_write_double(&json, rendezvous_s);
    json_write_key(&json, "nodes");
    json_write_begin_array(&json);
    for (uint32_t i = 0; i < nodes->count; i++)
        write_node(self, nodes, i, &json);
    json_write_end_array(&json);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    int rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}
