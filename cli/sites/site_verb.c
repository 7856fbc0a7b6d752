/* Forwards verbs with --site. A submission is made only once, even if its reply is lost. */
#include "cli/sites/site_verb.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/jobs/job_status.h"
#include "cli/jobs/site_runs.h"
#include "cli/jobs/submission.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/path.h"
#include "run/run_folder.h"
#include "run/sweep.h"

#define WORDS_MAX_BYTES (1u << 20)
#define SETTINGS_MAX_BYTES (16u << 20)
#define SETTINGS_WORD "-"             /* FILE.yaml: standard input */
#define ASK_AGAIN_NS (150 * NS_PER_S) /* after a lost reply: longer than the result of an sbatch can stay unknown */
#define FIRST_PAUSE_NS (1 * NS_PER_S)
#define LONGEST_PAUSE_NS (10 * NS_PER_S)
#define FORGET_S 3600 /* after this time, a request that the site does not know is dropped */

/* ---- settings ---- */

static bool has_key(const struct setting_list *list, size_t from, const char *key)
{
    for (size_t i = from; i < list->count; i++)
        if (strcmp(list->items[i].key, key) == 0)
            return true;
    return false;
}

/* YAML in which values are quoted, so that the site reads the same value: commas and ranges must not be expanded a
 * second time. */
static int write_settings(const struct setting_list *list, const struct site *site, struct buf *out, struct cb_err *err)
{
    struct json_writer json; /* texts quoted for JSON are valid YAML */
    json_writer_init(&json, out, 0);
    for (size_t i = 0; i < SITE_DEFAULTS; i++) {
        const char *value = site_text(site, site_defaults[i].key);
        if (!*value || has_key(list, 0, site_defaults[i].option))
            continue;
        buf_printf(out, "%s: ", site_defaults[i].option);
        json_write_text(&json, value);
        buf_append_char(out, '\n');
    }
    for (size_t i = 0; i < list->count; i++) {
        const struct setting *setting = &list->items[i];
        if (strcmp(setting->key, "zip") != 0 && has_key(list, i + 1, setting->key))
            continue; /* a repeated key replaces the earlier setting; zip accumulates */
        json_write_text(&json, setting->key);
        buf_append_text(out, ": ");
        json_write_begin_array(&json);
        for (size_t k = 0; k < setting->value_count; k++)
            json_write_text(&json, setting->values[k]);
        json_write_end_array(&json);
        buf_append_char(out, '\n');
    }
    return buf_check(out, "the settings", err);
}

/* ---- words ---- */

/* A command line for the site: verb, words, and the flags that concern the site. Settings become a YAML text on its
 * standard input; it includes the site's own defaults if the user does not set them. */
struct remote_words {
    struct buf texts, settings;
    const char **items; /* NULL-terminated */
    size_t count;
};

static void add_text(struct remote_words *self, const char *text)
{
    buf_append_text(&self->texts, text);
    buf_append_char(&self->texts, '\0');
    self->count++;
}

/* `warm start` accepts keys as words. */
static void add_site_words(struct remote_words *self, const struct cli *cli, const struct site *site)
{
    for (size_t i = 0; i < SITE_DEFAULTS; i++) {
        const char *option = site_defaults[i].option, *value = site_text(site, site_defaults[i].key);
        bool is_given = !site_defaults[i].of_slurm || !*value;
        for (size_t k = 0; k < cli->word_count && !is_given; k++)
            is_given = strncmp(cli->words[k], option, strlen(option)) == 0 && cli->words[k][strlen(option)] == '=';
        if (is_given)
            continue;
        buf_printf(&self->texts, "%s=%s%c", option, value, '\0');
        self->count++;
    }
}

