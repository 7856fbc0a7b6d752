/* ckptbench doctor: checks what this machine has and what is missing, with advice. */
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/doctor/doctor_munge.h"
#include "cli/doctor/doctor_s3.h"
#include "cli/doctor/libraries.h"
#include "cli/listing.h"
#include "cli/plan/run_plan.h"
#include "cli/plan/store_location.h"
#include "cli/plan/workload.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/process.h"
#include "core/units.h"
#include "db/history.h"
#include "run/cuda_plugin.h"
#include "run/run_folder.h"
#include "run/sweep.h"
#include "setup/checkpoint_options.h"
#include "store/kind.h"

#define ASK_TIMEOUT_NS (60 * NS_PER_S)
#define SHARED_MEMORY "/dev/shm"
#define SHARED_MEMORY_LOW (64 * MIB) /* status pages need well under 1 MiB a rank */

/* The result of a check. MISSING: something required is missing, exit code 4. */
enum finding { FOUND, LACKING, MISSING };

struct doctor {
    struct experiment *experiment;
    struct listing list;
    bool all_well;
};

static void report(struct doctor *self, const char *name, enum finding finding, const char *found, const char *advice)
{
    static const char *const words[] = {"ok", "lacking", "missing"};
    static const enum table_style styles[] = {TABLE_GOOD, TABLE_WARN, TABLE_BAD};
    self->all_well &= finding != MISSING;
    listing_check(&self->list, name, styles[finding], words[finding], found, finding == FOUND ? NULL : advice);
}

/* ---- programs ---- */

/* The first line that a command prints. On failure returns false and the reason in `line`. */
static bool first_line(const char *const *argv, char *line, size_t room)
{
    struct buf out;
    struct cb_err err = {0};
    const struct child_options options = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    buf_init(&out, MIB);
    int rc = child_capture(&options, ASK_TIMEOUT_NS, &out, &err);
    snprintf(line, room, "%.*s", (int)strcspn(rc ? err.message : out.data, "\n"), rc ? err.message : out.data);
    buf_release(&out);
    return rc == 0;
}

static void check_programs(struct doctor *self)
{
    static const char *const programs[] = {"ckptbench-agent", "ckptbench-worker"};
    char path[PATH_MAX], line[512];
    for (size_t i = 0; i < 2; i++) {
        bool found = process_find_program(programs[i], path);
        report(self, programs[i], found ? FOUND : MISSING, found ? path : "not found",
               "build it with `make`, and keep it beside ckptbench");
    }
    if (!process_find_program("mpirun", path)) {
        report(self, "mpirun", MISSING, "not found",
               "apt-get install openmpi-bin libopenmpi-dev, and build again; one rank runs with launcher=none");
        return;
    }
    const char *const argv[] = {path, "--version", NULL};
    bool works = first_line(argv, line, sizeof line);
    report(self, "mpirun", works ? FOUND : MISSING, line, "`mpirun --version` must work: repair the MPI installation");
}

/* The ranks do not need munged, but Open MPI's PMIx contacts it whenever mpirun starts. */
static void check_munge(struct doctor *self)
{
    static const char *const found[] = {
        [MUNGE_ABSENT] = "none, and none is needed",
        [MUNGE_ANSWERS] = "munged answers at " MUNGE_SOCKET,
        [MUNGE_DEAD] = "nobody answers at " MUNGE_SOCKET ": Open MPI tries for 2 s before it starts ranks",
    };
    enum munge munge = munge_look(MUNGE_SOCKET);
    report(self, "munge", munge == MUNGE_DEAD ? LACKING : FOUND, found[munge],
           "`systemctl start munge`, or `rm " MUNGE_SOCKET "` where no munged is wanted");
}

