/* A training state over MPI ranks, saved and loaded with libckptbench, whose messages travel over MPI.
 *
 *     mpicc -std=c11 ckptbench_mpi_example.c -lckptbench -o ckptbench_mpi_example
 *     mpirun -n 4 ./ckptbench_mpi_example /tmp/step-100
 *
 * Each rank holds a block of rows of a matrix. It saves them asynchronously, clears them, and loads the rows of the next
 * rank, which it compares with what they should be. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <ckptbench.h>
#include <mpi.h>

#define ROWS 100 /* of each rank */
#define COLUMNS 64

/* ---- the three functions ---- */

static int start(int receives, MPI_Comm comm, void *bytes, uint64_t length, uint32_t peer, uint32_t tag, void **message)
{
    MPI_Request *request = malloc(sizeof *request);
    int code = !request || length > INT_MAX ? MPI_ERR_OTHER
               : receives ? MPI_Irecv(bytes, (int)length, MPI_BYTE, (int)peer, (int)tag, comm, request)
                          : MPI_Isend(bytes, (int)length, MPI_BYTE, (int)peer, (int)tag, comm, request);
    if (code)
        free(request);
    else
        *message = request;
    return code;
}

static int send_bytes(void *context, const void *bytes, uint64_t length, uint32_t to, uint32_t tag, void **message)
{
    return start(0, *(MPI_Comm *)context, (void *)(uintptr_t)bytes, length, to, tag, message);
}

static int receive_bytes(void *context, void *bytes, uint64_t length, uint32_t from, uint32_t tag, void **message)
{
    return start(1, *(MPI_Comm *)context, bytes, length, from, tag, message);
}

static int test_message(void *context, void *message, int *done)
{
    (void)context;
    int code = MPI_Test(message, done, MPI_STATUS_IGNORE);
    if (!code && *done)
        free(message);
    return code;
}

/* ---- the training ---- */

static float expected(uint64_t row, uint64_t column)
{
    return (float)(row * COLUMNS + column);
}

/* Saves this rank's rows, then loads those of the next rank in their place. */
static int work(ckptbench *handle, const char *path, uint64_t rank, uint64_t ranks, float *rows,
                struct ckptbench_error *error)
{
    struct ckptbench_tensor tensor = {
        .fqn = "weight", .dtype = ckptbench_dtype("float32"), .dims = 2, .shape = {ROWS * ranks, COLUMNS}};
    struct ckptbench_region region = {
        .address = rows, .offset = {ROWS * rank, 0}, .size = {ROWS, COLUMNS}, .stride = {COLUMNS, 1}};
    struct ckptbench_state state = {
        .struct_bytes = sizeof state, .tensors = &tensor, .tensor_count = 1, .regions = &region, .region_count = 1};
    ckptbench_async *save;
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++)
        rows[i] = expected(ROWS * rank + i / COLUMNS, i % COLUMNS);
    int code = ckptbench_save_async(handle, path, &state, &save, error);
    if (code)
        return code;
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++)
        rows[i] = 0; /* training goes on: the save has its own copy */
    code = ckptbench_async_wait(save, -1, NULL, NULL, error);
    ckptbench_async_free(save);
    region.offset[0] = ROWS * ((rank + 1) % ranks);
    if (!code)
        code = ckptbench_load(handle, path, &state, NULL, error);
    for (uint64_t i = 0; i < ROWS * COLUMNS && !code; i++) {
        if (rows[i] == expected(region.offset[0] + i / COLUMNS, i % COLUMNS))
            continue;
        code = error->code = CKPTBENCH_CORRUPT;
        snprintf(error->text, sizeof error->text, "what was loaded is not what was saved");
    }
    return code;
}

int main(int argc, char **argv)
{
    static float rows[ROWS * COLUMNS];
    struct ckptbench_error error = {0};
    ckptbench *handle = NULL;
    int rank, ranks, threads;
    MPI_Comm comm;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm); /* so that no message meets one of the training */
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    if (argc != 2 || threads < MPI_THREAD_MULTIPLE) {
        fprintf(stderr, "usage: %s PATH, with an MPI that several threads may use\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const struct ckptbench_messages messages = {.struct_bytes = sizeof messages,
                                                .context = &comm,
                                                .send = send_bytes,
                                                .receive = receive_bytes,
                                                .test = test_message};
    const char *const words[] = {"load.exchange=broadcast"}; /* what several ranks need is read once and sent */
    const struct ckptbench_open_options options = {.struct_bytes = sizeof options,
                                                   .rank = (uint32_t)rank,
                                                   .rank_count = (uint32_t)ranks,
                                                   .words = words,
                                                   .word_count = 1,
                                                   .messages = &messages};
    int code = ckptbench_open(&options, &handle, &error);
    if (!code)
        code = work(handle, argv[1], (uint64_t)rank, (uint64_t)ranks, rows, &error);
    if (code)
        fprintf(stderr, "rank %d: %s\n", rank, error.text);
    ckptbench_close(handle, NULL);
    if (code)
        MPI_Abort(MPI_COMM_WORLD, 1);
    printf("rank %d of %d: saved and loaded\n", rank, ranks);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
