/* Experiments: complete values for every key, frozen and hashed. Knows the rules that need neither
 * model nor machine; must not know what a layout or a store makes of a value. */
#include "core/experiment.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/rules.h"
#include "core/units.h"

#define MAX_YAML_BYTES (16 * MIB)
#define MAX_LABELS 1000
#define MAX_LABEL_KEY_BYTES 128
#define LABEL_PREFIX "label."
#define MAX_HOST_BYTES 255

struct label {
    char *key, *value;
};

struct experiment {
    struct option_value values[OPTION_COUNT];
    bool was_set[OPTION_COUNT];
    struct label *labels; /* sorted by key, each key once */
    size_t label_count;
};

int experiment_new(struct experiment **self, struct cb_err *err)
{
    struct experiment *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for an experiment");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        int rc = option_parse((enum option_id)i, option_row((enum option_id)i)->fallback, &fresh->values[i], err);
        if (rc) {
            experiment_free(fresh);
            return rc;
        }
    }
    *self = fresh;
    return 0;
}

void experiment_free(struct experiment *self)
{
    if (!self)
        return;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        option_value_release(&self->values[i]);
    for (size_t i = 0; i < self->label_count; i++) {
        free(self->labels[i].key);
        free(self->labels[i].value);
    }
    free(self->labels);
    free(self);
}

