/* ckptbench site: manages clusters by name. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/jobs/site_command.h"
#include "cli/listing.h"
#include "cli/sites/site_checks.h"
#include "cli/sites/site_install.h"
#include "core/log.h"
#include "core/units.h"
#include "core/version.h"
#include "db/history.h"
#include "run/site.h"

/* ---- show ---- */

static void write_json_members(struct json_writer *json, const struct site *site)
{
    json_member_text(json, "site", site->name);
    for (size_t i = 0; i < SITE_KEY_COUNT; i++)
        json_member_text(json, site_key_name((enum site_key)i), site->values[i]);
    json_member_object(json, "environment");
    for (size_t i = 0; i < site->environment_count; i++)
        json_member_text(json, site->environment[i].name, site->environment[i].value);
    json_write_end_object(json);
}

static int show_one(struct cli *cli, const char *name, struct cb_err *err)
{
    struct site site;
    struct json_writer json;
    int rc = site_read(name, &site, err);
    json_writer_init(&json, &cli->out, 2);
    if (rc == 0 && cli->json) {
        json_write_begin_object(&json);
        write_json_members(&json, &site);
        rc = cli_end_json(cli, &json, err);
    } else if (rc == 0) {
        site_format(&site, &cli->out);
    }
    site_release(&site);
    return rc;
}

static void add_row(struct listing *list, const struct site *site)
{
    listing_begin_row(list);
    if (list->cli->json) {
        write_json_members(&list->json, site);
    } else {
        table_add(&list->table, TABLE_BOLD, site->name);
        table_add(&list->table, TABLE_PLAIN, site_is_here(site) ? "localhost" : site_text(site, SITE_HOST));
        table_add(&list->table, TABLE_PLAIN, site->values[SITE_PARTITION]);
        table_add(&list->table, TABLE_PLAIN, site->values[SITE_PREFIX]);
        table_add(&list->table, TABLE_PLAIN, site->values[SITE_HOME]);
    }
    listing_end_row(list);
}

/* A malformed file does not hide the other sites. */
static int show_all(struct cli *cli, struct cb_err *err)
{
    static const char *const headings[] = {"SITE", "HOST", "PARTITION", "PREFIX", "HOME"};
    struct site_names names;
    struct listing list;
    int rc = site_list(&names, err);
    listing_init(&list, cli, 2, "lllll", headings);
    if (names.count == 0)
        list.if_empty = "no sites; `ckptbench site add NAME --host LOGIN` adds one";
    for (size_t i = 0; rc == 0 && i < names.count; i++) {
        struct site site;
        struct cb_err own;
        if (site_read(names.items[i], &site, &own)) {
            log_error("%s", own.message);
            cli->exit_code = CB_EXIT_USAGE;
        } else {
            add_row(&list, &site);
        }
        site_release(&site);
    }
    site_names_release(&names);
    return listing_end(&list, rc, err);
}

/* ---- add ---- */

#define OWN_PROGRAMS "/.local/share/ckptbench/programs/" /* below HOME: location of programs that we build there */

/* Whether the user set the prefix. A prefix that we chose is replaced by that of this release. */
static bool has_given_prefix(const struct site *site)
{
    const char *prefix = site_text(site, SITE_PREFIX);
    return *prefix && !strstr(prefix, OWN_PROGRAMS);
}

