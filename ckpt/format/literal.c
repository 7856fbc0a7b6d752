/* Converts between Python literals and pickled values. */
#include "ckpt/format/literal.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 16

struct source {
    const char *at, *whole;
    struct buf *out;
    struct cb_err *err;
};

struct bracket {
    char open;
    uint32_t values; /* of values so far; keys of a dict count, too */
};

static int bad(struct source *source)
{
    return cb_fail(source->err, CB_ERR_USAGE, "\"%s\" is no literal of Python that can be saved", source->whole);
}

static void skip_spaces(struct source *source)
{
    while (*source->at == ' ')
        source->at++;
}

static void put_i64(struct buf *out, int64_t value)
{
    char bytes[16] = {0}, *end;
    if (value >= 0) {
        end = pickle_put_int(bytes, (uint64_t)value);
    } else if (value >= INT32_MIN) {
        bytes[0] = 'J';
        memcpy(bytes + 1, &value, 4);
        end = bytes + 5;
    } else {
        bytes[0] = '\x8a';
        bytes[1] = 8;
        memcpy(bytes + 2, &value, 8);
        end = bytes + 10;
    }
    buf_append(out, bytes, (size_t)(end - bytes));
}

static void put_double(struct buf *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    buf_append_char(out, 'G'); /* BINFLOAT, big-endian */
    for (int shift = 56; shift >= 0; shift -= 8)
        buf_append_char(out, (char)(unsigned char)(bits >> shift));
}

static int number(struct source *source)
{
    char *end_integer, *end_real;
    errno = 0;
    long long integer = strtoll(source->at, &end_integer, 10);
    bool fits = errno == 0;
    double real = strtod(source->at, &end_real);
    if (end_real == source->at)
        return bad(source);
    if (end_integer == end_real && !fits)
        return bad(source);
    if (end_integer == end_real)
        put_i64(source->out, integer);
    else
        put_double(source->out, real);
    source->at = end_real;
    return 0;
}

/* One character of a text and the position after it; NULL for an escape that neither append_text_literal nor Python's
 * repr writes for ASCII. */
static const char *take_character(const char *at, char *character)
{
    unsigned code;
    *character = *at;
    if (*at != '\\')
        return at + 1;
    if (at[1] == '\\' || at[1] == '\'' || at[1] == '"') {
        *character = at[1];
        return at + 2;
    }
    static const char letters[] = "ntr", meanings[] = "\n\t\r";
    const char *letter = at[1] ? strchr(letters, at[1]) : NULL;
    if (letter) {
        *character = meanings[letter - letters];
        return at + 2;
    }
    if (at[1] != 'x' || !isxdigit((unsigned char)at[2]) || !isxdigit((unsigned char)at[3]) ||
        sscanf(at + 2, "%2x", &code) != 1 || code == 0 || code > 127) /* our reader rejects a NUL in a text */
        return NULL;
    *character = (char)code;
    return at + 4;
}

static int text(struct source *source)
{
    char quote = *source->at++, character;
    uint32_t len = 0;
    for (const char *at = source->at; *at != quote; len++)
        if (*at == '\0' || !(at = take_character(at, &character)))
            return bad(source);
    buf_append_char(source->out, 'X'); /* BINUNICODE */
    buf_append(source->out, &len, sizeof len);
    while (*source->at != quote) {
        source->at = take_character(source->at, &character);
        buf_append_char(source->out, character);
    }
    source->at++;
    return 0;
}

static bool word(struct source *source, const char *name, const char *opcode)
{
    size_t len = strlen(name);
    if (strncmp(source->at, name, len) != 0)
        return false;
    source->at += len;
    buf_append_text(source->out, opcode);
    return true;
}

static char closing(char open)
{
    return open == '[' ? ']' : open == '(' ? ')' : '}';
}

/* Closes the innermost container; false if a dict has a key without a value. */
static bool close_containers(struct source *source, struct bracket *open, int *depth)
{
    while (*depth > 0 && *source->at == closing(open[*depth - 1].open)) {
        const struct bracket *last = &open[*depth - 1];
        if (last->open == '{' && last->values % 2 != 0)
            return false;
        source->at++;
        buf_append_char(source->out, last->open == '[' ? 'e' : last->open == '(' ? 't' : 'u');
        if (--*depth > 0)
            open[*depth - 1].values++;
        skip_spaces(source);
    }
    return true;
}