/* Where the label is, or where it would go. */
static size_t label_position(const struct experiment *self, const char *key)
{
    size_t low = 0, high = self->label_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(self->labels[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool label_is_at(const struct experiment *self, size_t position, const char *key)
{
    return position < self->label_count && strcmp(self->labels[position].key, key) == 0;
}

static int check_label(const char *key, const char *value, struct cb_err *err)
{
    if (*key == '\0')
        return cb_fail(err, CB_ERR_USAGE, "a label without a name; write label.NAME=value");
    if (strlen(key) > MAX_LABEL_KEY_BYTES)
        return cb_fail(err, CB_ERR_USAGE, "a label's name of %zu bytes; the limit is %d", strlen(key),
                       MAX_LABEL_KEY_BYTES);
    for (const char *at = key; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-", *at))
            return cb_fail(err, CB_ERR_USAGE, "label.%s: a label's name is made of letters, digits, '.', '_' and '-'",
                           key);
    return option_check_text(key, value, err);
}

static int set_label(struct experiment *self, const char *key, const char *value, struct cb_err *err)
{
    int rc = check_label(key, value, err);
    if (rc)
        return rc;
    size_t position = label_position(self, key);
    bool found = label_is_at(self, position, key);
    if (!found && self->label_count == MAX_LABELS)
        return cb_fail(err, CB_ERR_USAGE, "more than %d labels", MAX_LABELS);
    char *new_key = found ? NULL : strdup(key), *new_value = strdup(value);
    struct label *labels = found ? self->labels : realloc(self->labels, (self->label_count + 1) * sizeof *self->labels);
    if (labels)
        self->labels = labels;
    if (!labels || !new_value || (!found && !new_key)) {
        free(new_key);
        free(new_value);
        return cb_fail(err, CB_ERR_MEMORY, "no memory for label.%s", key);
    }
    if (found) {
        free(labels[position].value);
        labels[position].value = new_value;
        return 0;
    }
    memmove(labels + position + 1, labels + position, (self->label_count - position) * sizeof *labels);
    labels[position] = (struct label){.key = new_key, .value = new_value};
    self->label_count++;
    return 0;
}

static int set_option(struct experiment *self, const char *key, const char *value, struct cb_err *err)
{
    enum option_id id;
    struct option_value parsed;
    int rc = option_find(key, &id, err);
    if (rc == 0)
        rc = option_parse(id, value, &parsed, err);
    if (rc)
        return rc;
    option_value_release(&self->values[id]);
    self->values[id] = parsed;
    self->was_set[id] = true;
    return 0;
}

int experiment_set(struct experiment *self, const char *key, const char *value, const char *origin, struct cb_err *err)
{
    size_t prefix = strlen(LABEL_PREFIX);
    int rc = strncmp(key, LABEL_PREFIX, prefix) == 0 ? set_label(self, key + prefix, value, err)
                                                     : set_option(self, key, value, err);
    if (rc && err && origin)
        cb_context(err, "%s", origin);
    return rc;
}

int experiment_copy(const struct experiment *source, struct experiment **copy, struct cb_err *err)
{
    struct experiment *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for an experiment");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < OPTION_COUNT; i++) {
        fresh->values[i] = source->values[i];
        fresh->values[i].text = strdup(source->values[i].text);
        fresh->was_set[i] = source->was_set[i];
        if (!fresh->values[i].text)
            rc = cb_fail(err, CB_ERR_MEMORY, "no memory for an experiment");
    }
    for (size_t i = 0; rc == 0 && i < source->label_count; i++)
        rc = set_label(fresh, source->labels[i].key, source->labels[i].value, err);
    if (rc) {
        experiment_free(fresh);
        return rc;
    }
    *copy = fresh;
    return 0;
}

bool experiment_was_set(const struct experiment *self, enum option_id id)
{
    return self->was_set[id];
}

bool experiment_bool(const struct experiment *self, enum option_id id)
{
    assert(option_row(id)->type == OPTION_BOOL);
    return self->values[id].boolean;
}

uint64_t experiment_u64(const struct experiment *self, enum option_id id)
{
    enum option_type type = option_row(id)->type;
    assert(type == OPTION_U64 || type == OPTION_BYTES || type == OPTION_DURATION || type == OPTION_RATE);
    (void)type;
    return self->values[id].u64;
}

double experiment_double(const struct experiment *self, enum option_id id)
{
    assert(option_row(id)->type == OPTION_DOUBLE);
    return self->values[id].number;
}

const char *experiment_text(const struct experiment *self, enum option_id id)
{
    return self->values[id].text;
}

/* Whether `choice` is one of "a|b|c". */
static bool is_choice(const char *choices, const char *choice)
{
    size_t len = strlen(choice);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, choice, len) == 0 && (at[len] == '|' || at[len] == '\0'))
            return true;
    return false;
}

bool experiment_is(const struct experiment *self, enum option_id id, const char *choice)
{
    assert(option_row(id)->type == OPTION_ENUM && is_choice(option_row(id)->choices, choice));
    return strcmp(self->values[id].text, choice) == 0;
}

size_t experiment_label_count(const struct experiment *self)
{
    return self->label_count;
}

const char *experiment_label_key(const struct experiment *self, size_t index)
{
    return self->labels[index].key;
}

const char *experiment_label_value(const struct experiment *self, size_t index)
{
    return self->labels[index].value;
}

/* ---- what keys mean together ---- */

static bool is_number_from_1(const char *text)
{
    uint64_t number;
    return units_parse_u64(text, &number, NULL) == 0 && number > 0 && number <= 65536;
}

static bool is_sharding(const char *text)
{
    if (strcmp(text, "none") == 0 || strcmp(text, "full") == 0)
        return true;
    size_t len = strlen(text);
    if (strncmp(text, "hybrid(", 7) != 0 || text[len - 1] != ')' || len < 9 || len > 20)
        return false;
    char number[24];
    snprintf(number, sizeof number, "%.*s", (int)(len - 8), text + 7);
    return is_number_from_1(number);
}

static bool is_layer_list(const char *text)
{
    bool after_digit = false;
    for (; *text; text++) {
        if (!isdigit((unsigned char)*text) && (*text != '+' || !after_digit))
            return false;
        after_digit = *text != '+';
    }
    return after_digit;
}

/* Words for ssh: nothing that it could take for an option, or a shell for more than a word. */
static int validate_hosts(const struct experiment *self, struct cb_err *err)
{
    const char *hosts = experiment_text(self, OPT_HOSTS);
    uint64_t count = *hosts != '\0';
    for (const char *word = hosts; *word; word += strcspn(word, ",") + (word[strcspn(word, ",")] == ',')) {
        size_t len = strcspn(word, ",");
        if (len == 0 || len > MAX_HOST_BYTES || strchr("-.", *word))
            return cb_fail(err, CB_ERR_USAGE, "hosts=%s: machines as ssh knows them, or user@host:port, with commas",
                           hosts);
        for (size_t i = 0; i < len; i++)
            if (!isalnum((unsigned char)word[i]) && !strchr("._-@:[]%", word[i]))
                return cb_fail(err, CB_ERR_USAGE, "hosts=%s: '%c' in the name of a machine", hosts, word[i]);
        count += word[len] == ',';
    }
    if (count && experiment_u64(self, OPT_NODES) > count)
        return cb_fail(err, CB_ERR_USAGE, "nodes=%s, but hosts names %llu", experiment_text(self, OPT_NODES),
                       (unsigned long long)count);
    if (count && (experiment_is(self, OPT_LAUNCHER, "srun") || experiment_is(self, OPT_LAUNCHER, "none")))
        return cb_fail(err, CB_ERR_USAGE, "launcher=%s does not go with hosts=, whose ranks mpirun starts over ssh",
                       experiment_text(self, OPT_LAUNCHER));
    return 0;
}

static int validate_texts(const struct experiment *self, struct cb_err *err)
{
    const char *files = experiment_text(self, OPT_IO_FILES), *split = experiment_text(self, OPT_PP_SPLIT);
    const char *sharding = experiment_text(self, OPT_SHARDING);
    if (*experiment_text(self, OPT_MODEL) == '\0')
        return cb_fail(err, CB_ERR_USAGE, "model= is empty; name a preset (`ckptbench models`) or a path");
    if (*experiment_text(self, OPT_STORE) == '\0')
        return cb_fail(err, CB_ERR_USAGE, "store= is empty; give a path, null: or fault:SPEC:STORE");
    if (strcmp(files, "rank") != 0 && strcmp(files, "item") != 0 && strcmp(files, "shared") != 0 &&
        !is_number_from_1(files))
        return cb_fail(err, CB_ERR_USAGE, "io.files=%s: must be rank, item, shared, or a number of files a rank",
                       files);
    if (strcmp(split, "balanced") != 0 && strcmp(split, "even") != 0 && !is_layer_list(split))
        return cb_fail(err, CB_ERR_USAGE, "pp.split=%s: must be balanced, even, or layers a stage as 8+8+7", split);
    if (!is_sharding(sharding))
        return cb_fail(err, CB_ERR_USAGE, "sharding=%s: must be none, full, or hybrid(n) with n from 1", sharding);
    int rc = validate_hosts(self, err);
    if (rc)
        return rc;
    const char *suffix = experiment_text(self, OPT_SUFFIX);
    if (*suffix == '/' || strstr(suffix, "..") || strcmp(suffix, ".") == 0)
        return cb_fail(err, CB_ERR_USAGE,
                       "suffix=%s: names a checkpoint inside the store; neither / at the start nor ..", suffix);
    return 0;
}

static int validate_layout(const struct experiment *self, struct cb_err *err)
{
    static const enum option_id axes[] = {OPT_DP, OPT_TP, OPT_PP, OPT_EP};
    bool has_mesh = *experiment_text(self, OPT_MESH) != '\0';
    for (size_t i = 0; has_mesh && i < sizeof axes / sizeof *axes; i++)
        if (experiment_u64(self, axes[i]) > 1)
            return cb_fail(err, CB_ERR_USAGE, "mesh=%s and %s=%s: give the axes in one way, mesh or shorthands",
                           experiment_text(self, OPT_MESH), option_row(axes[i])->name, experiment_text(self, axes[i]));
    const char *sharding = experiment_text(self, OPT_SHARDING);
    if (strcmp(sharding, "none") != 0 && experiment_u64(self, OPT_ZERO) > 0)
        return cb_fail(err, CB_ERR_USAGE, "zero=%s and sharding=%s both shard over dp: give one of them",
                       experiment_text(self, OPT_ZERO), sharding);
    uint64_t product = experiment_u64(self, OPT_TP) * experiment_u64(self, OPT_PP) * experiment_u64(self, OPT_EP);
    bool several = experiment_u64(self, OPT_RANKS) > 1 || experiment_u64(self, OPT_DP) > 1 || product > 1 || has_mesh;
    if (experiment_is(self, OPT_LAUNCHER, "none") && several)
        return cb_fail(err, CB_ERR_USAGE, "launcher=none runs a single rank; several ranks need launcher=mpirun");
    return 0;
}

/* What another engine cannot do. What it only does not look at (blocks, depths) is no mistake: a sweep over
 * engines has them for the others. */
static int validate_engine(const struct experiment *self, struct cb_err *err)
{
    const char *engine = experiment_text(self, OPT_ENGINE), *files = experiment_text(self, OPT_IO_FILES);
    bool is_torch = experiment_is(self, OPT_ENGINE, "torch-dcp");
    if (experiment_is(self, OPT_ENGINE, "native"))
        return 0;
    if (!experiment_is(self, OPT_WORKLOAD, "checkpoint"))
        return cb_fail(err, CB_ERR_USAGE, "workload=%s is done by engine=native, not by engine=%s",
                       experiment_text(self, OPT_WORKLOAD), engine);
    if (is_torch && strcmp(files, "rank") != 0)
        return cb_fail(err, CB_ERR_USAGE, "io.files=%s: engine=torch-dcp writes one file a rank", files);
    if (is_torch && !experiment_is(self, OPT_FORMAT, "dcp"))
        return cb_fail(err, CB_ERR_USAGE, "engine=torch-dcp writes format=dcp only");
    if (is_torch && experiment_is(self, OPT_SAVE_DEDUP, "none"))
        return cb_fail(err, CB_ERR_USAGE,
                       "PyTorch DCP always deduplicates: engine=torch-dcp cannot do save.dedup=none");
    if (experiment_is(self, OPT_ENGINE, "command") && !*experiment_text(self, OPT_COMMAND))
        return cb_fail(err, CB_ERR_USAGE, "engine=command needs command='…' (see `ckptbench options command`)");
    return 0;
}

static int validate_copies(const struct experiment *self, struct cb_err *err)
{
    uint64_t copies = experiment_u64(self, OPT_COPIES);
    const char *why = NULL;
    if (copies == 1)
        return 0;
    if (!experiment_is(self, OPT_ENGINE, "native") || !experiment_is(self, OPT_WORKLOAD, "checkpoint"))
        why = "checkpoints of engine=native alone have copies";
    else if (experiment_bool(self, OPT_SAVE_ASYNC))
        why = "a save that goes on behind (save.async) writes one copy";
    else if (strcmp(experiment_text(self, OPT_IO_FILES), "shared") == 0)
        why = "a file that all ranks share (io.files=shared) has one copy";
    return why ? cb_fail(err, CB_ERR_USAGE, "copies=%llu: %s", (unsigned long long)copies, why) : 0;
}

static int validate_suite(const struct experiment *self, struct cb_err *err)
{
    static const char *const sections[] = {"net", "storage", "cpu", "memory", "gpu"};
    const char *only = experiment_text(self, OPT_SUITE_ONLY);
    struct rules unused;
    while (*only && strcmp(experiment_text(self, OPT_SUITE_ONLY), "all") != 0) {
        size_t len = strcspn(only, "+"), i = 0;
        while (i < sizeof sections / sizeof *sections &&
               (strlen(sections[i]) != len || strncmp(sections[i], only, len) != 0))
            i++;
        if (i == sizeof sections / sizeof *sections)
            return cb_fail(err, CB_ERR_USAGE,
                           "suite.only=%s: must be all, or some of net, storage, cpu, memory, gpu joined by +",
                           experiment_text(self, OPT_SUITE_ONLY));
        only += len + (only[len] == '+' ? 1 : 0);
    }
    int rc = rules_parse(experiment_text(self, OPT_SUITE_FAIL_BELOW), &unused, err);
    if (rc)
        cb_context(err, "suite.fail_below");
    return rc;
}

/* Ranges that the option table has no words for. */
static int validate_train(const struct experiment *self, struct cb_err *err)
{
    static const enum option_id from_0[] = {OPT_TRAIN_LR, OPT_TRAIN_WEIGHT_DECAY, OPT_TRAIN_CLIP, OPT_TRAIN_DROPOUT};
    for (size_t i = 0; i < sizeof from_0 / sizeof *from_0; i++)
        if (!(experiment_double(self, from_0[i]) >= 0))
            return cb_fail(err, CB_ERR_USAGE, "%s=%s: must be at least 0", option_row(from_0[i])->name,
                           experiment_text(self, from_0[i]));
    if (experiment_double(self, OPT_TRAIN_DROPOUT) >= 1)
        return cb_fail(err, CB_ERR_USAGE, "train.dropout=%s: must be less than 1",
                       experiment_text(self, OPT_TRAIN_DROPOUT));
    if (!*experiment_text(self, OPT_TRAIN_VOCAB) != !*experiment_text(self, OPT_TRAIN_MERGES))
        return cb_fail(err, CB_ERR_USAGE, "train.vocab and train.merges belong together: give both or neither");
    if (!experiment_is(self, OPT_WORKLOAD, "train"))
        return 0;
    if (experiment_was_set(self, OPT_ITERATIONS))
        return cb_fail(err, CB_ERR_USAGE, "workload=train counts steps: give train.steps instead of iterations");
    if (experiment_u64(self, OPT_DURATION))
        return cb_fail(err, CB_ERR_USAGE, "workload=train ends after train.steps: duration does not go with it");
    if (!experiment_is(self, OPT_FOLDER, "per_iteration"))
        return cb_fail(err, CB_ERR_USAGE,
                       "folder=%s: a training keeps each checkpoint in a folder of its own; "
                       "keep.last says how many",
                       experiment_text(self, OPT_FOLDER));
    return 0;
}

/* Loading in another layout is about tensors, which not everything has. */
static int validate_load(const struct experiment *self, struct cb_err *err)
{
    static const enum option_id keys[] = {OPT_LOAD_DP,       OPT_LOAD_TP,       OPT_LOAD_PP,
                                          OPT_LOAD_EP,       OPT_LOAD_ZERO,     OPT_LOAD_MESH,
                                          OPT_LOAD_SHARDING, OPT_LOAD_PP_SPLIT, OPT_LOAD_STATE};
    const char *load_split = experiment_text(self, OPT_LOAD_PP_SPLIT);
    const char *load_sharding = experiment_text(self, OPT_LOAD_SHARDING);
    if (strcmp(load_split, "saved") != 0 && strcmp(load_split, "balanced") != 0 && strcmp(load_split, "even") != 0 &&
        !is_layer_list(load_split))
        return cb_fail(err, CB_ERR_USAGE, "load.pp.split=%s: must be saved, balanced, even, or layers a stage as 8+8+7",
                       load_split);
    if (strcmp(load_sharding, "saved") != 0 && !is_sharding(load_sharding))
        return cb_fail(err, CB_ERR_USAGE, "load.sharding=%s: must be saved, none, full, or hybrid(n) with n from 1",
                       load_sharding);
    if (experiment_is(self, OPT_WORKLOAD, "checkpoint") && !experiment_is(self, OPT_ENGINE, "command"))
        return 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(experiment_text(self, keys[i]), option_row(keys[i])->fallback) != 0)
            return cb_fail(err, CB_ERR_USAGE,
                           "%s=%s needs tensors to lay out: workload=%s with engine=%s has none of its own",
                           option_row(keys[i])->name, experiment_text(self, keys[i]),
                           experiment_text(self, OPT_WORKLOAD), experiment_text(self, OPT_ENGINE));
    return 0;
}