static int remote_words_init(struct remote_words *self, const struct cli *cli, const struct site *site,
                             struct cb_err *err)
{
    static const char *const here[] = {"site", "wait", "watch", "id", "f"}; /* flags that only concern this machine */
    *self = (struct remote_words){0};
    buf_init(&self->texts, WORDS_MAX_BYTES);
    buf_init(&self->settings, SETTINGS_MAX_BYTES);
    add_text(self, cli->verb->name);
    for (size_t i = 0; i < cli->flag_count; i++) {
        const char *name = cli->flags[i].flag->name, *value = cli->flags[i].value;
        size_t k = 0;
        while (k < sizeof here / sizeof *here && strcmp(name, here[k]) != 0)
            k++;
        if (k < sizeof here / sizeof *here)
            continue;
        buf_printf(&self->texts, "%s%s%s%s%c", name[1] ? "--" : "-", name, value ? "=" : "", value ? value : "", '\0');
        self->count++;
    }
    if (cli->quiet)
        add_text(self, "-q");
    if (cli->verbose)
        add_text(self, "-v");
    if (cli->json)
        add_text(self, "--json");
    if (cli->verb->takes_experiment && cli->settings.count)
        add_text(self, SETTINGS_WORD);
    else if (!cli->verb->takes_experiment && cli->word_count)
        add_text(self, "--");
    for (size_t i = 0; i < cli->word_count; i++)
        add_text(self, cli->words[i]);
    if (strcmp(cli->verb->name, "warm") == 0 && cli->word_count && strcmp(cli->words[0], "start") == 0)
        add_site_words(self, cli, site);
    int rc = buf_check(&self->texts, "the command line", err);
    if (rc == 0 && cli->verb->takes_experiment)
        rc = write_settings(&cli->settings, site, &self->settings, err);
    self->items = calloc(self->count + 4, sizeof *self->items); /* 4: for words that callers add */
    if (rc == 0 && !self->items)
        rc = alloc_fail(err, "for a command line");
    const char *at = self->texts.data;
    for (size_t i = 0; rc == 0 && i < self->count; i++, at += strlen(at) + 1)
        self->items[i] = at;
    return rc;
}

static void remote_words_release(struct remote_words *self)
{
    buf_release(&self->texts);
    buf_release(&self->settings);
    free(self->items);
}

/* ---- forwarding ---- */

/* Errors in keys are reported here, with their positions, before anything is sent. Only the site knows the checkpoint
 * of the run `after`; its name is used in place of the checkpoint until then. */
static int check_settings(struct cli *cli, const char *after, struct cb_err *err)
{
    struct sweep sweep = {0};
    struct setting_list *settings = &cli->settings;
    bool lends = after && submission_lacks_suffix(settings);
    if (!cli->verb->takes_experiment)
        return 0;
    int rc = lends ? setting_add(settings, "suffix", after, "--after", err) : 0;
    if (rc)
        return rc;
    rc = sweep_expand(settings, &sweep, err);
    sweep_release(&sweep);
    if (lends)
        setting_release(&settings->items[--settings->count]);
    return rc;
}

int remote_pass(struct cli *cli, const char *site, const char *after, struct cb_err *err)
{
    struct remote remote;
    struct remote_words words = {0};
    int rc = check_settings(cli, after, err);
    if (rc)
        return rc;
    rc = remote_open(&remote, site, err);
    if (rc == 0)
        rc = remote_words_init(&words, cli, &remote.site, err);
    const struct remote_call call = {
        .words = words.items, .input = words.settings.len ? words.settings.data : NULL, .timeout_ns = REMOTE_LONG_NS};
    if (rc == 0)
        rc = remote_run(&remote, &call, err);
    if (rc == 0) {
        buf_append(&cli->out, remote.answer.out.data, remote.answer.out.len);
        remote_tell(&remote);
        cli->exit_code = remote.answer.exit_status;
    }
    remote_words_release(&words);
    remote_release(&remote);
    return rc;
}

/* ---- requests on disk, in case this program ends before the reply ---- */

static int asked_path(struct history *history, const char *id, char path[PATH_MAX], struct cb_err *err)
{
    return path_format(path, PATH_MAX, err, "%s/asked%s%s", history_folder(history), *id ? "/" : "", id);
}

static int note_asked(struct history *history, const char *site, const char *id, struct cb_err *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct buf text;
    if (asked_path(history, "", folder, err) || asked_path(history, id, path, err))
        return CB_ERR_USAGE;
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return cb_fail_errno(err, errno, "creating the folder %s", folder);
    buf_init(&text, 256);
    buf_printf(&text, "%s\n", site);
    int rc = buf_write_file(&text, path, 0600, err);
    buf_release(&text);
    return rc;
}

