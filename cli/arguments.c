/* Parses the command line: flags, words and settings of a verb. */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/model/model.h"
#include "cli/cli.h"
#include "cli/report/blocks.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "core/nearest_word.h"
#include "core/units.h"
#include "core/utf8.h"
#include "core/yaml.h"
#include "run/aliases.h"
#include "run/options.h"

#define MAX_OUTPUT_BYTES (1024 * MIB)
#define MAX_YAML_BYTES (16 * MIB)
#define OTHER_FLAGS_MOST 64 /* flags of the verb and common flags */
#define STANDARD_INPUT "-"  /* replaces FILE.yaml in words */

const struct verb_flag common_flags[] = {
    {"q", NULL, "say nothing on stderr but errors"},
    {"v", NULL, "say more on stderr"},
    {"json", NULL, "one JSON document on stdout"},
    {"help", NULL, "this text"},
    {"version", NULL, "version, commit, and what this build has and lacks"},
};
const size_t common_flag_count = sizeof common_flags / sizeof *common_flags;

/* Settings of files come before those of words, so that words override them. */
struct arguments {
    int argc;
    char **argv;
    int index; /* of the next argument */
    const char **files;
    size_t file_count;
    struct setting_list words; /* settings given as words or flags */
};

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);
    return len > end_len && strcmp(text + len - end_len, end) == 0;
}

static const struct verb_flag *find_flag(const struct verb *verb, const char *name, size_t len)
{
    for (size_t i = 0; verb && i < verb->flag_count; i++)
        if (strlen(verb->flags[i].name) == len && strncmp(verb->flags[i].name, name, len) == 0)
            return &verb->flags[i];
    return NULL;
}

static bool set_common_flag(struct cli *self, const char *name, size_t len)
{
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
        {"q", offsetof(struct cli, quiet)},   {"quiet", offsetof(struct cli, quiet)},
        {"v", offsetof(struct cli, verbose)}, {"verbose", offsetof(struct cli, verbose)},
        {"json", offsetof(struct cli, json)}, {"help", offsetof(struct cli, help)},
        {"h", offsetof(struct cli, help)},    {"version", offsetof(struct cli, version)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strlen(rows[i].name) == len && strncmp(rows[i].name, name, len) == 0) {
            *(bool *)((char *)self + rows[i].offset) = true;
            return true;
        }
    }
    return false;
}

static int unknown_flag(const struct verb *verb, const char *flag, const char *name, struct cb_err *err)
{
    const char *candidates[OPTION_COUNT + OTHER_FLAGS_MOST];
    size_t count = 0;
    for (size_t i = 0; i < common_flag_count && count < OTHER_FLAGS_MOST; i++)
        candidates[count++] = common_flags[i].name;
    for (size_t i = 0; verb && i < verb->flag_count && count < OTHER_FLAGS_MOST; i++)
        candidates[count++] = verb->flags[i].name;
    for (size_t i = 0; verb && verb->takes_experiment && i < OPTION_COUNT; i++)
        candidates[count++] = option_row((enum option_id)i)->name;
    const char *nearest = nearest_word(name, candidates, count);
    if (nearest)
        return cb_fail(err, CB_ERR_USAGE, "unknown flag %s: did you mean %s%s?", flag, nearest[1] ? "--" : "-",
                       nearest);
    return cb_fail(err, CB_ERR_USAGE, "unknown flag %s; see `ckptbench %s%s--help`", flag, verb ? verb->name : "",
                   verb ? " " : "");
}

/* The value of a flag: after its '=', or the next argument. */
static int flag_value(struct arguments *arguments, const char *equals, const char **value, struct cb_err *err)
{
    if (equals) {
        *value = equals + 1;
        return 0;
    }
    if (arguments->index >= arguments->argc)
        return cb_fail(err, CB_ERR_USAGE, "%s needs a value", arguments->argv[arguments->index - 1]);
    *value = arguments->argv[arguments->index++];
    return 0;
}

static int read_own_flag(struct cli *self, struct arguments *arguments, const struct verb_flag *flag,
                         const char *equals, struct cb_err *err)
{
    const char *value = NULL;
    int rc = 0;
    for (size_t i = 0; flag->value && rc == 0 && i < self->flag_count; i++)
        if (self->flags[i].flag == flag)
            rc = cb_fail(err, CB_ERR_USAGE, "%s%s was given twice: it takes one value", flag->name[1] ? "--" : "-",
                         flag->name);
    if (rc == 0 && flag->value)
        rc = flag_value(arguments, equals, &value, err);
    else if (rc == 0 && equals)
        rc = cb_fail(err, CB_ERR_USAGE, "--%s takes no value", flag->name);
    if (rc == 0 && flag->sets)
        return setting_parse_word(flag->sets, &arguments->words, err);
    if (rc == 0)
        self->flags[self->flag_count++] = (struct given_flag){flag, value};
    return rc;
}

