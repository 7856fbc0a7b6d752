/* A file to train on, of any bytes: a token file or a text, read to its end where it opens. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "train/data.h"

#define SEQUENCE 3
#define VOCABULARY 300

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void read_all(const struct train_data *data, enum data_split split)
{
    uint32_t tokens[SEQUENCE], targets[SEQUENCE];
    struct cb_err err = {0};
    uint64_t samples = train_data_samples(data, split);
    for (uint64_t sample = 0; sample < samples && sample < 50; sample++) {
        if (train_data_sample(data, split, sample, tokens, targets, &err))
            abort();
        for (int i = 0; i < SEQUENCE; i++)
            if (tokens[i] >= VOCABULARY || targets[i] >= VOCABULARY)
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char path[64];
    struct cb_err err = {0};
    struct train_data *data = NULL;
    int fd = memfd_create("tokens", 0);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct train_data_setup setup = {
        .source = path, .vocabulary = VOCABULARY, .sequence = SEQUENCE, .validation_share = 0.25};
    if (train_data_open(&setup, &data, &err) == 0) {
        read_all(data, DATA_TRAINING);
        read_all(data, DATA_VALIDATION);
    } else if (err.message[0] == '\0') {
        abort();
    }
    train_data_close(data);
    close(fd);
    return 0;
}
