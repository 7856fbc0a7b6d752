/* Checks a site, with advice for each result. */
#include "cli/sites/site_checks.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/listing.h"
#include "cli/sites/site_install.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/version.h"
#include "run/container.h"
#include "store/kind.h"

#define JOB_NS (900 * NS_PER_S) /* a queue may be long; waiting is reported */
#define TOKEN_FILE ".site-check"
#define NODE_FOLDER "/tmp" /* where programs are sent unless sbcast= is set */
#define FIELD_BYTES 512

struct checks {
    struct remote *remote;
    struct listing list;
    bool learns; /* sets sbcast= if the site needs it */
    bool all_well;
};

static void report(struct checks *self, const char *name, bool fine, const char *found, const char *advice)
{
    self->all_well &= fine;
    listing_check(&self->list, name, fine ? TABLE_GOOD : TABLE_BAD, fine ? "ok" : "failed", found,
                  fine ? NULL : advice);
}

/* Runs a command on the site; on any failure returns false and its last line in `text`. */
static bool works(struct checks *self, const char *program, const char *const *words, const char *input,
                  uint64_t timeout_ns, char *text)
{
    const struct remote_call call = {.program = program, .words = words, .input = input, .timeout_ns = timeout_ns};
    struct cb_err err;
    if (remote_run(self->remote, &call, &err)) {
        snprintf(text, FIELD_BYTES, "%.500s", err.message);
        return false;
    }
    remote_reason(self->remote, text, FIELD_BYTES);
    return self->remote->answer.exit_status == 0;
}

static const char *output(const struct checks *self)
{
    return self->remote->answer.out.data;
}

/* ---- the login node ---- */

static bool check_programs(struct checks *self)
{
    static const char *const words[] = {"--version", NULL};
    const struct site *site = &self->remote->site;
    char path[PATH_MAX], text[FIELD_BYTES], version[32], commit[64];
    struct cb_err err;
    bool has = false;
    if (remote_check_version(self->remote, &err)) {
        report(self, "programs", false, err.message,
               "`ckptbench site add NAME` without prefix= builds this release there");
        return false;
    }
    if (site_has_programs(self->remote, &has, &err) || !has) {
        report(self, "programs", false, has ? err.message : "ckptbench is there, its agent or worker is not",
               "install all three programs into the prefix (the worker may be in an image: container=)");
        return false;
    }
    snprintf(path, sizeof path, "%.3000s/bin/ckptbench-agent", site_text(site, SITE_PREFIX));
    bool fine = works(self, path, words, NULL, REMOTE_QUICK_NS, text);
    if (fine && (remote_parse_version(output(self), version, commit, &err) || strcmp(version, version_text()) != 0)) {
        snprintf(text, sizeof text, "the agent there is %.*s", (int)strcspn(output(self), "\n"), output(self));
        fine = false;
    } else if (fine) {
        snprintf(text, sizeof text, "%s (%s) in %.300s", version, commit, site_text(site, SITE_PREFIX));
    }
    report(self, "programs", fine, text, "the agent must start there, and be of this release: add the site again");
    return fine;
}

static bool check_slurm(struct checks *self)
{
    static const char *const version[] = {"--version", NULL}, *const ping[] = {"ping", NULL};
    char text[FIELD_BYTES], state[FIELD_BYTES];
    bool has = works(self, "sbatch", version, NULL, REMOTE_QUICK_NS, text);
    bool up = has && works(self, "scontrol", ping, NULL, REMOTE_QUICK_NS, state) && strstr(output(self), " is UP");
    report(self, "Slurm", up, has && !up ? state : text,
           has ? "its controller does not answer: `scontrol ping` there must say UP"
               : "`sbatch --version` must work in a login there: modules= loads it, environment.PATH and "
                 "environment.SLURM_CONF say where it and its configuration are");
    return up;
}

/* Accounting keeps jobs that squeue and scontrol no longer list. It is optional. */
static void check_accounting(struct checks *self)
{
    static const char *const words[] = {"-X", "-n", "-P", "-S", "now", "-o", "JobID", NULL};
    char text[FIELD_BYTES], found[FIELD_BYTES];
    if (works(self, "sacct", words, NULL, REMOTE_QUICK_NS, text))
        snprintf(found, sizeof found, "sacct answers: it is asked how jobs ended that squeue has forgotten");
    else
        snprintf(found, sizeof found, "none that answers, and none is needed (%.300s)", text);
    report(self, "accounting", true, found, NULL);
}

/* ---- a compute node ---- */