/* --io.depth 8, --label.kind x, --zip a,b. */
static int read_setting_flag(struct arguments *arguments, const char *name, size_t len, const char *equals,
                             struct cb_err *err)
{
    const char *value = NULL;
    struct buf word;
    int rc = flag_value(arguments, equals, &value, err);
    if (rc)
        return rc;
    buf_init(&word, MAX_YAML_BYTES);
    buf_append(&word, name, len);
    buf_append_char(&word, '=');
    buf_append_text(&word, value);
    rc = buf_check(&word, "an argument", err);
    if (rc == 0)
        rc = setting_parse_word(word.data, &arguments->words, err);
    buf_release(&word);
    return rc;
}

static int read_flag(struct cli *self, struct arguments *arguments, const char *flag, struct cb_err *err)
{
    char name[128];
    enum option_id id;
    const char *start = flag + (flag[1] == '-' ? 2 : 1), *equals = strchr(start, '=');
    size_t len = equals ? (size_t)(equals - start) : strlen(start);
    snprintf(name, sizeof name, "%.*s", (int)(len < 127 ? len : 127), start);
    const struct verb_flag *own = find_flag(self->verb, start, len);
    if (own)
        return read_own_flag(self, arguments, own, equals, err);
    if (set_common_flag(self, start, len))
        return equals ? cb_fail(err, CB_ERR_USAGE, "--%s takes no value", name) : 0;
    bool is_setting = strcmp(name, "zip") == 0 || strncmp(name, "label.", 6) == 0 ||
                      option_find(name, &id, NULL) == 0 || alias_find(name);
    if (self->verb && self->verb->takes_experiment && flag[1] == '-' && is_setting)
        return read_setting_flag(arguments, start, len, equals, err);
    return unknown_flag(self->verb, flag, name, err);
}

static bool is_preset(const char *word)
{
    for (size_t i = 0; i < model_preset_count(); i++)
        if (strcmp(model_preset_name(i), word) == 0)
            return true;
    return false;
}

static int read_word(struct cli *self, struct arguments *arguments, const char *word, struct cb_err *err)
{
    if (!self->verb->takes_experiment) {
        self->words[self->word_count++] = word;
        return 0;
    }
    if (self->help && strcmp(word, "all") == 0) {
        self->help_all = true;
        return 0;
    }
    if (strcmp(word, STANDARD_INPUT) == 0) {
        arguments->files[arguments->file_count++] = "/dev/stdin";
        return 0;
    }
    if (ends_with(word, ".yaml") || ends_with(word, ".yml")) {
        if (!strchr(word, '=') || access(word, F_OK) == 0) {
            arguments->files[arguments->file_count++] = word;
            return 0;
        }
    }
    if (!strchr(word, '=') && self->verb->takes_command)
        return cb_fail(err, CB_ERR_USAGE,
                       "'%s' is neither key=value nor a FILE.yaml; write a command after --: "
                       "ckptbench %s -- %s …",
                       word, self->verb->name, word);
    if (!strchr(word, '='))
        return cb_fail(err, CB_ERR_USAGE, "'%s' is neither key=value nor a FILE.yaml%s%s%s", word,
                       is_preset(word) ? "; did you mean model=" : ": write a value behind its key, as io.block=4MiB",
                       is_preset(word) ? word : "", is_preset(word) ? "?" : "");
    return setting_parse_word(word, &arguments->words, err);
}