/* A device's memory is reached by copies, which only the native engine makes. */
static int validate_device(const struct experiment *self, struct cb_err *err)
{
    if (!experiment_is(self, OPT_DEVICE, "cuda"))
        return 0;
    if (!experiment_is(self, OPT_WORKLOAD, "checkpoint"))
        return cb_fail(
            err, CB_ERR_USAGE,
            "device=cuda is for workload=checkpoint: workload=%s works in this machine's memory (and the suite "
            "looks for GPUs by itself)",
            experiment_text(self, OPT_WORKLOAD));
    if (!experiment_is(self, OPT_ENGINE, "native"))
        return cb_fail(err, CB_ERR_USAGE, "device=cuda needs engine=native, not engine=%s",
                       experiment_text(self, OPT_ENGINE));
    return 0;
}

int experiment_validate(const struct experiment *self, struct cb_err *err)
{
    int rc = validate_texts(self, err);
    if (rc == 0)
        rc = validate_layout(self, err);
    if (rc == 0)
        rc = validate_engine(self, err);
    if (!rc)
        rc = validate_copies(self, err);
    if (rc == 0)
        rc = validate_load(self, err);
    if (rc == 0)
        rc = validate_suite(self, err);
    if (rc == 0)
        rc = validate_train(self, err);
    if (rc == 0)
        rc = validate_device(self, err);
    if (rc)
        return rc;
    if (experiment_is(self, OPT_OPS, "load") && *experiment_text(self, OPT_SUFFIX) == '\0')
        return cb_fail(err, CB_ERR_USAGE,
                       "ops=load needs suffix=NAME, the checkpoint to load; a run with ops=save prints its own");
    if (experiment_u64(self, OPT_IO_FANOUT) > 0 && !experiment_is(self, OPT_FORMAT, "raw"))
        return cb_fail(err, CB_ERR_USAGE, "io.fanout=%s needs format=raw: %s keeps its files in one folder",
                       experiment_text(self, OPT_IO_FANOUT), experiment_text(self, OPT_FORMAT));
    if (experiment_u64(self, OPT_IO_BLOCK) % 4096)
        return cb_fail(err, CB_ERR_USAGE, "io.block=%s: must be a multiple of 4KiB",
                       experiment_text(self, OPT_IO_BLOCK));
    return 0;
}

