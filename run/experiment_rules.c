/* Checks keys of an experiment against each other, as far as that requires neither model nor machine. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"
#include "run/container.h"
#include "run/experiment.h"
#include "run/thresholds.h"
#include "run/workload_kind.h"

#define MAX_HOST_BYTES 255

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

/* Words for ssh: no word may look like an option, or be more than one word to a shell. */
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
        return cb_fail(err, CB_ERR_USAGE, "store= is empty; give %s", option_row(OPT_STORE)->help);
    if (strcmp(files, "rank") != 0 && strcmp(files, "item") != 0 && strcmp(files, "shared") != 0 &&
        !is_number_from_1(files))
        return cb_fail(err, CB_ERR_USAGE, "io.files=%s: must be rank, item, shared, or a number of files a rank",
                       files);
    if (strcmp(split, "balanced") != 0 && strcmp(split, "even") != 0 && !is_layer_list(split))
        return cb_fail(err, CB_ERR_USAGE, "pp.split=%s: must be balanced, even, or layers a stage as 8+8+7", split);
    if (!is_sharding(sharding))
        return cb_fail(err, CB_ERR_USAGE, "sharding=%s: must be none, full, or hybrid(n) with n from 1", sharding);
    struct container container;
    int rc = validate_hosts(self, err);
    if (rc == 0)
        rc = container_parse(experiment_text(self, OPT_CONTAINER), &container, err);
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

/* Rejects keys that another engine does not support. Keys that it merely ignores (blocks, depths) are allowed, since a
 * sweep over engines sets them for all. */
static int validate_engine(const struct experiment *self, struct cb_err *err)
{
    const char *engine = experiment_text(self, OPT_ENGINE), *files = experiment_text(self, OPT_IO_FILES);
    bool is_dcp = experiment_is(self, OPT_ENGINE, "torch-dcp");
    if (experiment_is(self, OPT_ENGINE, "native"))
        return 0;
    if (!workload_kind_of(self)->uses_engine)
        return cb_fail(err, CB_ERR_USAGE, "workload=%s is done by engine=native, not by engine=%s",
                       workload_kind_of(self)->name, engine);
    if (is_dcp && strcmp(files, "rank") != 0)
        return cb_fail(err, CB_ERR_USAGE, "io.files=%s: engine=torch-dcp writes one file a rank", files);
    if (experiment_is_in_python(self) && !experiment_is(self, OPT_FORMAT, "dcp"))
        return cb_fail(err, CB_ERR_USAGE, "engine=%s writes format=dcp only", engine);
    if (is_dcp && experiment_is(self, OPT_SAVE_DEDUP, "none"))
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
    if (!experiment_is(self, OPT_ENGINE, "native") || !workload_kind_of(self)->uses_engine)
        why = "checkpoints of workload=checkpoint with engine=native alone have copies";
    else if (experiment_bool(self, OPT_SAVE_ASYNC))
        why = "a save that goes on behind (save.async) writes one copy";
    else if (strcmp(experiment_text(self, OPT_IO_FILES), "shared") == 0)
        why = "a file that all ranks share (io.files=shared) has one copy";
    return why ? cb_fail(err, CB_ERR_USAGE, "copies=%llu: %s", (unsigned long long)copies, why) : 0;
}

/* A failed iteration must not influence the next one. */
static int validate_on_error(const struct experiment *self, struct cb_err *err)
{
    const char *why = NULL;
    if (!experiment_is(self, OPT_ON_ERROR, "continue"))
        return 0;
    if (!workload_kind_of(self)->has_layout)
        why = "is for workload=checkpoint and workload=raw (a training goes on by itself when the store fails a save)";
    else if (!experiment_is(self, OPT_ENGINE, "native"))
        why = "is for engine=native: the failure of another program does not say whether the store caused it";
    else if (experiment_bool(self, OPT_SAVE_ASYNC))
        why = "does not go with save.async, whose failures belong to an earlier iteration";
    else if (experiment_u64(self, OPT_KEEP_LAST) > 0)
        why = "does not go with keep.last, which counts iterations whether they failed or not";
    return why ? cb_fail(err, CB_ERR_USAGE, "on_error=continue %s", why) : 0;
}

