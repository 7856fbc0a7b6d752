/* Saves and loads of libckptbench recorded as a run, and how recording fails without harm. */
#include "library_ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/json.h"
#include "lib/packing.h"
#include "run/metrics.h"

#define TEXT_MOST (1 << 20)

static void use_home(const char *name)
{
    char home[128];
    snprintf(home, sizeof home, "%s/%s", folder, name);
    assert_int_equal(setenv("CKPTBENCH_HOME", home, 1), 0);
}

/* The text of all files in a folder of lines. Freed by the caller. */
static struct buf read_lines(const char *name)
{
    char path[256], file[600];
    struct buf text;
    buf_init(&text, TEXT_MOST);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DIR *entries = opendir(path);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct buf one;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        buf_init(&one, TEXT_MOST);
        assert_int_equal(buf_read_file(&one, file, NULL), 0);
        buf_append(&text, one.data, one.len);
        buf_release(&one);
    }
    closedir(entries);
    return text;
}

static uint32_t count(const struct buf *text, const char *part)
{
    uint32_t found = 0;
    for (const char *at = text->data; at && (at = strstr(at, part)); at++)
        found++;
    return found;
}

struct texts {
    pthread_mutex_t lock;
    char said[4][1024]; /* by rank 0 */
    bool has_failed;
};

/* Saves, saves asynchronously, loads; each with what the error said. */
static void work(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct texts *texts = context;
    struct described_state state;
    float matrix[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char to[4][192];
    (void)ranks;
    for (int i = 0; i < 4; i++)
        snprintf(to[i], sizeof to[i], "%s/checkpoints/%d", folder, i < 3 ? i : 0);
    describe_nothing(&state);
    add_tensor(&state, "matrix", "float32", 1, (uint64_t[]){8});
    add_region(&state, matrix, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        struct ckptbench_error error = {.code = 7, .text = "before"};
        int code = i == 1   ? ckptbench_save_async(handle, to[i], &state.state, NULL, &error)
                   : i == 3 ? ckptbench_load(handle, to[i], &state.state, NULL, &error)
                            : ckptbench_save(handle, to[i], &state.state, NULL, &error);
        if (code)
            print_error("call %d of rank %u: %s\n", i, rank, error.text);
        pthread_mutex_lock(&texts->lock);
        texts->has_failed = texts->has_failed || code || error.code;
        if (rank == 0)
            snprintf(texts->said[i], sizeof texts->said[i], "%s", error.text);
        pthread_mutex_unlock(&texts->lock);
    }
}

static void run(uint32_t ranks, const char *word, struct texts *texts)
{
    const char *const words[] = {word, "label.job=unit", "folder=overwrite", NULL};
    *texts = (struct texts){.lock = PTHREAD_MUTEX_INITIALIZER};
    run_ranks(ranks, words, work, texts);
    assert_false(texts->has_failed);
}

static void each_save_and_load_of_each_rank_is_a_line(void **unused)
{
    struct texts texts;
    (void)unused;
    use_home("home");
    run(3, "record=training", &texts);
    for (int i = 0; i < 4; i++)
        assert_string_equal(texts.said[i], "");
    struct buf lines = read_lines("home/runs/training/attempts/1/watch");
    assert_int_equal(count(&lines, "\"op\": \"process\""), 3);
    assert_int_equal(count(&lines, "\"op\": \"save\""), 9);
    assert_int_equal(count(&lines, "\"op\": \"load\""), 3);
    assert_int_equal(count(&lines, "\"op\": \"end\""), 3);
    assert_int_equal(count(&lines, "\"world\": 3"), 18);
    assert_int_equal(count(&lines, "\"asynchronous\": true"), 3);
    assert_int_equal(count(&lines, "\"failed\": true"), 0);
    assert_int_equal(count(&lines, "\"stall_s\""), 9);
    assert_int_equal(count(&lines, "\"requests\""), 12);
    buf_release(&lines);
    assert_true(exists("home/runs/training/experiment.yaml"));
    clear();
}

/* As a program that starts again before anybody has sealed its first attempt. */
static void the_environment_names_a_run_and_a_folder_may_be_anywhere(void **unused)
{
    struct texts texts;
    char word[128];
    (void)unused;
    use_home("home");
    assert_int_equal(setenv("CKPTBENCH_RUN", "by-environment", 1), 0);
    run(1, "copies=1", &texts);
    assert_true(exists("home/runs/by-environment/attempts/1/watch"));
    run(1, "record=", &texts);
    snprintf(word, sizeof word, "record=%s/elsewhere/mine", folder);
    run(1, word, &texts);
    assert_true(exists("elsewhere/mine/attempts/1/watch"));
    unsetenv("CKPTBENCH_RUN");
    struct buf lines = read_lines("home/runs/by-environment/attempts/1/watch");
    assert_int_equal(count(&lines, "\"op\": \"end\""), 1);
    buf_release(&lines);
    clear();
}

static void handles_of_one_process_record_together(void **unused)
{
    struct texts texts;
    (void)unused;
    use_home("home");
    run(2, "record=shared", &texts);
    run(1, "record=shared", &texts);
    assert_false(exists("home/runs/shared/attempts/2"));
    struct buf lines = read_lines("home/runs/shared/attempts/1/watch");
    assert_int_equal(count(&lines, "\"op\": \"save\""), 9);
    assert_int_equal(count(&lines, "\"op\": \"end\""), 3);
    buf_release(&lines);
    clear();
}

static void expect_told_once(const struct texts *texts, const char *part)
{
    if (!strstr(texts->said[0], part) || !strstr(texts->said[0], "not recorded"))
        fail_msg("said: %s", texts->said[0]);
    for (int i = 1; i < 4; i++)
        assert_string_equal(texts->said[i], "");
}

static void a_home_that_is_no_folder_is_told_once_and_saves_pass(void **unused)
{
    struct texts texts;
    (void)unused;
    use_home("file/home");
    char path[128];
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    run(2, "record=training", &texts);
    expect_told_once(&texts, "file");
    clear();
}

static void names_that_are_no_runs_are_told_once_and_saves_pass(void **unused)
{
    static const char *const names[] = {"record=..", "record=a b",     "record=-rf",
                                        "record=/",  "record=a/../..", "record=a\n"};
    struct texts texts;
    (void)unused;
    use_home("home");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        run(1, names[i], &texts);
        expect_told_once(&texts, "no name for a run");
    }
    assert_false(exists("home/runs"));
    clear();
}

