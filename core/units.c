/* Numbers with units: parsing and printing. */
#include "core/units.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/clock.h"

#define MAX_DIGITS 18 /* of a number with a fraction: fits a uint64_t */

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"", 1},
    {"B", 1},
    {"K", KIB},
    {"k", KIB},
    {"KiB", KIB},
    {"M", MIB},
    {"m", MIB},
    {"MiB", MIB},
    {"G", GIB},
    {"g", GIB},
    {"GiB", GIB},
    {"T", GIB *KIB},
    {"t", GIB *KIB},
    {"TiB", GIB *KIB},
    {"P", GIB *MIB},
    {"PiB", GIB *MIB},
    {"KB", UINT64_C(1000)},
    {"kB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"PB", UINT64_C(1000000000000000)},
};

/* In ascending order; the printers use the first row of each name. */
static const struct unit duration_units[] = {
    {"ns", 1},
    {"us", NS_PER_US},
    {"ms", NS_PER_MS},
    {"s", NS_PER_S},
    {"m", 60 * NS_PER_S},
    {"h", 3600 * NS_PER_S},
    {"d", 24 * 3600 * NS_PER_S},
    {"min", 60 * NS_PER_S},
    {"w", 7 * 24 * 3600 * NS_PER_S},
};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define PRINTED_DURATION_UNITS 7

/* A decimal number as digits / 10^decimals. */
struct decimal {
    uint64_t digits;
    unsigned decimals;
};

/* Reads digits with an optional fraction and advances *text. False if there is no number or it does not fit. */
static bool read_decimal(const char **text, struct decimal *number)
{
    const char *at = *text;
    struct decimal result = {0};
    unsigned count = 0;
    bool after_point = false;
    for (; isdigit((unsigned char)*at) || (*at == '.' && !after_point); at++) {
        if (*at == '.') {
            after_point = true;
            continue;
        }
        uint64_t digit = (uint64_t)(*at - '0');
        if (after_point && count >= MAX_DIGITS)
            return false;
        if (result.digits > (UINT64_MAX - digit) / 10)
            return false;
        result.digits = result.digits * 10 + digit;
        result.decimals += after_point;
        count++;
    }
    if (count == 0 || at[-1] == '.')
        return false;
    *text = at;
    *number = result;
    return true;
}

/* number x factor, rounded to the nearest; false if it does not fit. */
static bool scale_decimal(struct decimal number, uint64_t factor, uint64_t *value)
{
    unsigned __int128 product = (unsigned __int128)number.digits * factor;
    uint64_t divisor = 1;
    for (unsigned i = 0; i < number.decimals; i++)
        divisor *= 10;
    product = (product + divisor / 2) / divisor;
    if (product > UINT64_MAX)
        return false;
    *value = (uint64_t)product;
    return true;
}

static const struct unit *find_unit(const struct unit *units, size_t count, const char *name, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(units[i].name) == len && memcmp(units[i].name, name, len) == 0)
            return &units[i];
    for (size_t i = 0; len == 3 && i < count; i++) /* "mib" can only be MiB; "mb" might be a typo for either */
        if (strlen(units[i].name) == 3 && strncasecmp(units[i].name, name, 3) == 0)
            return &units[i];
    return NULL;
}

int units_parse_u64(const char *text, uint64_t *value, struct cb_err *err)
{
    const char *at = text;
    struct decimal number;
    if (!isdigit((unsigned char)*text))
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not a whole number such as 8", text);
    if (!read_decimal(&at, &number))
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not a whole number below 2^64", text);
    if (*at || number.decimals)
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not a whole number such as 8", text);
    *value = number.digits;
    return 0;
}

int units_parse_double(const char *text, double *value, struct cb_err *err)
{
    char *end = NULL;
    double number = isspace((unsigned char)*text) ? NAN : strtod(text, &end);
    if (*text == '\0' || !end || *end || !isfinite(number))
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not a number such as 0.5", text);
    *value = number;
    return 0;
}

/* The first `len` characters of text as bytes. */
static int parse_bytes(const char *text, size_t len, const char *what, uint64_t *bytes, struct cb_err *err)
{
    const char *at = text, *end = text + len;
    struct decimal number;
    if (!read_decimal(&at, &number))
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not %s", text, what);
    if (at + 1 < end && *at == ' ')
        at++;
    const struct unit *unit = at <= end ? find_unit(byte_units, COUNT_OF(byte_units), at, (size_t)(end - at)) : NULL;
    if (!unit)
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not %s (units: B, KiB, MiB, GiB, TiB, PiB, and KB, MB, … of 1000)",
                       text, what);
    if (!scale_decimal(number, unit->factor, bytes))
        return cb_fail(err, CB_ERR_USAGE, "'%s' is too large: the limit is 2^64 bytes", text);
    return 0;
}

int units_parse_bytes(const char *text, uint64_t *bytes, struct cb_err *err)
{
    return parse_bytes(text, strlen(text), "a size such as 4MiB", bytes, err);
}

int units_parse_rate(const char *text, uint64_t *bytes_per_s, struct cb_err *err)
{
    size_t len = strlen(text);
    if (len > 2 && strcmp(text + len - 2, "/s") == 0)
        len -= 2;
    return parse_bytes(text, len, "a rate such as 1.5GiB/s", bytes_per_s, err);
}