static void forget_asked(struct history *history, const char *id)
{
    char path[PATH_MAX];
    if (asked_path(history, id, path, NULL) == 0)
        unlink(path);
}

/* The runs of one request. It is not an error if the site does not know the request; after FORGET_S it is dropped. */
static int take_asked(struct job_list *list, const char *id, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf site;
    struct stat status;
    struct remote *remote;
    buf_init(&site, 256);
    int rc = asked_path(list->history, id, path, err);
    if (rc == 0)
        rc = buf_read_file(&site, path, err);
    if (rc == 0) {
        site.data[strcspn(site.data, "\n")] = '\0';
        rc = job_list_site(list, site.data, &remote, err);
    }
    if (rc == 0)
        rc = remote_runs_take_listed(remote, list->history, &id, 1, err);
    bool old = stat(path, &status) == 0 && (uint64_t)status.st_mtim.tv_sec + FORGET_S < clock_wall_ns() / NS_PER_S;
    if (rc == 0 || (rc == CB_ERR_USAGE && old))
        forget_asked(list->history, id);
    buf_release(&site);
    return rc == CB_ERR_USAGE ? 0 : rc;
}

int remote_take_unanswered(struct job_list *list, struct cb_err *err)
{
    char path[PATH_MAX];
    struct cb_err why;
    int rc = asked_path(list->history, "", path, err);
    DIR *entries = rc ? NULL : opendir(path);
    if (!entries)
        return rc;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (entry->d_name[0] != '.' && !strchr(entry->d_name, '.') && take_asked(list, entry->d_name, &why))
            log_error("%s: what became of it is not known: %s", entry->d_name, why.message);
    closedir(entries);
    return 0;
}

/* ---- submit ---- */

struct submitting {
    struct cli *cli;
    const char *site;
    char id[64];
    struct job_list list; /* also holds the open history */
    struct remote_words words;
    struct json_value *answer;
};

/* Sends the request once. *again: the result is unknown, or the site is still working on the previous request. */
static int ask_once(struct submitting *self, bool *again, struct cb_err *err)
{
    struct remote *remote;
    bool was_lost = *again;
    int rc = job_list_site(&self->list, self->site, &remote, err);
    if (rc) {
        *again = was_lost && rc != CB_ERR_USAGE;
        return rc;
    }
    const struct remote_call call = {
        .words = self->words.items, .input = self->words.settings.data, .timeout_ns = REMOTE_LONG_NS};
    rc = remote_ask(remote, &call, &self->answer, err);
    *again = rc && (remote->lost || (was_lost && rc == CB_ERR_SYSTEM));
    if (rc && remote->lost)
        remote_sites_drop(self->list.sites, self->site);
    return rc;
}

/* The id makes repeating a request harmless: the site continues the sweep of that name instead of starting another. */
static int ask(struct submitting *self, struct cb_err *err)
{
    bool again = false;
    uint64_t pause_ns = FIRST_PAUSE_NS, deadline_ns = 0;
    for (;;) {
        int rc = ask_once(self, &again, err);
        if (rc == 0 || !again)
            return rc;
        if (deadline_ns == 0)
            deadline_ns = clock_monotonic_ns() + ASK_AGAIN_NS;
        if (clock_monotonic_ns() > deadline_ns)
            return cb_context(err, "whether %s was submitted is not known; `ckptbench status` finds out", self->id);
        log_info("%s; asking again what became of %s", err->message, self->id);
        clock_sleep_ns(pause_ns);
        pause_ns = pause_ns * 2 < LONGEST_PAUSE_NS ? pause_ns * 2 : LONGEST_PAUSE_NS;
    }
}

/* Adds the runs and their jobs to the list. */
static int take_sent(struct submitting *self, struct cb_err *err)
{
    struct remote *remote;
    const struct json_value *runs = json_get(self->answer, "runs");
    const char *run, *job, *const words[] = {self->id};
    int rc = job_list_site(&self->list, self->site, &remote, err);
    if (rc == 0)
        rc = remote_runs_take_listed(remote, self->list.history, words, 1, err);
    if (rc)
        return cb_context(err, "%s is submitted; `ckptbench status` takes it in", self->id);
    forget_asked(self->list.history, self->id);
    rc = job_list_add(&self->list, words, 1, err);
    for (size_t i = 0; rc == 0 && i < json_count(runs); i++) {
        if (!json_as_text(json_get(json_at(runs, i), "run"), &run) ||
            !json_as_text(json_get(json_at(runs, i), "job"), &job))
            continue; /* a run in a pool's spool has no job */
        for (size_t k = 0; k < self->list.count; k++)
            if (strcmp(self->list.items[k].run, run) == 0)
                snprintf(self->list.items[k].record.job, sizeof self->list.items[k].record.job, "%s", job);
    }
    return rc;
}

