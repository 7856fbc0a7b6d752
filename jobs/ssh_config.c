/* ~/.ssh/config as far as it says where a host is. Knows no connection and no libssh2. */
#include "jobs/ssh_config.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/buf.h"

#define CONFIG_MAX_BYTES (1u << 20)
#define FILES_MAX 64
#define WORD_BYTES 2048
#define SYSTEM_CONFIG "/etc/ssh/ssh_config"

/* ---- patterns ---- */

/* Steps back to the last star only: no pattern costs more than its length times the text's. */
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

/* ---- lists ---- */

static int list_add(struct ssh_list *self, const char *text, struct cb_err *err)
{
    if (self->count == SSH_LIST_MAX)
        return cb_fail(err, CB_ERR_MEMORY, "more than %d files are named for one host", SSH_LIST_MAX);
    char *copy = strdup(text);
    if (!copy)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the configuration of ssh");
    self->items[self->count++] = copy;
    return 0;
}

static void list_release(struct ssh_list *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i]);
    self->count = 0;
}

/* ---- destinations ---- */

static int bad_destination(const char *text, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_USAGE,
                   "\"%.200s\" is no host for ssh; what is: [user@]host[:port], or a Host of ~/.ssh/config", text);
}

static bool parse_port(const char *text, uint16_t *port)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long value = digits && digits <= 5 ? strtoul(text, NULL, 10) : 0;
    if (text[digits] || value == 0 || value > 65535)
        return false;
    *port = (uint16_t)value;
    return true;
}

/* What ssh itself, a shell or a log could take for something else than a name. */
static bool is_plain_name(const char *text)
{
    if (!*text || *text == '-')
        return false;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        if (*at <= ' ' || *at == 0x7f || strchr("'`\"$\\;&<>|(){}", *at))
            return false;
    return true;
}

int ssh_destination_parse(const char *text, char *user, char host[SSH_HOST_BYTES], uint16_t *port, struct cb_err *err)
{
    char own[128 + SSH_HOST_BYTES + 16], *name = own, *port_text = NULL;
    uint16_t number = 0;
    const char *given = strncmp(text, "ssh://", 6) == 0 ? text + 6 : text;
    if (snprintf(own, sizeof own, "%s", given) >= (int)sizeof own)
        return bad_destination(text, err);
    char *at = strrchr(own, '@'), *user_text = NULL;
    if (at) {
        *at = '\0';
        user_text = own;
        name = at + 1;
        if (!is_plain_name(user_text) || strlen(user_text) >= 128)
            return bad_destination(text, err);
    }
    if (*name == '[') {
        char *close = strchr(name, ']');
        if (!close || (close[1] && close[1] != ':'))
            return bad_destination(text, err);
        port_text = close[1] ? close + 2 : NULL;
        *close = '\0';
        name++;
    } else {
        char *colon = strchr(name, ':');
        if (colon && !strchr(colon + 1, ':')) { /* several colons: an IPv6 address without a port */
            *colon = '\0';
            port_text = colon + 1;
        }
    }
    if (!is_plain_name(name) || strlen(name) >= SSH_HOST_BYTES || (port_text && !parse_port(port_text, &number)))
        return bad_destination(text, err);
    snprintf(user, 128, "%s", user_text ? user_text : "");
    snprintf(host, SSH_HOST_BYTES, "%s", name);
    *port = number;
    return 0;
}

/* ---- the file ---- */

struct reader {
    struct ssh_host *host;
    const struct ssh_places *places;
    const char *name; /* of the file */
    unsigned line, depth, *files;
    bool active; /* this section is about our host */
};

static int apply_text(struct reader *self, const char *text, size_t len, struct cb_err *err);

static int bad_line(const struct reader *self, const char *keyword, const char *value, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "%s:%u: %s cannot be \"%.100s\"", self->name, self->line, keyword, value);
}

/* The next word, quotes taken off; false at the end of the line. Words too long are cut at `bytes`. */
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

/* The first value counts. One that is too long is no name or path of anything. */
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

/* Seconds, or with s, m, h, d behind. */
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

static int keep_words(const struct reader *self, const char *rest, struct ssh_list *into, bool add, struct cb_err *err)
{
    char word[WORD_BYTES];
    bool first = into->count == 0;
    int rc = 0;
    (void)self;
    while (rc == 0 && (first || add) && next_word(&rest, word, sizeof word))
        rc = list_add(into, word, err);
    return rc;
}

/* Where several files are given to one pattern they are read in its order. */
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
        buf_init(&text, CONFIG_MAX_BYTES);
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

