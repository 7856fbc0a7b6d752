/* CRC-32 and CRC-32C: by isa-l if it is linked, else slicing by 8 (Kounavis & Berry 2005). */
#include <limits.h>
#include <string.h>

#include "core/hash.h"

#ifdef HAVE_ISAL
#include <isa-l/crc.h>
#endif

/* Table k holds the checksum of a byte followed by k zero bytes. The checksum is linear in the bits of the byte, so
 * an entry is the exclusive or of the eight single-bit entries, which the rows below list. */
#define BIT(n, bit, value) (((n) >> (bit)&1) ? UINT32_C(value) : 0)
#define ENTRY(n, b0, b1, b2, b3, b4, b5, b6, b7)                                                                       \
    (BIT(n, 0, b0) ^ BIT(n, 1, b1) ^ BIT(n, 2, b2) ^ BIT(n, 3, b3) ^ BIT(n, 4, b4) ^ BIT(n, 5, b5) ^ BIT(n, 6, b6) ^   \
     BIT(n, 7, b7))
#define FOUR(row, n) row(n), row((n) + 1), row((n) + 2), row((n) + 3)
#define SIXTEEN(row, n) FOUR(row, n), FOUR(row, (n) + 4), FOUR(row, (n) + 8), FOUR(row, (n) + 12)
#define SIXTY_FOUR(row, n) SIXTEEN(row, n), SIXTEEN(row, (n) + 16), SIXTEEN(row, (n) + 32), SIXTEEN(row, (n) + 48)
#define TABLE(row)                                                                                                     \
    {                                                                                                                  \
        SIXTY_FOUR(row, 0), SIXTY_FOUR(row, 64), SIXTY_FOUR(row, 128), SIXTY_FOUR(row, 192)                            \
    }
#define TABLES(rows)                                                                                                   \
    {                                                                                                                  \
        TABLE(rows##_0), TABLE(rows##_1), TABLE(rows##_2), TABLE(rows##_3), TABLE(rows##_4), TABLE(rows##_5),          \
            TABLE(rows##_6), TABLE(rows##_7)                                                                           \
    }

#define ZIP_POLYNOMIAL UINT32_C(0xedb88320)
/* clang-format off */
#define ZIP_0(n) ENTRY(n, 0x77073096, 0xee0e612c, 0x076dc419, 0x0edb8832, 0x1db71064, 0x3b6e20c8, 0x76dc4190, 0xedb88320)
#define ZIP_1(n) ENTRY(n, 0x191b3141, 0x32366282, 0x646cc504, 0xc8d98a08, 0x4ac21251, 0x958424a2, 0xf0794f05, 0x3b83984b)
#define ZIP_2(n) ENTRY(n, 0x01c26a37, 0x0384d46e, 0x0709a8dc, 0x0e1351b8, 0x1c26a370, 0x384d46e0, 0x709a8dc0, 0xe1351b80)
#define ZIP_3(n) ENTRY(n, 0xb8bc6765, 0xaa09c88b, 0x8f629757, 0xc5b428ef, 0x5019579f, 0xa032af3e, 0x9b14583d, 0xed59b63b)
#define ZIP_4(n) ENTRY(n, 0x3d6029b0, 0x7ac05360, 0xf580a6c0, 0x30704bc1, 0x60e09782, 0xc1c12f04, 0x58f35849, 0xb1e6b092)
#define ZIP_5(n) ENTRY(n, 0xcb5cd3a5, 0x4dc8a10b, 0x9b914216, 0xec53826d, 0x03d6029b, 0x07ac0536, 0x0f580a6c, 0x1eb014d8)
#define ZIP_6(n) ENTRY(n, 0xa6770bb4, 0x979f1129, 0xf44f2413, 0x33ef4e67, 0x67de9cce, 0xcfbd399c, 0x440b7579, 0x8816eaf2)
#define ZIP_7(n) ENTRY(n, 0xccaa009e, 0x4225077d, 0x844a0efa, 0xd3e51bb5, 0x7cbb312b, 0xf9766256, 0x299dc2ed, 0x533b85da)
#define CASTAGNOLI_0(n) ENTRY(n, 0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78)
#define CASTAGNOLI_1(n) ENTRY(n, 0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9)
#define CASTAGNOLI_2(n) ENTRY(n, 0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743)
#define CASTAGNOLI_3(n) ENTRY(n, 0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f)
#define CASTAGNOLI_4(n) ENTRY(n, 0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c)
#define CASTAGNOLI_5(n) ENTRY(n, 0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6)
#define CASTAGNOLI_6(n) ENTRY(n, 0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4)
#define CASTAGNOLI_7(n) ENTRY(n, 0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664)
/* clang-format on */

static const uint32_t zip_tables[8][256] = TABLES(ZIP);
static const uint32_t castagnoli_tables[8][256] = TABLES(CASTAGNOLI);

static uint64_t load_le64(const unsigned char *bytes)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static uint32_t slice_by_8(const uint32_t tables[8][256], uint32_t crc, const void *bytes, size_t len)
{
    const unsigned char *byte = bytes;
    crc = ~crc;
    for (; len >= 8; len -= 8, byte += 8) {
        uint64_t word = load_le64(byte) ^ crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= tables[7 - i][word >> (8 * i) & 255];
    }
    for (; len > 0; len--, byte++)
        crc = crc >> 8 ^ tables[0][(crc ^ *byte) & 255];
    return ~crc;
}

uint32_t crc32_zip_portable(uint32_t crc, const void *bytes, size_t len)
{
    return slice_by_8(zip_tables, crc, bytes, len);
}

uint32_t crc32c_portable(uint32_t crc, const void *bytes, size_t len)
{
    return slice_by_8(castagnoli_tables, crc, bytes, len);
}

#ifdef HAVE_ISAL
uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t len)
{
    return crc32_gzip_refl(crc, bytes, len);
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len)
{
    /* crc32_iscsi() takes an int, a buffer that is not const, and leaves both inversions to us. */
    union {
        const void *borrowed;
        unsigned char *bytes;
    } place = {.borrowed = bytes};
    crc = ~crc;
    while (len > 0) {
        int part = len > INT_MAX / 2 ? INT_MAX / 2 : (int)len;
        crc = crc32_iscsi(place.bytes, part, crc);
        place.bytes += part;
        len -= (size_t)part;
    }
    return ~crc;
}
#else
uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t len)
{
    return crc32_zip_portable(crc, bytes, len);
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len)
{
    return crc32c_portable(crc, bytes, len);
}
#endif

/* a * b in GF(2)[x] modulo the polynomial, bits reflected: the top bit is x^0. */
static uint32_t multiply_modulo(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ ZIP_POLYNOMIAL : b >> 1;
    }
    return product;
}

uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    uint32_t shift = UINT32_C(1) << 31;  /* x^0 */
    uint32_t square = UINT32_C(1) << 23; /* x^8: one byte */
    for (; len_b > 0; len_b >>= 1) {
        if (len_b & 1)
            shift = multiply_modulo(square, shift);
        square = multiply_modulo(square, square);
    }
    return multiply_modulo(shift, crc_a) ^ crc_b;
}