/* Records in run `name`, which must not exist yet. Returns the file of this process in its attempt 1. */
static void record_once(const char *name, char file[600])
{
    char path[256];
    struct texts texts;
    snprintf(path, sizeof path, "record=%s/home/runs/%s", folder, name);
    run(1, path, &texts);
    snprintf(path, sizeof path, "%s/home/runs/%s/attempts/1/watch", folder, name);
    DIR *entries = opendir(path);
    assert_non_null(entries);
    file[0] = '\0';
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] != '.')
            snprintf(file, 600, "%s/%s", path, entry->d_name);
    }
    closedir(entries);
    assert_true(file[0] != '\0');
}

/* The file of this process in attempt 1 of run `name` leads to `target`. */
static void plant_file(const char *name, const char *target)
{
    char file[600];
    record_once(name, file);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(symlink(target, file), 0);
}

/* As in a container, whose programs have the same number after each start. */
static void a_program_with_the_number_of_one_that_died_makes_an_attempt_of_its_own(void **unused)
{
    struct texts texts;
    char file[600], dead[600];
    (void)unused;
    use_home("home");
    record_once("container", file);
    snprintf(dead, sizeof dead, "%s", file);
    char *number_end = strchr(strrchr(dead, '-'), '.');
    assert_non_null(number_end);
    strcpy(number_end, ".jsonl");
    assert_int_equal(rename(file, dead), 0);
    run(1, "record=container", &texts);
    assert_string_equal(texts.said[0], "");
    assert_true(exists("home/runs/container/attempts/2/watch"));
    clear();
}

static void a_full_home_is_told_once_and_saves_pass(void **unused)
{
    struct texts texts;
    (void)unused;
    use_home("home");
    plant_file("full", "/dev/full");
    run(2, "record=full", &texts);
    expect_told_once(&texts, "No space left");
    clear();
}

