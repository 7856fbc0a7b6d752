/* Runs commands on a site: loads modules and sets the environment there, and interprets the reply. */
#include "cli/jobs/site_command.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/version.h"

#define ANSWER_MAX_BYTES (64u << 20)
#define MODULES_FAILED 125
#define NOT_EXECUTABLE 126
#define NO_PROGRAM 127

/* The only text that a shell on the site executes, and only if the site has modules or an MPI. Variable parts are
 * arguments ($1 folder of the MPI, $2 modules, then the command). A login shell, because modules are functions of
 * its profile. */
static const char prepare[] =
    "if [ -n \"$2\" ]; then . /etc/profile >/dev/null 2>&1; "
    "for module in $2; do module load \"$module\" >&2 || exit 125; done; fi\n"
    "if [ -n \"$1\" ]; then PATH=\"$1/bin:$PATH\"; LD_LIBRARY_PATH=\"$1/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"; "
    "export PATH LD_LIBRARY_PATH; fi\n"
    "shift 2; exec \"$@\"";

const struct site_default site_defaults[SITE_DEFAULTS] = {{SITE_PARTITION, "slurm.partition", true},
                                                          {SITE_ACCOUNT, "slurm.account", true},
                                                          {SITE_SBCAST, "slurm.sbcast", true},
                                                          {SITE_LAUNCHER, "launcher", false},
                                                          {SITE_CONTAINER, "container", false}};

/* ---- opening ---- */

int remote_connect(struct remote *self, struct site *site, struct cb_err *err)
{
    *self = (struct remote){.site = *site};
    *site = (struct site){0};
    if (site_is_here(&self->site))
        return transport_local_open(&self->transport, err);
    const struct transport_ssh_settings settings = {.login_path = true};
    int rc = transport_ssh_open(site_text(&self->site, SITE_HOST), &settings, &self->transport, err);
    if (rc)
        return cb_context(err, "site %s", self->site.name);
    if (*self->transport->note)
        log_info("site %s: %s", self->site.name, self->transport->note);
    return 0;
}

int remote_open(struct remote *self, const char *name, struct cb_err *err)
{
    struct site site;
    *self = (struct remote){0};
    int rc = site_read(name, &site, err);
    if (rc == 0 && (!*site_text(&site, SITE_PREFIX) || !*site_text(&site, SITE_HOME)))
        rc = cb_fail(err, CB_ERR_USAGE, "site %s has no %s: `ckptbench site add %s` finds out and writes it", name,
                     *site_text(&site, SITE_PREFIX) ? "home" : "prefix", name);
    if (rc) {
        site_release(&site);
        return rc;
    }
    rc = remote_connect(self, &site, err);
    return rc ? rc : remote_check_version(self, err);
}

void remote_release(struct remote *self)
{
    transport_close(self->transport);
    transport_answer_release(&self->answer);
    site_release(&self->site);
    *self = (struct remote){0};
}

/* ---- commands ---- */

/* PROGRAM WORD…, preceded by the preparation if the site needs it. */
static const char **command_words(const struct remote *self, const char *program, const char *const *words)
{
    const char *mpi = site_text(&self->site, SITE_MPI), *modules = site_text(&self->site, SITE_MODULES);
    size_t count = 0, used = 0;
    while (words[count])
        count++;
    const char **argv = calloc(count + 8, sizeof *argv);
    if (!argv)
        return NULL;
    if (*mpi || *modules) {
        const char *const first[] = {"bash", "-c", prepare, "ckptbench-site", mpi, modules};
        memcpy(argv, first, sizeof first);
        used = sizeof first / sizeof *first;
    }
    argv[used++] = program;
    memcpy(argv + used, words, count * sizeof *words);
    return argv;
}

/* "CKPTBENCH_HOME=…" and the variables of the site, NULL-terminated; `texts` owns the strings. */
static const char **command_environment(const struct remote *self, struct buf *texts)
{
    const struct site *site = &self->site;
    const char *home = site_text(site, SITE_HOME);
    const char **variables = calloc(site->environment_count + 2, sizeof *variables);
    size_t used = 0, at = 0;
    if (*home)
        buf_printf(texts, "CKPTBENCH_HOME=%s%c", home, '\0');
    for (size_t i = 0; i < site->environment_count; i++)
        buf_printf(texts, "%s=%s%c", site->environment[i].name, site->environment[i].value, '\0');
    for (; variables && texts->code == 0 && at < texts->len; at += strlen(texts->data + at) + 1)
        variables[used++] = texts->data + at;
    return variables;
}

int remote_run(struct remote *self, const struct remote_call *call, struct cb_err *err)
{
    char own_program[PATH_MAX];
    const char *program = call->program ? call->program : own_program;
    struct buf texts;
    struct cb_err own;
    snprintf(own_program, sizeof own_program, "%s/bin/ckptbench", site_text(&self->site, SITE_PREFIX));
    buf_init(&texts, 1u << 20);
    const char **words = command_words(self, program, call->words);
    const char **environment = command_environment(self, &texts);
    self->lost = false;
    transport_answer_release(&self->answer);
    transport_answer_init(&self->answer);
    int rc = words && environment ? buf_check(&texts, "the environment of a site", err)
                                  : alloc_fail(err, "to call site %s", self->site.name);
    if (rc == 0) {
        const struct transport_command command = {.argv = words,
                                                  .environment = environment,
                                                  .without_slurm = true,
                                                  .input = call->input,
                                                  .input_bytes = call->input ? strlen(call->input) : 0,
                                                  .max_bytes = ANSWER_MAX_BYTES,
                                                  .timeout_ns = call->timeout_ns};
        rc = self->transport->run(self->transport, &command, &self->answer, &own);
        if (rc == CB_ERR_NOT_FOUND) {
            rc = cb_fail(err, rc, "site %s: no %s: %s", self->site.name, program, own.message);
        } else if (rc) { /* the connection may be broken, so the next command opens a new one */
            self->lost = true;
            rc = cb_fail(err, rc, "site %s: %s", self->site.name, own.message);
        }
    }
    free(words);
    free(environment);
    buf_release(&texts);
    return rc;
}

