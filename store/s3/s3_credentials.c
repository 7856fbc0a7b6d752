/* Finds credentials along the usual chain of sources, and wipes every secret that it copied. */
#include "store/s3/s3_credentials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/buf.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/json.h"
#include "store/s3/s3_fetch.h"
#include "store/s3/s3_profile.h"

#define DOCUMENT_MAX_BYTES 65536
#define PROCESS_TIMEOUT_NS (60 * NS_PER_S)
#define CONTAINER_TIMEOUT_NS (5 * NS_PER_S)
#define METADATA_TIMEOUT_NS (1 * NS_PER_S)
/* Time before expiry at which new credentials are requested; AWS's own tools use 10 to 15 minutes. */
#define REFRESH_BEFORE_NS (10 * 60 * NS_PER_S)
#define CONTAINER_ADDRESS "http://169.254.170.2"
#define METADATA_ADDRESS "http://169.254.169.254"

void s3_credentials_wipe(struct s3_credentials *self)
{
    explicit_bzero(self, sizeof *self);
}

bool s3_credentials_are_old(const struct s3_credentials *self, uint64_t wall_ns)
{
    return self->expires_ns != 0 && wall_ns + REFRESH_BEFORE_NS >= self->expires_ns;
}

bool s3_parse_time(const char *text, uint64_t *wall_ns)
{
    struct tm utc = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
    if (!rest)
        return false;
    if (*rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    if (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0 && strcmp(rest, "") != 0)
        return false;
    time_t seconds = timegm(&utc);
    if (seconds < 0)
        return false;
    *wall_ns = (uint64_t)seconds * NS_PER_S;
    return true;
}

/* Copies a value, or fails if it does not fit: a truncated key would fail as a wrong signature. */
static bool copy_value(const char *from, char *to, size_t room)
{
    size_t len = strlen(from);
    if (len >= room || strpbrk(from, "\r\n"))
        return false;
    memcpy(to, from, len + 1);
    return true;
}

static int refuse(const char *what, const char *why, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "%s: %s", what, why);
}

static int take_document(const char *what, const struct json_value *root, bool is_process,
                         struct s3_credentials *credentials, struct cb_err *err)
{
    const char *access_key, *secret_key, *token = "", *expires = "";
    uint64_t version = 0;
    if (is_process && (!json_as_u64(json_get(root, "Version"), &version) || version != 1))
        return refuse(what, "it has no \"Version\": 1", err);
    if (!json_as_text(json_get(root, "AccessKeyId"), &access_key) ||
        !json_as_text(json_get(root, "SecretAccessKey"), &secret_key))
        return refuse(what, "it has no AccessKeyId and SecretAccessKey", err);
    (void)(json_as_text(json_get(root, "SessionToken"), &token) || json_as_text(json_get(root, "Token"), &token));
    (void)json_as_text(json_get(root, "Expiration"), &expires);
    if (!*access_key || !*secret_key ||
        !copy_value(access_key, credentials->access_key, sizeof credentials->access_key) ||
        !copy_value(secret_key, credentials->secret_key, sizeof credentials->secret_key) ||
        !copy_value(token, credentials->session_token, sizeof credentials->session_token))
        return refuse(what, "its keys are empty, too long, or of several lines", err);
    if (*expires && !s3_parse_time(expires, &credentials->expires_ns))
        return refuse(what, "its Expiration is no time", err);
    return 0;
}

int s3_credentials_parse(const char *what, const char *text, size_t len, bool is_process,
                         struct s3_credentials *credentials, struct cb_err *err)
{
    struct json_value *root;
    struct s3_credentials made = {0};
    if (json_parse(text, len, &root, NULL) != 0) /* its message could quote a secret */
        return refuse(what, "it is not JSON", err);
    int rc = take_document(what, root, is_process, &made, err);
    json_value_free(root);
    if (!rc) {
        memcpy(made.source, credentials->source, sizeof made.source);
        *credentials = made;
    }
    s3_credentials_wipe(&made);
    return rc;
}

/* --- sources: each sets *found, or fails if it is present but does not work --- */