/* Locks run `name`, of which no program has lines, as another program does. */
static FILE *take_run(const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/home/runs/%s/attempts/1/watch", folder, name);
    nftw(path, remove_entry, 4, FTW_DEPTH | FTW_PHYS);
    snprintf(path, sizeof path, "%s/home/runs/%s/lock", folder, name);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(fileno(file), F_OFD_SETLK, &all), 0);
    return file;
}

static void a_run_of_another_program_is_not_joined(void **unused)
{
    struct texts texts;
    (void)unused;
    use_home("home");
    run(1, "record=taken", &texts);
    FILE *file = take_run("taken");
    run(1, "record=taken", &texts);
    expect_told_once(&texts, "another program");
    fclose(file);
    run(1, "record=taken", &texts);
    assert_string_equal(texts.said[0], "");
    assert_true(exists("home/runs/taken/attempts/2/watch"));
    clear();
}

/* The run is free from the third of the saves on. */
static void save_until_recorded(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct described_state state;
    struct ckptbench_error error;
    char path[192];
    float one = 1;
    (void)ranks;
    describe_nothing(&state);
    add_tensor(&state, "one", "float32", 0, NULL);
    add_region(&state, &one, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        if (rank == 0 && i == 2)
            fclose(context);
        snprintf(path, sizeof path, "%s/step-%d", folder, i);
        assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, &error), 0);
        assert_int_equal(error.text[0] != '\0', rank == 0 && i == 0);
    }
}

static void a_run_that_becomes_free_is_recorded_from_then_on(void **unused)
{
    const char *const words[] = {"record=later", NULL};
    struct texts texts;
    (void)unused;
    use_home("home");
    run(1, *words, &texts);
    run_ranks(2, words, save_until_recorded, take_run("later"));
    struct buf lines = read_lines("home/runs/later/attempts/2/watch");
    assert_int_equal(count(&lines, "\"op\": \"process\""), 2);
    assert_int_equal(count(&lines, "\"op\": \"save\""), 4);
    assert_int_equal(count(&lines, "\"op\": \"end\""), 2);
    buf_release(&lines);
    clear();
}

static void a_run_of_ckptbench_gets_no_attempt_of_a_program(void **unused)
{
    struct texts texts;
    char path[600];
    struct buf text;
    (void)unused;
    use_home("home");
    run(1, "record=run", &texts);
    snprintf(path, sizeof path, "%s/home/runs/run/experiment.yaml", folder);
    buf_init(&text, TEXT_MOST);
    assert_int_equal(buf_read_file(&text, path, NULL), 0);
    char *at = strstr(text.data, "workload: watch");
    assert_non_null(at);
    memcpy(at, "workload: raw  ", strlen("workload: raw  "));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text.data, 1, text.len, file), text.len);
    fclose(file);
    buf_release(&text);
    run(1, "record=run", &texts);
    expect_told_once(&texts, "run of ckptbench itself");
    assert_false(exists("home/runs/run/attempts/2"));
    clear();
}

/* A password in an endpoint is not in the run, nor one in a path, which no store accepts. */
static void secrets_are_not_recorded(void **unused)
{
    const char *const words[] = {"record=secret", "s3.endpoint=https://user:sesame@host"};
    struct ckptbench_open_options options = {
        .struct_bytes = sizeof options, .rank_count = 1, .words = words, .word_count = 2};
    struct described_state state;
    ckptbench *handle = NULL;
    struct buf text;
    char path[256];
    float one = 1;
    (void)unused;
    use_home("home");
    snprintf(path, sizeof path, "%s/step", folder);
    describe_nothing(&state);
    add_tensor(&state, "one", "float32", 0, NULL);
    add_region(&state, &one, NULL, NULL);
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, NULL), 0);
    assert_true(ckptbench_save(handle, "s3://user:sesame@bucket/step", &state.state, NULL, NULL) < 0);
    assert_int_equal(ckptbench_close(handle, NULL), 0);
    struct buf lines = read_lines("home/runs/secret/attempts/1/watch");
    assert_int_equal(count(&lines, "\"op\": \"save\""), 1);
    assert_int_equal(count(&lines, "sesame"), 0);
    buf_release(&lines);
    buf_init(&text, TEXT_MOST);
    snprintf(path, sizeof path, "%s/home/runs/secret/experiment.yaml", folder);
    assert_int_equal(buf_read_file(&text, path, NULL), 0);
    assert_int_equal(count(&text, "workload: watch"), 1);
    assert_int_equal(count(&text, "sesame"), 0);
    buf_release(&text);
    clear();
}

