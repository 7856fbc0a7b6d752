/* Hashes and checksums against published values; the fast ones against the portable ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/hash.h"

#define BYTES 4099

static unsigned char *pseudo_random(size_t len)
{
    unsigned char *bytes = malloc(len);
    uint64_t state = 1;
    for (size_t i = 0; i < len; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(state >> 56);
    }
    return bytes;
}

static void check_values_of_the_catalogue_of_crcs(void **unused)
{
    (void)unused;
    assert_int_equal(crc32_zip(0, "123456789", 9), 0xcbf43926);
    assert_int_equal(crc32_zip_portable(0, "123456789", 9), 0xcbf43926);
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc32c_portable(0, "123456789", 9), 0xe3069283);
}

static void fast_and_portable_crcs_agree_at_every_length_and_alignment(void **unused)
{
    (void)unused;
    unsigned char *bytes = pseudo_random(BYTES);
    for (size_t start = 0; start < 17; start++) {
        for (size_t len = 0; len < 300; len++) {
            assert_int_equal(crc32_zip(7, bytes + start, len), crc32_zip_portable(7, bytes + start, len));
            assert_int_equal(crc32c(7, bytes + start, len), crc32c_portable(7, bytes + start, len));
        }
        assert_int_equal(crc32_zip(0, bytes + start, BYTES - start),
                         crc32_zip_portable(0, bytes + start, BYTES - start));
        assert_int_equal(crc32c(0, bytes + start, BYTES - start), crc32c_portable(0, bytes + start, BYTES - start));
    }
    free(bytes);
}

static void crc_goes_on_from_the_result_so_far(void **unused)
{
    (void)unused;
    assert_int_equal(crc32_zip(crc32_zip(0, "1234", 4), "56789", 5), 0xcbf43926);
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
}

static void combined_crc_is_that_of_the_bytes_in_a_row(void **unused)
{
    (void)unused;
    unsigned char *bytes = pseudo_random(BYTES);
    uint32_t whole = crc32_zip(0, bytes, BYTES);
    for (size_t cut = 0; cut <= BYTES; cut += 41) {
        uint32_t a = crc32_zip(0, bytes, cut), b = crc32_zip(0, bytes + cut, BYTES - cut);
        assert_int_equal(crc32_zip_combine(a, b, BYTES - cut), whole);
    }
    free(bytes);
}

static void sha256_of_the_standard_examples(void **unused)
{
    (void)unused;
    char hex[65];
    hash_sha256_hex("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_sha256_hex("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void u64_hash_is_fixed_and_spreads(void **unused)
{
    (void)unused;
    assert_true(hash_u64("a", 1) != hash_u64("b", 1));
    assert_true(hash_u64("", 0) == hash_u64("x", 0));
    uint64_t difference = hash_u64("weight.0", 8) ^ hash_u64("weight.1", 8);
    assert_in_range(__builtin_popcountll(difference), 12, 52);
}

static void random_bytes_fill_everything_and_differ(void **unused)
{
    (void)unused;
    unsigned char a[600] = {0}, b[600] = {0};
    random_bytes(a, sizeof a);
    random_bytes(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a + 584, b + 584, 16); /* the last bytes, too */
}

/* FIPS 180-4, RFC 4231 (case 2), RFC 1321 and RFC 4648. */
static void digests_are_those_of_the_standards(void **unused)
{
    (void)unused;
    unsigned char digest[HASH_SHA256_BYTES];
    char text[65];
    struct iovec segments[] = {{.iov_base = "a", .iov_len = 1}, {.iov_base = "bc", .iov_len = 2}};
    hash_sha256("abc", 3, digest);
    hash_hex(digest, sizeof digest, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_sha256_segments(segments, 2, digest);
    hash_hex(digest, sizeof digest, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest);
    hash_hex(digest, sizeof digest, text);
    assert_string_equal(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    if (hash_md5("message digest", 14, digest)) {
        hash_hex(digest, HASH_MD5_BYTES, text);
        assert_string_equal(text, "f96b697d7cb7938d525a2f31aaf161d0");
    }
    hash_base64("foobar", 6, text);
    assert_string_equal(text, "Zm9vYmFy");
    hash_base64("fooba", 5, text);
    assert_string_equal(text, "Zm9vYmE=");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_the_standards),
        cmocka_unit_test(check_values_of_the_catalogue_of_crcs),
        cmocka_unit_test(fast_and_portable_crcs_agree_at_every_length_and_alignment),
        cmocka_unit_test(crc_goes_on_from_the_result_so_far),
        cmocka_unit_test(combined_crc_is_that_of_the_bytes_in_a_row),
        cmocka_unit_test(sha256_of_the_standard_examples),
        cmocka_unit_test(u64_hash_is_fixed_and_spreads),
        cmocka_unit_test(random_bytes_fill_everything_and_differ),
    };
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
