/* ckptbench man: prints ckptbench(1) in roff, generated from the tables of verbs, options and metrics. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "core/version.h"
#include "run/metrics.h"
#include "run/options.h"

/* Appends a UTF-8 sequence as roff's name of its code point and returns its length. Our own strings are valid UTF-8. */
static size_t append_code_point(struct buf *out, const unsigned char *at)
{
    size_t len = *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : 2;
    unsigned code_point = *at & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++)
        code_point = code_point << 6 | (at[i] & 0x3Fu);
    buf_printf(out, "\\[u%04X]", code_point);
    return len;
}

/* Escapes what roff interprets: backslashes, dashes, and a dot or quote at the start of a line. */
static void append_roff(struct buf *out, const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            buf_append_text(out, "\\&");
        if (*text == '\\')
            buf_append_text(out, "\\e");
        else if (*text == '-')
            buf_append_text(out, "\\-");
        else if ((unsigned char)*text >= 0x80)
            text += append_code_point(out, (const unsigned char *)text) - 1;
        else
            buf_append_char(out, *text);
        line_start = *text == '\n';
    }
}

/* Writes a term in bold, the rest of its line (in italics if it is the value of a flag), and its text. */
static void write_item(struct buf *out, const char *term, const char *rest, bool is_value, const char *text)
{
    buf_append_text(out, ".TP\n\\fB");
    append_roff(out, term);
    buf_append_text(out, "\\fR");
    if (rest && is_value) {
        buf_printf(out, " \\fI%s\\fR", rest);
    } else if (rest) {
        buf_append_text(out, " ");
        append_roff(out, rest);
    }
    buf_append_text(out, "\n");
    append_roff(out, text);
    buf_append_text(out, "\n");
}

static void write_flags(struct buf *out, const struct verb_flag *flags, size_t count)
{
    char term[64];
    for (size_t i = 0; i < count; i++) {
        snprintf(term, sizeof term, "%s%s", flags[i].name[1] ? "--" : "-", flags[i].name);
        write_item(out, term, flags[i].value, true, flags[i].help);
    }
}

static void write_verbs(struct buf *out)
{
    buf_append_text(out, ".SH VERBS\n");
    for (size_t i = 0; i < verb_count(); i++) {
        const struct verb *verb = verb_at(i);
        buf_append_text(out, ".SS \"");
        append_roff(out, verb->name);
        buf_printf(out, "%s", *verb->arguments ? " " : "");
        append_roff(out, verb->arguments);
        buf_append_text(out, "\"\n");
        append_roff(out, verb->summary);
        buf_append_text(out, verb->summary[strlen(verb->summary) - 1] == '?' ? "\n" : ".\n");
        if (verb->about) {
            buf_append_text(out, ".PP\n");
            append_roff(out, verb->about);
            buf_append_text(out, "\n");
        }
        write_flags(out, verb->flags, verb->flag_count);
        if (verb->example) {
            buf_append_text(out, ".PP\n.nf\n    ");
            append_roff(out, verb->example);
            buf_append_text(out, "\n.fi\n");
        }
    }
}

static void write_options(struct buf *out)
{
    buf_append_text(out,
                    ".SH KEYS\nEach key is given as key=value, as \\-\\-key value, or in a YAML file, where "
                    "mappings nest into dotted keys. A comma sweeps (io.depth=1,8), \\e, is a comma that is meant, "
                    "2..8 counts and 2..64*2 multiplies; + joins the values of one key. Sizes as 4MiB, times as "
                    "30s, rates as 1.5GiB/s. label.NAME=value labels a run; zip=a,b sweeps two keys together.\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *row = option_row((enum option_id)i);
        struct buf rest;
        buf_init(&rest, 1024);
        buf_printf(&rest, "(%s%s%s; default %s; %s)", option_type_name(row->type), *row->choices ? ": " : "",
                   row->choices, *row->fallback ? row->fallback : "empty", option_class_name(row->class));
        write_item(out, row->name, rest.data, false, row->help);
        buf_release(&rest);
    }
}

static void write_metrics(struct buf *out)
{
    buf_append_text(out, ".SH METRICS\n");
    for (size_t i = 0; i < METRIC_COUNT; i++) {
        const struct metric *row = metric_row((enum metric_id)i);
        struct buf rest;
        buf_init(&rest, 256);
        buf_printf(&rest, "[%s]", row->unit);
        write_item(out, row->name, rest.data, false, row->meaning);
        buf_release(&rest);
    }
}

static void write_files_and_codes(struct buf *out)
{
    buf_append_text(out, ".SH ENVIRONMENT\n");
    write_item(out, "CKPTBENCH_HOME", NULL, false,
               "where runs are kept; else $XDG_DATA_HOME/ckptbench, else ~/.local/share/ckptbench");
    write_item(out, "CKPTBENCH_INDEX", NULL, false,
               "a folder on a local disk for the index of the runs; else the home if it is on one, else "
               "$XDG_CACHE_HOME/ckptbench or ~/.cache/ckptbench");
    write_item(out, "CKPTBENCH_PYTHON", NULL, false,
               "the Python with PyTorch that engine=torch-dcp and torch-native run; else python3");
    write_item(out, "NO_COLOR", NULL, false, "no colours");
    buf_append_text(out, ".SH EXIT STATUS\n");
    static const char *const codes[][2] = {{"0", "pass"},
                                           {"1", "a failure of this program"},
                                           {"2", "usage: what was asked for cannot be done as asked"},
                                           {"3", "the benchmark failed"},
                                           {"4", "infrastructure: machine, launcher, time-out, stopped"},
                                           {"5", "a regression"},
                                           {"6", "inconclusive"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        write_item(out, codes[i][0], NULL, false, codes[i][1]);
}

static int run_man(struct cli *cli, struct cb_err *err)
{
    struct buf *out = &cli->out;
    buf_printf(out, ".TH CKPTBENCH 1 \"\" \"ckptbench %s\" \"User Commands\"\n", version_text());
    buf_append_text(out, ".SH NAME\nckptbench \\- how fast a cluster saves and restores the checkpoint of a model\n"
                         ".SH SYNOPSIS\n.B ckptbench\n.I VERB\n[flags] [key=value ...] [FILE.yaml ...]\n"
                         ".SH DESCRIPTION\nckptbench tells how fast a machine saves and restores the checkpoint of the "
                         "model you train, why, and whether that changed. stdout is the answer, stderr the chatter.\n"
                         ".SH FLAGS OF EVERY VERB\n");
    write_flags(out, common_flags, common_flag_count);
    write_verbs(out);
    write_options(out);
    write_metrics(out);
    write_files_and_codes(out);
    return buf_check(out, "the man page", err);
}

const struct verb verb_man = {
    .name = "man",
    .arguments = "",
    .summary = "the manual page, ckptbench(1), on stdout",
    .example = "ckptbench man | man -l -",
    .run = run_man,
};