/* ---- frozen as YAML ---- */

/* Texts that read back as they are without quotes, in any YAML reader. */
static bool is_plain_text(const char *text)
{
    if (!isalnum((unsigned char)*text) || strstr(text, ".."))
        return false;
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr("._+-", *text))
            return false;
    return true;
}

static void write_quoted(struct buf *out, const char *text)
{
    buf_append_char(out, '"');
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            buf_printf(out, "\\%c", *at);
        else if (*at == '\n')
            buf_append_text(out, "\\n");
        else if (*at == '\t')
            buf_append_text(out, "\\t");
        else if (*at < 0x20 || *at == 0x7F)
            buf_printf(out, "\\x%02x", *at);
        else if (at[0] == 0xC2 && at[1] < 0xA0) /* C1 controls: U+0080 … U+009F, NEL among them */
            buf_printf(out, "\\x%02x", *++at);
        else if (at[0] == 0xE2 && at[1] == 0x80 && (at[2] == 0xA8 || at[2] == 0xA9)) { /* line separators */
            buf_printf(out, "\\u20%02x", at[2] - 0x80);
            at += 2;
        } else if (at[0] == 0xEF && ((at[1] == 0xBB && at[2] == 0xBF) || (at[1] == 0xBF && at[2] >= 0xBE))) {
            buf_printf(out, "\\u%s", at[1] == 0xBB ? "feff" : at[2] == 0xBE ? "fffe" : "ffff");
            at += 2;
        } else
            buf_append_char(out, (char)*at);
    }
    buf_append_char(out, '"');
}