static int from_environment(struct s3_credentials *credentials, bool *found, struct cb_err *err)
{
    const char *access_key = getenv("AWS_ACCESS_KEY_ID"), *secret_key = getenv("AWS_SECRET_ACCESS_KEY"),
               *token = getenv("AWS_SESSION_TOKEN");
    if (!access_key || !*access_key)
        return 0;
    if (!secret_key || !*secret_key)
        return cb_fail(err, CB_ERR_USAGE, "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not");
    if (!copy_value(access_key, credentials->access_key, sizeof credentials->access_key) ||
        !copy_value(secret_key, credentials->secret_key, sizeof credentials->secret_key) ||
        !copy_value(token ? token : "", credentials->session_token, sizeof credentials->session_token))
        return cb_fail(
            err, CB_ERR_USAGE,
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN is too long, or has a line break");
    snprintf(credentials->source, sizeof credentials->source, "environment");
    *found = true;
    return 0;
}

static void name_source(struct s3_credentials *credentials, enum s3_profile_file file, const char *profile,
                        const char *how)
{
    char path[4096];
    s3_profile_path(file, path, sizeof path);
    snprintf(credentials->source, sizeof credentials->source, "%sprofile %.64s in %.200s", how, profile, path);
}

static int from_file(enum s3_profile_file file, const char *profile, struct s3_credentials *credentials, bool *found,
                     struct cb_err *err)
{
    char value[S3_PROFILE_VALUE_BYTES];
    const struct {
        const char *key;
        char *to;
        size_t room;
        bool needed;
    } keys[] = {
        {"aws_access_key_id", credentials->access_key, sizeof credentials->access_key, true},
        {"aws_secret_access_key", credentials->secret_key, sizeof credentials->secret_key, true},
        {"aws_session_token", credentials->session_token, sizeof credentials->session_token, false},
    };
    int rc = 0;
    bool there = true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && there && !rc; i++) {
        bool has = false;
        rc = s3_profile_get(file, profile, keys[i].key, value, &has, err);
        there = has || !keys[i].needed;
        if (!rc && has && !copy_value(value, keys[i].to, keys[i].room))
            rc = cb_fail(err, CB_ERR_USAGE, "profile %s: %s is too long", profile, keys[i].key);
        if (!rc && !there && i > 0)
            rc = cb_fail(err, CB_ERR_USAGE, "profile %s has an aws_access_key_id, but no aws_secret_access_key",
                         profile);
    }
    explicit_bzero(value, sizeof value);
    if (rc || !there)
        return rc;
    name_source(credentials, file, profile, "");
    *found = true;
    return 0;
}

static int from_process(const char *profile, struct s3_credentials *credentials, bool *found, struct cb_err *err)
{
    char command[S3_PROFILE_VALUE_BYTES];
    bool has = false;
    enum s3_profile_file file = S3_PROFILE_CREDENTIALS;
    int rc = s3_profile_get(file, profile, "credential_process", command, &has, err);
    if (!rc && !has) {
        file = S3_PROFILE_CONFIG;
        rc = s3_profile_get(file, profile, "credential_process", command, &has, err);
    }
    if (rc || !has)
        return rc;
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    struct child_options options = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    struct buf text;
    buf_init(&text, DOCUMENT_MAX_BYTES);
    rc = child_capture(&options, PROCESS_TIMEOUT_NS, &text, err);
    if (!rc) {
        name_source(credentials, file, profile, "credential_process of ");
        rc = s3_credentials_parse("what credential_process prints", text.data, text.len, true, credentials, err);
    } else {
        cb_context(err, "credential_process of profile %s", profile);
    }
    explicit_bzero(text.data, text.len);
    buf_release(&text);
    *found = rc == 0;
    return rc;
}

static int fetch_document(const struct s3_fetch *request, const char *what, struct s3_credentials *credentials,
                          struct cb_err *err)
{
    struct buf text;
    buf_init(&text, DOCUMENT_MAX_BYTES);
    int rc = s3_fetch(request, &text, err);
    if (!rc)
        rc = s3_credentials_parse(what, text.data, text.len, false, credentials, err);
    explicit_bzero(text.data, text.len);
    buf_release(&text);
    return rc;
}

/* The header that a container's service requires: a token, from the environment or a file. "" without one. */
static int container_token(char *header, size_t room, struct cb_err *err)
{
    const char *token = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
               *path = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    struct buf text;
    int rc = 0;
    buf_init(&text, DOCUMENT_MAX_BYTES);
    if (path && *path)
        rc = buf_read_file(&text, path, err);
    else if (token)
        buf_append_text(&text, token);
    text.data[strcspn(text.data, "\r\n")] = '\0';
    header[0] = '\0';
    if (!rc && text.data[0] && (size_t)snprintf(header, room, "Authorization: %s", text.data) >= room)
        rc = cb_fail(err, CB_ERR_USAGE, "the container's authorization token is too long");
    explicit_bzero(text.data, text.len);
    buf_release(&text);
    return rc;
}

static int from_container(struct s3_credentials *credentials, bool *found, struct cb_err *err)
{
    const char *relative = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
               *full = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    bool is_relative = relative && *relative;
    if (!is_relative && (!full || !*full))
        return 0;
    char url[2048], header[DOCUMENT_MAX_BYTES];
    snprintf(url, sizeof url, "%s%s", is_relative ? CONTAINER_ADDRESS : "", is_relative ? relative : full);
    int rc = container_token(header, sizeof header, err);
    struct s3_fetch request = {
        .method = "GET", .url = url, .header = header[0] ? header : NULL, .timeout_ns = CONTAINER_TIMEOUT_NS};
    snprintf(credentials->source, sizeof credentials->source, "container (%.200s)", url);
    if (!rc)
        rc = fetch_document(&request, "the container's credentials", credentials, err);
    explicit_bzero(header, sizeof header);
    *found = rc == 0;
    return rc;
}

