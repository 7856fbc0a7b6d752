/* ckptbench completion: prints a bash completion generated from the tables of verbs and options. */
#include <string.h>

#include "ckpt/model/model.h"
#include "cli/cli.h"
#include "run/options.h"

static void write_case(struct buf *out, const char *key, const char *values)
{
    buf_printf(out, "    %s) values=\"", key);
    for (const char *at = values; *at; at++)
        buf_append_char(out, *at == '|' ? ' ' : *at);
    buf_append_text(out, "\" ;;\n");
}

static void write_values(struct buf *out)
{
    buf_append_text(out, "    case $1 in\n    model) values=\"");
    for (size_t i = 0; i < model_preset_count(); i++)
        buf_printf(out, "%s%s", i ? " " : "", model_preset_name(i));
    buf_append_text(out, "\" ;;\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *row = option_row((enum option_id)i);
        if (row->type == OPTION_ENUM || row->type == OPTION_BOOL)
            write_case(out, row->name, row->type == OPTION_BOOL ? "true|false" : row->choices);
    }
    buf_append_text(out, "    *) values=\"\" ;;\n    esac\n");
}

static void write_flag_words(struct buf *out, const struct verb_flag *flags, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buf_printf(out, " %s%s", flags[i].name[1] ? "--" : "-", flags[i].name);
}

/* 1: all; else their names. */
static void write_keys_of(struct buf *out, const struct verb *verb)
{
    if (!verb->takes_command) {
        buf_printf(out, "\"; keys=%d ;;\n", verb->takes_experiment);
        return;
    }
    buf_append_text(out, "\"; keys=\"");
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        if (verb_takes_key(verb, id))
            buf_printf(out, "%s ", option_row(id)->name);
    buf_append_text(out, "\" ;;\n");
}

static void write_verb_cases(struct buf *out)
{
    buf_append_text(out, "    case $verb in\n");
    for (size_t i = 0; i < verb_count(); i++) {
        const struct verb *verb = verb_at(i);
        buf_printf(out, "    %s) flags=\"", verb->name);
        write_flag_words(out, common_flags, common_flag_count);
        write_flag_words(out, verb->flags, verb->flag_count);
        write_keys_of(out, verb);
    }
    buf_append_text(out, "    *) flags=\"--help --version\"; keys=0 ;;\n    esac\n");
}

static int run_completion(struct cli *cli, struct cb_err *err)
{
    struct buf *out = &cli->out;
    buf_append_text(out, "# bash completion of ckptbench, made by `ckptbench completion`\n"
                         "_ckptbench_values()\n{\n");
    write_values(out);
    buf_append_text(out,
                    "}\n_ckptbench()\n{\n    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} flags keys "
                    "values key\n    local line=${COMP_LINE:0:COMP_POINT}\n    line=${line##* }\n"
                    "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W \"");
    for (size_t i = 0; i < verb_count(); i++)
        buf_printf(out, "%s%s", i ? " " : "", verb_at(i)->name);
    buf_append_text(out, " help --help --version\" -- \"$word\"))\n        return\n    fi\n");
    write_verb_cases(out);
    buf_append_text(
        out, "    if [[ $line == *=* ]]; then\n        key=${line%%=*}\n        _ckptbench_values \"${key#--}\"\n"
             "        word=${line#*=}\n        word=${word##*,}\n"
             "        COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
             "        [ -n \"$values\" ] || COMPREPLY=($(compgen -f -- \"$word\"))\n        return\n    fi\n"
             "    if [[ $word == -* ]]; then\n"
             "        COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n        return\n    fi\n"
             "    COMPREPLY=($(compgen -f -X '!*.y*ml' -- \"$word\"))\n"
             "    [ \"$keys\" != 1 ] || keys=\"");
    for (size_t i = 0; i < OPTION_COUNT; i++)
        buf_printf(out, "%s%s", i ? " " : "", option_row((enum option_id)i)->name);
    buf_append_text(out, "\"\n    if [ \"$keys\" != 0 ]; then\n"
                         "        COMPREPLY+=($(compgen -S = -W \"$keys\" -- \"$word\"))\n"
                         "        compopt -o nospace 2>/dev/null\n    fi\n}\n"
                         "complete -F _ckptbench ckptbench\n");
    return buf_check(out, "the completion", err);
}

const struct verb verb_completion = {
    .name = "completion",
    .arguments = "",
    .summary = "a bash completion, on stdout",
    .example = "source <(ckptbench completion)",
    .run = run_completion,
};