static void begin_match(struct reader *self, const char *rest)
{
    char word[WORD_BYTES];
    bool has_word = next_word(&rest, word, sizeof word);
    self->active = has_word && strcasecmp(word, "all") == 0;
    if (!self->active)
        keep_place(self, self->host->skipped_match_place);
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

static int apply_port(const struct reader *self, const char *value, struct cb_err *err)
{
    uint16_t port;
    if (!parse_port(value, &port))
        return bad_line(self, "Port", value, err);
    if (self->host->port == 0)
        self->host->port = port;
    return 0;
}

/* Of the two ways through another machine the first that is named counts. */
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
    if (strcasecmp(keyword, "Port") == 0)
        return apply_port(self, value, err);
    if (strcasecmp(keyword, "IdentitiesOnly") == 0)
        return apply_yes(self, "IdentitiesOnly", value, &host->identities_only, err);
    if (strcasecmp(keyword, "IdentityFile") == 0)
        return list_add(&host->identity_files, value, err);
    if (strcasecmp(keyword, "UserKnownHostsFile") == 0)
        return keep_words(self, all, &host->user_known_hosts, false, err);
    if (strcasecmp(keyword, "GlobalKnownHostsFile") == 0)
        return keep_words(self, all, &host->global_known_hosts, false, err);
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
        begin_match(self, at);
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

/* ---- the whole ---- */

void ssh_host_init(struct ssh_host *self, const char *alias)
{
    *self =
        (struct ssh_host){.identities_only = -1, .connect_timeout_s = -1, .alive_interval_s = -1, .alive_count = -1};
    snprintf(self->alias, sizeof self->alias, "%s", alias);
}

void ssh_host_release(struct ssh_host *self)
{
    list_release(&self->identity_files);
    list_release(&self->user_known_hosts);
    list_release(&self->global_known_hosts);
}

static int apply_file(struct ssh_host *self, const struct ssh_places *places, const char *path, bool must_exist,
                      struct cb_err *err)
{
    struct buf text;
    if (!must_exist && access(path, R_OK) < 0)
        return 0;
    buf_init(&text, CONFIG_MAX_BYTES);
    int rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = ssh_config_apply(self, places, text.data, text.len, path, 0, err);
    buf_release(&text);
    return rc;
}

static int apply_files(struct ssh_host *self, const struct ssh_places *places, struct cb_err *err)
{
    char path[PATH_MAX];
    if (places->config_path && strcasecmp(places->config_path, "none") == 0)
        return 0;
    if (places->config_path)
        return apply_file(self, places, places->config_path, true, err);
    snprintf(path, sizeof path, "%s/.ssh/config", places->home);
    int rc = apply_file(self, places, path, false, err);
    return rc ? rc : apply_file(self, places, SYSTEM_CONFIG, false, err);
}

static const char *token_value(const struct ssh_host *self, const struct ssh_places *places, char token, char port[8])
{
    snprintf(port, 8, "%u", self->port);
    switch (token) {
    case '%':
        return "%";
    case 'd':
        return places->home;
    case 'h':
        return self->host_name;
    case 'n':
        return self->alias;
    case 'p':
        return port;
    case 'r':
        return self->user;
    case 'u':
        return places->user;
    default:
        return NULL;
    }
}

/* "~/" at the start, %-tokens and ${VARIABLES} replaced. */
static int expand(const struct ssh_host *self, const struct ssh_places *places, const char *text, struct buf *into,
                  struct cb_err *err)
{
    char port[8], name[128];
    const char *at = text;
    if (strncmp(at, "~/", 2) == 0) {
        buf_append_text(into, places->home);
        at++;
    }
    for (; *at; at++) {
        const char *close = strncmp(at, "${", 2) == 0 ? strchr(at, '}') : NULL;
        const char *value;
        if (close && close - at - 2 < (ptrdiff_t)sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)(close - at - 2), at + 2);
            value = getenv(name);
            if (!value)
                return cb_fail(err, CB_ERR_USAGE, "the configuration of ssh for %s has %s, and %s is not set",
                               self->alias, text, name);
            at = close;
        } else if (*at == '%') {
            at++;
            value = token_value(self, places, *at, port);
            if (!value)
                return cb_fail(err, CB_ERR_UNSUPPORTED,
                               "the configuration of ssh for %s has %s; of its tokens ckptbench knows %%d %%h %%n %%p "
                               "%%r %%u",
                               self->alias, text);
        } else {
            buf_append_char(into, *at);
            continue;
        }
        buf_append_text(into, value);
    }
    return buf_check(into, text, err);
}

static int expand_list(const struct ssh_host *self, const struct ssh_places *places, struct ssh_list *list,
                       struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < list->count; i++) {
        struct buf path;
        buf_init(&path, PATH_MAX);
        rc = expand(self, places, list->items[i], &path, err);
        if (rc == 0) {
            free(list->items[i]);
            list->items[i] = buf_take(&path);
        }
        buf_release(&path);
    }
    return rc;
}

static int expand_text(const struct ssh_host *self, const struct ssh_places *places, char *text, size_t bytes,
                       struct cb_err *err)
{
    struct buf value;
    buf_init(&value, bytes - 1);
    int rc = expand(self, places, text, &value, err);
    if (rc == 0)
        snprintf(text, bytes, "%s", value.data);
    buf_release(&value);
    return rc;
}

