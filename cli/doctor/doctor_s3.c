/* Checks an S3 store for doctor. */
#include "cli/doctor/doctor_s3.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/units.h"
#include "setup/s3_keys.h"
#include "store/s3/s3.h"
#include "store/s3/s3_credentials.h"

#define PROBES 5
#define SKEW_LOW_NS (5 * 60 * INT64_C(1000000000)) /* servers refuse requests at a skew of 15 minutes */

struct look {
    struct s3_client *client;
    doctor_s3_fn report;
    void *context;
    char name[128]; /* name of the probe's object */
};

static void tell(struct look *self, const char *name, int code, const struct cb_err *err, const char *found,
                 const char *advice)
{
    self->report(self->context, name, code == 0, code ? err->message : found, advice);
}

static void tell_facts(struct look *self)
{
    char text[1200], expires[64] = "", date[21];
    struct s3_facts facts;
    s3_client_facts(self->client, &facts);
    if (facts.credentials_expire_ns) {
        clock_format_utc(facts.credentials_expire_ns, date);
        snprintf(expires, sizeof expires, ", until %s", date);
    }
    snprintf(text, sizeof text, "from %s%s", facts.credentials_source, expires);
    self->report(self->context, "s3 credentials", true, text, NULL);
    snprintf(text, sizeof text, "%s (%s), region %s", facts.endpoint, facts.endpoint_source, facts.region);
    self->report(self->context, "s3 endpoint", true, text, NULL);
    snprintf(text, sizeof text, "looked for by the proxy");
    for (size_t i = 0, at = 0; i < facts.address_count && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i > 0 ? ", " : "", facts.addresses[i] + 2);
    self->report(self->context, "s3 addresses", true, text, NULL);
}

static void tell_clock(struct look *self, const struct s3_facts *facts)
{
    char text[64], offset[32];
    int64_t ahead_ns = facts->clock_offset_ns;
    units_format_duration((double)(ahead_ns < 0 ? -ahead_ns : ahead_ns), offset);
    snprintf(text, sizeof text, "the server is %s %s", offset, ahead_ns < 0 ? "behind" : "ahead");
    self->report(
        self->context, "s3 clock", ahead_ns < SKEW_LOW_NS && ahead_ns > -SKEW_LOW_NS, text,
        "set this machine's clock (chronyc makestep, timedatectl set-ntp true): beyond 15 minutes requests are "
        "refused as RequestTimeTooSkewed");
}

static int end_at_first(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)context, (void)name, (void)length, (void)err;
    return CB_ERR_EXISTS;
}

/* Advice about an unusable bucket, from the last answer. */
static const char *advice_about_bucket(const struct s3_facts *facts)
{
    if (facts->status == 0)
        return "start the server, or correct the endpoint (s3.endpoint, AWS_ENDPOINT_URL); for https name the "
               "authority that signed its certificate with s3.tls.ca";
    if (strcmp(facts->code, "RequestTimeTooSkewed") == 0)
        return "set this machine's clock (chronyc makestep, timedatectl set-ntp true)";
    if (strcmp(facts->code, "SignatureDoesNotMatch") == 0 || strcmp(facts->code, "InvalidAccessKeyId") == 0 ||
        strcmp(facts->code, "ExpiredToken") == 0 || strcmp(facts->code, "InvalidToken") == 0)
        return "give other credentials: AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or a "
               "profile with s3.profile";
    if (facts->status == 404)
        return "make the bucket, or name another; a bucket of another region wants s3.region";
    if (facts->status == 301 || facts->status == 307 || facts->status == 400)
        return "set s3.region, or s3.endpoint, to where the bucket is";
    if (facts->status == 403)
        return "let this user list the bucket (s3:ListBucket), or give other credentials";
    return "ask those who run the server; s3.deadline is how long this waits for it";
}

/* The fastest of some requests on an open connection. `facts` receives the settings from the last reply. */
static int check_bucket(struct look *self, struct s3_facts *facts)
{
    struct cb_err err = {0};
    char text[64], took[32];
    uint64_t fastest_ns = UINT64_MAX;
    int rc = s3_client_check_bucket(self->client, &err);
    for (int i = 0; i < PROBES && rc == 0; i++) {
        uint64_t start_ns = clock_monotonic_ns();
        rc = s3_client_check_bucket(self->client, &err);
        uint64_t took_ns = clock_monotonic_ns() - start_ns;
        fastest_ns = took_ns < fastest_ns ? took_ns : fastest_ns;
    }
    s3_client_facts(self->client, facts);
    snprintf(text, sizeof text, "%s a request", rc ? "?" : units_format_duration((double)fastest_ns, took));
    tell(self, "s3 bucket", rc, &err, text, advice_about_bucket(facts));
    return rc;
}