static bool leave_token(struct checks *self, const char *token)
{
    static const char script[] = "mkdir -p \"$1\" && printf '%s\\n' \"$2\" > \"$1/" TOKEN_FILE "\"";
    const char *home = site_text(&self->remote->site, SITE_HOME);
    const char *const words[] = {"-c", script, "ckptbench-site", home, token, NULL};
    char text[FIELD_BYTES];
    bool fine = works(self, "sh", words, NULL, REMOTE_QUICK_NS, text);
    if (!fine)
        report(self, "home", false, text, "the site's home must be a folder of yours: give home=");
    return fine;
}

/* Whether ranks use the program `what` from their image. */
static bool is_of_the_image(const struct checks *self, const char *what)
{
    return *site_text(&self->remote->site, SITE_CONTAINER) &&
           (strcmp(what, "ckptbench-worker") == 0 || strcmp(what, "mpirun") == 0);
}

/* Reports the problems that the node's own doctor found, or that it found none. */
static void report_node(struct checks *self, const char *node, const char *json)
{
    struct json_value *root = NULL;
    size_t fine = 0, count = 0;
    char name[160], text[FIELD_BYTES], others[300] = "";
    if (json_parse(json, strlen(json), &root, NULL)) {
        report(self, "compute node", false, "its doctor did not answer",
               "`srun PREFIX/bin/ckptbench doctor` there says why");
        return;
    }
    const struct json_value *found = json_get(root, "checks");
    for (size_t i = 0; i < json_count(found); i++) {
        const struct json_value *check = json_at(found, i);
        const char *status = "", *what = "", *seen = "", *advice = "";
        bool read = json_as_text(json_get(check, "status"), &status) && json_as_text(json_get(check, "name"), &what) &&
                    json_as_text(json_get(check, "found"), &seen);
        size_t used = strlen(others);
        if (read && is_of_the_image(self, what))
            continue;
        count++;
        fine += read && strcmp(status, "ok") == 0;
        if (read && strcmp(status, "ok") != 0)
            snprintf(others + used, sizeof others - used, "%s%s", used ? ", " : "; not: ", what);
        if (!read || strcmp(status, "missing") != 0)
            continue; /* something optional is missing; the node's own `doctor` reports it */
        if (!json_as_text(json_get(check, "do"), &advice))
            advice = "";
        snprintf(name, sizeof name, "%.60s: %.80s", node, what);
        report(self, name, false, seen, advice);
    }
    json_value_free(root);
    snprintf(text, sizeof text, "%.60s: %zu of %zu checks of its doctor are well%s", node, fine, count, others);
    report(self, "compute node", true, text, NULL);
}

/* Runs a job of one node: `program` with its flags, and the command. */
static bool run_on_node(struct checks *self, const char *program, const char *const *command, size_t command_words,
                        char *text)
{
    const struct site *site = &self->remote->site;
    char partition[256], account[256];
    snprintf(partition, sizeof partition, "--partition=%.200s", site_text(site, SITE_PARTITION));
    snprintf(account, sizeof account, "--account=%.200s", site_text(site, SITE_ACCOUNT));
    const char *words[CONTAINER_MAX_WORDS + 20] = {"--nodes=1", "--ntasks=1", "--time=5", "--job-name=ckptbench-site",
                                                   "--quiet"};
    size_t count = 5;
    if (*site_text(site, SITE_PARTITION))
        words[count++] = partition;
    if (*site_text(site, SITE_ACCOUNT))
        words[count++] = account;
    memcpy(words + count, command, command_words * sizeof *command);
    return works(self, program, words, NULL, JOB_NS, text);
}

