/* Sessions: settings, credentials and signatures. */
#include "store/s3/s3_session.h"
#include "store/s3/s3_answer.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/units.h"
#include "store/s3/s3_profile.h"

#define DEFAULT_REGION "us-east-1"
#define DEFAULT_ATTEMPTS 10
#define MAX_ADDRESSES 256
#define MAX_HEADERS 10
/* Servers accept a smaller clock difference. */
#define SKEW_NS (60 * NS_PER_S)
/* Minimum interval between lookups of credentials that are about to expire. */
#define LOOK_AGAIN_NS (30 * NS_PER_S)

/* --- settings --- */

/* The key, else the first variable that is set, else the profile's value. */
static int choose(const char *key_value, const char *const *variables, const char *profile, const char *profile_key,
                  char *value, size_t room, const char **source, struct cb_err *err)
{
    char found[S3_PROFILE_VALUE_BYTES] = "";
    bool has = false;
    *source = "";
    if (*key_value)
        return 0; /* `value` is set already */
    for (; *variables; variables++) {
        const char *text = getenv(*variables);
        if (text && *text) {
            *source = *variables;
            return (size_t)snprintf(value, room, "%s", text) < room
                       ? 0
                       : cb_fail(err, CB_ERR_USAGE, "%s is too long", *variables);
        }
    }
    int rc = s3_profile_get(S3_PROFILE_CONFIG, profile, profile_key, found, &has, err);
    if (!rc && has) {
        *source = "profile";
        if ((size_t)snprintf(value, room, "%s", found) >= room)
            rc = cb_fail(err, CB_ERR_USAGE, "profile %s: %s is too long", profile, profile_key);
    }
    return rc;
}

/* s3.attempts, else AWS_MAX_ATTEMPTS, which must be a number of at least 1, as for the SDKs. */
static int choose_attempts(struct s3_session *self, struct cb_err *err)
{
    const char *variable = getenv("AWS_MAX_ATTEMPTS");
    uint64_t attempts = self->options.attempts ? self->options.attempts : DEFAULT_ATTEMPTS;
    if (!self->options.attempts && variable && *variable &&
        (units_parse_u64(variable, &attempts, NULL) || attempts == 0 || attempts > UINT32_MAX))
        return cb_fail(err, CB_ERR_USAGE, "AWS_MAX_ATTEMPTS=%s: must be a number from 1; s3.attempts overrides it",
                       variable);
    self->attempts = (uint32_t)attempts;
    return 0;
}

static int decide(struct s3_session *self, struct cb_err *err)
{
    static const char *const endpoint[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL},
                             *const region[] = {"AWS_REGION", "AWS_DEFAULT_REGION", NULL},
                             *const ca[] = {"AWS_CA_BUNDLE", NULL};
    struct s3_options *options = &self->options;
    const char *profile = s3_profile_name(options->profile), *unused;
    self->endpoint_source = "s3.endpoint";
    bool given = options->endpoint[0];
    int rc = choose(options->endpoint, endpoint, profile, "endpoint_url", options->endpoint, sizeof options->endpoint,
                    &unused, err);
    if (!given)
        self->endpoint_source = *unused ? unused : "AWS";
    if (!rc)
        rc = choose(options->region, region, profile, "region", options->region, sizeof options->region, &unused, err);
    if (!rc)
        rc = choose(options->tls_ca, ca, profile, "ca_bundle", options->tls_ca, sizeof options->tls_ca, &unused, err);
    if (!options->region[0])
        snprintf(options->region, sizeof options->region, DEFAULT_REGION);
    return rc ? rc : choose_attempts(self, err);
}

/* --- addresses --- */

static int add_address(struct s3_session *self, const char *address)
{
    char *text = NULL;
    if (asprintf(&text, strchr(address, ':') ? "::[%s]:%u" : "::%s:%u", address, self->endpoint.port) < 0)
        return CB_ERR_MEMORY;
    for (size_t i = 0; i < self->address_count; i++) {
        if (self->addresses[i] && strcmp(self->addresses[i], text) == 0) {
            free(text);
            return 0;
        }
    }
    self->addresses[self->address_count++] = text;
    return 0;
}

static void forget_addresses(struct s3_session *self)
{
    for (size_t i = 0; i < self->address_count; i++)
        free(self->addresses[i]);
    free(self->addresses);
    self->addresses = NULL;
    self->address_count = 0;
}

static bool uses_proxy(const struct s3_session *self)
{
    const char *all = getenv("ALL_PROXY"), *all_lower = getenv("all_proxy");
    const char *own = self->endpoint.tls ? getenv("HTTPS_PROXY") : NULL;
    const char *own_lower = getenv(self->endpoint.tls ? "https_proxy" : "http_proxy");
    return (all && *all) || (all_lower && *all_lower) || (own && *own) || (own_lower && *own_lower);
}