/* --- copies at the end of a load --- */

#define COPY_NS (100 * NS_PER_MS)

static bool copies_slowly, copies_badly;

int __real_packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                          const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err);
int __wrap_packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                          const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err);
int __wrap_packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                          const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err)
{
    if (copies_slowly)
        clock_sleep_ns(COPY_NS);
    return copies_badly ? cb_fail(err, CB_ERR_SYSTEM, "the copy failed")
                        : __real_packing_unpack(self, state, joined, gpu, deadline_ns, err);
}

static double seconds_of(const struct json_value *line, enum metric_id metric)
{
    double value = 0;
    (void)json_as_double(json_get(line, metric_row(metric)->name), &value);
    return value;
}

/* A load whose copies are slow, and one whose copies fail. */
static void copies_are_a_part_of_the_load_that_is_recorded(void **unused)
{
    const char *const words[] = {"record=copies"};
    struct ckptbench_open_options options = {
        .struct_bytes = sizeof options, .rank_count = 1, .words = words, .word_count = 1};
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct described_state state;
    struct json_value *line = NULL;
    ckptbench *handle = NULL;
    char path[256];
    float one = 1;
    (void)unused;
    use_home("home");
    snprintf(path, sizeof path, "%s/step", folder);
    describe_nothing(&state);
    add_tensor(&state, "one", "float32", 0, NULL);
    add_region(&state, &one, NULL, NULL);
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, NULL), 0);
    copies_slowly = true;
    assert_int_equal(ckptbench_load(handle, path, &state.state, &result, NULL), 0);
    assert_true(result.total_s >= (double)COPY_NS / 1e9);
    copies_badly = true;
    assert_int_equal(ckptbench_load(handle, path, &state.state, NULL, NULL), CKPTBENCH_SYSTEM);
    copies_slowly = copies_badly = false;
    assert_int_equal(ckptbench_close(handle, NULL), 0);
    struct buf lines = read_lines("home/runs/copies/attempts/1/watch");
    const char *at = strstr(lines.data, "\"op\": \"load\"");
    assert_non_null(at);
    while (at[-1] != '\n')
        at--;
    assert_int_equal(json_parse(at, strcspn(at, "\n"), &line, NULL), 0);
    double sum = 0;
    for (int i = 0; i < STATE_COUNT; i++)
        sum += seconds_of(line, metric_of_state((enum rank_state)i));
    assert_true(seconds_of(line, METRIC_OWN_S) >= (double)COPY_NS / 1e9);
    assert_true(fabs(sum - seconds_of(line, METRIC_OP_S)) < 1e-6);
    assert_true(fabs(result.total_s - seconds_of(line, METRIC_OP_S)) < 1e-6);
    json_value_free(line);
    at += strcspn(at, "\n");
    assert_int_equal(count(&lines, "\"failed\": true"), 1);
    assert_non_null(strstr(at, "\"failed\": true")); /* the second load */
    buf_release(&lines);
    clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_save_and_load_of_each_rank_is_a_line),
        cmocka_unit_test(the_environment_names_a_run_and_a_folder_may_be_anywhere),
        cmocka_unit_test(handles_of_one_process_record_together),
        cmocka_unit_test(a_home_that_is_no_folder_is_told_once_and_saves_pass),
        cmocka_unit_test(names_that_are_no_runs_are_told_once_and_saves_pass),
        cmocka_unit_test(a_program_with_the_number_of_one_that_died_makes_an_attempt_of_its_own),
        cmocka_unit_test(a_full_home_is_told_once_and_saves_pass),
        cmocka_unit_test(a_run_of_another_program_is_not_joined),
        cmocka_unit_test(a_run_that_becomes_free_is_recorded_from_then_on),
        cmocka_unit_test(a_run_of_ckptbench_gets_no_attempt_of_a_program),
        cmocka_unit_test(secrets_are_not_recorded),
        cmocka_unit_test(copies_are_a_part_of_the_load_that_is_recorded),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
