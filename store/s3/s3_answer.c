/* Parses headers and error documents. */
#include "store/s3/s3_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/clock.h"
#include "store/s3/s3_xml.h"

void s3_answer_clear(struct s3_answer *self)
{
    *self = (struct s3_answer){0};
}

static bool parse_number(const char *text, char end, const char **rest, uint64_t *number)
{
    uint64_t value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 19 || text[digits] != end)
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    if (value > INT64_MAX)
        return false;
    *rest = text + digits + (end ? 1 : 0);
    *number = value;
    return true;
}

bool s3_parse_content_range(const char *text, uint64_t *first, uint64_t *last, uint64_t *all)
{
    uint64_t from, to, whole = UINT64_MAX;
    if (strncasecmp(text, "bytes ", 6) != 0)
        return false;
    text += 6 + strspn(text + 6, " ");
    if (!parse_number(text, '-', &text, &from) || !parse_number(text, '/', &text, &to))
        return false;
    if (strcmp(text, "*") != 0 && !parse_number(text, '\0', &text, &whole))
        return false;
    if (to < from || to >= whole)
        return false;
    *first = from;
    *last = to;
    *all = whole;
    return true;
}

static bool parse_date(const char *text, uint64_t *wall_ns)
{
    struct tm utc = {0};
    const char *rest = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    time_t seconds = rest && !*rest ? timegm(&utc) : -1;
    if (seconds < 0)
        return false;
    *wall_ns = (uint64_t)seconds * NS_PER_S;
    return true;
}

/* A text that goes into messages and, as an ETag, into requests: unprintable characters would break both. */
static void copy_printable(char *to, size_t room, const char *from)
{
    size_t len = 0;
    for (; *from && len + 1 < room; from++)
        to[len++] = (unsigned char)*from < ' ' || *from == 127 ? ' ' : *from;
    to[len] = '\0';
}

static void take_header(struct s3_answer *self, const char *name, const char *value)
{
    const char *rest;
    if (strcasecmp(name, "content-length") == 0)
        self->has_length = parse_number(value, '\0', &rest, &self->length);
    else if (strcasecmp(name, "content-range") == 0)
        self->has_range = s3_parse_content_range(value, &self->range_first, &self->range_last, &self->range_all);
    else if (strcasecmp(name, "date") == 0)
        self->has_date = parse_date(value, &self->date_ns);
    else if (strcasecmp(name, "last-modified") == 0 && !parse_date(value, &self->modified_ns))
        self->modified_ns = 0;
    else if (strcasecmp(name, "etag") == 0 && strlen(value) < sizeof self->etag)
        copy_printable(self->etag, sizeof self->etag, value);
    else if (strcasecmp(name, S3_MARK) == 0)
        copy_printable(self->mark, sizeof self->mark, value);
    else if (strcasecmp(name, "x-amz-request-id") == 0)
        copy_printable(self->request_id, sizeof self->request_id, value);
    else if (strcasecmp(name, "x-amz-bucket-region") == 0)
        copy_printable(self->region, sizeof self->region, value);
    else if (strcasecmp(name, "x-amz-checksum-crc32c") == 0)
        self->has_crc32c = true;
}

static void take_status(struct s3_answer *self, const char *line)
{
    const char *space = strchr(line, ' ');
    long status = space ? strtol(space, NULL, 10) : 0;
    s3_answer_clear(self);
    self->status = status >= 100 && status <= 999 ? status : 0;
}

void s3_answer_take_line(struct s3_answer *self, const char *line, size_t len)
{
    char text[1024];
    if (len >= sizeof text)
        return; /* longer than any header that we use */
    memcpy(text, line, len);
    text[len] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    if (strncmp(text, "HTTP/", 5) == 0) {
        take_status(self, text);
        return;
    }
    char *value = strchr(text, ':');
    if (!value)
        return;
    *value++ = '\0';
    value += strspn(value, " \t");
    size_t end = strlen(value);
    while (end > 0 && (value[end - 1] == ' ' || value[end - 1] == '\t'))
        value[--end] = '\0';
    take_header(self, text, value);
}

static int take_element(void *context, const char *path, const char *text, struct cb_err *err)
{
    (void)err;
    struct s3_answer *self = context;
    if (strcmp(path, "Error/Code") == 0)
        copy_printable(self->code, sizeof self->code, text);
    else if (strcmp(path, "Error/Message") == 0)
        copy_printable(self->message, sizeof self->message, text);
    else if (strcmp(path, "Error/Region") == 0)
        copy_printable(self->region, sizeof self->region, text);
    else if (strcmp(path, "Error/RequestId") == 0 && !self->request_id[0])
        copy_printable(self->request_id, sizeof self->request_id, text);
    return 0;
}

bool s3_answer_take_error(struct s3_answer *self, const char *body, size_t len)
{
    struct s3_answer filled = *self;
    filled.code[0] = filled.message[0] = '\0';
    if (s3_xml_read("an error document", body, len, take_element, &filled, NULL) != 0 || !filled.code[0])
        return false;
    *self = filled;
    return true;
}

uint32_t s3_etag_parts(const char *etag)
{
    const char *dash = strrchr(etag, '-'), *rest;
    uint64_t parts = 0;
    if (!dash || !(parse_number(dash + 1, '"', &rest, &parts) || parse_number(dash + 1, '\0', &rest, &parts)))
        return 0;
    return parts <= UINT32_MAX ? (uint32_t)parts : 0;
}
