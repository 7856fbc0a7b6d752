/* What memory a rank holds at the stages of a training: kept as it goes, written down at the end as the lines of the
 * data-parallel tutorial. What a device's memory would say is absent without one. */
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
    double device_bytes[MEMORY_STAGES]; /* NAN without a device */
};

/* Memory of this process that is resident now; 0 where the kernel does not say. */
uint64_t memory_resident_bytes(void);

/* Keeps what is resident now, and what is allocated on the device (NAN: there is none); the first time counts. */
void memory_stages_take(struct memory_stages *self, enum memory_stage stage, double device_bytes);

/* "0.020 GB after data creation, 0.023 after model creation resident: FOLDER"; of the device where there is one. */
void memory_stages_describe(const struct memory_stages *self, const char *folder, char *text, size_t size);

/* FOLDER/rank-R.jsonl, an object a stage that was reached. */
int memory_stages_write(const struct memory_stages *self, const char *folder, uint32_t rank, const char *log_key,
                        struct cb_err *err) CB_MUST_CHECK;

#endif
