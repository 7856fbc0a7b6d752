/* Memory at the stages of a training. */
#include "train/memory_stages.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/path.h"

#define GB 1073741824.0
#define PATH_BYTES 4096
#define MOST_BYTES 65536

uint64_t memory_resident_bytes(void)
{
    unsigned long long whole, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file)
        return 0;
    int found = fscanf(file, "%llu %llu", &whole, &resident);
    fclose(file);
    return found == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void memory_stages_take(struct memory_stages *self, enum memory_stage stage, double device_bytes, double reserved_bytes)
{
    if (self->taken[stage])
        return;
    self->taken[stage] = true;
    self->resident_bytes[stage] = memory_resident_bytes();
    self->device_bytes[stage] = device_bytes;
    self->reserved_bytes[stage] = reserved_bytes;
}

void memory_stages_describe(const struct memory_stages *self, const char *folder, char *text, size_t size)
{
    size_t used = 0;
    bool on_device = isfinite(self->device_bytes[MEMORY_AFTER_DATA_CREATION]);
    for (int stage = 0; stage < MEMORY_STAGES; stage++) {
        double bytes = on_device ? self->device_bytes[stage] : (double)self->resident_bytes[stage];
        if (self->taken[stage] && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%.3f%s %s", used ? ", " : "", bytes / GB,
                                     used ? "" : " GB", memory_stage_name((enum memory_stage)stage));
    }
    if (used < size)
        snprintf(text + used, size - used, " %s: %s", on_device ? "on the device" : "resident", folder);
}

/* The largest value of the stages up to this one. */
static double most(const struct memory_stages *self, const double *values, enum memory_stage stage)
{
    double found = values[stage];
    for (int earlier = 0; earlier < (int)stage; earlier++)
        if (self->taken[earlier] && values[earlier] > found)
            found = values[earlier];
    return found;
}

static void write_stage(const struct memory_stages *self, enum memory_stage stage, uint32_t rank, struct buf *out)
{
    struct json_writer json;
    struct memory_record record = {.stage = stage,
                                   .rank = rank,
                                   .allocated_bytes = self->device_bytes[stage],
                                   .most_allocated_bytes = most(self, self->device_bytes, stage),
                                   .reserved_bytes = self->reserved_bytes[stage],
                                   .most_reserved_bytes = most(self, self->reserved_bytes, stage)};
    record.resident_bytes = self->resident_bytes[stage] ? (double)self->resident_bytes[stage] : NAN;
    json_writer_init(&json, out, 0);
    memory_record_write(&record, &json);
    buf_append_char(out, '\n');
}

int memory_stages_write(const struct memory_stages *self, const char *folder, uint32_t rank, struct cb_err *err)
{
    char path[PATH_BYTES];
    struct buf text;
    if (path_format(path, sizeof path, err, "%s/rank-%u.jsonl", folder, rank))
        return CB_ERR_USAGE;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return cb_fail_errno(err, errno, "making the folder %s", folder);
    buf_init(&text, MOST_BYTES);
    for (int stage = 0; stage < MEMORY_STAGES; stage++)
        if (self->taken[stage])
            write_stage(self, (enum memory_stage)stage, rank, &text);
    int rc = buf_check(&text, "the memory of a training's stages", err);
    if (!rc)
        rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}