static int say(struct submitting *self, struct cb_err *err)
{
    const struct job_list *list = &self->list;
    const char *sweep;
    struct job_range jobs = {0};
    if (list->count == 0)
        return cb_fail(err, CB_ERR_FORMAT, "site %s names no run that it has submitted", self->site);
    if (!json_as_text(json_get(self->answer, "sweep"), &sweep))
        sweep = NULL;
    if (self->cli->json)
        return job_status_write_submitted(self->cli, list, sweep, self->site, err);
    for (size_t i = 0; i < list->count; i++)
        if (*list->items[i].record.job)
            job_range_add(&jobs, list->items[i].record.job);
    struct buf *out = &self->cli->out;
    if (list->count == 1)
        buf_printf(out, "submitted run %s on site %s", list->items[0].run, self->site);
    else
        buf_printf(out, "submitted %zu runs  (sweep %s) on site %s", list->count, sweep ? sweep : self->id, self->site);
    if (jobs.first)
        buf_printf(out, ": job %s", jobs.first);
    if (jobs.first && strcmp(jobs.first, jobs.last) != 0)
        buf_printf(out, " … %s", jobs.last);
    buf_printf(out, "     next: ckptbench status %s\n",
               list->count == 1 ? list->items[0].run
               : sweep          ? sweep
                                : self->id);
    return 0;
}

/* Builds the words, and chooses the id of the runs. */
static int prepare(struct submitting *self, char flag[80], struct cb_err *err)
{
    struct remote *remote;
    const char *resumed = cli_flag_value(self->cli, "resume"), *given = cli_flag_value(self->cli, "id");
    int rc = job_list_site(&self->list, self->site, &remote, err);
    if (rc == 0)
        rc = remote_words_init(&self->words, self->cli, &remote->site, err);
    if (rc)
        return rc;
    run_id_new(self->id);
    if (resumed || given)
        snprintf(self->id, sizeof self->id, "%s", resumed ? resumed : given);
    struct remote_words *words = &self->words;
    if (!self->cli->json)
        words->items[words->count++] = "--json";
    if (!self->cli->settings.count && !resumed)
        words->items[words->count++] = SETTINGS_WORD;
    snprintf(flag, 80, "--id=%s", self->id);
    if (!resumed)
        words->items[words->count++] = flag;
    return note_asked(self->list.history, self->site, self->id, err);
}

static int submit(struct submitting *self, struct cb_err *err)
{
    char flag[80];
    int rc = prepare(self, flag, err);
    if (rc == 0) {
        rc = ask(self, err);
        if (rc == CB_ERR_USAGE || rc == CB_ERR_UNSUPPORTED || rc == CB_ERR_NOT_FOUND)
            forget_asked(self->list.history, self->id); /* refused: nothing was planned */
    }
    if (rc == 0)
        rc = take_sent(self, err);
    if (rc == 0)
        rc = say(self, err);
    if (rc || !cli_has_flag(self->cli, "wait"))
        return rc;
    rc = cli_flush(self->cli, err);
    return rc ? rc : job_status_wait(self->cli, &self->list, err);
}

int remote_submit(struct cli *cli, const char *site, struct cb_err *err)
{
    struct submitting self = {.cli = cli, .site = site};
    const char *after = cli_flag_value(cli, "after");
    if (cli_has_flag(cli, "dry-run"))
        return remote_pass(cli, site, after, err);
    int rc = check_settings(cli, after, err);
    if (rc)
        return rc;
    rc = job_list_init(&self.list, NULL, err);
    if (rc == 0)
        rc = submit(&self, err);
    json_value_free(self.answer);
    remote_words_release(&self.words);
    job_list_release(&self.list);
    return rc;
}
