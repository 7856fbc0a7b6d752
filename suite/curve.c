/* Measures a collective over message sizes, reported as a fact. */
#include <inttypes.h>
#include <stdio.h>

#include "core/buf.h"
#include "suite/suite.h"

#define LEAST_BYTES 8 /* per rank, for collectives where each rank has a share */
#define STEP 8        /* from one size to the next */
#define CURVE_BYTES 4096

int suite_curve_write(struct suite *self, const struct suite_curve *curve, struct cb_err *err)
{
    char key[64];
    struct buf text;
    int rc = 0;
    buf_init(&text, CURVE_BYTES);
    uint64_t bytes = collective_bytes(curve->kind, LEAST_BYTES, curve->ranks), next = 0;
    uint64_t largest = collective_bytes(curve->kind, curve->largest, curve->ranks);
    for (; bytes && !rc; bytes = next) {
        double seconds = 0;
        next = bytes >= largest ? 0 : bytes * STEP < largest ? bytes * STEP : largest;
        rc = curve->measure(self, curve->context, bytes, &seconds, err);
        double rate = (double)bytes / seconds;
        if (!rc)
            buf_printf(&text, "%s%" PRIu64 ":%.4g:%.4g:%.4g", text.len ? " " : "", bytes, seconds, rate,
                       rate * collective_bus_factor(curve->kind, curve->ranks));
    }
    snprintf(key, sizeof key, "suite.curve.%s", curve->name);
    if (!rc && comm_rank(self->comm) == 0)
        status_page_add_fact(self->page, key, text.data);
    buf_release(&text);
    return rc;
}