/* The same on a node without our files: sends programs by sbcast, as a run does. */
static void check_sent_node(struct checks *self, const char *node)
{
    static const char script[] = "folder=$2/ckptbench-programs-site-$SLURM_JOB_ID\n"
                                 "trap 'exit 1' TERM INT HUP\n"
                                 "srun --chdir=/ mkdir -m700 \"$folder\" || exit 1\n"
                                 "trap 'srun --chdir=/ rm -rf -- \"$folder\"' EXIT\n"
                                 "for name in ckptbench ckptbench-agent ckptbench-worker; do\n"
                                 "    [ -e \"$1/bin/$name\" ] || continue\n" /* the image contains the worker */
                                 "    sbcast --preserve \"$1/bin/$name\" \"$folder/$name\" || exit 1\n"
                                 "done\n"
                                 "srun --chdir=\"$folder\" \"$folder/ckptbench\" doctor --json\n"
                                 "exit 0\n";
    struct site *site = &self->remote->site;
    bool known = *site_text(site, SITE_SBCAST) != '\0';
    const char *folder = known ? site_text(site, SITE_SBCAST) : NODE_FOLDER;
    const char *const command[] = {"sh", "-c", script, "ckptbench-site", site_text(site, SITE_PREFIX), folder};
    char text[FIELD_BYTES], found[FIELD_BYTES];
    bool sent = run_on_node(self, "salloc", command, 6, text);
    snprintf(found, sizeof found,
             "%.200s is not the same folder on %.60s: programs go to %.100s there by sbcast%s%.60s",
             site_text(site, SITE_HOME), node, folder, sent ? "" : ": ", sent ? "" : text);
    if (sent && !known && self->learns)
        sent = known = site_set(site, "sbcast", folder, "what was found", NULL) == 0;
    report(self, "shared file system", sent && known, found,
           sent ? "`ckptbench site add` of this site, or sbcast=/tmp in its file, has it so"
                : "sbcast= names a folder that every compute node has; or give home= and prefix= on a file system that "
                  "login and compute nodes share");
    if (sent && known)
        report_node(self, node, output(self));
}

static void take_node(struct checks *self, char *said, const char *token)
{
    char text[FIELD_BYTES], node[128];
    char *name = strchr(said, '\n'), *json = name ? strchr(name + 1, '\n') : NULL;
    if (!json) {
        report(self, "compute node", false, "the job there said nothing", "`srun true` must work there");
        return;
    }
    *name++ = *json++ = '\0';
    snprintf(node, sizeof node, "%.100s", name);
    if (strcmp(said, token) != 0) {
        check_sent_node(self, node); /* the result of its command replaces the earlier one */
        return;
    }
    snprintf(text, sizeof text, "%.300s is the same folder on %.60s", site_text(&self->remote->site, SITE_HOME), node);
    report(self, "shared file system", true, text, NULL);
    report_node(self, node, json);
}

static void check_node(struct checks *self)
{
    static const char script[] =
        "printf '%s\\n%s\\n' \"$(cat \"$1/" TOKEN_FILE "\" 2>/dev/null)\" \"$SLURMD_NODENAME\"; "
        "\"$2\" doctor --json; exit 0";
    const struct site *site = &self->remote->site;
    unsigned char random[8];
    char token[2 * sizeof random + 1], program[PATH_MAX], text[FIELD_BYTES];
    random_bytes(random, sizeof random);
    hash_hex(random, sizeof random, token);
    if (!leave_token(self, token))
        return;
    snprintf(program, sizeof program, "%.3000s/bin/ckptbench", site_text(site, SITE_PREFIX));
    const char *const command[] = {"sh", "-c", script, "ckptbench-site", site_text(site, SITE_HOME), program};
    log_info("site %s: waiting for a compute node", site->name);
    if (run_on_node(self, "srun", command, 6, text))
        take_node(self, self->remote->answer.out.data, token);
    else
        report(self, "compute node", false, text,
               "a job of one node must run there: partition= and account= say where, `squeue` there why it waits");
}

/* The last line that was not printed by srun. */
static void last_but_of_srun(const char *errors, char *text)
{
    for (const char *at = errors; *at;) {
        size_t len = strcspn(at, "\n");
        if (len && strncmp(at, "srun: ", strlen("srun: ")) != 0)
            snprintf(text, FIELD_BYTES, "%.*s", (int)(len < FIELD_BYTES ? len : FIELD_BYTES - 1), at);
        at += len + (at[len] == '\n');
    }
}

/* Starts the image's worker as a rank would be started; it must be of this release. */
static void check_container(struct checks *self)
{
    const char *given = site_text(&self->remote->site, SITE_CONTAINER);
    char text[FIELD_BYTES], version[32], commit[64];
    const char *command[CONTAINER_MAX_WORDS + 2];
    struct container container;
    struct cb_err err;
    if (!*given || container_parse(given, &container, &err)) /* already validated when the site file was read */
        return;
    memcpy(command, container.words, container.count * sizeof *command);
    command[container.count] = "ckptbench-worker";
    command[container.count + 1] = "--version";
    bool fine = run_on_node(self, "srun", command, container.count + 2, text);
    if (!fine)
        last_but_of_srun(self->remote->answer.errors.data, text);
    if (fine && remote_parse_version(output(self), version, commit, &err)) {
        snprintf(text, sizeof text, "%.500s", err.message);
        fine = false;
    } else if (fine) {
        snprintf(text, sizeof text, "%.200s has ckptbench-worker %s (%s)", given, version, commit);
        fine = strcmp(version, version_text()) == 0;
    }
    report(self, "container", fine, text,
           "container= must start ckptbench-worker of this release on a compute node: `make install` of its sources in "
           "the image puts it there");
}

