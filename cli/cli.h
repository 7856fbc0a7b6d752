/* The command line of ckptbench: the description of a verb, the parsed arguments, and the output.
 *
 * A verb is one file in cli/verbs that defines `const struct verb verb_NAME`. It is declared at the end of this header
 * and listed in the table of cli/verbs/verbs.c. Help, man page and completion are generated from these structs. A verb
 * appends its output to cli->out, which main writes to stdout; progress and warnings go to stderr through core/log. It
 * returns 0 or an error that main prints and turns into the exit code. A verb that succeeded but has a negative result
 * sets cli->exit_code. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/setting.h"
#include "run/options.h"

struct cli;
struct history;
struct json_writer;
struct table;

/* A flag of one verb. */
struct verb_flag {
    const char *name;  /* without dashes: "by" is --by; a single letter is a short flag, -o */
    const char *value; /* name of its value in help, "KEY"; NULL if it has no value */
    const char *help;
    const char *sets; /* the setting that it abbreviates, "key=value", or NULL */
};

struct verb {
    const char *name;
    const char *arguments; /* "BASE OTHER…" */
    const char *summary;   /* one line, no full stop */
    const char *about;     /* further paragraphs for help and man page; may be NULL */
    const char *example;   /* a command line; may be NULL */
    bool takes_experiment; /* FILE.yaml, key=value and --key are settings; otherwise all arguments are words */
    bool takes_command;    /* what follows `--` are words, although it takes an experiment */
    bool reads_checkpoint; /* so a damaged checkpoint is its result (exit code 3), not a failure of this machine (4) */
    const struct verb_flag *flags;
    size_t flag_count;
    int (*run)(struct cli *cli, struct cb_err *err);
};

/* The flag of verbs that start runs. */
#define REPLACE_KEPT_FLAG                                                                                              \
    {                                                                                                                  \
        "replace-kept", NULL, "folder=overwrite and rotate may replace a checkpoint that was kept",                    \
            .sets = "keep.replace=true"                                                                                \
    }

/* The flag of verbs that can be forwarded to the ckptbench of a site. */
#define SITE_FLAG                                                                                                      \
    {                                                                                                                  \
        "site", "NAME", "on the cluster of that name; `ckptbench site` describes it"                                   \
    }

#define VERB_FLAGS(array) .flags = (array), .flag_count = sizeof(array) / sizeof *(array)

/* All verbs, in the order of help. */
size_t verb_count(void);
const struct verb *verb_at(size_t index);
/* By name. CB_ERR_NOT_FOUND suggests the nearest name. */
int verb_find(const char *name, const struct verb **verb, struct cb_err *err) CB_MUST_CHECK;

/* Whether the verb accepts the key, if it accepts keys. */
bool verb_takes_key(const struct verb *verb, enum option_id id);

/* Flags that every verb accepts. */
extern const struct verb_flag common_flags[];
extern const size_t common_flag_count;

struct given_flag {
    const struct verb_flag *flag;
    const char *value; /* borrowed from argv; NULL if the flag has no value */
};

struct cli {
    const char *program_path; /* argv[0] */
    const struct verb *verb;  /* NULL if only --help or --version was given */
    bool quiet, verbose, json, help, version;
    bool help_all; /* --help all: every key */
    const char *
        *words; /* arguments that are not flags, NULL-terminated; for verbs that take an experiment, a command */
    size_t word_count;
    struct setting_list settings; /* for verbs that take an experiment: files first, then words */
    struct given_flag *flags;
    size_t flag_count;

    struct history *history; /* lent by a verb that runs this one; NULL: the verb opens the history */
    struct buf out;
    bool colour; /* stdout is a terminal that shows colours */
    int exit_code;
};

/* Parses the command line. All strings are borrowed from argv. */
int cli_init(struct cli *self, int argc, char **argv, struct cb_err *err) CB_MUST_CHECK;
/* Replaces names of other tools in the settings by our keys (run/aliases.h), and logs each replacement. */
int cli_use_own_names(struct cli *self, struct cb_err *err) CB_MUST_CHECK;
void cli_release(struct cli *self);

/* Whether a flag of the verb was given, and its value, NULL if it was not given. A flag given twice is an error.
 * Asserts that the verb has the flag. */
bool cli_has_flag(const struct cli *self, const char *name);
const char *cli_flag_value(const struct cli *self, const char *name);
/* Parses the value of a flag; `value` is unchanged if the flag was not given. An error names the flag. */
int cli_parse_flag(const struct cli *self, const char *name,
                   int (*parse)(const char *text, uint64_t *value, struct cb_err *err), uint64_t *value,
                   struct cb_err *err) CB_MUST_CHECK;

/* Asks on the terminal; true after --yes. Without a terminal, logs `refusal` and returns false. */
bool cli_confirms(const struct cli *self, const char *question, const char *refusal);

/* Cores of this machine that are online, for verbs that use several threads. */
uint32_t cli_cores(void);

/* Writes `out` to stdout and empties it, for verbs that print in parts. A reader that closes the pipe (head) is not an
 * error. */
int cli_flush(struct cli *self, struct cb_err *err) CB_MUST_CHECK;
int cli_flush_to(struct cli *self, int fd, struct cb_err *err) CB_MUST_CHECK; /* to stderr */

/* Appends the text of --help (of the verb, or of all verbs) or of --version. */
void cli_write_help(struct cli *self);
void cli_write_version(struct cli *self);

/* Closes everything that is open in a JSON document, and ends it with a line feed. */
int cli_end_json(struct cli *self, struct json_writer *json, struct cb_err *err) CB_MUST_CHECK;
/* Appends a table and releases it. */
int cli_end_table(struct cli *self, struct table *table, struct cb_err *err) CB_MUST_CHECK;

extern const struct verb verb_baseline, verb_cancel, verb_clean, verb_collect, verb_compare, verb_completion,
    verb_convert, verb_doctor, verb_export, verb_history, verb_inspect, verb_list, verb_logs, verb_man, verb_models,
    verb_options, verb_plan, verb_render, verb_report, verb_run, verb_s3, verb_show, verb_site, verb_sql, verb_status,
    verb_submit, verb_verify, verb_warm, verb_watch;

#endif