static int read_arguments(struct cli *self, struct arguments *arguments, struct cb_err *err)
{
    bool only_words = false;
    while (arguments->index < arguments->argc) {
        const char *argument = arguments->argv[arguments->index++];
        int rc;
        if (!only_words && strcmp(argument, "--") == 0) {
            only_words = true;
            continue;
        }
        if (!only_words && argument[0] == '-' && argument[1]) {
            rc = read_flag(self, arguments, argument, err);
        } else if (only_words && self->verb && self->verb->takes_command) {
            self->words[self->word_count++] = argument;
            rc = 0;
        } else if (self->verb) {
            rc = read_word(self, arguments, argument, err);
        } else if (strcmp(argument, "help") == 0) {
            self->help = true;
            rc = 0;
        } else {
            rc = verb_find(argument, &self->verb, err);
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* The settings of files come first, then those given as words. */
static int join_settings(struct cli *self, struct arguments *arguments, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < arguments->file_count; i++) {
        struct buf text;
        buf_init(&text, MAX_YAML_BYTES);
        rc = buf_read_file(&text, arguments->files[i], err);
        if (rc == 0)
            rc = yaml_read_settings(arguments->files[i], text.data, text.len, &self->settings, err);
        buf_release(&text);
    }
    for (size_t i = 0; rc == 0 && i < arguments->words.count; i++)
        rc = setting_list_take(&self->settings, &arguments->words.items[i], err);
    return rc;
}

int cli_init(struct cli *self, int argc, char **argv, struct cb_err *err)
{
    size_t room = (size_t)argc + 1;
    *self = (struct cli){.program_path = argc > 0 ? argv[0] : "ckptbench"};
    buf_init(&self->out, MAX_OUTPUT_BYTES);
    self->colour = table_wants_colour(stdout);
    self->words = calloc(room, sizeof *self->words);
    self->flags = calloc(room, sizeof *self->flags);
    struct arguments arguments = {.argc = argc, .argv = argv, .index = 1, .files = calloc(room, sizeof(char *))};
    int rc = self->words && self->flags && arguments.files ? 0 : alloc_fail(err, "for arguments");
    if (rc == 0)
        rc = read_arguments(self, &arguments, err);
    if (rc == 0 && !self->help && !self->version)
        rc = join_settings(self, &arguments, err);
    setting_list_release(&arguments.words);
    free(arguments.files);
    if (rc == 0 && !self->verb && !self->help && !self->version) {
        self->help = true; /* prints the verbs, as git does */
        self->exit_code = CB_EXIT_USAGE;
    }
    return rc; /* owned by the caller, also on failure */
}

int cli_use_own_names(struct cli *self, struct cb_err *err)
{
    struct buf said;
    buf_init(&said, MAX_YAML_BYTES);
    int rc = self->verb && self->verb->takes_experiment ? aliases_resolve(&self->settings, &said, err) : 0;
    if (rc == 0 && said.len)
        log_info("names of other tools: %s", said.data);
    buf_release(&said);
    return rc;
}

void cli_release(struct cli *self)
{
    setting_list_release(&self->settings);
    buf_release(&self->out);
    free(self->words);
    free(self->flags);
}

bool cli_has_flag(const struct cli *self, const char *name)
{
    assert(find_flag(self->verb, name, strlen(name)));
    for (size_t i = 0; i < self->flag_count; i++)
        if (strcmp(self->flags[i].flag->name, name) == 0)
            return true;
    return false;
}

const char *cli_flag_value(const struct cli *self, const char *name)
{
    assert(find_flag(self->verb, name, strlen(name)));
    for (size_t i = self->flag_count; i-- > 0;)
        if (strcmp(self->flags[i].flag->name, name) == 0)
            return self->flags[i].value;
    return NULL;
}

uint32_t cli_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 1 ? (uint32_t)cores : 1;
}

/* The length of one of our style sequences at this position; 0 if there is none. */
static size_t style_at(const char *at, size_t left)
{
    size_t len = strlen(table_style_end());
    if (len <= left && memcmp(at, table_style_end(), len) == 0)
        return len;
    for (enum table_style style = TABLE_BOLD; style <= TABLE_WARN; style++) {
        len = strlen(table_style_start(style));
        if (len <= left && memcmp(at, table_style_start(style), len) == 0)
            return len;
    }
    return 0;
}

/* What other terminals than those of UTF-8 show; it takes as many bytes. */
static void spell_ellipses(char *text, size_t len)
{
    static const char ellipsis[] = "…";
    for (char *at = text; (at = memmem(at, len - (size_t)(at - text), ellipsis, sizeof ellipsis - 1));)
        memset(at, '.', sizeof ellipsis - 1);
}

/* Text from files, servers and other machines is part of the output, so control characters in it are escaped. */
int cli_flush_to(struct cli *self, int fd, struct cb_err *err)
{
    int rc = buf_check(&self->out, "the answer", err);
    char *shown = rc ? NULL : malloc(self->out.len * UTF8_ESCAPED_MAX + 1);
    if (!rc && !shown)
        rc = alloc_fail(err, "for the answer");
    size_t len = rc ? 0 : utf8_escape(self->out.data, self->out.len, self->colour ? style_at : NULL, shown);
    if (shown && isatty(fd) && !blocks_locale_is_utf8())
        spell_ellipses(shown, len);
    for (size_t done = 0; rc == 0 && done < len;) {
        ssize_t written = write(fd, shown + done, len - done);
        if (written >= 0)
            done += (size_t)written;
        else if (errno == EPIPE)
            break;
        else if (errno != EINTR)
            rc = cb_fail_errno(err, errno, "writing to %s", fd == STDOUT_FILENO ? "stdout" : "stderr");
    }
    free(shown);
    buf_clear(&self->out);
    return rc;
}

int cli_flush(struct cli *self, struct cb_err *err)
{
    return cli_flush_to(self, STDOUT_FILENO, err);
}

int cli_parse_flag(const struct cli *self, const char *name,
                   int (*parse)(const char *text, uint64_t *value, struct cb_err *err), uint64_t *value,
                   struct cb_err *err)
{
    const char *text = cli_flag_value(self, name);
    int rc = text ? parse(text, value, err) : 0;
    return rc ? cb_context(err, "%s%s", name[1] ? "--" : "-", name) : 0;
}

bool cli_confirms(const struct cli *self, const char *question, const char *refusal)
{
    char answer[16] = "";
    if (cli_has_flag(self, "yes"))
        return true;
    if (self->json || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        log_info("%s", refusal);
        return false;
    }
    fprintf(stderr, "%s [y/N] ", question);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

int cli_end_json(struct cli *self, struct json_writer *json, struct cb_err *err)
{
    json_write_end_all(json);
    buf_append_char(&self->out, '\n');
    return buf_check(&self->out, "the JSON document", err);
}

int cli_end_table(struct cli *self, struct table *table, struct cb_err *err)
{
    int rc = table_write(table, 0, self->colour, &self->out, err);
    table_release(table);
    return rc;
}