/* Merges the stored description with the words. */
static int describe(struct cli *cli, struct site *site, bool *has_prefix, struct cb_err *err)
{
    static const char *const flags[] = {"host", "prefix"};
    const char *name = cli->words[1];
    char key[300];
    struct buf path;
    buf_init(&path, PATH_MAX);
    int rc = site_path(name, &path, err);
    if (rc == 0)
        rc = site_read(name, site, err);
    if (rc == CB_ERR_NOT_FOUND) {
        site_release(site);
        rc = site_init(site, name, err);
    }
    buf_release(&path);
    *has_prefix = cli_flag_value(cli, "prefix") && *cli_flag_value(cli, "prefix");
    for (size_t i = 0; rc == 0 && i < sizeof flags / sizeof *flags; i++)
        if (cli_flag_value(cli, flags[i]))
            rc = site_set(site, flags[i], cli_flag_value(cli, flags[i]), "command line", err);
    for (size_t i = 2; rc == 0 && i < cli->word_count; i++) {
        const char *equals = strchr(cli->words[i], '=');
        if (!equals)
            return cb_fail(err, CB_ERR_USAGE, "'%s' is not key=value, as partition=train", cli->words[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - cli->words[i]), cli->words[i]);
        *has_prefix = *has_prefix || (strcmp(key, "prefix") == 0 && equals[1]);
        rc = site_set(site, key, equals + 1, "command line", err);
    }
    *has_prefix = *has_prefix || has_given_prefix(site);
    return rc;
}

/* Finds the paths that the user has not set. */
static int find_places(struct remote *remote, bool has_prefix, struct cb_err *err)
{
    char home[PATH_MAX / 2], path[PATH_MAX];
    struct site *site = &remote->site;
    int rc = site_ask_variable(remote, "HOME", home, sizeof home, err);
    if (rc == 0 && home[0] != '/')
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "site %s: there is no HOME there: give prefix= and home=", site->name);
    if (rc == 0 && !*site_text(site, SITE_HOME)) {
        snprintf(path, sizeof path, "%s/.local/share/ckptbench", home);
        rc = site_set(site, "home", path, "the home there", err);
    }
    if (rc || has_prefix)
        return rc;
    snprintf(path, sizeof path, "%s" OWN_PROGRAMS "%s-%s", home, version_text(), version_commit());
    return site_set(site, "prefix", path, "the home there", err);
}

/* Builds the programs unless they exist. Never builds into a prefix that the user set. */
static int need_programs(struct remote *remote, bool has_prefix, struct cb_err *err)
{
    bool has;
    int rc = site_has_programs(remote, &has, err);
    if (rc)
        return rc;
    if (!has && has_prefix)
        return cb_fail(err, CB_ERR_NOT_FOUND,
                       "site %s has not all of ckptbench, ckptbench-agent and ckptbench-worker in %s/bin: an empty "
                       "prefix= has them built there",
                       remote->site.name, site_text(&remote->site, SITE_PREFIX));
    if (!has)
        rc = site_install(remote, err);
    else
        log_verbose("site %s has the programs in %s", remote->site.name, site_text(&remote->site, SITE_PREFIX));
    if (rc == 0)
        rc = remote_check_version(remote, err);
    if (rc == CB_ERR_UNSUPPORTED && has_prefix)
        rc = cb_fail(err, rc,
                     "site %s has another release in %s: install %s there, or give an empty prefix= to have it built "
                     "in the home there",
                     remote->site.name, site_text(&remote->site, SITE_PREFIX), version_text());
    return rc;
}

static int add(struct cli *cli, struct cb_err *err)
{
    struct site site = {0};
    struct remote remote = {0};
    bool has_prefix;
    uint64_t nodes = 1;
    int rc = cli_parse_flag(cli, "nodes", units_parse_u64, &nodes, err);
    if (rc == 0)
        rc = describe(cli, &site, &has_prefix, err);
    if (rc == 0)
        rc = remote_connect(&remote, &site, err);
    if (rc == 0)
        rc = find_places(&remote, has_prefix, err);
    if (rc == 0)
        rc = need_programs(&remote, has_prefix, err);
    if (rc == 0)
        rc = site_write(&remote.site, err);
    if (rc == 0)
        rc = site_checks(cli, &remote, nodes, true, err);
    if (rc == 0)
        rc = site_write(&remote.site, err); /* includes what was found out */
    site_release(&site);
    remote_release(&remote);
    return rc;
}

/* ---- doctor ---- */