static int ignore_upload(void *context, const struct s3_upload *upload, struct cb_err *err)
{
    size_t *count = context;
    (void)upload, (void)err;
    (*count)++;
    return 0;
}

static void check_permissions(struct look *self)
{
    static const char probe[] = "a probe of ckptbench doctor, removed at once\n";
    const char *names[] = {self->name};
    char written[128];
    struct s3_facts facts;
    struct cb_err err = {0};
    struct buf text;
    int rc = s3_client_list(self->client, "", end_at_first, NULL, &err);
    tell(self, "s3 list", rc == CB_ERR_EXISTS ? 0 : rc, &err, "allowed", "allow s3:ListBucket on the bucket");
    rc = s3_client_put(self->client, self->name, probe, sizeof probe - 1, &err);
    s3_client_facts(self->client, &facts);
    snprintf(written, sizeof written, "allowed; %s", facts.protection);
    tell(self, "s3 write", rc, &err, written, "allow s3:PutObject below the prefix");
    if (rc == 0) {
        buf_init(&text, KIB);
        rc = s3_client_get(self->client, self->name, &text, &err);
        bool same = rc == 0 && text.len == sizeof probe - 1 && memcmp(text.data, probe, text.len) == 0;
        if (rc == 0 && !same)
            rc = cb_fail(&err, CB_ERR_CORRUPT, "%s came back with other bytes", self->name);
        tell(self, "s3 read", rc, &err, "allowed, the same bytes", "allow s3:GetObject below the prefix");
        buf_release(&text);
        rc = s3_client_remove(self->client, names, 1, &err);
        tell(self, "s3 remove", rc, &err, "allowed", "allow s3:DeleteObject below the prefix");
    }
}

static void check_uploads(struct look *self)
{
    struct cb_err err = {0};
    char text[128];
    size_t count = 0;
    int rc = s3_client_list_uploads(self->client, "", ignore_upload, &count, &err);
    snprintf(text, sizeof text, "allowed; %zu open%s", count,
             count ? ": `ckptbench s3 clean` aborts what is stale" : "");
    tell(self, "s3 uploads", rc, &err, text, "allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload");
    if (rc)
        return;
    rc = s3_client_abort_upload(self->client, self->name, "0", &err); /* does not exist: tests the permission */
    tell(self, "s3 abort", rc, &err, "allowed", "allow s3:AbortMultipartUpload below the prefix");
}

/* Reports why the client could not be opened: no credentials, or an endpoint without an address. */
static void tell_why_not(const struct look *self, const char *profile, const struct cb_err *err)
{
    struct s3_credentials credentials = {0};
    bool has = s3_credentials_find(profile, &credentials, NULL) == 0;
    s3_credentials_wipe(&credentials);
    self->report(
        self->context, has ? "s3 endpoint" : "s3 credentials", false, err->message,
        has ? "correct what it names (s3.endpoint, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS), or what this machine asks "
              "for names: `getent hosts NAME`"
            : "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws/credentials with "
              "s3.profile");
}

void doctor_s3_check(const char *uri, const struct experiment *experiment, doctor_s3_fn report, void *context)
{
    struct look look = {.report = report, .context = context};
    struct s3_options options;
    struct s3_facts facts;
    struct cb_err err = {0};
    snprintf(look.name, sizeof look.name, ".ckptbench-doctor-%" PRIu64 "-%d", clock_wall_ns(), (int)getpid());
    if (s3_keys_read(experiment, &options, &err)) {
        report(context, "s3", false, err.message, "correct the key: `ckptbench options s3` lists them");
        return;
    }
    int rc = s3_client_open(uri, &options, 0, &look.client, &err);
    if (rc) {
        tell_why_not(&look, options.profile, &err);
        return;
    }
    tell_facts(&look);
    rc = check_bucket(&look, &facts);
    if (facts.status != 0) /* there was a reply, with the server's date */
        tell_clock(&look, &facts);
    if (rc == 0 || strcmp(facts.code, "AccessDenied") == 0) { /* the user may have other permissions in the bucket */
        check_permissions(&look);
        check_uploads(&look);
    }
    s3_client_free(look.client);
}
