/* The table of verbs, and the help generated from it. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/doctor/libraries.h"
#include "cli/report/table.h"
#include "core/nearest_word.h"
#include "core/version.h"
#include "run/cuda_plugin.h"
#include "run/experiment.h"
#include "run/options.h"
#include "run/workload_kind.h"

#define MAX_VERBS 64
#define HELP_WIDTH 100
#define KEYS_ARE_GIVEN "key=value, --key value, or in FILE.yaml"
#define KEYS_SWEEP "; a comma sweeps: io.depth=1,8,32"

/* In the order of help: run, inspect, compare, about this program. */
static const struct verb *const verbs[] = {
    &verb_run,     &verb_watch,    &verb_submit, &verb_status, &verb_logs,       &verb_cancel,
    &verb_warm,    &verb_render,   &verb_site,   &verb_plan,   &verb_verify,     &verb_inspect,
    &verb_convert, &verb_doctor,   &verb_list,   &verb_show,   &verb_report,     &verb_compare,
    &verb_history, &verb_baseline, &verb_sql,    &verb_export, &verb_collect,    &verb_clean,
    &verb_models,  &verb_options,  &verb_s3,     &verb_man,    &verb_completion,
};

size_t verb_count(void)
{
    return sizeof verbs / sizeof *verbs;
}

const struct verb *verb_at(size_t index)
{
    return verbs[index];
}

int verb_find(const char *name, const struct verb **verb, struct cb_err *err)
{
    const char *names[MAX_VERBS];
    for (size_t i = 0; i < verb_count(); i++) {
        names[i] = verbs[i]->name;
        if (strcmp(names[i], name) == 0) {
            *verb = verbs[i];
            return 0;
        }
    }
    const char *nearest = nearest_word(name, names, verb_count());
    if (nearest)
        return cb_fail(err, CB_ERR_NOT_FOUND, "unknown verb '%s': did you mean '%s'?", name, nearest);
    return cb_fail(err, CB_ERR_NOT_FOUND, "unknown verb '%s'; `ckptbench --help` lists all", name);
}

static void write_flag(struct buf *out, const struct verb_flag *flag)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s%s", flag->name[1] ? "--" : "-", flag->name, flag->value ? " " : "",
             flag->value ? flag->value : "");
    buf_printf(out, "  %-22s %s\n", left, flag->help);
}

/* The keys that most runs set, for --help; --help all prints every key. */
static const struct key_group {
    const char *title, *keys[7]; /* ends with NULL */
} key_groups[] = {
    {"what runs", {"workload", "model", "layers", "state", "engine", "format"}},
    {"ranks and layout", {"ranks", "nodes", "dp", "tp", "pp", "sharding"}},
    {"how often", {"ops", "iterations", "repeat"}},
    {"where to", {"store", "suffix"}},
    {"how it is written", {"io.block", "io.depth", "save.async"}},
};

static void write_key(struct buf *out, enum option_id id)
{
    const struct option *row = option_row(id);
    buf_printf(out, "  %-16s %-18s %s\n", row->name, *row->fallback ? row->fallback : "''", row->help);
}

/* A command is run once, and here: then these have no effect, or are given by the verb itself. */
bool verb_takes_key(const struct verb *verb, enum option_id id)
{
    static const char *const others[] = {"workload", "command", "repeat", "slurm."};
    bool takes = !verb->takes_command || workload_watch_uses(id);
    for (size_t i = 0; i < sizeof others / sizeof *others && verb->takes_command; i++)
        takes = takes && strncmp(option_row(id)->name, others[i], strlen(others[i])) != 0;
    return takes;
}

static void write_all_keys(struct buf *out, const struct verb *verb)
{
    buf_printf(out, "\nkeys (%s%s)\n", KEYS_ARE_GIVEN, verb->takes_command ? "" : KEYS_SWEEP);
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        if (verb_takes_key(verb, id))
            write_key(out, id);
    buf_append_text(out, "  label.NAME       -                  a label of yours\n");
    if (!verb->takes_command)
        buf_append_text(out, "  zip              -                  keys that sweep together: zip=ranks,tp\n");
}

