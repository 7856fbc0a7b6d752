/* Runs commands on a site: prepares modules and environment there, and interprets the answer. */
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
    site_release(&self->site);
    *self = (struct remote){0};
}

/* ---- commands ---- */

static size_t count_words(const char *const *words)
{
    size_t count = 0;
    while (words[count])
        count++;
    return count;
}

/* PROGRAM WORD…, after the preparation if the site needs one. */
static const char **command_words(const struct remote *self, const char *program, const char *const *words)
{
    const char *mpi = site_text(&self->site, SITE_MPI), *modules = site_text(&self->site, SITE_MODULES);
    size_t count = count_words(words), used = 0;
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

/* No answer: the connection may be broken, so the next command opens a new one. */
static int no_answer(struct remote *self, const char *program, int rc, const struct cb_err *own, struct cb_err *err)
{
    if (rc == CB_ERR_NOT_FOUND)
        return cb_fail(err, rc, "site %s: no %s: %s", self->site.name, program, own->message);
    self->lost = true;
    return cb_fail(err, rc, "site %s: %s", self->site.name, own->message);
}

int remote_run(struct remote *self, const struct remote_call *call, struct transport_answer *answer, struct cb_err *err)
{
    char own_program[PATH_MAX];
    struct buf texts;
    struct cb_err own;
    snprintf(own_program, sizeof own_program, "%s/bin/ckptbench", site_text(&self->site, SITE_PREFIX));
    const char *program = call->program ? call->program : own_program;
    buf_init(&texts, 1u << 20);
    const char **words = command_words(self, program, call->words);
    const char **environment = command_environment(self, &texts);
    self->lost = false;
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
        rc = self->transport->run(self->transport, &command, answer, &own);
        if (rc)
            rc = no_answer(self, program, rc, &own, err);
        else
            self->exit_status = answer->exit_status;
    }
    free(words);
    free(environment);
    buf_release(&texts);
    return rc;
}

/* ---- what an answer means ---- */

static const char *without_name(const char *line)
{
    static const char name[] = "ckptbench: ";
    return strncmp(line, name, strlen(name)) == 0 ? line + strlen(name) : line;
}

char *remote_reason(const struct transport_answer *answer, char *text, size_t bytes)
{
    const char *inside = without_name(transport_answer_last_line(answer, text, bytes));
    memmove(text, inside, strlen(inside) + 1);
    return text;
}

/* Logs what the command printed to stderr; for a failed command without the last line, which becomes the error
 * message. */
static void tell_chatter(const struct remote *self, const struct buf *errors, bool failed)
{
    for (const char *at = errors->data; *at;) {
        size_t len = strcspn(at, "\n");
        const char *text = without_name(at), *next = at + len + (at[len] == '\n');
        if (len && !(failed && !*next))
            log_info("%s: %.*s", self->site.name, (int)(at + len - text), text);
        at = next;
    }
}

void remote_tell(const struct remote *self, const struct transport_answer *answer)
{
    char reason[1024];
    tell_chatter(self, &answer->errors, answer->exit_status != 0);
    remote_reason(answer, reason, sizeof reason);
    if (answer->exit_status && answer->errors.len)
        log_error("%s: %s", self->site.name, reason);
}

static int code_of(int exit_status)
{
    return exit_status == CB_EXIT_USAGE      ? CB_ERR_USAGE
           : exit_status == CB_EXIT_INTERNAL ? CB_ERR_INTERNAL
                                             : CB_ERR_SYSTEM;
}

static int failed_there(const struct remote *self, const struct transport_answer *answer, struct cb_err *err)
{
    char reason[800];
    const char *name = self->site.name;
    remote_reason(answer, reason, sizeof reason);
    if (answer->exit_status == MODULES_FAILED && *site_text(&self->site, SITE_MODULES))
        return cb_fail(err, CB_ERR_UNSUPPORTED, "site %s: loading its modules (%s) failed: %s", name,
                       site_text(&self->site, SITE_MODULES), reason);
    if (answer->exit_status == NO_PROGRAM || answer->exit_status == NOT_EXECUTABLE)
        return cb_fail(err, CB_ERR_NOT_FOUND,
                       "site %s has no programs in %s/bin: `ckptbench site add %s` installs them there", name,
                       site_text(&self->site, SITE_PREFIX), name);
    return cb_fail(err, code_of(answer->exit_status), "site %s: %s", name,
                   *reason ? reason : "it failed and says nothing");
}

int remote_ask(struct remote *self, const struct remote_call *call, struct json_value **root, char trouble[512],
               struct cb_err *err)
{
    struct transport_answer answer;
    struct cb_err own;
    trouble[0] = '\0';
    transport_answer_init(&answer);
    int rc = remote_run(self, call, &answer, err);
    if (rc == 0) {
        rc = json_parse(answer.out.data, answer.out.len, root, &own);
        bool fine = rc == 0 && (answer.exit_status == 0 || answer.exit_status == CB_EXIT_INFRASTRUCTURE);
        tell_chatter(self, &answer.errors, answer.exit_status != 0);
        if (rc == 0 && !fine)
            json_value_free(*root);
        if (fine && answer.exit_status)
            remote_reason(&answer, trouble, 512);
        if (!fine && answer.exit_status)
            rc = failed_there(self, &answer, err);
        else if (!fine)
            rc = cb_fail(err, CB_ERR_FORMAT, "site %s answers with something else than JSON: %s", self->site.name,
                         own.message);
    }
    transport_answer_release(&answer);
    return rc;
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
    struct transport_answer answer;
    transport_answer_init(&answer);
    int rc = remote_run(self, &call, &answer, err);
    if (rc == CB_ERR_NOT_FOUND) {
        answer.exit_status = NO_PROGRAM;
        rc = 0;
    }
    if (rc == 0 && answer.exit_status)
        rc = failed_there(self, &answer, err);
    else if (rc == 0)
        rc = remote_parse_version(answer.out.data, version, commit, err);
    transport_answer_release(&answer);
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