static int validate_suite(const struct experiment *self, struct cb_err *err)
{
    static const char *const sections[] = {"net", "storage", "cpu", "memory", "gpu"};
    const char *only = experiment_text(self, OPT_SUITE_ONLY);
    struct thresholds rules;
    if (workload_kind_of(self)->measures_cluster && !experiment_is(self, OPT_OPS, "save+load"))
        return cb_fail(err, CB_ERR_USAGE, "ops=%s is for checkpoints: the suite writes and reads what it needs",
                       experiment_text(self, OPT_OPS));
    for (const char *at = only; at && strcmp(only, "all") != 0; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL) {
        size_t len = strcspn(at, "+"), i = 0;
        while (i < sizeof sections / sizeof *sections &&
               (strlen(sections[i]) != len || strncmp(sections[i], at, len) != 0))
            i++;
        if (i == sizeof sections / sizeof *sections)
            return cb_fail(err, CB_ERR_USAGE,
                           "suite.only=%s: must be all, or some of net, storage, cpu, memory, gpu joined by +", only);
    }
    int rc = thresholds_parse(experiment_text(self, OPT_SUITE_FAIL_BELOW), &rules, err);
    if (rc)
        return cb_context(err, "suite.fail_below");
    for (size_t i = 0; i < rules.count; i++)
        if (!metric_is_of_suite(rules.items[i].metric))
            return cb_fail(err, CB_ERR_USAGE,
                           "suite.fail_below: %s is no figure of the suite; those of docs/metrics.md from %s to %s are",
                           metric_row(rules.items[i].metric)->name, metric_row(METRIC_NET_LATENCY_S)->name,
                           metric_row(METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S)->name);
    return 0;
}

/* Ranges that the option table cannot express. */
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
    if (!workload_kind_of(self)->trains)
        return 0;
    if (!experiment_is(self, OPT_OPS, "save+load"))
        return cb_fail(err, CB_ERR_USAGE,
                       "ops=%s is for checkpoints: a training saves as train.checkpoint_every says, and loads with "
                       "train.resume=latest",
                       experiment_text(self, OPT_OPS));
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

/* Loading in another layout requires tensors, which some formats and engines do not have. */
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
    const char *waste = experiment_text(self, OPT_LOAD_WASTE);
    uint64_t percent;
    if (strcmp(waste, "auto") != 0 && units_parse_u64(waste, &percent, NULL))
        return cb_fail(err, CB_ERR_USAGE, "load.waste=%s: must be auto, or percent of what a load needs", waste);
    if (workload_kind_of(self)->uses_engine && !experiment_is(self, OPT_ENGINE, "command"))
        return 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(experiment_text(self, keys[i]), option_row(keys[i])->fallback) != 0)
            return cb_fail(err, CB_ERR_USAGE,
                           "%s=%s needs tensors to lay out: workload=%s with engine=%s has none of its own",
                           option_row(keys[i])->name, experiment_text(self, keys[i]), workload_kind_of(self)->name,
                           experiment_text(self, OPT_ENGINE));
    return 0;
}

/* State in device memory requires copies, which only the native engine makes. */
static int validate_device(const struct experiment *self, struct cb_err *err)
{
    if (!experiment_is(self, OPT_DEVICE, "cuda"))
        return 0;
    if (!workload_kind_of(self)->uses_engine && !workload_kind_of(self)->trains)
        return cb_fail(err, CB_ERR_USAGE,
                       "device=cuda is for workload=checkpoint and workload=train: workload=%s works in this machine's "
                       "memory (and the suite looks for GPUs by itself)",
                       workload_kind_of(self)->name);
    if (!experiment_is(self, OPT_ENGINE, "native"))
        return cb_fail(err, CB_ERR_USAGE, "device=cuda needs engine=native, not engine=%s",
                       experiment_text(self, OPT_ENGINE));
    return 0;
}

