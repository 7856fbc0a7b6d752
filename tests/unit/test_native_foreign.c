/* Loads of payloads that others stored with strides: right in every layout, in this machine's memory and on a device,
 * in pieces, so that memory is bounded by requests and not by tensors. What our engine saved is made foreign here:
 * the strides in an item's pickle are turned round, and its matrix with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

static char model[96];

static struct device *make_fake(uint32_t rank)
{
    struct fake_device *fake = fake_device_new(rank * 17 + 3, rank % 2 ? 7 : 2);
    return fake ? &fake->base : NULL;
}

static void open_world(struct world *self, const char *words, bool on_device)
{
    char text[400], store[80];
    snprintf(text, sizeof text, "model=%s state=weights io.fsync=false io.block=16KiB %s", model, words);
    snprintf(store, sizeof store, "%s/store", folder);
    world_open_on(self, text, store, 0, on_device ? make_fake : NULL, on_device);
}

static char *read_file(const char *name, size_t *len)
{
    char path[160];
    struct stat status;
    snprintf(path, sizeof path, "%s/store/c/%s", folder, name);
    assert_int_equal(stat(path, &status), 0);
    FILE *file = fopen(path, "r");
    *len = (size_t)status.st_size;
    char *bytes = malloc(*len + 1);
    assert_true(file && bytes && fread(bytes, 1, *len, file) == *len);
    fclose(file);
    return bytes;
}

static void write_file(const char *name, const char *bytes, size_t len)
{
    char path[160];
    snprintf(path, sizeof path, "%s/store/c/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_true(file && fwrite(bytes, 1, len, file) == len && fclose(file) == 0);
}

/* Strides (n, 1) become (1, n) in the pickle. */
static void turn_strides(char *item, size_t header_bytes, uint64_t n)
{
    char number[3] = {'K', (char)n, 0}, from[8], to[8];
    size_t digits = 2;
    if (n > 255) {
        number[0] = 'M';
        number[2] = (char)(n >> 8);
        digits = 3;
    }
    memcpy(from, number, digits);
    memcpy(from + digits, "K\1\x86", 3);
    memcpy(to, "K\1", 2);
    memcpy(to + 2, number, digits);
    to[2 + digits] = '\x86';
    char *at = memmem(item, header_bytes, from, digits + 3);
    assert_non_null(at);
    memcpy(at, to, digits + 3);
}

/* The directory's first entry is the pickle's: it has no checksum any more, as where none was computed. */
static void forget_checksum(char *item, size_t bytes)
{
    size_t tail = bytes < 400 ? bytes : 400;
    char *entry = memmem(item + bytes - tail, tail, "PK\1\2", 4);
    assert_non_null(entry);
    memset(entry + 16, 0, 4);
}

static void turn_matrix(char *payload, uint64_t n, size_t element_bytes)
{
    char kept[16];
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < i; j++) {
            char *a = payload + (i * n + j) * element_bytes, *b = payload + (j * n + i) * element_bytes;
            memcpy(kept, a, element_bytes);
            memcpy(a, b, element_bytes);
            memcpy(b, kept, element_bytes);
        }
    }
}

/* Every matrix of the checkpoint, which one rank saved. */
static void make_foreign(void)
{
    size_t metadata_len, len;
    char *metadata = read_file(".metadata", &metadata_len), *bytes = read_file("__0_0.distcp", &len);
    struct stored_checkpoint *checkpoint;
    assert_int_equal(format_read_metadata("test", metadata, metadata_len, &checkpoint, NULL), 0);
    for (size_t i = 0; i < checkpoint->chunk_count; i++) {
        const struct stored_chunk *chunk = &checkpoint->chunks[i];
        const struct stored_tensor *tensor = &checkpoint->tensors[chunk->tensor];
        struct stored_payload payload;
        if (tensor->dims != 2)
            continue;
        assert_true(format_expect_payload(checkpoint->format, tensor, &chunk->region, chunk->length, &payload));
        turn_strides(bytes + chunk->offset, payload.offset, tensor->shape[0]);
        forget_checksum(bytes + chunk->offset, chunk->length);
        turn_matrix(bytes + chunk->offset + payload.offset, tensor->shape[0], dtype_bytes(tensor->dtype));
    }
    write_file("__0_0.distcp", bytes, len);
    stored_checkpoint_free(checkpoint);
    free(metadata);
    free(bytes);
}

static void what_is_stored_with_strides_is_loaded_in_any_layout(void **unused)
{
    (void)unused;
    static const char *const ways[] = {"",
                                       "io.direct=false",
                                       "tp=2",
                                       "tp=3 load.exchange=split",
                                       "dp=2 load.exchange=broadcast",
                                       "dp=3 zero=3",
                                       "dp=2 tp=2 load.exchange=split",
                                       "pp=2 io.depth=1"};
    for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++) {
        struct world world;
        open_world(&world, ways[i / 2], i % 2);
        for (int round = 0; round < 2; round++) {
            world_pass(&world, OP_LOAD, "c");
            world_check_loaded(&world);
        }
        world_close(&world);
    }
}

/* Pinned memory is that of requests, however large a tensor is. */
static void strides_need_no_memory_of_their_own(void **unused)
{
    (void)unused;
    struct world world;
    open_world(&world, "io.depth=2", true);
    struct fake_device *fake = (struct fake_device *)world.ranks[0].device;
    fake->most_pinned_bytes = 0;
    world_pass(&world, OP_LOAD, "c");
    world_check_loaded(&world);
    assert_true(fake->most_pinned_bytes > 0 && fake->most_pinned_bytes <= UINT64_C(4) * 32 * 1024);
    world_close(&world);
}

static int make_folder_and_model(void **state)
{
    struct world world;
    char store[80];
    if (make_folder(state))
        return -1;
    snprintf(model, sizeof model, "%s/model.yaml", folder);
    snprintf(store, sizeof store, "%s/store", folder);
    FILE *file = fopen(model, "w");
    if (!file || mkdir(store, 0700))
        return -1;
    fputs("- {name: a, shape: [64, 64], dtype: fp32, tp_dim: 1, layer: 0}\n"
          "- {name: b, shape: [48, 48], dtype: bf16, tp_dim: 0, layer: 0}\n"
          "- {name: c, shape: [300, 300], dtype: fp64, tp_dim: 1, layer: 1}\n"
          "- {name: d, shape: [7], dtype: fp32, layer: 1}\n"
          "- {name: e, shape: [201, 201], dtype: u8, layer: 1}\n",
          file);
    fclose(file);
    open_world(&world, "checksum=none", false);
    world_pass(&world, OP_SAVE, "c");
    world_close(&world);
    make_foreign();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_stored_with_strides_is_loaded_in_any_layout),
        cmocka_unit_test(strides_need_no_memory_of_their_own),
    };
    return cmocka_run_group_tests(tests, make_folder_and_model, remove_folder);
}