static void check_python(struct doctor *self)
{
    static const char script[] = "import torch, sys; print('Python', sys.version.split()[0] + ', torch', "
                                 "torch.__version__)";
    char path[PATH_MAX], folder[PATH_MAX], line[512];
    const char *given = getenv("CKPTBENCH_PYTHON");
    process_folder(folder);
    snprintf(path, sizeof path, "%.*s/venv/bin/python", PATH_MAX - 32, folder);
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else if (access(path, X_OK) < 0)
        snprintf(path, sizeof path, "python3");
    const char *const argv[] = {path, "-c", script, NULL};
    bool works = first_line(argv, line, sizeof line);
    bool needed = experiment_is_in_python(self->experiment);
    report(
        self, "torch",
        works    ? FOUND
        : needed ? MISSING
                 : LACKING,
        line,
        "engine=torch-dcp and torch-native need it: pip install torch numpy, and name that Python in CKPTBENCH_PYTHON");
}

static void check_libraries(struct doctor *self)
{
    for (size_t i = 0; i < library_count(); i++) {
        const struct library *library = library_at(i);
        char advice[160];
        snprintf(advice, sizeof advice, "apt-get install %s, and build again", library->package);
        report(self, library->name, library->present ? FOUND : LACKING,
               library->present ? library->gives : library->without_it, advice);
    }
}

/* Needed only by device=cuda. The worker loads the plugin; this program does not. */
static void check_gpus(struct doctor *self)
{
    char path[PATH_MAX], line[1024];
    struct cb_err err = {0};
    enum finding without = experiment_is(self->experiment, OPT_DEVICE, "cuda") ? MISSING : LACKING;
    if (cuda_plugin_find(path, sizeof path, &err)) {
        bool named = getenv(CUDA_PLUGIN_VARIABLE) != NULL;
        report(self, "gpu", without, named ? err.message : "this build has no CUDA plugin",
               "device=cuda, and the suite's section gpu, need one: `make cuda`, or name one in " CUDA_PLUGIN_VARIABLE);
        return;
    }
    if (!process_find_program("ckptbench-worker", path))
        return; /* reported already */
    const char *const argv[] = {path, "--devices", NULL};
    bool works = first_line(argv, line, sizeof line) && strncmp(line, "none: ", strlen("none: ")) != 0;
    report(self, "gpu", works ? FOUND : without, line,
           "device=cuda, and the suite's section gpu, need a GPU and its driver (nvidia-smi lists them); all else does "
           "not");
}

/* ---- machine ---- */

static void check_cores(struct doctor *self)
{
    char text[128];
    cpu_set_t allowed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int ours = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : (int)online;
    uint64_t ranks = experiment_u64(self->experiment, OPT_RANKS);
    snprintf(text, sizeof text, "%d of %ld", ours, online);
    bool enough = ranks <= (uint64_t)ours;
    report(self, "cores", enough ? FOUND : LACKING, text, "more ranks than cores: they share, and times get noisy");
}

/* A value of /proc/meminfo in bytes; 0 if it is missing. */
static uint64_t meminfo(const char *key)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    unsigned long long kib = 0;
    size_t len = strlen(key);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, len) == 0 && line[len] == ':')
            kib = strtoull(line + len + 1, NULL, 10);
    if (file)
        fclose(file);
    return (uint64_t)kib * KIB;
}

static void check_memory(struct doctor *self)
{
    char text[128], available[32], total[32];
    uint64_t free_bytes = meminfo("MemAvailable");
    snprintf(text, sizeof text, "%s available of %s", units_format_bytes((double)free_bytes, available),
             units_format_bytes((double)meminfo("MemTotal"), total));
    report(self, "memory", free_bytes >= GIB ? FOUND : LACKING, text,
           "close what takes memory, or take a smaller model, layers=n, or more machines");
}

/* If model= is given: reports why a run of it would be rejected. */
static void check_run(struct doctor *self)
{
    struct cb_err err = {0};
    char text[64];
    uint32_t ranks;
    if (!experiment_was_set(self->experiment, OPT_MODEL))
        return;
    int rc = run_plan_check(self->experiment, &ranks, &err);
    snprintf(text, sizeof text, "room for %u rank%s", ranks, units_plural(ranks));
    report(self, "run", rc ? MISSING : FOUND, rc ? err.message : text, "change these keys, or run it elsewhere");
}

