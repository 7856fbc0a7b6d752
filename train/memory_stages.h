/* How much memory a rank holds at the stages of a training, written at the end in the format of PyTorch's
 * data-parallel tutorial. Device figures are absent without a device. */
#ifndef TRAIN_MEMORY_STAGES_H
#define TRAIN_MEMORY_STAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "setup/training.h"

struct memory_stages {
    bool taken[MEMORY_STAGES];
    uint64_t resident_bytes[MEMORY_STAGES];
    double device_bytes[MEMORY_STAGES];   /* allocated on the device by the training; NAN without a device */
    double reserved_bytes[MEMORY_STAGES]; /* what the device has less free than when it was opened */
};

/* Resident memory of this process; 0 if the kernel does not report it. */
uint64_t memory_resident_bytes(void);

/* Records resident memory, and memory of the device (NAN: no device); only the first call for a stage counts. The most
 * until a stage is the largest of the stages so far: what a training allocates it keeps. */
void memory_stages_take(struct memory_stages *self, enum memory_stage stage, double device_bytes,
                        double reserved_bytes);

/* "0.020 GB after data creation, 0.023 after model creation resident: FOLDER"; of the device if there is one. */
void memory_stages_describe(const struct memory_stages *self, const char *folder, char *text, size_t size);

/* Writes FOLDER/rank-R.jsonl, one object per stage that was reached. */
int memory_stages_write(const struct memory_stages *self, const char *folder, uint32_t rank,
                        struct cb_err *err) CB_MUST_CHECK;

#endif
