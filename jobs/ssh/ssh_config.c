/* The route to a host: destinations, configuration files, tokens, jump hosts. jobs/ssh/ssh_config_file.c parses a
 * file. */
#include "jobs/ssh/ssh_config.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"

#define SYSTEM_CONFIG "/etc/ssh/ssh_config"

static void list_release(struct ssh_list *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i]);
    self->count = 0;
}

static int bad_destination(const char *text, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_USAGE,
                   "\"%.200s\" is no host for ssh; what is: [user@]host[:port], or a Host of ~/.ssh/config", text);
}

/* Rejects names that ssh, a shell or a log could misinterpret. */
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
    if (!is_plain_name(name) || strlen(name) >= SSH_HOST_BYTES || (port_text && !ssh_port_parse(port_text, &number)))
        return bad_destination(text, err);
    snprintf(user, 128, "%s", user_text ? user_text : "");
    snprintf(host, SSH_HOST_BYTES, "%s", name);
    *port = number;
    return 0;
}

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
    buf_init(&text, SSH_CONFIG_MAX_BYTES);
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

/* Expands "~/" at the start, %-tokens and ${VARIABLES}. */
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
        rc = ssh_list_add(&self->user_known_hosts, user_files[i], err);
    for (size_t i = 0; rc == 0 && i < 2 && no_system_files; i++)
        rc = ssh_list_add(&self->global_known_hosts, system_files[i], err);
    return rc;
}

/* Fills in defaults, and replaces tokens. */
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
    snprintf(self->host_name, sizeof self->host_name, "%s", self->alias); /* the value of %h in HostName */
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

static int add_before(struct ssh_route *self, const char *destination, const struct ssh_places *places,
                      bool jumps_are_given, struct cb_err *err)
{
    if (self->count == SSH_HOPS_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the way to %s has more than %d machines: does a ProxyJump lead to itself?",
                       self->hops[self->count - 1].alias, SSH_HOPS_MAX);
    memmove(self->hops + 1, self->hops, self->count * sizeof *self->hops);
    self->count++;
    char user[128], name[SSH_HOST_BYTES];
    uint16_t port;
    struct ssh_host *host = &self->hops[0];
    ssh_host_init(host, "");
    int rc = ssh_destination_parse(destination, user, name, &port, err);
    if (rc)
        return rc;
    snprintf(host->alias, sizeof host->alias, "%s", name);
    snprintf(host->user, sizeof host->user, "%s", user);
    host->port = port;
    if (jumps_are_given)
        snprintf(host->proxy_jump, sizeof host->proxy_jump, "none");
    rc = apply_files(host, places, err);
    return rc ? rc : complete(host, places, err);
}

int ssh_route_resolve(struct ssh_route *self, const char *destination, const struct ssh_places *places,
                      struct cb_err *err)
{
    self->count = 0;
    int rc = add_before(self, destination, places, false, err);
    while (rc == 0 && *self->hops[0].proxy_jump) {
        /* "a,b" means first a, then b; only a may have a ProxyJump of its own. */
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