static int doctor(struct cli *cli, struct cb_err *err)
{
    struct site site;
    struct remote remote = {0};
    uint64_t nodes = 1;
    int rc = cli_parse_flag(cli, "nodes", units_parse_u64, &nodes, err);
    if (rc)
        return rc;
    rc = site_read(cli->words[1], &site, err);
    if (rc == 0 && (!*site_text(&site, SITE_PREFIX) || !*site_text(&site, SITE_HOME)))
        rc = cb_fail(err, CB_ERR_USAGE, "site %s is not complete: `ckptbench site add %s` finds out prefix and home",
                     site.name, site.name);
    if (rc == 0)
        rc = remote_connect(&remote, &site, err);
    if (rc == 0)
        rc = site_checks(cli, &remote, nodes, false, err);
    site_release(&site);
    remote_release(&remote);
    return rc;
}

/* ---- remove ---- */

/* The outcome of runs on a removed site can no longer be queried. */
static int remove_site(const char *name, struct cb_err *err)
{
    char filter[SITE_NAME_BYTES + 8];
    const char *const words[] = {"state=planned,submitted,pending,booting,running,sealing", filter};
    struct run_selection selection = {0};
    struct history *history = NULL;
    snprintf(filter, sizeof filter, "site=%s", name);
    int rc = site_remove(name, err);
    if (rc == 0)
        rc = history_open(NULL, &history, err);
    if (rc == 0)
        rc = history_select(history, words, 2, &selection, err);
    for (size_t i = 0; rc == 0 && i < selection.count; i++)
        rc = history_set_state(history, selection.runs[i], "failed", err);
    if (rc == 0 && selection.count)
        log_info("%zu unfinished runs of site %s are given up here; there they go on", selection.count, name);
    if (rc == 0)
        log_info("site %s is forgotten; what is installed there stays", name);
    run_selection_release(&selection);
    history_close(history);
    return rc;
}

/* ---- the verb ---- */

static int run_site(struct cli *cli, struct cb_err *err)
{
    const char *what = cli->word_count ? cli->words[0] : "show";
    if (strcmp(what, "show") == 0 && cli->word_count <= 2)
        return cli->word_count == 2 ? show_one(cli, cli->words[1], err) : show_all(cli, err);
    if (strcmp(what, "add") == 0 && cli->word_count >= 2)
        return add(cli, err);
    if (strcmp(what, "doctor") == 0 && cli->word_count == 2)
        return doctor(cli, err);
    if (strcmp(what, "remove") == 0 && cli->word_count == 2)
        return remove_site(cli->words[1], err);
    return cb_fail(
        err, CB_ERR_USAGE,
        "site takes: show [NAME], add NAME [key=value…], doctor NAME, or remove NAME; `ckptbench site --help`");
}

static const struct verb_flag flags[] = {
    {"host", "LOGIN", "for add: the login node, as ssh knows it; none or localhost is this machine"},
    {"prefix", "PATH", "for add: an installation that is there, instead of building one"},
    {"nodes", "N", "for add and doctor: check every pair of so many nodes, too"},
};

const struct verb verb_site = {
    .name = "site",
    .arguments = "show [NAME] | add NAME [key=value…] | doctor NAME | remove NAME",
    .summary = "clusters by name, for --site of submit, status, logs, cancel, collect, render, clean and warm",
    .about =
        "add builds this release there with the site's compiler and MPI, without root, once; or takes what --prefix "
        "names. Keys: host, prefix, home (CKPTBENCH_HOME there), partition, account, launcher, container "
        "('apptainer exec IMAGE': ranks start in an image, which has their program), sbcast (a folder of "
        "each node, where they share none), modules='gcc/12 "
        "openmpi', "
        "mpi=FOLDER, environment.NAME=VALUE; an empty value removes one. Then it is checked: programs, Slurm, a "
        "compute "
        "node by a job, whether that sees the same files. doctor checks again. Given again, add keeps what it knew.",
    .example = "ckptbench site add tor --host login.example partition=train modules='gcc/12 openmpi/4.1' --nodes 4",
    VERB_FLAGS(flags),
    .run = run_site,
};