const char *experiment_rules_out_gds(const struct experiment *self)
{
    return !experiment_is(self, OPT_CHECKSUM, "none")
               ? "checksums need the bytes in this machine's memory; checksum=none leaves them out"
           : experiment_bool(self, OPT_SAVE_ASYNC) ? "save.async=true copies the state to this machine's memory"
           : !experiment_is(self, OPT_LOAD_EXCHANGE, "off")
               ? "load.exchange passes on what passes through this machine's memory; it must be off"
           : experiment_is(self, OPT_IO_DIRECT, "false") ? "it needs O_DIRECT, which io.direct=false forbids"
           : workload_kind_of(self)->trains && experiment_bool(self, OPT_TRAIN_CPU_OFFLOAD)
               ? "train.cpu_offload=true keeps what is saved in this machine's memory"
               : NULL;
}

static int validate_gds(const struct experiment *self, struct cb_err *err)
{
    const char *value = experiment_text(self, OPT_IO_GDS), *why = experiment_rules_out_gds(self);
    if (strcmp(value, "off") == 0)
        return 0;
    if (!experiment_is(self, OPT_DEVICE, "cuda"))
        return cb_fail(err, CB_ERR_USAGE, "io.gds=%s is for states on a GPU: it needs device=cuda", value);
    if (workload_kind_of(self)->trains && strcmp(experiment_text(self, OPT_TRAIN_CHECKPOINT_EVERY), "0") == 0 &&
        !experiment_is(self, OPT_TRAIN_RESUME, "latest"))
        return cb_fail(err, CB_ERR_USAGE,
                       "io.gds=%s is for checkpoints, and this training has none: give train.checkpoint_every=STEPS",
                       value);
    return strcmp(value, "on") == 0 && why ? cb_fail(err, CB_ERR_USAGE, "io.gds=on: %s", why) : 0;
}

static int validate_files(const struct experiment *self, struct cb_err *err)
{
    static const enum option_id around_loads[] = {OPT_LOAD_EVICT, OPT_LOAD_DATASET};
    static const uint64_t decimal[] = {1000000000, 1000000, 1000}, binary[] = {GIB, MIB, KIB};
    uint64_t bytes = experiment_u64(self, OPT_IO_BLOCK), meant = bytes / 4096 * 4096 + 4096;
    char text[32];
    if (experiment_is(self, OPT_OPS, "load") && *experiment_text(self, OPT_SUFFIX) == '\0')
        return cb_fail(err, CB_ERR_USAGE,
                       "ops=load needs suffix=NAME, the checkpoint to load; a run with ops=save prints its own");
    bool loads = workload_kind_of(self)->has_layout && !experiment_is(self, OPT_OPS, "save");
    for (size_t i = 0; i < sizeof around_loads / sizeof *around_loads; i++)
        if (experiment_u64(self, around_loads[i]) > 0 && !loads)
            return cb_fail(err, CB_ERR_USAGE, "%s=%s is for loads, and there are none",
                           option_row(around_loads[i])->name, experiment_text(self, around_loads[i]));
    if (bytes % 4096 == 0)
        return 0;
    for (size_t i = 3; i-- > 0;) /* 4MB was probably meant as 4MiB */
        if (bytes % decimal[i] == 0 && bytes / decimal[i] * binary[i] % 4096 == 0)
            meant = bytes / decimal[i] * binary[i];
    return cb_fail(err, CB_ERR_USAGE, "io.block=%s: must be a multiple of 4KiB; did you mean %s?",
                   experiment_text(self, OPT_IO_BLOCK), units_format_bytes_exact(meant, text));
}

static int validate_watch(const struct experiment *self, struct cb_err *err)
{
    for (unsigned id = 0; id < OPTION_COUNT && workload_kind_of(self)->watches; id++)
        if (!workload_uses(workload_kind_of(self), (enum option_id)id) && experiment_was_set(self, (enum option_id)id))
            return cb_fail(err, CB_ERR_USAGE,
                           "%s=%s has no effect with workload=watch: the command decides what it saves, and how",
                           option_row((enum option_id)id)->name, experiment_text(self, (enum option_id)id));
    return 0;
}

int experiment_validate(const struct experiment *self, struct cb_err *err)
{
    static int (*const rules[])(const struct experiment *self, struct cb_err *err) = {
        validate_texts, validate_layout, validate_engine, validate_copies, validate_load,     validate_suite,
        validate_train, validate_device, validate_gds,    validate_files,  validate_on_error, validate_watch};
    int rc = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules && rc == 0; i++)
        rc = rules[i](self, err);
    return rc;
}
