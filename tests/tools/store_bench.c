/* Writes or reads one file's worth of data through store.h, and nothing else: what benches set beside
 * fio with the same parameters.
 *
 * usage: store_bench STORE write|read NAME key=value…
 *   size=256MiB block=4MiB depth=8 engine=io_uring|psync direct=auto|true|false threads=1 fsync=true
 * A write makes a fresh file (an old one is removed before) and ends with its fsync; a read drops the
 * page cache of the file before. Prints one JSON object. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/units.h"
#include "store/store.h"

struct bench {
    const char *uri, *name;
    bool writes;
    uint64_t size_bytes, block_bytes;
    struct store_options options;
    struct store *store;
    unsigned char *memory; /* depth blocks */
    double resident;
};

static int set_number(const char *key, const char *value, struct bench *self, struct cb_err *err)
{
    uint64_t number = 0;
    int rc = units_parse_bytes(value, &number, err);
    if (rc)
        return rc;
    if (strcmp(key, "size") == 0)
        self->size_bytes = number;
    else if (strcmp(key, "block") == 0)
        self->block_bytes = number;
    else if (strcmp(key, "depth") == 0)
        self->options.depth = (uint32_t)number;
    else if (strcmp(key, "threads") == 0)
        self->options.threads = (uint32_t)number;
    else
        return cb_fail(err, CB_ERR_USAGE, "no such key: %s", key);
    return 0;
}

static int set(char *argument, struct bench *self, struct cb_err *err)
{
    char *value = strchr(argument, '=');
    if (!value)
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not key=value", argument);
    *value++ = 0;
    if (strcmp(argument, "engine") == 0)
        self->options.use_io_uring = strcmp(value, "io_uring") == 0;
    else if (strcmp(argument, "fsync") == 0)
        self->options.durable = strcmp(value, "true") == 0;
    else if (strcmp(argument, "direct") == 0)
        self->options.direct = strcmp(value, "true") == 0    ? STORE_DIRECT_YES
                               : strcmp(value, "false") == 0 ? STORE_DIRECT_NO
                                                             : STORE_DIRECT_AUTO;
    else
        return set_number(argument, value, self, err);
    return 0;
}

static int open_bench(struct bench *self, struct cb_err *err)
{
    size_t bytes = self->options.depth * self->block_bytes;
    int rc = store_open(self->uri, &self->options, &self->store, err);
    if (rc)
        return rc;
    self->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (self->memory == MAP_FAILED)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu bytes", bytes);
    for (size_t i = 0; i < bytes; i++)
        self->memory[i] = (unsigned char)(i * 2654435761u >> 13);
    store_register(self->store, &(struct iovec){self->memory, bytes}, 1);
    self->resident = (double)NAN;
    if (!self->writes)
        return store_drop_cache(self->store, self->name, &self->resident, err);
    rc = store_remove(self->store, self->name, err);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

static int submit_block(struct bench *self, struct store_object *object, uint64_t offset, uint64_t buffer,
                        struct cb_err *err)
{
    uint64_t left = self->size_bytes - offset;
    struct iovec segment = {self->memory + buffer * self->block_bytes,
                            left < self->block_bytes ? left : self->block_bytes};
    struct store_request request = {.kind = self->writes ? STORE_WRITE : STORE_READ,
                                    .object = object,
                                    .offset = offset,
                                    .segments = &segment,
                                    .segment_count = 1,
                                    .user = buffer};
    return store_submit(self->store, &request, 1, err);
}

static int move(struct bench *self, struct store_object *object, struct cb_err *err)
{
    uint64_t offset = 0;
    uint32_t started = 0;
    struct store_completion completions[64];
    for (; started < self->options.depth && offset < self->size_bytes; started++, offset += self->block_bytes) {
        int rc = submit_block(self, object, offset, started, err);
        if (rc)
            return rc;
    }
    while (store_in_flight(self->store) > 0) {
        size_t count = 0;
        int rc = store_poll(self->store, completions, 64, UINT64_MAX, &count, err);
        for (size_t i = 0; i < count && !rc; i++) {
            if (completions[i].code)
                rc = store_completion_error(self->store, &completions[i], err);
            else if (offset < self->size_bytes) {
                rc = submit_block(self, object, offset, completions[i].user, err);
                offset += self->block_bytes;
            }
        }
        if (rc)
            return rc;
    }
    return 0;
}

static int finish(struct bench *self, struct store_object *object, struct cb_err *err)
{
    struct store_completion completion = {0};
    struct store_request request = {.kind = STORE_FINISH, .object = object};
    size_t count = 0;
    int rc = store_submit(self->store, &request, 1, err);
    if (!rc)
        rc = store_poll(self->store, &completion, 1, UINT64_MAX, &count, err);
    return !rc && completion.code ? store_completion_error(self->store, &completion, err) : rc;
}

static int run(struct bench *self, struct cb_err *err)
{
    struct store_object *object = NULL;
    int rc = self->writes ? store_create(self->store, self->name, self->size_bytes, &object, err)
                          : store_open_read(self->store, self->name, &object, NULL, err);
    if (!rc)
        rc = move(self, object, err);
    if (!rc && self->writes)
        rc = finish(self, object, err);
    if (!rc)
        store_close(self->store, object);
    return rc;
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void print(const struct bench *self, double seconds, double cpu_seconds)
{
    struct buf out;
    struct json_writer json;
    buf_init(&out, 1 << 16);
    json_writer_init(&json, &out, 0);
    json_write_begin_object(&json);
    json_write_key(&json, "store");
    json_write_text(&json, store_describe(self->store));
    json_write_key(&json, "bytes");
    json_write_u64(&json, self->size_bytes);
    json_write_key(&json, "seconds");
    json_write_double(&json, seconds);
    json_write_key(&json, "bytes_per_s");
    json_write_double(&json, (double)self->size_bytes / seconds);
    json_write_key(&json, "cpu_s");
    json_write_double(&json, cpu_seconds);
    json_write_key(&json, "resident");
    json_write_double(&json, self->resident);
    json_write_end_object(&json);
    puts(out.data);
    buf_release(&out);
}

int main(int argc, char **argv)
{
    struct cb_err err = {0};
    struct bench bench = {
        .size_bytes = 256 * MIB,
        .block_bytes = 4 * MIB,
        .options = {.use_io_uring = true, .depth = 8, .threads = 1, .durable = true},
    };
    if (argc < 4 || (strcmp(argv[2], "write") != 0 && strcmp(argv[2], "read") != 0)) {
        fprintf(stderr, "usage: store_bench STORE write|read NAME key=value...\n");
        return 2;
    }
    bench.uri = argv[1];
    bench.writes = strcmp(argv[2], "write") == 0;
    bench.name = argv[3];
    int rc = 0;
    for (int i = 4; i < argc && !rc; i++)
        rc = set(argv[i], &bench, &err);
    if (!rc)
        rc = open_bench(&bench, &err);
    double cpu_before_s = cpu_s();
    uint64_t start_ns = clock_monotonic_ns();
    if (!rc)
        rc = run(&bench, &err);
    if (rc) {
        fprintf(stderr, "store_bench: %s\n", err.message);
        return cb_exit_code(rc);
    }
    print(&bench, (double)(clock_monotonic_ns() - start_ns) / 1e9, cpu_s() - cpu_before_s);
    store_free(bench.store);
    return 0;
}