static void write_member(struct buf *out, const char *prefix, const char *key, const char *value)
{
    buf_printf(out, "%s%s: ", prefix, key);
    if (is_plain_text(value))
        buf_append_text(out, value);
    else
        write_quoted(out, value);
    buf_append_char(out, '\n');
}

int experiment_write_yaml(const struct experiment *self, struct buf *out, struct cb_err *err)
{
    buf_printf(out, "version: %d\n", EXPERIMENT_VERSION);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        write_member(out, "", option_row((enum option_id)i)->name, self->values[i].text);
    for (size_t i = 0; i < self->label_count; i++)
        write_member(out, LABEL_PREFIX, self->labels[i].key, self->labels[i].value);
    return buf_check(out, "the frozen experiment", err);
}

static int check_version(const char *name, const struct setting_list *settings, struct cb_err *err)
{
    char ours[16];
    snprintf(ours, sizeof ours, "%d", EXPERIMENT_VERSION);
    for (size_t i = 0; i < settings->count; i++) {
        const struct setting *item = &settings->items[i];
        if (strcmp(item->key, "version") != 0)
            continue;
        if (strcmp(item->values[0], ours) != 0)
            return cb_fail(
                err, CB_ERR_FORMAT,
                "%s: experiment of version %s, and this program reads version %s: use the release that wrote it",
                item->origin, item->values[0], ours);
        return 0;
    }
    return cb_fail(err, CB_ERR_FORMAT, "%s: no `version:`; this is not a frozen experiment", name);
}