/* Open brackets are kept on a stack. */
int literal_to_pickle(const char *literal, struct buf *out, struct cb_err *err)
{
    struct source source = {literal, literal, out, err};
    struct bracket open[MAX_DEPTH];
    int depth = 0;
    buf_append(out, "\x80\x02", 2);
    for (;;) {
        skip_spaces(&source);
        if (*source.at == '[' || *source.at == '(' || *source.at == '{') {
            if (depth == MAX_DEPTH)
                return bad(&source);
            /* EMPTY_LIST MARK … APPENDS, MARK … TUPLE, EMPTY_DICT MARK … SETITEMS */
            buf_append_text(out, *source.at == '[' ? "](" : *source.at == '(' ? "(" : "}(");
            open[depth++] = (struct bracket){*source.at++, 0};
            continue;
        }
        bool closes = depth > 0 && *source.at == closing(open[depth - 1].open);
        if (!closes) {
            int code = 0;
            if (!word(&source, "None", "N") && !word(&source, "True", "\x88") && !word(&source, "False", "\x89"))
                code = *source.at == '\'' || *source.at == '"' ? text(&source) : number(&source);
            if (code)
                return code;
            if (depth > 0)
                open[depth - 1].values++;
            skip_spaces(&source);
        }
        if (!close_containers(&source, open, &depth))
            return bad(&source);
        if (depth == 0)
            break;
        bool after_key = open[depth - 1].open == '{' && open[depth - 1].values % 2 != 0;
        if (*source.at != (after_key ? ':' : ','))
            return bad(&source);
        source.at++;
    }
    if (*source.at != '\0')
        return bad(&source);
    buf_append_char(out, '.');
    return buf_check(out, "a small value", err);
}

static void append_text_literal(const struct pickle_node *node, struct buf *out)
{
    buf_append_char(out, '\'');
    for (uint32_t i = 0; i < node->count; i++) {
        unsigned char c = (unsigned char)node->value.text[i];
        if (c == '\'' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < 32 || c == 127)
            buf_printf(out, "\\x%02x", c);
        else
            buf_append_char(out, (char)c);
    }
    buf_append_char(out, '\'');
}

static void append_double_literal(double value, struct buf *out)
{
    char digits[40];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    buf_append_text(out, digits);
    if (isfinite(value) && !strpbrk(digits, ".e"))
        buf_append_text(out, ".0");
}

static int append_scalar(const struct pickle_node *node, struct buf *out, struct cb_err *err)
{
    switch (node->kind) {
    case PICKLE_NONE:
        buf_append_text(out, "None");
        return 0;
    case PICKLE_BOOL:
        buf_append_text(out, node->value.integer ? "True" : "False");
        return 0;
    case PICKLE_INT:
        buf_printf(out, "%" PRId64, node->value.integer);
        return 0;
    case PICKLE_FLOAT:
        append_double_literal(node->value.real, out);
        return 0;
    case PICKLE_TEXT:
        append_text_literal(node, out);
        return 0;
    default:
        return cb_fail(err, CB_ERR_UNSUPPORTED, "the value is none that can be written as a literal");
    }
}

struct level {
    const struct pickle_node *node;
    uint32_t next;
};

/* Brackets of tuples, lists and dicts; NULL for other values. */
static const char *brackets(const struct pickle_node *node)
{
    return node->kind == PICKLE_TUPLE  ? "()"
           : node->kind == PICKLE_LIST ? "[]"
           : node->kind == PICKLE_DICT ? "{}"
                                       : NULL;
}

int literal_from_pickle(const struct pickle *pickle, const struct pickle_node *node, struct buf *out,
                        struct cb_err *err)
{
    struct level levels[MAX_DEPTH];
    int depth = 0;
    for (;;) {
        const char *pair = brackets(node);
        if (pair && depth == MAX_DEPTH)
            return cb_fail(err, CB_ERR_UNSUPPORTED, "the value is nested deeper than %d levels", MAX_DEPTH);
        int code = 0;
        if (pair) {
            buf_append_char(out, pair[0]);
            levels[depth++] = (struct level){node, 0};
        } else {
            code = append_scalar(node, out, err);
        }
        if (code)
            return code;
        if (buf_check(out, "a small value", err))
            return CB_ERR_MEMORY; /* a value with shared parts can be far larger than its pickle */
        while (depth > 0 && levels[depth - 1].next == levels[depth - 1].node->count) {
            if (levels[depth - 1].node->kind == PICKLE_TUPLE && levels[depth - 1].node->count == 1)
                buf_append_char(out, ',');
            buf_append_char(out, brackets(levels[--depth].node)[1]);
        }
        if (depth == 0)
            return 0;
        struct level *level = &levels[depth - 1];
        if (level->next > 0)
            buf_append_text(out, level->node->kind == PICKLE_DICT && level->next % 2 ? ": " : ", ");
        node = pickle_child(pickle, level->node, level->next++);
    }
}