int units_parse_duration(const char *text, uint64_t *duration_ns, struct cb_err *err)
{
    static const char what[] = "a time such as 250ms, 30s, 2h or 1m30s";
    const char *at = text;
    uint64_t total = 0, previous = UINT64_MAX;
    do {
        struct decimal number;
        if (!read_decimal(&at, &number))
            return cb_fail(err, CB_ERR_USAGE, "'%s' is not %s", text, what);
        if (at[0] == ' ' && at[1])
            at++;
        size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        bool bare = len == 0 && *at == '\0' && previous == UINT64_MAX;
        const struct unit *unit =
            bare ? &duration_units[3] : find_unit(duration_units, COUNT_OF(duration_units), at, len);
        uint64_t part;
        if (!unit || unit->factor >= previous)
            return cb_fail(err, CB_ERR_USAGE, "'%s' is not %s (units: ns, us, ms, s, m, h, d, w)", text, what);
        if (!scale_decimal(number, unit->factor, &part) || part > UINT64_MAX - total)
            return cb_fail(err, CB_ERR_USAGE, "'%s' is too long: the limit is 2^64 ns, 584 years", text);
        total += part;
        previous = unit->factor;
        at += len;
    } while (*at);
    *duration_ns = total;
    return 0;
}

int units_parse_bool(const char *text, int *value, struct cb_err *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (strcmp(text, words[i]) == 0) {
            *value = (int)(i % 2);
            return 0;
        }
    }
    return cb_fail(err, CB_ERR_USAGE, "'%s' is neither true nor false", text);
}

/* Three significant digits, or the whole number if it is an integer. */
static void print_scaled(double value, const char *unit, char text[32])
{
    int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    if (fabs(value - round(value)) < 1e-9)
        decimals = 0;
    snprintf(text, 32, "%.*f %s", decimals, value, unit);
}

static void print_bytes(double bytes, const char *suffix, char text[32])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (!isfinite(bytes)) {
        snprintf(text, 32, "-");
        return;
    }
    size_t index = 0;
    while (bytes >= 1023.5 && index + 1 < COUNT_OF(names)) {
        bytes /= 1024;
        index++;
    }
    char unit[8];
    snprintf(unit, sizeof unit, "%s%s", names[index], suffix);
    print_scaled(bytes, unit, text);
}

char *units_format_bytes(double bytes, char text[32])
{
    print_bytes(bytes, "", text);
    return text;
}

char *units_format_rate(double bytes_per_s, char text[32])
{
    print_bytes(bytes_per_s, "/s", text);
    return text;
}

char *units_format_decimal(double value, const char *unit, char text[32])
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    char with_prefix[24];
    size_t index = 0;
    while (fabs(value) >= 999.5 && index + 1 < COUNT_OF(prefixes)) {
        value /= 1000;
        index++;
    }
    snprintf(with_prefix, sizeof with_prefix, "%s%.20s", prefixes[index], unit);
    if (isfinite(value))
        print_scaled(value, with_prefix, text);
    else
        snprintf(text, 32, "-");
    return text;
}

char *units_format_duration(double duration_ns, char text[32])
{
    double s = duration_ns / (double)NS_PER_S;
    if (!isfinite(s)) {
        snprintf(text, 32, "-");
    } else if (s < 0.1) {
        size_t index = 0;
        while (index < 2 && duration_ns >= 999.5) {
            duration_ns /= 1000;
            index++;
        }
        print_scaled(duration_ns, duration_units[index].name, text);
    } else if (s < 119.5) {
        snprintf(text, 32, "%.*f s", s >= 99.95 ? 0 : s >= 9.995 ? 1 : 2, s);
    } else if (s < 7200) {
        uint64_t whole = (uint64_t)llround(s);
        snprintf(text, 32, "%" PRIu64 "m%02" PRIu64 "s", whole / 60, whole % 60);
    } else if (s < 2 * 86400) {
        uint64_t minutes = (uint64_t)llround(s / 60);
        snprintf(text, 32, "%" PRIu64 "h%02" PRIu64 "m", minutes / 60, minutes % 60);
    } else {
        snprintf(text, 32, "%.1f d", s / 86400);
    }
    return text;
}

char *units_format_count(uint64_t count, char text[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t used = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

const char *units_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

char *units_format_bytes_exact(uint64_t bytes, char text[32])
{
    static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t index = 0;
    while (bytes && bytes % 1024 == 0 && index < 5) {
        bytes /= 1024;
        index++;
    }
    snprintf(text, 32, "%" PRIu64 "%s", bytes, names[index]);
    return text;
}

char *units_format_duration_exact(uint64_t duration_ns, char text[32])
{
    size_t index = 3; /* "0s" */
    for (size_t i = 0; duration_ns && i < PRINTED_DURATION_UNITS; i++)
        if (duration_ns % duration_units[i].factor == 0)
            index = i;
    snprintf(text, 32, "%" PRIu64 "%s", duration_ns / duration_units[index].factor, duration_units[index].name);
    return text;
}
