/* The slowest requests, in order. */
#include "core/slow_requests.h"

#include <string.h>

void slow_requests_add(struct slow_requests *self, const struct slow_request *request)
{
    if (!slow_requests_wants(self, request->latency_ns))
        return;
    uint64_t at = self->count < SLOW_REQUESTS ? self->count++ : SLOW_REQUESTS - 1;
    for (; at > 0 && self->items[at - 1].latency_ns < request->latency_ns; at--)
        self->items[at] = self->items[at - 1];
    self->items[at] = *request;
}

bool slow_requests_are_valid(const struct slow_requests *self)
{
    if (self->count > SLOW_REQUESTS)
        return false;
    for (uint64_t i = 0; i < self->count; i++)
        if (self->items[i].kind >= REQUEST_KINDS || !memchr(self->items[i].file, 0, sizeof self->items[i].file))
            return false;
    return true;
}

void slow_request_set_file(struct slow_request *self, const char *name)
{
    size_t len = strlen(name), room = sizeof self->file - 1;
    if (len > room)
        name += len - room;
    memcpy(self->file, name, (len < room ? len : room) + 1);
}

const char *slow_request_kind_name(uint32_t kind)
{
    static const char *const names[] = {"write", "read", "finish"};
    return kind < REQUEST_KINDS ? names[kind] : "?";
}