/* ---- pairs of nodes ---- */

/* Starts a run with one rank per node: its agents meet on the rendezvous port, its ranks exchange messages in pairs. */
static int run_pairs(struct checks *self, uint64_t nodes, char run[64], char *text)
{
    static const char *const words[] = {"submit", "-", "--json", "--wait", NULL};
    const struct site *site = &self->remote->site;
    const char *name;
    struct buf settings;
    struct json_value *root = NULL;
    buf_init(&settings, 1u << 16);
    buf_printf(&settings,
               "workload: suite\nsuite.only: net\nsuite.message_bytes: 8\niterations: 1\nwarmup: 0\nbaseline: false\n"
               "nodes: %" PRIu64 "\nranks_per_node: 1\nstore: \"" STORE_NULL "\"\nlabel.site_check: \"%s\"\n",
               nodes, site->name);
    for (size_t i = 0; i < SITE_DEFAULTS; i++) {
        const char *value = site_text(site, site_defaults[i].key);
        if (*value)
            buf_printf(&settings, "%s: \"%s\"\n", site_defaults[i].option, value);
    }
    bool fine = settings.code == 0 && works(self, NULL, words, settings.data, JOB_NS, text);
    if (fine && json_parse(output(self), strlen(output(self)), &root, NULL) == 0 &&
        json_as_text(json_get(json_at(json_get(root, "runs"), 0), "run"), &name))
        snprintf(run, 64, "%s", name);
    else
        fine = false;
    json_value_free(root);
    buf_release(&settings);
    return fine;
}

/* The number of pairs that the run measured: facts suite.pair.A.B. */
static uint64_t count_pairs(struct checks *self, const char *run)
{
    char query[200];
    uint64_t pairs = 0;
    struct json_value *root = NULL;
    struct cb_err err;
    snprintf(query, sizeof query, "select count(*) as pairs from fact where run='%.64s' and fact like 'suite.pair.%%'",
             run);
    const char *const words[] = {"sql", "--json", query, NULL};
    const struct remote_call call = {.words = words, .timeout_ns = REMOTE_QUICK_NS};
    if (remote_ask(self->remote, &call, &root, &err))
        return 0;
    if (!json_as_u64(json_get(json_at(root, 0), "pairs"), &pairs))
        pairs = 0;
    json_value_free(root);
    return pairs;
}

static void check_pairs(struct checks *self, uint64_t nodes)
{
    char run[64] = "", text[FIELD_BYTES], found[FIELD_BYTES];
    log_info("site %s: waiting for %" PRIu64 " nodes", self->remote->site.name, nodes);
    if (!run_pairs(self, nodes, run, text)) {
        report(self, "nodes", false, text,
               "agents need a TCP port between nodes (rendezvous.port fixes it), ranks what MPI is configured for; "
               "`ckptbench logs --site` of that run has what they said");
        return;
    }
    uint64_t pairs = count_pairs(self, run), wanted = nodes * (nodes - 1) / 2;
    snprintf(found, sizeof found,
             "%" PRIu64 " nodes met on the rendezvous port, %" PRIu64 " of %" PRIu64
             " pairs exchanged messages over MPI (run %s)",
             nodes, pairs, wanted, run);
    report(self, "nodes", pairs == wanted, found, "`ckptbench show RUN --nodes` there says which");
}

int site_checks(struct cli *cli, struct remote *remote, uint64_t nodes, bool learns, struct cb_err *err)
{
    const char *host = site_text(&remote->site, SITE_HOST);
    struct checks self = {.remote = remote, .learns = learns, .all_well = true};
    listing_init_checks(&self.list, cli, remote->site.name);
    report(&self, "connection", true, *host ? host : "localhost", NULL);
    if (check_programs(&self) && check_slurm(&self)) {
        check_accounting(&self);
        check_node(&self);
        if (self.all_well)
            check_container(&self);
        if (self.all_well && nodes > 1)
            check_pairs(&self, nodes);
    }
    int rc = listing_end_checks(&self.list, self.all_well, 0, err);
    if (!cli->json)
        buf_printf(&cli->out, "\nsite %s is %sready\n", remote->site.name, self.all_well ? "" : "not ");
    return rc;
}
