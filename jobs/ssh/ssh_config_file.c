/* Parses the format of ~/.ssh/config: lines, sections, keywords, Include. */
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "jobs/ssh/ssh_config.h"

#define FILES_MAX 64
#define WORD_BYTES 2048

/* Backtracks only to the last star, so a pattern costs at most its length times the text's. */
bool ssh_pattern_matches(const char *pattern, size_t pattern_len, const char *text)
{
    size_t p = 0, t = 0, star = SIZE_MAX, mark = 0;
    while (text[t]) {
        if (p < pattern_len && pattern[p] == '*') {
            star = p++;
            mark = t;
        } else if (p < pattern_len &&
                   (pattern[p] == '?' || tolower((unsigned char)pattern[p]) == tolower((unsigned char)text[t]))) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            p = star + 1;
            t = ++mark;
        } else {
            return false;
        }
    }
    while (p < pattern_len && pattern[p] == '*')
        p++;
    return p == pattern_len;
}

bool ssh_pattern_list_matches(const char *list, size_t len, const char *text)
{
    bool matched = false;
    for (size_t at = 0; at < len;) {
        size_t end = at;
        while (end < len && list[end] != ',' && list[end] != ' ' && list[end] != '\t')
            end++;
        bool negated = end > at && list[at] == '!';
        if (end > at && ssh_pattern_matches(list + at + negated, end - at - negated, text)) {
            if (negated)
                return false;
            matched = true;
        }
        at = end + 1;
    }
    return matched;
}

int ssh_list_add(struct ssh_list *self, const char *text, struct cb_err *err)
{
    if (self->count == SSH_LIST_MAX)
        return cb_fail(err, CB_ERR_MEMORY, "more than %d files are named for one host", SSH_LIST_MAX);
    char *copy = strdup(text);
    if (!copy)
        return alloc_fail(err, "for the configuration of ssh");
    self->items[self->count++] = copy;
    return 0;
}

bool ssh_port_parse(const char *text, uint16_t *port)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long value = digits && digits <= 5 ? strtoul(text, NULL, 10) : 0;
    if (text[digits] || value == 0 || value > 65535)
        return false;
    *port = (uint16_t)value;
    return true;
}

struct reader {
    struct ssh_host *host;
    const struct ssh_places *places;
    const char *name; /* line number */
    unsigned line, depth, *files;
    bool active; /* this section applies to our host */
};

static int apply_text(struct reader *self, const char *text, size_t len, struct cb_err *err);

static int bad_line(const struct reader *self, const char *keyword, const char *value, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "%s:%u: %s cannot be \"%.100s\"", self->name, self->line, keyword, value);
}

/* The next word without its quotes; false at the end of the line. Words too long are truncated at `bytes`. */
static bool next_word(const char **at, char *word, size_t bytes)
{
    size_t len = 0;
    bool quoted = false;
    const char *from = *at + strspn(*at, " \t\r");
    if (!*from || *from == '#')
        return false;
    for (; *from && (quoted || !strchr(" \t\r", *from)); from++) {
        if (*from == '"')
            quoted = !quoted;
        else if (len + 1 < bytes)
            word[len++] = *from;
    }
    word[len] = '\0';
    *at = from;
    return true;
}

static void keep_place(const struct reader *self, char place[SSH_PLACE_BYTES])
{
    if (!*place)
        snprintf(place, SSH_PLACE_BYTES, "%s:%u", self->name, self->line);
}

/* The first value counts. A value that is too long cannot be a name or path. */
static int keep_text(const struct reader *self, const char *keyword, char *into, size_t bytes, const char *value,
                     struct cb_err *err)
{
    size_t len = strlen(value);
    if (len >= bytes)
        return bad_line(self, keyword, value, err);
    if (!*into)
        memcpy(into, value, len + 1);
    return 0;
}

/* Seconds, or with suffix s, m, h, d. */
static int keep_seconds(const struct reader *self, const char *keyword, const char *value, int64_t *into,
                        struct cb_err *err)
{
    size_t digits = strspn(value, "0123456789");
    static const char units[] = "smhd";
    static const int64_t seconds[] = {1, 60, 3600, 86400};
    const char *unit = value[digits] ? strchr(units, tolower((unsigned char)value[digits])) : units;
    if (strcasecmp(value, "none") == 0)
        return 0;
    if (digits == 0 || digits > 6 || !unit || (value[digits] && value[digits + 1]))
        return bad_line(self, keyword, value, err);
    if (*into < 0)
        *into = strtoll(value, NULL, 10) * seconds[unit - units];
    return 0;
}

