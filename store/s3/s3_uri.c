/* S3 URIs and endpoints: which are valid, and percent-encoding. */
#include "store/s3/s3_uri.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/kind.h"

static bool is_bucket_character(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

static int check_bucket(const char *uri, const char *bucket, size_t len, struct cb_err *err)
{
    bool good = len >= 3 && len < S3_BUCKET_BYTES && bucket[0] != '.' && bucket[0] != '-';
    for (size_t i = 0; i < len && good; i++)
        good = is_bucket_character(bucket[i]);
    if (good)
        return 0;
    return cb_fail(err, CB_ERR_USAGE,
                   "store '%s': a bucket's name has 3 to 63 of a-z, 0-9, '-' and '.', as " STORE_S3 "my-bucket/folder",
                   uri);
}

int s3_uri_parse(const char *uri, char bucket[S3_BUCKET_BYTES], char prefix[S3_KEY_BYTES], struct cb_err *err)
{
    size_t scheme = strlen(STORE_S3);
    if (strncmp(uri, STORE_S3, scheme) != 0)
        return cb_fail(err, CB_ERR_USAGE, "store '%s' does not begin with %s", uri, STORE_S3);
    const char *name = uri + scheme, *rest = name + strcspn(name, "/");
    size_t name_len = (size_t)(rest - name);
    int rc = check_bucket(uri, name, name_len, err);
    if (rc)
        return rc;
    while (*rest == '/')
        rest++;
    size_t len = strlen(rest);
    while (len > 0 && rest[len - 1] == '/')
        len--;
    if (len >= S3_KEY_BYTES - 64)
        return cb_fail(err, CB_ERR_USAGE, "store '%.80s…': the prefix is too long (%zu bytes; keys have at most 1024)",
                       uri, len);
    for (size_t i = 0; i < len; i++) {
        if (iscntrl((unsigned char)rest[i]))
            return cb_fail(err, CB_ERR_USAGE, "store '%s': the prefix holds a control character", uri);
    }
    memcpy(bucket, name, name_len);
    bucket[name_len] = '\0';
    memcpy(prefix, rest, len);
    prefix[len] = '\0';
    return 0;
}

size_t s3_encode(const char *text, bool keep_slash, char *out, size_t room)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool plain =
            (*c < 128 && isalnum(*c)) || *c == '-' || *c == '.' || *c == '_' || *c == '~' || (keep_slash && *c == '/');
        if (len + (plain ? 1 : 3) >= room)
            return SIZE_MAX;
        if (plain) {
            out[len++] = (char)*c;
            continue;
        }
        out[len++] = '%';
        out[len++] = digits[*c >> 4];
        out[len++] = digits[*c & 15];
    }
    if (len >= room)
        return SIZE_MAX;
    out[len] = '\0';
    return len;
}

static int refuse_endpoint(const char *url, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_USAGE, "the S3 endpoint '%s' is not http://HOST[:PORT] or https://HOST[:PORT]", url);
}

/* "host", "host:port", "[address]:port" into name and port. */
static int parse_authority(const char *url, const char *text, struct s3_endpoint *endpoint, struct cb_err *err)
{
    bool bracketed = *text == '[';
    const char *name = bracketed ? text + 1 : text;
    size_t len = strcspn(name, bracketed ? "]/?#@" : ":/?#@");
    const char *rest = name + len;
    if (len == 0 || len >= S3_HOST_BYTES - S3_BUCKET_BYTES - 16 || (bracketed && *rest++ != ']'))
        return refuse_endpoint(url, err);
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)name[i]) && !strchr(bracketed ? ":.%" : ".-_", name[i]))
            return refuse_endpoint(url, err);
    }
    endpoint->port = endpoint->tls ? 443 : 80;
    if (*rest == ':') {
        char *end;
        unsigned long port = isdigit((unsigned char)rest[1]) ? strtoul(rest + 1, &end, 10) : 0;
        if (port == 0 || port > 65535)
            return refuse_endpoint(url, err);
        endpoint->port = (uint16_t)port;
        rest = end;
    }
    if (strcmp(rest, "") != 0 && strcmp(rest, "/") != 0)
        return refuse_endpoint(url, err);
    memcpy(endpoint->name, name, len);
    endpoint->name[len] = '\0';
    return 0;
}

static void compose_host(struct s3_endpoint *endpoint)
{
    bool address = strchr(endpoint->name, ':') != NULL;
    int len = snprintf(endpoint->host, sizeof endpoint->host, "%s%.*s%s", address ? "[" : "", S3_HOST_BYTES - 16,
                       endpoint->name, address ? "]" : "");
    if (endpoint->port != (endpoint->tls ? 443 : 80))
        snprintf(endpoint->host + len, sizeof endpoint->host - (size_t)len, ":%u", endpoint->port);
}

static int parse_url(const char *url, struct s3_endpoint *endpoint, struct cb_err *err)
{
    if (strncmp(url, "https://", 8) == 0)
        endpoint->tls = true;
    else if (strncmp(url, "http://", 7) != 0)
        return refuse_endpoint(url, err);
    return parse_authority(url, url + (endpoint->tls ? 8 : 7), endpoint, err);
}

int s3_endpoint_make(const char *url, const char *region, const char *bucket, int path_style,
                     struct s3_endpoint *endpoint, struct cb_err *err)
{
    struct s3_endpoint made = {0};
    char aws[S3_HOST_BYTES];
    bool is_aws = !url || !*url;
    if (is_aws) {
        snprintf(aws, sizeof aws, "https://s3.%.64s.amazonaws.com%s", region,
                 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
        url = aws;
    }
    int rc = parse_url(url, &made, err);
    if (rc)
        return rc;
    /* A certificate's wildcard matches one label: a bucket with dots does not match it. */
    bool by_path = path_style >= 0 ? path_style : !is_aws || strchr(bucket, '.');
    if (by_path) {
        snprintf(made.base, sizeof made.base, "/%.*s", S3_BUCKET_BYTES - 1, bucket);
    } else {
        char name[S3_HOST_BYTES];
        memcpy(name, made.name, sizeof name);
        snprintf(made.name, sizeof made.name, "%.*s.%.*s", S3_BUCKET_BYTES - 1, bucket,
                 S3_HOST_BYTES - S3_BUCKET_BYTES - 2, name);
    }
    compose_host(&made);
    *endpoint = made;
    return 0;
}

int s3_endpoint_of_rank(const char *urls, uint32_t rank, char *one, size_t room, uint32_t *count, struct cb_err *err)
{
    uint32_t found = 1;
    for (const char *at = urls; *at; at++)
        found += *at == '+';
    char chosen[2 * S3_HOST_BYTES] = "";
    const char *at = urls;
    int rc = 0;
    for (uint32_t i = 0; i < found && !rc; i++) {
        char url[2 * S3_HOST_BYTES];
        struct s3_endpoint unused;
        size_t len = strcspn(at, "+");
        snprintf(url, sizeof url, "%.*s", (int)len, at); /* a truncated URL is rejected: too long for a host */
        at += len + (at[len] == '+');
        if (found > 1)
            rc = *url ? s3_endpoint_make(url, "", "bucket", 1, &unused, err) : refuse_endpoint(url, err);
        if (i == rank % found)
            memcpy(chosen, url, sizeof chosen);
    }
    if (rc)
        return rc;
    if ((size_t)snprintf(one, room, "%s", chosen) >= room)
        return cb_fail(err, CB_ERR_USAGE, "the S3 endpoint '%.80s…' is too long", chosen);
    *count = found;
    return 0;
}
