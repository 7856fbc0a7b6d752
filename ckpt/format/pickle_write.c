/* Writes pickle opcodes to the caller's memory. */
#include "ckpt/format/pickle.h"

#include <string.h>

char *pickle_put_text(char *at, const char *text, size_t len)
{
    if (len < 256) {
        *at++ = '\x8c'; /* SHORT_BINUNICODE */
        *at++ = (char)(unsigned char)len;
    } else {
        uint32_t length = (uint32_t)len;
        *at++ = 'X'; /* BINUNICODE */
        memcpy(at, &length, sizeof length);
        at += sizeof length;
    }
    memcpy(at, text, len);
    return at + len;
}

char *pickle_put_int(char *at, uint64_t value)
{
    if (value < 256) {
        *at++ = 'K'; /* BININT1 */
        *at++ = (char)(unsigned char)value;
        return at;
    }
    if (value < 65536) {
        *at++ = 'M'; /* BININT2 */
        *at++ = (char)(unsigned char)value;
        *at++ = (char)(unsigned char)(value >> 8);
        return at;
    }
    if (value <= INT32_MAX) {
        *at++ = 'J'; /* BININT, signed */
        memcpy(at, &value, 4);
        return at + 4;
    }
    unsigned bytes = 4;
    while (bytes < 8 && value >> (8 * bytes - 1) != 0)
        bytes++;
    if (bytes == 8 && value >> 63 != 0)
        bytes = 9; /* LONG1 is signed */
    *at++ = '\x8a';
    *at++ = (char)bytes;
    memcpy(at, &value, 8);
    at[8] = 0;
    return at + bytes;
}

char *pickle_put_get(char *at, uint32_t memo)
{
    if (memo < 256) {
        *at++ = 'h'; /* BINGET */
        *at++ = (char)(unsigned char)memo;
        return at;
    }
    *at++ = 'j'; /* LONG_BINGET */
    memcpy(at, &memo, sizeof memo);
    return at + sizeof memo;
}

char *pickle_put_ints(char *at, const uint64_t *values, uint32_t count)
{
    static const char ends[] = {')', '\x85', '\x86', '\x87'}; /* EMPTY_TUPLE, TUPLE1 … TUPLE3 */
    if (count > 3)
        *at++ = '('; /* MARK */
    for (uint32_t i = 0; i < count; i++)
        at = pickle_put_int(at, values[i]);
    *at++ = count > 3 ? 't' : ends[count];
    return at;
}
