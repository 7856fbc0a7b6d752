/* Parses profile files. */
#include "store/s3/s3_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"

#define SECTION_BYTES 256
#define KEY_BYTES 256

struct span {
    const char *at;
    size_t len;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct span trim(struct span span)
{
    while (span.len > 0 && is_blank(span.at[0])) {
        span.at++;
        span.len--;
    }
    while (span.len > 0 && is_blank(span.at[span.len - 1]))
        span.len--;
    return span;
}

static void copy_span(struct span span, char *text, size_t room)
{
    size_t len = span.len < room ? span.len : room - 1;
    memcpy(text, span.at, len);
    text[len] = '\0';
}

struct parser {
    s3_profile_fn each;
    void *context;
    char section[SECTION_BYTES], outer[KEY_BYTES]; /* outer: the preceding key without a value, or "" */
    char key[2 * KEY_BYTES + 2], value[S3_PROFILE_VALUE_BYTES];
    bool in_section;
};

static void take_section(struct parser *self, struct span line)
{
    const char *end = memchr(line.at, ']', line.len);
    self->in_section = end != NULL;
    self->outer[0] = '\0';
    if (end)
        copy_span(trim((struct span){line.at + 1, (size_t)(end - line.at) - 1}), self->section, sizeof self->section);
}

static int take_pair(struct parser *self, struct span line, bool indented)
{
    const char *equals = memchr(line.at, '=', line.len);
    if (!equals || !self->in_section)
        return 0;
    struct span key = trim((struct span){line.at, (size_t)(equals - line.at)});
    struct span value = trim((struct span){equals + 1, line.len - (size_t)(equals - line.at) - 1});
    char name[KEY_BYTES];
    copy_span(key, name, sizeof name);
    copy_span(value, self->value, sizeof self->value);
    bool inner = indented && self->outer[0];
    snprintf(self->key, sizeof self->key, "%s%s%s", inner ? self->outer : "", inner ? "." : "", name);
    if (!inner)
        snprintf(self->outer, sizeof self->outer, "%s", value.len == 0 ? name : "");
    return self->each(self->context, self->section, self->key, self->value);
}

int s3_profile_parse(const char *text, size_t len, s3_profile_fn each, void *context)
{
    struct parser self = {.each = each, .context = context};
    const char *end = text + len;
    int rc = 0;
    while (text < end && !rc) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *line_end = newline ? newline : end;
        bool indented = is_blank(*text);
        struct span line = trim((struct span){text, (size_t)(line_end - text)});
        if (line.len > 0 && line.at[0] == '[')
            take_section(&self, line);
        else if (line.len > 0 && line.at[0] != '#' && line.at[0] != ';')
            rc = take_pair(&self, line, indented);
        text = newline ? newline + 1 : end;
    }
    explicit_bzero(self.value, sizeof self.value);
    return rc;
}

void s3_profile_path(enum s3_profile_file file, char *path, size_t room)
{
    bool config = file == S3_PROFILE_CONFIG;
    const char *given = getenv(config ? "AWS_CONFIG_FILE" : "AWS_SHARED_CREDENTIALS_FILE"), *home = getenv("HOME");
    if (given && *given)
        snprintf(path, room, "%s", given);
    else
        snprintf(path, room, "%s/.aws/%s", home ? home : "", config ? "config" : "credentials");
}

const char *s3_profile_name(const char *given)
{
    const char *named = getenv("AWS_PROFILE");
    return given && *given ? given : named && *named ? named : "default";
}

struct search {
    const char *profile, *key; /* key NULL: any */
    char *value;
    bool config, found;
};

/* "[profile NAME]" in config (except "[default]"), "[NAME]" in credentials. */
static bool is_section(const struct search *self, const char *section)
{
    static const char word[] = "profile";
    size_t len = sizeof word - 1;
    if (self->config && strncmp(section, word, len) == 0 && is_blank(section[len]))
        section += len + strspn(section + len, " \t");
    else if (self->config && strcmp(section, "default") != 0)
        return false;
    return strcmp(section, self->profile) == 0;
}

static int look(void *context, const char *section, const char *key, const char *value)
{
    struct search *self = context;
    if (!is_section(self, section) || (self->key && strcmp(key, self->key) != 0))
        return 0;
    if (self->value)
        snprintf(self->value, S3_PROFILE_VALUE_BYTES, "%s", value);
    self->found = true;
    return 0;
}

static int search_file(enum s3_profile_file file, struct search *search, struct cb_err *err)
{
    char path[4096];
    struct buf text;
    s3_profile_path(file, path, sizeof path);
    buf_init(&text, S3_PROFILE_MAX_BYTES);
    int rc = buf_read_file(&text, path, err);
    if (!rc)
        rc = s3_profile_parse(text.data, text.len, look, search);
    explicit_bzero(text.data, text.len);
    buf_release(&text);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

int s3_profile_get(enum s3_profile_file file, const char *profile, const char *key, char *value, bool *found,
                   struct cb_err *err)
{
    struct search search = {.profile = profile, .key = key, .value = value, .config = file == S3_PROFILE_CONFIG};
    int rc = search_file(file, &search, err);
    if (!rc)
        *found = search.found;
    return rc;
}

int s3_profile_exists(enum s3_profile_file file, const char *profile, bool *found, struct cb_err *err)
{
    struct search search = {.profile = profile, .config = file == S3_PROFILE_CONFIG};
    int rc = search_file(file, &search, err);
    if (!rc)
        *found = search.found;
    return rc;
}