static int set_all(struct experiment *self, const struct setting_list *settings, struct cb_err *err)
{
    for (size_t i = 0; i < settings->count; i++) {
        const struct setting *item = &settings->items[i];
        if (strcmp(item->key, "version") == 0)
            continue;
        if (item->value_count != 1)
            return cb_fail(err, CB_ERR_FORMAT, "%s: %s has %zu values; a frozen experiment has one", item->origin,
                           item->key, item->value_count);
        int rc = experiment_set(self, item->key, item->values[0], item->origin, err);
        if (rc)
            return rc;
    }
    return 0;
}

static bool is_default(const struct experiment *self, enum option_id id)
{
    struct option_value fallback;
    if (option_parse(id, option_row(id)->fallback, &fallback, NULL))
        return false;
    bool same = strcmp(fallback.text, self->values[id].text) == 0;
    option_value_release(&fallback);
    return same;
}

int experiment_read_yaml(const char *name, const char *text, size_t len, struct experiment **self, struct cb_err *err)
{
    struct setting_list settings = {0};
    struct experiment *fresh = NULL;
    int rc = len > MAX_YAML_BYTES ? cb_fail(err, CB_ERR_FORMAT, "%s: %zu bytes are no experiment", name, len) : 0;
    if (rc == 0)
        rc = yaml_read_settings(name, text, len, &settings, err);
    if (rc == 0)
        rc = check_version(name, &settings, err);
    if (rc == 0)
        rc = experiment_new(&fresh, err);
    if (rc == 0)
        rc = set_all(fresh, &settings, err);
    setting_list_release(&settings);
    if (rc) {
        experiment_free(fresh);
        return rc;
    }
    for (size_t i = 0; i < OPTION_COUNT; i++)
        fresh->was_set[i] = !is_default(fresh, (enum option_id)i);
    *self = fresh;
    return 0;
}

