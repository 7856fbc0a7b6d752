/* Numbers are in pages of bits; a page counts the numbers before each of its words. */
#include "ckpt/format/pickle_memo.h"

#include <endian.h>
#include <string.h>

#include "ckpt/format/pickle_values.h"
#include "core/alloc.h"

#define PAGE_WORDS 64
#define PAGE_NUMBERS (64 * PAGE_WORDS)

struct pickle_memo_page {
    uint64_t bits[PAGE_WORDS];
    uint32_t before[PAGE_WORDS];
};

static int add_number(struct pickle_memo *self, uint64_t number, struct cb_err *err)
{
    size_t page = number / PAGE_NUMBERS;
    while (self->page_count <= page) {
        int code = alloc_grow(&self->pages, self->page_count, sizeof *self->pages, err);
        if (code)
            return code;
        self->pages[self->page_count++] = NULL;
    }
    if (!self->pages[page])
        self->pages[page] = calloc(1, sizeof *self->pages[page]);
    if (!self->pages[page])
        return alloc_fail(err, "for the memo of a pickle");
    self->pages[page]->bits[number % PAGE_NUMBERS / 64] |= UINT64_C(1) << number % 64;
    return 0;
}

static int number_all(struct pickle_memo *self, struct cb_err *err)
{
    uint64_t count = 0;
    for (size_t i = 0; i < self->page_count; i++) {
        struct pickle_memo_page *page = self->pages[i];
        for (size_t k = 0; page && k < PAGE_WORDS; k++) {
            page->before[k] = (uint32_t)count;
            count += (unsigned)__builtin_popcountll(page->bits[k]);
        }
    }
    self->values = count < PICKLE_NOWHERE ? malloc((count + 1) * sizeof *self->values) : NULL;
    if (!self->values)
        return alloc_fail(err, "for the memo of a pickle");
    memset(self->values, 0xff, (count + 1) * sizeof *self->values);
    self->count = (uint32_t)count;
    return 0;
}

/* Bytes of a number after the opcode. */
static bool take_number(struct byte_window *window, unsigned bytes, uint64_t *value, struct cb_err *err)
{
    const unsigned char *at = byte_window_take(window, bytes, err);
    uint64_t little = 0;
    if (at)
        memcpy(&little, at, bytes);
    *value = le64toh(little);
    return at != NULL;
}

static bool skip_line(struct byte_window *window, struct cb_err *err)
{
    const unsigned char *at = byte_window_take(window, 1, err);
    while (at && *at != '\n')
        at = byte_window_take(window, 1, err);
    return at != NULL;
}

/* False at the end, and at what is malformed. */
static bool scan_opcode(struct pickle_memo *self, struct byte_window *window, int *code, struct cb_err *err)
{
    const unsigned char *opcode = byte_window_take(window, 1, err);
    uint64_t value = 0;
    if (!opcode)
        return false;
    switch (*opcode) {
    case '.':
        return false;
    case 0x8c:
    case 0x8a:
        return take_number(window, 1, &value, err) && byte_window_skip(window, value, err);
    case 'X':
        return take_number(window, 4, &value, err) && byte_window_skip(window, value, err);
    case 0x8d:
        return take_number(window, 8, &value, err) && byte_window_skip(window, value, err);
    case 0x80:
    case 'K':
    case 'q':
        return byte_window_skip(window, 1, err);
    case 'M':
        return byte_window_skip(window, 2, err);
    case 'J':
    case 'r':
        return byte_window_skip(window, 4, err);
    case 'G':
    case 0x95:
        return byte_window_skip(window, 8, err);
    case 'c':
        for (int lines = 0; lines < 2; lines++)
            if (!skip_line(window, err))
                return false;
        return true;
    case 'h':
    case 'j':
        if (!take_number(window, *opcode == 'h' ? 1 : 4, &value, err))
            return false;
        if (value < window->source->len) /* an opcode puts each number there */
            *code = add_number(self, value, err);
        return *code == 0;
    default:
        return true;
    }
}

int pickle_memo_init(struct pickle_memo *self, struct byte_window *window, struct cb_err *err)
{
    int code = 0;
    *self = (struct pickle_memo){0};
    while (scan_opcode(self, window, &code, err))
        ;
    code = code ? code : window->code;
    code = code ? code : number_all(self, err);
    byte_window_rewind(window);
    return code;
}

void pickle_memo_release(struct pickle_memo *self)
{
    for (size_t i = 0; i < self->page_count; i++)
        free(self->pages[i]);
    free(self->pages);
    free(self->values);
    *self = (struct pickle_memo){0};
}

uint32_t *pickle_memo_at(const struct pickle_memo *self, uint64_t number)
{
    size_t index = number / PAGE_NUMBERS;
    const struct pickle_memo_page *page = index < self->page_count ? self->pages[index] : NULL;
    uint64_t bit = UINT64_C(1) << number % 64, word = page ? page->bits[number % PAGE_NUMBERS / 64] : 0;
    if (!(word & bit))
        return NULL;
    return &self->values[page->before[number % PAGE_NUMBERS / 64] + (unsigned)__builtin_popcountll(word & (bit - 1))];
}
