/* A small XML reader. */
#include "store/s3/s3_xml.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* `path` is the names of the open elements, joined by '/'; starts[d] is the offset of element d's name. The text of
 * an element is everything since the last tag, since S3's documents have no mixed content. */
struct reader {
    const char *what, *at, *end, *begin;
    s3_xml_fn each;
    void *context;
    char path[S3_XML_PATH_BYTES];
    size_t path_len, starts[S3_XML_MAX_DEPTH];
    unsigned depth;
    bool seen_root;
    char text[S3_XML_TEXT_BYTES];
    size_t text_len;
};

static int bad(const struct reader *self, const char *why, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "%s: not the XML that it should be: %s at byte %zu", self->what, why,
                   (size_t)(self->at - self->begin));
}

static bool starts_with(const struct reader *self, const char *text)
{
    size_t len = strlen(text);
    return (size_t)(self->end - self->at) >= len && memcmp(self->at, text, len) == 0;
}

/* Advances past the next `text`. */
static bool skip_past(struct reader *self, const char *text)
{
    const char *found = memmem(self->at, (size_t)(self->end - self->at), text, strlen(text));
    if (found)
        self->at = found + strlen(text);
    return found != NULL;
}

static void add_text(struct reader *self, const char *bytes, size_t len)
{
    size_t room = sizeof self->text - 1 - self->text_len;
    if (len > room)
        len = room;
    memcpy(self->text + self->text_len, bytes, len);
    self->text_len += len;
}

static void add_code_point(struct reader *self, uint32_t c)
{
    char bytes[4];
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len; i-- > 1; c >>= 6)
        bytes[i] = (char)(0x80 | (c & 0x3f));
    bytes[0] = (char)(lead[len] | c);
    add_text(self, bytes, len);
}

/* The character for "&#NUMBER;" or "&#xNUMBER;" at `name` (after the '&'); 0 if invalid. */
static uint32_t character_by_number(const char *name, size_t len)
{
    bool hex = len > 2 && name[1] == 'x';
    uint32_t c = 0;
    for (size_t i = hex ? 2 : 1; i < len; i++) {
        uint32_t digit = name[i] >= '0' && name[i] <= '9'          ? (uint32_t)(name[i] - '0')
                         : hex && name[i] >= 'a' && name[i] <= 'f' ? (uint32_t)(name[i] - 'a' + 10)
                         : hex && name[i] >= 'A' && name[i] <= 'F' ? (uint32_t)(name[i] - 'A' + 10)
                                                                   : 16;
        if (digit >= (hex ? 16u : 10u) || c > 0x10ffff)
            return 0;
        c = c * (hex ? 16 : 10) + digit;
    }
    bool surrogate = c >= 0xd800 && c < 0xe000;
    return c <= 0x10ffff && !surrogate ? c : 0;
}

