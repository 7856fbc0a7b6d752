/* progress.json from any bytes: another program writes it, on a file system that may lose half of it. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/run_folder.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static char folder[] = "/dev/shm/fuzz_progress.XXXXXX", path[64];

static void leave(void)
{
    unlink(path);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    if (!mkdtemp(folder))
        abort();
    snprintf(path, sizeof path, "%s/progress.json", folder);
    atexit(leave);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        abort();
    close(fd);
    struct progress progress;
    struct cb_err err = {0};
    if (progress_read(folder, &progress, &err)) {
        if (err.message[0] == '\0')
            abort();
        return 0;
    }
    if (!memchr(progress.state, '\0', sizeof progress.state) || !memchr(progress.op, '\0', sizeof progress.op) ||
        !memchr(progress.note, '\0', sizeof progress.note))
        abort();
    return 0;
}