/* Names below localhost are this machine (RFC 6761), though not every resolver knows it: BUCKET.localhost of a test
 * server. */
static const char *name_to_resolve(const char *name)
{
    static const char local[] = ".localhost";
    size_t len = strlen(name), ending = sizeof local - 1;
    return len > ending && strcmp(name + len - ending, local) == 0 ? local + 1 : name;
}

static int resolve(struct s3_session *self, struct cb_err *err)
{
    const char *name = name_to_resolve(self->endpoint.name);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG},
                    *found = NULL;
    if (uses_proxy(self))
        return 0; /* the proxy resolves */
    int code = getaddrinfo(name, NULL, &hints, &found);
    if (code == EAI_ADDRFAMILY || code == EAI_NODATA ||
        code == EAI_NONAME) { /* a machine with only a loopback interface */
        hints.ai_flags = 0;
        code = getaddrinfo(name, NULL, &hints, &found);
    }
    if (code)
        return cb_fail(err, CB_ERR_NOT_FOUND, "the S3 endpoint %s (from %s) cannot be resolved: %s",
                       self->endpoint.name, self->endpoint_source, gai_strerror(code));
    self->addresses = calloc(MAX_ADDRESSES, sizeof *self->addresses);
    int rc = self->addresses ? 0 : CB_ERR_MEMORY;
    for (const struct addrinfo *at = found; at && !rc && self->address_count < MAX_ADDRESSES; at = at->ai_next) {
        char address[NI_MAXHOST];
        if (getnameinfo(at->ai_addr, at->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST) == 0)
            rc = add_address(self, address);
    }
    freeaddrinfo(found);
    return rc ? cb_fail(err, rc, "no memory for the addresses of %s", self->endpoint.name) : 0;
}

/* --- opening --- */

int s3_session_open(struct s3_session *self, const char *uri, const struct s3_options *options, uint32_t rank,
                    struct cb_err *err)
{
    *self = (struct s3_session){.options = *options, .rank = rank};
    pthread_mutex_init(&self->lock, NULL);
    s3_blocked_init(&self->blocked);
    int rc = s3_uri_parse(uri, self->bucket, self->prefix, err);
    if (!rc)
        rc = decide(self, err);
    if (!rc)
        rc = s3_endpoint_of_rank(self->options.endpoint, rank, self->options.endpoint, sizeof self->options.endpoint,
                                 &self->endpoint_count, err);
    if (!rc)
        rc = s3_endpoint_make(self->options.endpoint, self->options.region, self->bucket, self->options.path_style,
                              &self->endpoint, err);
    if (!rc)
        rc = s3_credentials_find(self->options.profile, &self->credentials, err);
    if (!rc)
        rc = resolve(self, err);
    if (rc)
        s3_session_release(self);
    return rc;
}

void s3_session_release(struct s3_session *self)
{
    forget_addresses(self);
    s3_credentials_wipe(&self->credentials);
    explicit_bzero(self->signing_key, sizeof self->signing_key);
    pthread_mutex_destroy(&self->lock);
    s3_blocked_release(&self->blocked);
}

/* --- credentials and clock --- */

/* With the lock held. */
static int look_for_credentials(struct s3_session *self, struct cb_err *err)
{
    self->looked_ns = clock_monotonic_ns();
    struct s3_credentials found;
    int rc = s3_credentials_find(self->options.profile, &found, err);
    if (rc)
        return rc;
    self->credentials_number += strcmp(found.access_key, self->credentials.access_key) != 0 ||
                                strcmp(found.session_token, self->credentials.session_token) != 0;
    self->credentials = found;
    self->signing_day[0] = '\0';
    s3_credentials_wipe(&found);
    return 0;
}

/* Old credentials still work: the lack of new ones is reported only once a server rejects the old ones. */
static void refresh_if_old(struct s3_session *self)
{
    uint64_t now_ns = clock_monotonic_ns();
    if (!s3_credentials_are_old(&self->credentials, clock_wall_ns()) || now_ns < self->looked_ns + LOOK_AGAIN_NS)
        return;
    if (look_for_credentials(self, NULL))
        self->looked_ns = now_ns;
}