static int read_entity(struct reader *self, struct cb_err *err)
{
    static const struct {
        const char *name;
        char character;
    } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    const char *name = self->at + 1;
    size_t most = (size_t)(self->end - name) < 10 ? (size_t)(self->end - name) : 10;
    const char *semicolon = memchr(name, ';', most);
    size_t len = semicolon ? (size_t)(semicolon - name) : 0;
    if (len == 0)
        return bad(self, "an '&' that begins no entity", err);
    uint32_t number = len > 1 && name[0] == '#' ? character_by_number(name, len) : 0;
    for (size_t i = 0; i < sizeof known / sizeof *known && !number; i++) {
        if (strlen(known[i].name) == len && memcmp(known[i].name, name, len) == 0)
            number = (uint32_t)known[i].character;
    }
    if (!number)
        return bad(self, "an unknown entity", err);
    add_code_point(self, number);
    self->at = semicolon + 1;
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool ends_name(char c)
{
    return is_space(c) || c == '>' || c == '/' || c == '<' || c == '=' || c == '\0';
}

/* The name at the current position, without its namespace. */
static int read_name(struct reader *self, const char **name, size_t *len, struct cb_err *err)
{
    const char *from = self->at;
    while (self->at < self->end && !ends_name(*self->at)) {
        if (*self->at == ':')
            from = self->at + 1;
        self->at++;
    }
    *name = from;
    *len = (size_t)(self->at - from);
    return *len > 0 ? 0 : bad(self, "a tag without a name", err);
}

static int close_element(struct reader *self, struct cb_err *err)
{
    self->text[self->text_len] = '\0';
    self->path[self->path_len] = '\0';
    int rc = self->each(self->context, self->path, self->text, err);
    self->text_len = 0;
    self->depth--;
    self->path_len = self->depth > 0 ? self->starts[self->depth] - 1 : 0;
    return rc;
}

static int open_element(struct reader *self, struct cb_err *err)
{
    const char *name;
    size_t len;
    self->at++;
    int rc = read_name(self, &name, &len, err);
    if (rc)
        return rc;
    if (self->depth == 0 && self->seen_root)
        return bad(self, "a second root", err);
    if (self->depth == S3_XML_MAX_DEPTH || self->path_len + len + 2 > sizeof self->path)
        return bad(self, "elements nested too deep", err);
    if (self->depth > 0)
        self->path[self->path_len++] = '/';
    self->starts[self->depth++] = self->path_len;
    memcpy(self->path + self->path_len, name, len);
    self->path_len += len;
    self->seen_root = true;
    self->text_len = 0;
    char quote = '\0';
    for (; self->at < self->end && (quote || *self->at != '>'); self->at++) {
        if (quote ? *self->at == quote : *self->at == '"' || *self->at == '\'')
            quote = quote ? '\0' : *self->at;
    }
    if (self->at == self->end)
        return bad(self, "a tag that does not end", err);
    bool empty = self->at[-1] == '/';
    self->at++;
    return empty ? close_element(self, err) : 0;
}

static int end_element(struct reader *self, struct cb_err *err)
{
    const char *name;
    size_t len;
    self->at += 2;
    int rc = read_name(self, &name, &len, err);
    if (rc)
        return rc;
    while (self->at < self->end && is_space(*self->at))
        self->at++;
    size_t start = self->depth > 0 ? self->starts[self->depth - 1] : 0;
    if (self->at == self->end || *self->at != '>' || self->depth == 0 || len != self->path_len - start ||
        memcmp(self->path + start, name, len) != 0)
        return bad(self, "an end that no element waits for", err);
    self->at++;
    return close_element(self, err);
}

static int read_cdata(struct reader *self, struct cb_err *err)
{
    const char *from = self->at + strlen("<![CDATA[");
    if (!skip_past(self, "]]>"))
        return bad(self, "text that does not end", err);
    add_text(self, from, (size_t)(self->at - 3 - from));
    return 0;
}

static int read_tag(struct reader *self, struct cb_err *err)
{
    if (starts_with(self, "<!--"))
        return skip_past(self, "-->") ? 0 : bad(self, "a comment that does not end", err);
    if (starts_with(self, "<?"))
        return skip_past(self, "?>") ? 0 : bad(self, "an instruction that does not end", err);
    if (starts_with(self, "<![CDATA[") && self->depth > 0)
        return read_cdata(self, err);
    if (starts_with(self, "<!"))
        return bad(self, "a declaration", err);
    return starts_with(self, "</") ? end_element(self, err) : open_element(self, err);
}

int s3_xml_read(const char *what, const char *bytes, size_t len, s3_xml_fn each, void *context, struct cb_err *err)
{
    struct reader self = {
        .what = what, .at = bytes, .begin = bytes, .end = bytes + len, .each = each, .context = context};
    if (starts_with(&self, "\xef\xbb\xbf"))
        self.at += 3;
    int rc = 0;
    while (self.at < self.end && !rc) {
        if (*self.at == '<') {
            rc = read_tag(&self, err);
        } else if (self.depth == 0) {
            rc = is_space(*self.at) ? 0 : bad(&self, "text outside of the document", err);
            self.at++;
        } else if (*self.at == '&') {
            rc = read_entity(&self, err);
        } else {
            const char *from = self.at;
            while (self.at < self.end && *self.at != '<' && *self.at != '&')
                self.at++;
            add_text(&self, from, (size_t)(self.at - from));
        }
    }
    if (rc)
        return rc;
    if (!self.seen_root)
        return bad(&self, "nothing in it", err);
    return self.depth == 0 ? 0 : bad(&self, "an element that does not end", err);
}