/* ---- interpreting a reply ---- */

static const char *without_name(const char *line)
{
    static const char name[] = "ckptbench: ";
    return strncmp(line, name, strlen(name)) == 0 ? line + strlen(name) : line;
}

char *remote_reason(const struct remote *self, char *text, size_t bytes)
{
    const char *inside = without_name(transport_answer_last_line(&self->answer, text, bytes));
    memmove(text, inside, strlen(inside) + 1);
    return text;
}

/* Logs what the command printed to stderr. Omits the last line of a failed command, which becomes the error message. */
static void tell_chatter(const struct remote *self)
{
    for (const char *at = self->answer.errors.data; *at;) {
        size_t len = strcspn(at, "\n");
        const char *text = without_name(at), *next = at + len + (at[len] == '\n');
        if (len && !(self->answer.exit_status && !*next))
            log_info("%s: %.*s", self->site.name, (int)(at + len - text), text);
        at = next;
    }
}

void remote_tell(const struct remote *self)
{
    char reason[1024];
    tell_chatter(self);
    if (self->answer.exit_status && self->answer.errors.len)
        log_error("%s: %s", self->site.name, remote_reason(self, reason, sizeof reason));
}

static int failed_there(const struct remote *self, struct cb_err *err)
{
    char reason[800];
    const char *name = self->site.name;
    int status = self->answer.exit_status;
    int code = status == CB_EXIT_USAGE ? CB_ERR_USAGE : status == CB_EXIT_INTERNAL ? CB_ERR_INTERNAL : CB_ERR_SYSTEM;
    remote_reason(self, reason, sizeof reason);
    if (status == MODULES_FAILED && *site_text(&self->site, SITE_MODULES))
        return cb_fail(err, CB_ERR_UNSUPPORTED, "site %s: loading its modules (%s) failed: %s", name,
                       site_text(&self->site, SITE_MODULES), reason);
    if (status == NO_PROGRAM || status == NOT_EXECUTABLE)
        return cb_fail(err, CB_ERR_NOT_FOUND,
                       "site %s has no programs in %s/bin: `ckptbench site add %s` installs them there", name,
                       site_text(&self->site, SITE_PREFIX), name);
    return cb_fail(err, code, "site %s: %s", name, *reason ? reason : "it failed and says nothing");
}

int remote_ask(struct remote *self, const struct remote_call *call, struct json_value **root, struct cb_err *err)
{
    struct cb_err own;
    self->trouble[0] = '\0';
    int rc = remote_run(self, call, err);
    if (rc)
        return rc;
    int status = self->answer.exit_status;
    rc = json_parse(self->answer.out.data, self->answer.out.len, root, &own);
    tell_chatter(self);
    if (rc == 0 && (status == 0 || status == CB_EXIT_INFRASTRUCTURE)) {
        if (status)
            remote_reason(self, self->trouble, sizeof self->trouble);
        return 0;
    }
    if (rc == 0)
        json_value_free(*root);
    *root = NULL;
    if (status)
        return failed_there(self, err);
    return cb_fail(err, CB_ERR_FORMAT, "site %s answers with something else than JSON: %s", self->site.name,
                   own.message);
}

/* ---- releases ---- */

int remote_parse_version(const char *line, char version[32], char commit[64], struct cb_err *err)
{
    char name[64];
    if (sscanf(line, "%63s %31s (%63[^)\n])", name, version, commit) == 3 && strncmp(name, "ckptbench", 9) == 0)
        return 0;
    return cb_fail(err, CB_ERR_FORMAT, "'%.*s' is no version of ckptbench", (int)strcspn(line, "\n"), line);
}

int remote_check_version(struct remote *self, struct cb_err *err)
{
    static const char *const words[] = {"--version", NULL};
    const struct remote_call call = {.words = words, .timeout_ns = REMOTE_QUICK_NS};
    char version[32], commit[64];
    const char *name = self->site.name;
    int rc = remote_run(self, &call, err);
    if (rc == CB_ERR_NOT_FOUND) {
        self->answer.exit_status = NO_PROGRAM;
        rc = 0;
    }
    if (rc == 0)
        rc = self->answer.exit_status ? failed_there(self, err)
                                      : remote_parse_version(self->answer.out.data, version, commit, err);
    if (rc)
        return rc;
    if (strcmp(version, version_text()) != 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "site %s has ckptbench %s in %s, this is %s: `ckptbench site add %s` installs %s there", name,
                       version, site_text(&self->site, SITE_PREFIX), version_text(), name, version_text());
    if (strcmp(commit, version_commit()) != 0)
        log_verbose("site %s has %s (%s), this is (%s)", name, version, commit, version_commit());
    return 0;
}