int s3_session_renew(struct s3_session *self, uint32_t signed_with, struct cb_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    if (self->credentials_number == signed_with)
        rc = look_for_credentials(self, err);
    if (!rc && self->credentials_number == signed_with)
        rc = cb_fail(err, CB_ERR_SYSTEM, "the credentials (%s) have ended, and there are no new ones",
                     self->credentials.source);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

bool s3_session_set_clock(struct s3_session *self, uint64_t server_wall_ns)
{
    int64_t offset_ns = (int64_t)server_wall_ns - (int64_t)clock_wall_ns();
    pthread_mutex_lock(&self->lock);
    int64_t change_ns = offset_ns - self->clock_offset_ns;
    bool new = change_ns > (int64_t)SKEW_NS || change_ns < -(int64_t)SKEW_NS;
    if (new)
        self->clock_offset_ns = offset_ns;
    pthread_mutex_unlock(&self->lock);
    return new;
}

/* --- protection of bodies --- */

const char *s3_session_protection(const struct s3_session *self)
{
    static const char *const by_crc[] = {
        [S3_CRC_UNKNOWN] = "bodies unsigned, with a CRC-32C",
        [S3_CRC_COMPARED] = "bodies unsigned, the server compares their CRC-32C",
        [S3_CRC_IGNORED] = "bodies unsigned and unchecked: the server does not know CRC-32C",
        [S3_CRC_REFUSED] = "bodies signed (SHA-256): the server refuses unsigned ones with a CRC-32C",
    };
    enum s3_checksum checksum = self->options.checksum;
    return checksum == S3_CHECKSUM_SHA256 ? "bodies signed (SHA-256)"
           : checksum == S3_CHECKSUM_NONE ? "bodies unsigned, unchecked"
                                          : by_crc[self->crc];
}

/* --- headers --- */

static void add(struct s3_header *headers, size_t *count, const char *name, const char *value)
{
    if (value && *value)
        headers[(*count)++] = (struct s3_header){name, value};
}

static void append_line(struct buf *lines, const char *name, const char *value)
{
    if (!value || !*value)
        return;
    buf_printf(lines, "%s: %s", name, value);
    buf_append_char(lines, '\0');
}

/* With the lock held. */
static int compose(struct s3_session *self, const struct s3_outgoing *request, struct buf *scratch, struct buf *lines,
                   struct cb_err *err)
{
    char date[S3_DATE_BYTES];
    struct s3_header headers[MAX_HEADERS];
    size_t count = 0;
    s3_format_date((uint64_t)((int64_t)clock_wall_ns() + self->clock_offset_ns), date);
    if (strncmp(date, self->signing_day, S3_SCOPE_DATE_BYTES - 1) != 0) {
        s3_signing_key(self->credentials.secret_key, date, self->options.region, "s3", self->signing_key);
        memcpy(self->signing_day, date, S3_SCOPE_DATE_BYTES - 1);
        self->signing_day[S3_SCOPE_DATE_BYTES - 1] = '\0';
    }
    add(headers, &count, "host", self->endpoint.host); /* sorted by name, as signatures require */
    add(headers, &count, "x-amz-checksum-algorithm", request->algorithm);
    add(headers, &count, "x-amz-checksum-crc32c", request->crc32c);
    add(headers, &count, "x-amz-content-sha256", request->payload_hash);
    add(headers, &count, "x-amz-date", date);
    add(headers, &count, S3_MARK, request->mark);
    add(headers, &count, "x-amz-request-payer", self->options.requester_pays ? "requester" : NULL);
    add(headers, &count, "x-amz-security-token", self->credentials.session_token);
    struct s3_to_sign to_sign = {
        .method = request->method,
        .path = request->path,
        .query = request->query,
        .headers = headers,
        .header_count = count,
        .payload_hash = request->payload_hash,
        .date = date,
        .region = self->options.region,
        .service = "s3",
        .access_key = self->credentials.access_key,
    };
    for (size_t i = 0; i < count; i++)
        append_line(lines, headers[i].name, headers[i].value);
    buf_append_text(lines, "authorization: ");
    int rc = s3_sign(&to_sign, self->signing_key, scratch, lines, err);
    buf_append_char(lines, '\0');
    return rc;
}

int s3_session_headers(struct s3_session *self, const struct s3_outgoing *request, struct buf *scratch,
                       struct buf *lines, uint32_t *signed_with, struct cb_err *err)
{
    buf_clear(lines);
    append_line(lines, "range", request->range);
    append_line(lines, "if-match", request->if_match);
    append_line(lines, "if-none-match", request->if_none_match);
    append_line(lines, "content-md5", request->content_md5);
    pthread_mutex_lock(&self->lock);
    refresh_if_old(self);
    *signed_with = self->credentials_number;
    int rc = compose(self, request, scratch, lines, err);
    pthread_mutex_unlock(&self->lock);
    return rc ? rc : buf_check(lines, "the headers of a request", err);
}
