/* Builds the programs on a site from the sources of this release. */
#include "cli/sites/site_install.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/path.h"
#include "core/process.h"
#include "core/version.h"

#define SOURCES "ckptbench-sources.tar.gz" /* `make dist` */
#define BUILD_NS (3600 * NS_PER_S)
#define COPY_NS (600 * NS_PER_S)

/* If ranks start in an image, the image contains the worker and the site needs no MPI. */
static bool site_has_image(const struct site *site)
{
    return *site_text(site, SITE_CONTAINER) != '\0';
}

/* ---- querying the site ---- */

int site_ask_variable(struct remote *remote, const char *name, char *text, size_t bytes, struct cb_err *err)
{
    const char *const words[] = {name, NULL};
    const struct remote_call call = {.program = "printenv", .words = words, .timeout_ns = REMOTE_QUICK_NS};
    int rc = remote_run(remote, &call, err);
    if (rc == 0)
        snprintf(text, bytes, "%.*s", (int)strcspn(remote->answer.out.data, "\n"), remote->answer.out.data);
    return rc;
}

int site_has_programs(struct remote *remote, bool *has, struct cb_err *err)
{
    static const char *const programs[] = {"ckptbench", "ckptbench-agent", "ckptbench-worker"};
    char path[PATH_MAX];
    int rc = 0;
    *has = true;
    size_t count = sizeof programs / sizeof *programs - site_has_image(&remote->site);
    for (size_t i = 0; rc == 0 && *has && i < count; i++) {
        struct transport_stat status;
        snprintf(path, sizeof path, "%.3000s/bin/%s", site_text(&remote->site, SITE_PREFIX), programs[i]);
        rc = remote->transport->stat(remote->transport, path, &status, err);
        *has = rc == 0 && !status.is_folder;
        rc = rc == CB_ERR_NOT_FOUND ? 0 : rc;
    }
    return rc;
}

/* ---- sources ---- */

/* Next to the program in a build folder, else where `make install` put them. */
static int find_sources(char path[PATH_MAX], struct cb_err *err)
{
    char folder[PATH_MAX];
    process_folder(folder);
    const struct {
        const char *folder, *below;
    } places[] = {{folder, ""}, {folder, "/../share/ckptbench"}, {version_prefix(), "/share/ckptbench"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_MAX, "%s%s/" SOURCES, places[i].folder, places[i].below) < PATH_MAX &&
            access(path, R_OK) == 0)
            return 0;
    return cb_fail(err, CB_ERR_NOT_FOUND,
                   "the sources to build there are not here: `make install` installs them, `make dist` makes " SOURCES
                   " beside the programs; or build there yourself and give prefix=");
}

/* ---- building ---- */

/* Runs a command whose failure is an error. */
static int do_there(struct remote *remote, const char *program, const char *const *words, uint64_t timeout_ns,
                    const char *what, struct cb_err *err)
{
    const struct remote_call call = {.program = program, .words = words, .timeout_ns = timeout_ns};
    char reason[600];
    int rc = remote_run(remote, &call, err);
    if (rc == 0 && remote->answer.exit_status)
        rc = cb_fail(err, CB_ERR_SYSTEM, "site %s: %s failed: %s", remote->site.name, what,
                     remote_reason(remote, reason, sizeof reason));
    return rc;
}

/* Fails with the names of build tools that the site lacks, with its modules loaded. */
static int check_tools(struct remote *remote, struct cb_err *err)
{
    static const char script[] = "for tool in tar gzip make gcc ar pkg-config $1; do "
                                 "command -v \"$tool\" >/dev/null 2>&1 || printf ' %s' \"$tool\"; done; "
                                 "for library in yaml-0.1 jansson libcrypto libssl sqlite3; do "
                                 "pkg-config --exists \"$library\" 2>/dev/null || printf ' %s' \"$library\"; done";
    const char *compiler = site_has_image(&remote->site) ? "" : "mpicc";
    const char *const words[] = {"-c", script, "ckptbench-site", compiler, NULL};
    const struct remote_call call = {.program = "sh", .words = words, .timeout_ns = REMOTE_QUICK_NS};
    int rc = remote_run(remote, &call, err);
    if (rc == 0 && remote->answer.out.len)
        rc = cb_fail(
            err, CB_ERR_UNSUPPORTED,
            "site %s lacks, to build there:%.300s. Name modules that have it (modules='…', mpi=FOLDER), ask its "
            "administrators, or build elsewhere and give prefix=",
            remote->site.name, remote->answer.out.data);
    return rc;
}

static int build(struct remote *remote, const char *sources, struct cb_err *err)
{
    const char *prefix = site_text(&remote->site, SITE_PREFIX);
    char folder[PATH_MAX], archive[PATH_MAX + 64], prefix_word[PATH_MAX], commit_word[96];
    if (path_format(folder, sizeof folder, err, "%s.sources", prefix) ||
        path_format(prefix_word, sizeof prefix_word, err, "PREFIX=%s", prefix))
        return CB_ERR_USAGE;
    snprintf(archive, sizeof archive, "%s/" SOURCES, folder);
    snprintf(commit_word, sizeof commit_word, "COMMIT=%s", version_commit());
    const char *const remove[] = {"-rf", "--", folder, NULL};
    const char *const unpack[] = {"-xzf", archive, "-C", folder, NULL};
    const char *without_worker =
        site_has_image(&remote->site) ? "PROGRAMS=build/ckptbench build/ckptbench-agent" : NULL;
    const char *const make[] = {"-s",        "-j4",       "-C",       folder,    "DEPS=0",       "BUILD=build",
                                prefix_word, commit_word, "LIBRARY=", "install", without_worker, NULL};
    int rc = do_there(remote, "rm", remove, COPY_NS, "removing what an earlier build left", err);
    if (rc == 0)
        rc = remote->transport->put_file(remote->transport, sources, archive, err);
    if (rc == 0)
        rc = do_there(remote, "tar", unpack, COPY_NS, "unpacking the sources", err);
    if (rc == 0)
        rc = do_there(remote, "make", make, BUILD_NS, "building", err);
    if (rc)
        return cb_context(err, "what was built so far is in %s", folder);
    return do_there(remote, "rm", remove, COPY_NS, "removing the sources", err);
}

int site_install(struct remote *remote, struct cb_err *err)
{
    char sources[PATH_MAX];
    int rc = find_sources(sources, err);
    if (rc == 0)
        rc = check_tools(remote, err);
    if (rc)
        return rc;
    log_info("building %s on site %s into %s; this takes some minutes", version_text(), remote->site.name,
             site_text(&remote->site, SITE_PREFIX));
    return build(remote, sources, err);
}