static int keep_words(const char *rest, struct ssh_list *into, bool add, struct cb_err *err)
{
    char word[WORD_BYTES];
    bool first = into->count == 0;
    int rc = 0;
    while (rc == 0 && (first || add) && next_word(&rest, word, sizeof word))
        rc = ssh_list_add(into, word, err);
    return rc;
}

/* Several files that match one pattern are read in its order. */
static int include_one(const struct reader *self, const char *pattern, struct cb_err *err)
{
    char path[PATH_MAX];
    glob_t found = {0};
    const char *home = self->places->home;
    int rc = 0;
    if (self->depth + 1 >= SSH_INCLUDE_DEPTH_MAX)
        return cb_fail(err, CB_ERR_FORMAT, "%s:%u: files are included more than %d deep", self->name, self->line,
                       SSH_INCLUDE_DEPTH_MAX);
    bool of_system = strncmp(self->name, "/etc/ssh/", 9) == 0;
    int len = *pattern == '/'                  ? snprintf(path, sizeof path, "%s", pattern)
              : strncmp(pattern, "~/", 2) == 0 ? snprintf(path, sizeof path, "%s/%s", home, pattern + 2)
              : of_system                      ? snprintf(path, sizeof path, "/etc/ssh/%s", pattern)
                                               : snprintf(path, sizeof path, "%s/.ssh/%s", home, pattern);
    if (len >= (int)sizeof path)
        return bad_line(self, "Include", pattern, err);
    int answer = glob(path, 0, NULL, &found);
    if (answer != 0 && answer != GLOB_NOMATCH)
        rc = bad_line(self, "Include", pattern, err);
    for (size_t i = 0; rc == 0 && answer == 0 && i < found.gl_pathc; i++) {
        struct buf text;
        struct reader inner = {.host = self->host,
                               .places = self->places,
                               .name = found.gl_pathv[i],
                               .depth = self->depth + 1,
                               .files = self->files,
                               .active = true};
        if (++*self->files > FILES_MAX) {
            rc = cb_fail(err, CB_ERR_FORMAT, "%s:%u: more than %d files are included", self->name, self->line,
                         FILES_MAX);
            break;
        }
        buf_init(&text, SSH_CONFIG_MAX_BYTES);
        rc = buf_read_file(&text, found.gl_pathv[i], err);
        if (rc == 0)
            rc = apply_text(&inner, text.data, text.len, err);
        buf_release(&text);
    }
    globfree(&found);
    return rc;
}

static int include(const struct reader *self, const char *rest, struct cb_err *err)
{
    char word[WORD_BYTES];
    int rc = 0;
    while (rc == 0 && next_word(&rest, word, sizeof word))
        rc = include_one(self, word, err);
    return rc;
}

static bool section_matches(const char *rest, const char *alias)
{
    char word[WORD_BYTES] = "";
    bool matched = false;
    while (next_word(&rest, word, sizeof word)) {
        bool negated = *word == '!';
        if (!ssh_pattern_matches(word + negated, strlen(word + negated), alias))
            continue;
        if (negated)
            return false;
        matched = true;
    }
    return matched;
}

static int apply_yes(const struct reader *self, const char *keyword, const char *value, int *into, struct cb_err *err)
{
    bool yes = strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0;
    if (!yes && strcasecmp(value, "no") != 0 && strcasecmp(value, "false") != 0)
        return bad_line(self, keyword, value, err);
    if (*into < 0)
        *into = yes;
    return 0;
}

/* Of ProxyJump and ProxyCommand, the first one counts. */
static int apply_proxy(const struct reader *self, const char *keyword, const char *value, const char *rest,
                       struct cb_err *err)
{
    struct ssh_host *host = self->host;
    if (*host->proxy_jump || *host->proxy_command_place)
        return 0;
    if (strcasecmp(keyword, "ProxyJump") == 0)
        return keep_text(self, keyword, host->proxy_jump, sizeof host->proxy_jump, value, err);
    if (strcasecmp(value, "none") == 0 && !*rest)
        return keep_text(self, keyword, host->proxy_jump, sizeof host->proxy_jump, "none", err);
    keep_place(self, host->proxy_command_place);
    return 0;
}