static void check_memlock(struct doctor *self)
{
    char text[64], limit_text[32], advice[128];
    struct rlimit limit = {0};
    uint64_t needed = experiment_u64(self->experiment, OPT_IO_BLOCK) * experiment_u64(self->experiment, OPT_IO_DEPTH);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0) {
        report(self, "memlock", LACKING, "unknown", "`ulimit -l` should tell it");
        return;
    }
    bool enough = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed || geteuid() == 0;
    snprintf(text, sizeof text, "%s%s",
             limit.rlim_cur == RLIM_INFINITY ? "unlimited" : units_format_bytes((double)limit.rlim_cur, limit_text),
             geteuid() == 0 ? ", root needs none" : "");
    snprintf(advice, sizeof advice,
             "`ulimit -l unlimited`: registered buffers take %s a rank; without, plain io_uring is used",
             units_format_bytes((double)needed, limit_text));
    report(self, "memlock", enough ? FOUND : LACKING, text, advice);
}

/* The kernel checks permission before it checks the arguments, so EFAULT means that we have permission. */
static void check_io_uring(struct doctor *self)
{
    long rc = syscall(SYS_io_uring_setup, 1, NULL);
    int why = rc < 0 ? errno : 0;
    if (rc >= 0)
        close((int)rc);
    bool allowed = rc >= 0 || why == EFAULT;
    report(
        self, "io_uring", allowed ? FOUND : LACKING,
        allowed         ? "allowed"
        : why == ENOSYS ? "this kernel has none"
                        : "forbidden here",
        "`sysctl kernel.io_uring_disabled=0`, or let the container's seccomp profile pass it; psync is used instead");
}

static void check_shared_memory(struct doctor *self)
{
    struct statfs space;
    char text[64], free_text[32];
    if (statfs(SHARED_MEMORY, &space) < 0 || space.f_type != TMPFS_MAGIC) {
        report(self, "shared memory", MISSING, SHARED_MEMORY " is no tmpfs",
               "mount a tmpfs there: ranks keep their status pages in it");
        return;
    }
    uint64_t free_bytes = (uint64_t)space.f_bavail * (uint64_t)space.f_bsize;
    snprintf(text, sizeof text, "%s free in " SHARED_MEMORY, units_format_bytes((double)free_bytes, free_text));
    report(self, "shared memory", free_bytes >= SHARED_MEMORY_LOW ? FOUND : LACKING, text,
           "enlarge it (docker run --shm-size=1g): MPI and the status pages of ranks live there");
}

/* ---- store and history ---- */

static void check_space(struct doctor *self, const struct store_location *place)
{
    char text[128], free_text[32], needed_text[32];
    struct model *model = NULL;
    struct layout *layout = NULL;
    const struct layout_options options = layout_options_of(self->experiment);
    uint64_t needed = 0;
    if (experiment_was_set(self->experiment, OPT_MODEL) && workload_load_model(self->experiment, &model, NULL) == 0 &&
        layout_new(model, &options, &layout, NULL) == 0)
        needed = layout_total_bytes(layout);
    layout_free(layout);
    model_free(model);
    units_format_bytes((double)place->free_bytes, free_text);
    if (needed)
        snprintf(text, sizeof text, "%s free, a checkpoint takes %s", free_text,
                 units_format_bytes((double)needed, needed_text));
    else
        snprintf(text, sizeof text, "%s free", free_text);
    report(self, "space", place->free_bytes > needed ? FOUND : MISSING, text,
           "free space there, or give another store=, a smaller model= or layers=n");
}

static void check_direct(struct doctor *self, const struct store_location *place)
{
    char text[128];
    if (!place->direct_works)
        snprintf(text, sizeof text, "%s refuses it", place->filesystem);
    else if (place->direct_offset_alignment)
        snprintf(text, sizeof text, "works, offsets at multiples of %u, memory of %u", place->direct_offset_alignment,
                 place->direct_memory_alignment);
    else
        snprintf(text, sizeof text, "works at 4096; the kernel does not tell the least alignment");
    report(self, "O_DIRECT", place->direct_works ? FOUND : LACKING, text,
           "io.direct=auto writes buffered there; loads then may come from memory");
}

static void report_s3(void *context, const char *name, bool fine, const char *found, const char *advice)
{
    report(context, name, fine ? FOUND : MISSING, found, advice);
}

