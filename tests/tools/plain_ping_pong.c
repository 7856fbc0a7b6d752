/* A ping-pong of 8 bytes as one writes it by hand, between ranks 0 and 1. The peer of the suite's links section in
 * `make bench-suite`.
 * usage: mpirun -n 2 plain_ping_pong */
#include <mpi.h>
#include <stdio.h>

#define WARMUP 20
#define ROUNDS 400

int main(int argc, char **argv)
{
    int rank;
    double number = 1, start_s = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int round = 0; round < WARMUP + ROUNDS; round++) {
        if (round == WARMUP)
            start_s = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(&number, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(&number, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(&number, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&number, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
        }
    }
    if (rank == 0)
        printf("{\"latency_s\": %.17g}\n", (MPI_Wtime() - start_s) / ROUNDS / 2);
    MPI_Finalize();
    return 0;
}
