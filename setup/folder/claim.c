/* Writes and parses the text of a claim. */
#include "setup/folder/claim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/utf8.h"
#include "run/workload_kind.h"

/* Long enough, and sums with ages and margins do not overflow. */
#define LONGEST_LEASE_NS (UINT64_MAX / 4)

static const char temporary[] = "temporary";

bool claim_is_to_keep(const struct experiment *experiment)
{
    return workload_kind_of(experiment)->trains || experiment_is(experiment, OPT_KEEP, "true") ||
           (experiment_is(experiment, OPT_KEEP, "auto") && experiment_is(experiment, OPT_OPS, "save"));
}

int claim_name(const char *suffix, char name[PATH_MAX], struct cb_err *err)
{
    return path_format(name, PATH_MAX, err, "%s/" CLAIM_NAME, suffix);
}

/* The run's id, then "kept" or "temporary", then the lease if there is one. Earlier versions wrote no lease, and before
 * that the id alone: such checkpoints count as kept. */
void claim_format(const struct claim *claim, char text[CLAIM_TEXT_BYTES])
{
    const struct claim_lease *lease = &claim->lease;
    int len = snprintf(text, CLAIM_TEXT_BYTES, "%s\n%s\n", claim->run, claim->keeps ? "kept" : temporary);
    if (!*lease->token)
        return;
    snprintf(text + len, CLAIM_TEXT_BYTES - (size_t)len,
             "token=%s\nattempt=%" PRIu32 "\nsince_ns=%" PRIu64 "\nlasts_ns=%" PRIu64
             "\nhost=%s\nrun_folder=%s\nmachine=%s\npid=%" PRIu64 "\nstart_ticks=%" PRIu64 "\n",
             lease->token, lease->attempt, lease->since_wall_ns, lease->lasts_ns, lease->host, lease->run_folder,
             lease->process.machine, lease->process.pid, lease->process.start_ticks);
}

/* Copies the value of the line KEY=VALUE, or "". */
static void read_text(const char *text, const char *key, char *value, size_t value_bytes)
{
    size_t len = strlen(key);
    *value = '\0';
    for (const char *line = text; (line = strchr(line, '\n')) != NULL;)
        if (strncmp(++line, key, len) == 0 && line[len] == '=') {
            line += len + 1;
            snprintf(value, value_bytes, "%.*s", (int)strcspn(line, "\n"), line);
            return;
        }
}

static uint64_t read_number(const char *text, const char *key)
{
    char value[32];
    read_text(text, key, value, sizeof value);
    return strtoull(value, NULL, 10);
}

void claim_parse(const char *text, struct claim *claim)
{
    char shown[CLAIM_TEXT_BYTES];
    snprintf(shown, sizeof shown, "%s", text);
    utf8_hide_controls(shown, "\n"); /* it is shown in messages */
    size_t len = strcspn(shown, "\n");
    *claim = (struct claim){0};
    snprintf(claim->run, sizeof claim->run, "%.*s", (int)len, shown);
    claim->keeps = shown[len] == '\0' || strncmp(shown + len + 1, temporary, strlen(temporary)) != 0;
    struct claim_lease *lease = &claim->lease;
    read_text(shown, "token", lease->token, sizeof lease->token);
    read_text(shown, "host", lease->host, sizeof lease->host);
    read_text(shown, "run_folder", lease->run_folder, sizeof lease->run_folder);
    read_text(shown, "machine", lease->process.machine, sizeof lease->process.machine);
    lease->attempt = (uint32_t)read_number(shown, "attempt");
    lease->since_wall_ns = read_number(shown, "since_ns");
    lease->lasts_ns = read_number(shown, "lasts_ns");
    if (lease->lasts_ns > LONGEST_LEASE_NS)
        lease->lasts_ns = LONGEST_LEASE_NS;
    lease->process.pid = read_number(shown, "pid");
    lease->process.start_ticks = read_number(shown, "start_ticks");
}

int claim_read(struct store *store, const char *suffix, struct claim *claim, struct cb_err *err)
{
    char name[PATH_MAX];
    struct buf text;
    buf_init(&text, CLAIM_TEXT_BYTES - 1);
    int rc = claim_name(suffix, name, err);
    if (!rc)
        rc = store_read_small(store, name, &text, err);
    if (!rc)
        claim_parse(text.data, claim);
    buf_release(&text);
    return rc;
}

bool claim_has_ended(const struct claim_lease *lease)
{
    char manifest[PATH_MAX];
    if (process_has_ended(&lease->process))
        return true;
    return lease->run_folder[0] == '/' && lease->attempt > 0 &&
           path_format(manifest, sizeof manifest, NULL, "%s/attempts/%" PRIu32 "/manifest.json", lease->run_folder,
                       lease->attempt) == 0 &&
           access(manifest, F_OK) == 0;
}

char *claim_describe(const struct claim *claim, char text[CLAIM_TEXT_BYTES])
{
    const struct claim_lease *lease = &claim->lease;
    char since[21], process[64] = "";
    clock_format_utc(lease->since_wall_ns, since);
    if (lease->process.pid > 0)
        snprintf(process, sizeof process, "process %" PRIu64 " on ", lease->process.pid);
    snprintf(text, CLAIM_TEXT_BYTES, "run %.128s (attempt %" PRIu32 ", %shost %s, since %s)", claim->run,
             lease->attempt, process, lease->host, since);
    return text;
}