static int check_place(struct doctor *self, const char *store, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(store);
    struct store_location place;
    char text[4096 + 512];
    int rc = store_location_find(store, &place, err);
    if (rc)
        return rc;
    if (!place.is_path) {
        report(self, "store", FOUND, store, NULL);
        if (uri.kind->is_objects)
            doctor_s3_check(uri.inner, self->experiment, report_s3, self);
        return 0;
    }
    snprintf(text, sizeof text, "%s: %s on %s%s", place.path, *place.filesystem ? place.filesystem : "unknown",
             *place.device ? place.device : "unknown", strcmp(place.path, place.existing) ? " (not there yet)" : "");
    report(self, "store", place.writable ? FOUND : MISSING, text,
           "not writable for this user: chown or chmod it, or give another store=");
    check_space(self, &place);
    if (place.writable)
        check_direct(self, &place);
    return 0;
}

static int check_store(struct doctor *self, struct cb_err *err)
{
    const char *store = experiment_text(self->experiment, OPT_STORE);
    struct store_uri uri = store_uri_of(store);
    if (!uri.kind->is_mounts)
        return check_place(self, store, err);
    int rc = 0;
    for (const char *rest = uri.inner; rest && !rc;) {
        char path[PATH_MAX];
        rc = store_next_mount(&rest, path, err);
        if (!rc)
            rc = check_place(self, path, err);
    }
    return rc;
}

static void check_history(struct doctor *self)
{
    struct buf home;
    struct cb_err err = {0};
    struct store_location place;
    struct history *history = NULL;
    int rc;
    buf_init(&home, PATH_MAX);
    if (home_folder(&home, &err) || store_location_find(home.data, &place, &err)) {
        report(self, "history", MISSING, err.message, "set CKPTBENCH_HOME to a folder of yours");
    } else if ((rc = history_open_read_only(NULL, &history, &err)) != 0 && rc != CB_ERR_NOT_FOUND) {
        report(self, "history", MISSING, err.message, "no run can be stored or shown until it can be opened");
    } else {
        char text[2 * PATH_MAX + 128];
        snprintf(text, sizeof text, "runs in %s on %s%s%s", home.data, place.filesystem,
                 history ? ", their index in " : "", history ? history_path(history) : "");
        report(self, "history", place.writable ? FOUND : MISSING, text,
               "runs are stored there: set CKPTBENCH_HOME to a folder that you may write to");
    }
    history_close(history);
    buf_release(&home);
}

/* ---- the verb ---- */

static int check_all(struct doctor *self, struct cb_err *err)
{
    check_programs(self);
    check_munge(self);
    check_libraries(self);
    check_gpus(self);
    check_cores(self);
    check_memory(self);
    check_memlock(self);
    check_io_uring(self);
    check_shared_memory(self);
    int rc = check_store(self, err);
    if (!rc)
        check_run(self);
    check_history(self);
    check_python(self);
    return rc;
}

static int run_doctor(struct cli *cli, struct cb_err *err)
{
    struct doctor self = {.all_well = true};
    struct sweep sweep;
    int rc = sweep_expand(&cli->settings, &sweep, err);
    if (rc)
        return rc;
    self.experiment = sweep.members[0].experiment;
    listing_init_checks(&self.list, cli, NULL);
    rc = store_location_freeze(sweep.members[0].experiment, err);
    if (rc == 0)
        rc = check_all(&self, err);
    rc = listing_end_checks(&self.list, self.all_well, rc, err);
    if (rc == 0 && !cli->json)
        buf_append_text(&cli->out, self.all_well ? "\nready: everything that is required is here\n"
                                                 : "\nnot ready: something required is missing\n");
    sweep_release(&sweep);
    return rc;
}

const struct verb verb_doctor = {
    .name = "doctor",
    .arguments = "[key=value…]",
    .summary = "what is here, what is missing, and what to do about it",
    .about =
        "Give the store and the model that you mean to run: it looks at that file system and its space. Exit code 4 "
        "when something required is missing.",
    .example = "ckptbench doctor store=./ckpt model=gpt2",
    .takes_experiment = true,
    .run = run_doctor,
};