static void write_key_groups(struct buf *out, const char *verb)
{
    enum option_id id;
    size_t shown = 0;
    buf_printf(out, "\nkeys (%s)\n", KEYS_ARE_GIVEN KEYS_SWEEP);
    for (size_t i = 0; i < sizeof key_groups / sizeof *key_groups; i++) {
        buf_printf(out, "%s\n", key_groups[i].title);
        for (const char *const *key = key_groups[i].keys; *key && option_find(*key, &id, NULL) == 0; key++, shown++)
            write_key(out, id);
    }
    buf_printf(out,
               "\n%zu more keys: `ckptbench %s --help all` prints all, `ckptbench options WORD` those about WORD\n",
               OPTION_COUNT - shown, verb);
}

/* Wraps lines at blanks to at most HELP_WIDTH columns. */
static void write_wrapped(struct buf *out, const char *text)
{
    size_t column = 0;
    char word[256];
    while (*text) {
        size_t blanks = strspn(text, " "), len = strcspn(text + blanks, " \n");
        snprintf(word, sizeof word, "%.*s", (int)len, text + blanks);
        size_t width = table_text_width(word);
        if (column && column + 1 + width > HELP_WIDTH) {
            buf_append_char(out, '\n');
            column = 0;
        }
        buf_printf(out, "%s%.*s", column ? " " : "", (int)len, text + blanks);
        column += (column ? 1 : 0) + width;
        text += blanks + len;
        if (*text == '\n') {
            buf_append_char(out, *text++);
            column = 0;
        }
    }
    if (column)
        buf_append_char(out, '\n');
}

static void write_verb_help(struct buf *out, const struct verb *verb, bool all_keys)
{
    buf_printf(out, "usage: ckptbench %s %s%s\n\n%s\n", verb->name, verb->flag_count ? "[flags] " : "", verb->arguments,
               verb->summary);
    if (verb->about) {
        buf_append_char(out, '\n');
        write_wrapped(out, verb->about);
    }
    if (verb->example)
        buf_printf(out, "\nexample: %s\n", verb->example);
    buf_append_text(out, "\nflags\n");
    for (size_t i = 0; i < verb->flag_count; i++)
        write_flag(out, &verb->flags[i]);
    for (size_t i = 0; i < common_flag_count; i++)
        write_flag(out, &common_flags[i]);
    if (verb->takes_experiment && (all_keys || verb->takes_command))
        write_all_keys(out, verb);
    else if (verb->takes_experiment)
        write_key_groups(out, verb->name);
}

void cli_write_help(struct cli *self)
{
    if (self->verb) {
        write_verb_help(&self->out, self->verb, self->help_all);
        return;
    }
    buf_append_text(&self->out, "usage: ckptbench VERB [flags] [key=value…] [FILE.yaml…]\n\n"
                                "How fast this machine saves and restores the checkpoint of the model you train, "
                                "why, and whether that changed.\n\nverbs\n");
    for (size_t i = 0; i < verb_count(); i++)
        buf_printf(&self->out, "  %-12s %s\n", verbs[i]->name, verbs[i]->summary);
    buf_append_text(&self->out, "\nflags of every verb\n");
    for (size_t i = 0; i < common_flag_count; i++)
        write_flag(&self->out, &common_flags[i]);
    buf_append_text(&self->out, "\nfirst: ckptbench run model=gpt2 ranks=4 tp=2 dp=2 store=./ckpt iterations=5\n"
                                "exit codes: 0 pass, 1 our failure, 2 usage, 3 the benchmark failed, "
                                "4 infrastructure, 5 regression, 6 inconclusive\n");
}

void cli_write_version(struct cli *self)
{
    buf_printf(&self->out, "ckptbench %s (%s)\n", version_text(), version_commit());
    for (size_t i = 0; i < library_count(); i++) {
        const struct library *library = library_at(i);
        buf_printf(&self->out, "  %-9s %-8s %s\n", library->name, library->present ? "present" : "absent",
                   library->present ? library->gives : library->without_it);
    }
    char plugin[4096];
    bool has_plugin = cuda_plugin_find(plugin, sizeof plugin, NULL) == 0;
    buf_printf(&self->out, "  %-9s %-8s %s\n", "cuda", has_plugin ? "present" : "absent",
               has_plugin ? "device=cuda, and the suite on GPUs" : "no device=cuda, and nothing of GPUs in the suite");
}