static int apply_keyword(const struct reader *self, const char *keyword, const char *value, const char *all,
                         const char *rest, struct cb_err *err)
{
    struct ssh_host *host = self->host;
    if (strcasecmp(keyword, "HostName") == 0)
        return keep_text(self, "HostName", host->host_name, sizeof host->host_name, value, err);
    if (strcasecmp(keyword, "User") == 0)
        return keep_text(self, "User", host->user, sizeof host->user, value, err);
    if (strcasecmp(keyword, "HostKeyAlias") == 0)
        return keep_text(self, "HostKeyAlias", host->host_key_alias, sizeof host->host_key_alias, value, err);
    if (strcasecmp(keyword, "IdentityAgent") == 0)
        return keep_text(self, "IdentityAgent", host->identity_agent, sizeof host->identity_agent, value, err);
    if (strcasecmp(keyword, "ProxyJump") == 0 || strcasecmp(keyword, "ProxyCommand") == 0)
        return apply_proxy(self, keyword, value, rest, err);
    if (strcasecmp(keyword, "Port") == 0) {
        uint16_t port;
        if (!ssh_port_parse(value, &port))
            return bad_line(self, "Port", value, err);
        host->port = host->port ? host->port : port;
        return 0;
    }
    if (strcasecmp(keyword, "IdentitiesOnly") == 0)
        return apply_yes(self, "IdentitiesOnly", value, &host->identities_only, err);
    if (strcasecmp(keyword, "IdentityFile") == 0)
        return ssh_list_add(&host->identity_files, value, err);
    if (strcasecmp(keyword, "UserKnownHostsFile") == 0)
        return keep_words(all, &host->user_known_hosts, false, err);
    if (strcasecmp(keyword, "GlobalKnownHostsFile") == 0)
        return keep_words(all, &host->global_known_hosts, false, err);
    if (strcasecmp(keyword, "ConnectTimeout") == 0)
        return keep_seconds(self, "ConnectTimeout", value, &host->connect_timeout_s, err);
    if (strcasecmp(keyword, "ServerAliveInterval") == 0)
        return keep_seconds(self, "ServerAliveInterval", value, &host->alive_interval_s, err);
    if (strcasecmp(keyword, "ServerAliveCountMax") == 0)
        return keep_seconds(self, "ServerAliveCountMax", value, &host->alive_count, err);
    if (strcasecmp(keyword, "Include") == 0)
        return include(self, all, err);
    return 0;
}

static int apply_line(struct reader *self, const char *line, struct cb_err *err)
{
    char keyword[64], value[WORD_BYTES];
    const char *at = line + strspn(line, " \t\r");
    size_t len = strcspn(at, " \t\r=\"");
    if (*at == '#' || len == 0 || len >= sizeof keyword)
        return 0;
    memcpy(keyword, at, len);
    keyword[len] = '\0';
    at += len + strspn(at + len, " \t\r");
    if (*at == '=')
        at++;
    if (strcasecmp(keyword, "Host") == 0) {
        self->active = section_matches(at, self->host->alias);
        return 0;
    }
    if (strcasecmp(keyword, "Match") == 0) {
        self->active = next_word(&at, value, sizeof value) && strcasecmp(value, "all") == 0;
        if (!self->active)
            keep_place(self, self->host->skipped_match_place);
        return 0;
    }
    const char *rest = at;
    if (!self->active || !next_word(&rest, value, sizeof value))
        return 0;
    rest += strspn(rest, " \t\r");
    return apply_keyword(self, keyword, value, at, rest, err);
}

static int apply_text(struct reader *self, const char *text, size_t len, struct cb_err *err)
{
    char line[2 * WORD_BYTES];
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t line_len = end ? (size_t)(end - (text + at)) : len - at;
        self->line++;
        if (line_len >= sizeof line || memchr(text + at, '\0', line_len))
            return cb_fail(err, CB_ERR_FORMAT, "%s:%u: a line of ssh's configuration cannot be this long or hold a NUL",
                           self->name, self->line);
        memcpy(line, text + at, line_len);
        line[line_len] = '\0';
        rc = apply_line(self, line, err);
        at += line_len + 1;
    }
    return rc;
}

int ssh_config_apply(struct ssh_host *self, const struct ssh_places *places, const char *text, size_t len,
                     const char *name, unsigned depth, struct cb_err *err)
{
    unsigned files = 0;
    struct reader reader = {
        .host = self, .places = places, .name = name, .depth = depth, .files = &files, .active = true};
    return apply_text(&reader, text, len, err);
}