/* IMDSv2: a token, the name of the role, its credentials. Without a reply this machine has no such service. */
static int from_metadata(struct s3_credentials *credentials, bool *found, struct cb_err *err)
{
    const char *disabled = getenv("AWS_EC2_METADATA_DISABLED"), *given = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (disabled && strcasecmp(disabled, "true") == 0)
        return 0;
    char url[2048], header[4096] = "X-aws-ec2-metadata-token-ttl-seconds: 21600";
    const char *base = given && *given ? given : METADATA_ADDRESS;
    int base_len = (int)strlen(base) - (base[strlen(base) - 1] == '/');
    struct buf text;
    struct s3_fetch request = {.method = "PUT", .url = url, .header = header, .timeout_ns = METADATA_TIMEOUT_NS};
    buf_init(&text, sizeof header - 64);
    snprintf(url, sizeof url, "%.*s/latest/api/token", base_len, base);
    if (s3_fetch(&request, &text, NULL) != 0) {
        buf_release(&text);
        return 0;
    }
    snprintf(header, sizeof header, "X-aws-ec2-metadata-token: %s", text.data);
    buf_clear(&text);
    request.method = "GET";
    snprintf(url, sizeof url, "%.*s/latest/meta-data/iam/security-credentials/", base_len, base);
    int rc = s3_fetch(&request, &text, err);
    if (!rc) {
        text.data[strcspn(text.data, "\r\n")] = '\0';
        snprintf(url, sizeof url, "%.*s/latest/meta-data/iam/security-credentials/%.512s", base_len, base, text.data);
        snprintf(credentials->source, sizeof credentials->source, "machine metadata (role %.200s)", text.data);
        rc = fetch_document(&request, "the machine's credentials", credentials, err);
    }
    explicit_bzero(header, sizeof header);
    buf_release(&text);
    *found = rc == 0;
    return rc == CB_ERR_NOT_FOUND ? 0 : rc; /* a machine without a role */
}

/* A profile that exists, but uses a way to get credentials that is not supported. */
static int check_profile(const char *profile, bool asked_for, struct cb_err *err)
{
    static const char *const others[] = {"sso_session", "sso_start_url", "role_arn", "web_identity_token_file"};
    char value[S3_PROFILE_VALUE_BYTES];
    bool in_config = false, in_credentials = false;
    int rc = s3_profile_exists(S3_PROFILE_CONFIG, profile, &in_config, err);
    if (!rc)
        rc = s3_profile_exists(S3_PROFILE_CREDENTIALS, profile, &in_credentials, err);
    for (size_t i = 0; i < sizeof others / sizeof *others && !rc; i++) {
        bool has = false;
        rc = s3_profile_get(S3_PROFILE_CONFIG, profile, others[i], value, &has, err);
        if (!rc && has)
            rc =
                cb_fail(err, CB_ERR_UNSUPPORTED,
                        "profile %s gets its credentials by %s, which this program does not speak; let the AWS tool do "
                        "it: credential_process = aws configure export-credentials --profile %s --format process",
                        profile, others[i], profile);
    }
    if (!rc && asked_for && !in_config && !in_credentials)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "there is no profile %s in the AWS config or credentials file", profile);
    return rc;
}

int s3_credentials_find(const char *given, struct s3_credentials *credentials, struct cb_err *err)
{
    struct s3_credentials found_here = {0};
    const char *named = getenv("AWS_PROFILE"), *profile = s3_profile_name(given);
    bool found = false;
    int rc = *given ? 0 : from_environment(&found_here, &found, err);
    if (!rc && !found)
        rc = from_file(S3_PROFILE_CREDENTIALS, profile, &found_here, &found, err);
    if (!rc && !found)
        rc = from_process(profile, &found_here, &found, err);
    if (!rc && !found)
        rc = from_file(S3_PROFILE_CONFIG, profile, &found_here, &found, err);
    if (!rc && !found)
        rc = check_profile(profile, *given || (named && *named), err);
    if (!rc && !found)
        rc = from_container(&found_here, &found, err);
    if (!rc && !found)
        rc = from_metadata(&found_here, &found, err);
    if (!rc && !found)
        rc = cb_fail(
            err, CB_ERR_NOT_FOUND,
            "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of "
            "~/.aws/credentials with s3.profile (looked at: environment, profile %s, container, machine metadata)",
            profile);
    if (!rc)
        *credentials = found_here;
    s3_credentials_wipe(&found_here);
    return rc;
}
