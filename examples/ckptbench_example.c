/* A training state over several processes, saved and loaded with libckptbench.
 *
 *     cc -std=c11 ckptbench_example.c -lckptbench -o ckptbench_example
 *     ./ckptbench_example save /tmp/step-100 4       # 4 ranks, each with a quarter of the rows
 *     ./ckptbench_example load /tmp/step-100 2       # 2 ranks, each with half of the columns
 *
 * Each rank is a process of its own, forked before anything of the library is used. Rank 0 listens, and hands the others
 * the text with which they find it through a pipe; a real training would use its launcher's store. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckptbench.h>

#define ROWS 1000
#define COLUMNS 96

/* What row and column of the matrix hold. */
static float expected(uint64_t row, uint64_t column)
{
    return (float)(row * COLUMNS + column);
}

/* This rank's part: for a save a block of rows, for a load a block of columns. */
struct part {
    uint64_t row, rows, column, columns;
    float *matrix; /* rows x columns */
    float bias[COLUMNS];
    int64_t step;
};

static struct part make_part(int saves, uint64_t rank, uint64_t ranks)
{
    struct part part = {.rows = ROWS, .columns = COLUMNS};
    uint64_t all = saves ? ROWS : COLUMNS, begin = all * rank / ranks, end = all * (rank + 1) / ranks;
    if (saves) {
        part.row = begin;
        part.rows = end - begin;
    } else {
        part.column = begin;
        part.columns = end - begin;
    }
    part.matrix = calloc(part.rows * part.columns, sizeof *part.matrix);
    if (!part.matrix)
        exit(1);
    return part;
}

static void fill(struct part *part)
{
    for (uint64_t i = 0; i < part->rows * part->columns; i++)
        part->matrix[i] = expected(part->row + i / part->columns, part->column + i % part->columns);
    for (uint64_t i = 0; i < COLUMNS; i++)
        part->bias[i] = (float)i;
    part->step = 100;
}

static int differs(const struct part *part)
{
    int wrong = part->step != 100;
    for (uint64_t i = 0; i < part->rows * part->columns; i++)
        wrong |= part->matrix[i] != expected(part->row + i / part->columns, part->column + i % part->columns);
    for (uint64_t i = 0; i < COLUMNS; i++)
        wrong |= part->bias[i] != (float)i;
    return wrong;
}

/* Saves asynchronously, or loads and compares. Each rank holds its block of the matrix, all hold bias and step. */
static int work(ckptbench *handle, int saves, const char *path, struct part *part, struct ckptbench_error *error)
{
    int64_t f32 = ckptbench_dtype("float32"), i64 = ckptbench_dtype("int64");
    const struct ckptbench_tensor tensors[] = {
        {.fqn = "model.weight", .dtype = f32, .dims = 2, .shape = {ROWS, COLUMNS}},
        {.fqn = "model.bias", .dtype = f32, .dims = 1, .shape = {COLUMNS}},
        {.fqn = "step", .dtype = i64, .dims = 0},
    };
    const struct ckptbench_region regions[] = {
        {.tensor = 0,
         .address = part->matrix,
         .offset = {part->row, part->column},
         .size = {part->rows, part->columns},
         .stride = {part->columns, 1}},
        {.tensor = 1, .address = part->bias, .size = {COLUMNS}, .stride = {1}},
        {.tensor = 2, .address = &part->step},
    };
    const struct ckptbench_state state = {
        .struct_bytes = sizeof state, .tensors = tensors, .tensor_count = 3, .regions = regions, .region_count = 3};
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    int code;
    if (saves) {
        ckptbench_async *save;
        code = ckptbench_save_async(handle, path, &state, &save, error);
        if (code)
            return code;
        part->step++; /* training goes on: the save has its own copy */
        code = ckptbench_async_wait(save, -1, NULL, &result, error);
        ckptbench_async_free(save);
    } else {
        code = ckptbench_load(handle, path, &state, &result, error);
    }
    if (code)
        return code;
    printf("%s %llu bytes in %.3f s, of which the caller waited %.3f s\n", saves ? "saved" : "loaded",
           (unsigned long long)result.bytes, result.total_s, result.stall_s);
    if (!saves && differs(part)) {
        error->code = CKPTBENCH_CORRUPT;
        snprintf(error->text, sizeof error->text, "what was loaded is not what was saved");
        return CKPTBENCH_CORRUPT;
    }
    return 0;
}

static int run_rank(int saves, const char *path, uint32_t rank, uint32_t ranks, const int pipes[2])
{
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank = rank, .rank_count = ranks};
    struct ckptbench_error error = {0};
    char meeting[CKPTBENCH_MEETING_BYTES] = "";
    ckptbench *handle = NULL;
    struct part part = make_part(saves, rank, ranks);
    if (saves)
        fill(&part);
    int code = 0;
    if (rank == 0)
        code = ckptbench_listen("localhost", &options.listener, meeting, &error);
    for (uint32_t i = 1; rank == 0 && i < ranks && !code; i++) /* a copy for each of the others */
        code = write(pipes[1], meeting, sizeof meeting) == sizeof meeting ? 0 : CKPTBENCH_SYSTEM;
    if (rank > 0) {
        close(pipes[1]); /* so that the read ends if rank 0 fails */
        code = read(pipes[0], meeting, sizeof meeting) == sizeof meeting ? 0 : CKPTBENCH_SYSTEM;
    }
    options.meeting = meeting;
    if (!code)
        code = ckptbench_open(&options, &handle, &error);
    if (!code)
        code = work(handle, saves, path, &part, &error);
    if (code)
        fprintf(stderr, "rank %u: %s\n", rank, error.text);
    if (ckptbench_close(handle, &error) && !code)
        fprintf(stderr, "rank %u: %s\n", rank, error.text);
    free(part.matrix);
    return code ? 1 : 0;
}

int main(int argc, char **argv)
{
    int pipes[2], failed = 0;
    if (argc != 4 || (strcmp(argv[1], "save") != 0 && strcmp(argv[1], "load") != 0) || atoi(argv[3]) < 1) {
        fprintf(stderr, "usage: %s save|load PATH RANKS\n", argv[0]);
        return 2;
    }
    uint32_t ranks = (uint32_t)atoi(argv[3]);
    if (pipe(pipes) != 0)
        return 1;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child == 0)
            exit(run_rank(strcmp(argv[1], "save") == 0, argv[2], rank, ranks, pipes));
        failed |= child < 0;
    }
    close(pipes[0]); /* of the ranks alone */
    close(pipes[1]);
    for (int status; wait(&status) > 0;)
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return failed;
}
