/* What every verb of ckptbench has: its row, its arguments read, and where its answer goes.
 *
 * A verb is one file in cli/verbs that defines `const struct verb verb_NAME`; it is declared at
 * the end of this header and has its place in the table of cli/verbs/verbs.c. Help, man page and completion
 * come from the rows. A verb appends its answer to cli->out, which main writes to stdout; what people
 * need to be told meanwhile goes through core/log to stderr. It returns 0 or an error that main prints
 * and turns into the exit code; a verb that worked and still has bad news sets cli->exit_code. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/setting.h"

struct cli;

/* One flag of a verb's own. */
struct verb_flag {
    const char *name;  /* "by": given as --by; a name of one letter is given as -o */
    const char *value; /* what help calls its value, "KEY"; NULL where it takes none */
    const char *help;
};

struct verb {
    const char *name;
    const char *arguments; /* "BASE OTHER…" */
    const char *summary;   /* one line, no full stop */
    const char *about;     /* further paragraphs for help and man page; may be NULL */
    const char *example;   /* a command line; may be NULL */
    bool takes_experiment; /* FILE.yaml, key=value and --key are settings; else all are words */
    const struct verb_flag *flags;
    size_t flag_count;
    int (*run)(struct cli *cli, struct cb_err *err);
};

/* The flag of verbs that a site's ckptbench can be asked to do. */
#define SITE_FLAG                                                                                                      \
    {                                                                                                                  \
        "site", "NAME", "on the cluster of that name; `ckptbench site` describes it"                                   \
    }

#define VERB_FLAGS(array) .flags = (array), .flag_count = sizeof(array) / sizeof *(array)

/* The verbs in the order of help. */
size_t verb_count(void);
const struct verb *verb_at(size_t index);
/* By name; NOT_FOUND names the nearest one. */
int verb_find(const char *name, const struct verb **verb, struct cb_err *err) CB_MUST_CHECK;

/* Flags that every verb takes. */
extern const struct verb_flag common_flags[];
extern const size_t common_flag_count;

struct given_flag {
    const struct verb_flag *flag;
    const char *value; /* borrowed from argv; NULL where it takes none */
};

struct cli {
    const char *program_path; /* argv[0] */
    const struct verb *verb;  /* NULL with --help or --version alone */
    bool quiet, verbose, json, help, version;
    const char **words; /* what is no flag; for verbs that take an experiment: empty */
    size_t word_count;
    struct setting_list settings; /* of verbs that take an experiment: files first, words after them */
    struct given_flag *flags;
    size_t flag_count;

    struct buf out;
    bool colour; /* stdout is a terminal that takes it */
    int exit_code;
};

/* Reads the command line. Every text is borrowed from argv. */
int cli_init(struct cli *self, int argc, char **argv, struct cb_err *err) CB_MUST_CHECK;
void cli_release(struct cli *self);

/* Whether a flag of the verb was given, and its value (given twice it is refused); NULL where it was not. Asking for one
 * that the verb's row lacks is an assertion. */
bool cli_has_flag(const struct cli *self, const char *name);
const char *cli_flag_value(const struct cli *self, const char *name);

/* Writes what is in `out` to stdout and empties it; for verbs that answer bit by bit. A reader that
 * went away (head) is no error. */
int cli_flush(struct cli *self, struct cb_err *err) CB_MUST_CHECK;

/* Text of --help (of the verb, or of all) and --version. */
void cli_write_help(struct cli *self);
void cli_write_version(struct cli *self);

/* Ends a text that is one JSON document with a new line and reports a failure of the buffer. */
int cli_end_json(struct cli *self, struct cb_err *err) CB_MUST_CHECK;

extern const struct verb verb_baseline, verb_cancel, verb_clean, verb_collect, verb_compare, verb_completion,
    verb_convert, verb_doctor, verb_export, verb_history, verb_inspect, verb_list, verb_logs, verb_man, verb_models,
    verb_options, verb_plan, verb_render, verb_run, verb_s3, verb_show, verb_site, verb_sql, verb_status, verb_submit,
    verb_verify, verb_warm;

#endif