static int add_defaults(struct ssh_host *self, struct cb_err *err)
{
    static const char *const user_files[] = {"~/.ssh/known_hosts", "~/.ssh/known_hosts2"};
    static const char *const system_files[] = {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"};
    int rc = 0;
    bool no_user_files = self->user_known_hosts.count == 0, no_system_files = self->global_known_hosts.count == 0;
    for (size_t i = 0; rc == 0 && i < 2 && no_user_files; i++)
        rc = list_add(&self->user_known_hosts, user_files[i], err);
    for (size_t i = 0; rc == 0 && i < 2 && no_system_files; i++)
        rc = list_add(&self->global_known_hosts, system_files[i], err);
    return rc;
}

/* Fills in what no file said, and replaces tokens. */
static int complete(struct ssh_host *self, const struct ssh_places *places, struct cb_err *err)
{
    if (self->port == 0)
        self->port = 22;
    if (!*self->user)
        snprintf(self->user, sizeof self->user, "%s", places->user);
    if (!*self->host_name)
        snprintf(self->host_name, sizeof self->host_name, "%s", "%n");
    char asked[SSH_HOST_BYTES];
    snprintf(asked, sizeof asked, "%s", self->host_name);
    snprintf(self->host_name, sizeof self->host_name, "%s", self->alias); /* what %h is within HostName */
    int rc = expand_text(self, places, asked, sizeof asked, err);
    if (rc)
        return rc;
    snprintf(self->host_name, sizeof self->host_name, "%s", asked);
    if (!is_plain_name(self->host_name) || !is_plain_name(self->user))
        return cb_fail(err, CB_ERR_USAGE, "ssh to %s would go to user \"%s\" at \"%s\": no such names can be",
                       self->alias, self->user, self->host_name);
    rc = add_defaults(self, err);
    if (rc == 0)
        rc = expand_list(self, places, &self->identity_files, err);
    if (rc == 0)
        rc = expand_list(self, places, &self->user_known_hosts, err);
    if (rc == 0)
        rc = expand_list(self, places, &self->global_known_hosts, err);
    if (rc == 0 && strcmp(self->identity_agent, "SSH_AUTH_SOCK") == 0)
        *self->identity_agent = '\0';
    if (rc == 0)
        rc = expand_text(self, places, self->identity_agent, sizeof self->identity_agent, err);
    if (strcasecmp(self->proxy_jump, "none") == 0)
        *self->proxy_jump = '\0';
    if (rc == 0 && *self->proxy_command_place)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED,
                     "%s: %s is reached by a ProxyCommand, which ckptbench does not run; ProxyJump does the same",
                     self->proxy_command_place, self->alias);
    return rc;
}

static int resolve_host(struct ssh_host *self, const char *destination, const struct ssh_places *places,
                        bool jumps_are_given, struct cb_err *err)
{
    char user[128], host[SSH_HOST_BYTES];
    uint16_t port;
    ssh_host_init(self, "");
    int rc = ssh_destination_parse(destination, user, host, &port, err);
    if (rc)
        return rc;
    snprintf(self->alias, sizeof self->alias, "%s", host);
    snprintf(self->user, sizeof self->user, "%s", user);
    self->port = port;
    if (jumps_are_given)
        snprintf(self->proxy_jump, sizeof self->proxy_jump, "none");
    rc = apply_files(self, places, err);
    return rc ? rc : complete(self, places, err);
}

static int add_before(struct ssh_route *self, const char *destination, const struct ssh_places *places,
                      bool jumps_are_given, struct cb_err *err)
{
    if (self->count == SSH_HOPS_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the way to %s has more than %d machines: does a ProxyJump lead to itself?",
                       self->hops[self->count - 1].alias, SSH_HOPS_MAX);
    memmove(self->hops + 1, self->hops, self->count * sizeof *self->hops);
    self->count++;
    return resolve_host(&self->hops[0], destination, places, jumps_are_given, err);
}

int ssh_route_resolve(struct ssh_route *self, const char *destination, const struct ssh_places *places,
                      struct cb_err *err)
{
    self->count = 0;
    int rc = add_before(self, destination, places, false, err);
    while (rc == 0 && *self->hops[0].proxy_jump) {
        /* "a,b" is a first, then b; only a may have a ProxyJump of its own. */
        char jumps[sizeof self->hops[0].proxy_jump];
        snprintf(jumps, sizeof jumps, "%s", self->hops[0].proxy_jump);
        for (char *comma; rc == 0 && (comma = strrchr(jumps, ',')); *comma = '\0')
            rc = add_before(self, comma + 1, places, true, err);
        if (rc == 0)
            rc = add_before(self, jumps, places, false, err);
    }
    return rc;
}

void ssh_route_release(struct ssh_route *self)
{
    for (size_t i = 0; i < self->count; i++)
        ssh_host_release(&self->hops[i]);
    self->count = 0;
}

void ssh_host_known_name(const struct ssh_host *self, char name[SSH_HOST_BYTES + 16])
{
    if (*self->host_key_alias)
        snprintf(name, SSH_HOST_BYTES + 16, "%s", self->host_key_alias);
    else if (self->port == 22)
        snprintf(name, SSH_HOST_BYTES + 16, "%s", self->host_name);
    else
        snprintf(name, SSH_HOST_BYTES + 16, "[%s]:%u", self->host_name, self->port);
    for (char *at = name; *at; at++)
        *at = (char)tolower((unsigned char)*at);
}