/* ---- identity ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(option_row(*(const enum option_id *)a)->name, option_row(*(const enum option_id *)b)->name);
}

static void append_escaped(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            buf_append_text(out, "\\n");
        else if (*text == '\\')
            buf_append_text(out, "\\\\");
        else
            buf_append_char(out, *text);
    }
}

void experiment_hash(const struct experiment *self, char hash[EXPERIMENT_HASH_LENGTH + 1])
{
    enum option_id ids[OPTION_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (option_row((enum option_id)i)->class == OPTION_IDENTITY && !is_default(self, (enum option_id)i))
            ids[count++] = (enum option_id)i;
    qsort(ids, count, sizeof *ids, by_name);
    struct buf text;
    buf_init(&text, MAX_YAML_BYTES);
    buf_printf(&text, "%d\n", EXPERIMENT_VERSION);
    for (size_t i = 0; i < count; i++) {
        buf_printf(&text, "%s=", option_row(ids[i])->name);
        append_escaped(&text, self->values[ids[i]].text);
        buf_append_char(&text, '\n');
    }
    char hex[65];
    hash_sha256_hex(text.data, text.len, hex);
    memcpy(hash, hex, EXPERIMENT_HASH_LENGTH);
    hash[EXPERIMENT_HASH_LENGTH] = '\0';
    buf_release(&text);
}
