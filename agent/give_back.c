/* Cancels a job, again and again while Slurm does not answer. */
#include "agent/give_back.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/child.h"
#include "core/clock.h"

#define ANSWER_NS (10 * NS_PER_S)
#define FIRST_PAUSE_NS NS_PER_S
#define LONGEST_PAUSE_NS (30 * NS_PER_S)
#define LOOK_NS (200 * NS_PER_MS) /* how soon a signal is noticed */
#define TEXT_MAX_BYTES (1 << 16)

/* Whether Slurm's refusal means that there is nothing left to cancel. */
static bool is_over(const char *said)
{
    static const char *const words[] = {"invalid job id", "already completing", "already completed"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasestr(said, words[i]))
            return true;
    return false;
}

/* Asks for the name first. With -n scancel does so, too, but then no waiting task of an array keeps its index, and their
 * runs count as lost. */
static bool cancel(const struct give_back *self, struct cb_err *err)
{
    const char *const look[] = {"squeue", "-h", "-a", "-t", "all", "-j", self->job, "-o", "%j", NULL};
    const char *const end[] = {"scancel", "-Q", self->job, NULL};
    struct child_options options = {.argv = look, .stdin_fd = -1};
    struct buf said;
    buf_init(&said, TEXT_MAX_BYTES);
    int rc = child_capture(&options, ANSWER_NS, &said, err);
    size_t len = rc ? 0 : strcspn(said.data, "\n");
    if (!rc && len == strlen(self->name) && strncmp(said.data, self->name, len) == 0) {
        options.argv = end;
        buf_clear(&said);
        rc = child_capture(&options, ANSWER_NS, &said, err);
    }
    buf_release(&said);
    return rc == 0 || is_over(err->message);
}

/* False if another signal or the end came first. */
static bool pause_for(const struct give_back *self, uint64_t pause_ns, sig_atomic_t signals)
{
    uint64_t end_ns = clock_monotonic_ns() + pause_ns;
    while (clock_monotonic_ns() < end_ns && *self->signals == signals && clock_wall_ns() < self->until_wall_ns)
        clock_sleep_ns(LOOK_NS);
    return *self->signals == signals && clock_wall_ns() < self->until_wall_ns;
}

void give_back_nodes(const struct give_back *self)
{
    struct cb_err err;
    char text[sizeof err.message + 128], until[21];
    sig_atomic_t signals = *self->signals;
    uint64_t pause_ns = FIRST_PAUSE_NS;
    unsigned tries = 1;
    for (; !cancel(self, &err); tries++) {
        clock_format_utc(self->until_wall_ns, until);
        if (tries == 1) {
            snprintf(text, sizeof text, "job %s cannot be cancelled yet (%s): trying again until %s", self->job,
                     err.message, until);
            self->log(self->context, text);
        }
        if (!pause_for(self, pause_ns, signals)) {
            snprintf(text, sizeof text, "job %s was not cancelled in %u attempts: its time limit ends it", self->job,
                     tries);
            self->log(self->context, text);
            return;
        }
        pause_ns = 2 * pause_ns < LONGEST_PAUSE_NS ? 2 * pause_ns : LONGEST_PAUSE_NS;
    }
    if (tries > 1) {
        snprintf(text, sizeof text, "job %s has ended or was cancelled in attempt %u", self->job, tries);
        self->log(self->context, text);
    }
}
