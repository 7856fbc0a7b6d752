/* ckptbench s3: finds and aborts multipart uploads that dead jobs left in a bucket. They appear in no list of
 * objects, and cost money until they are aborted. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/listing.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/units.h"
#include "run/experiment.h"
#include "setup/s3_keys.h"
#include "store/kind.h"
#include "store/s3/s3.h"

#define OLDER_THAN_NS (24 * 3600 * NS_PER_S)

struct stale {
    char *key, *id;
    uint64_t begun_ns; /* 0: unknown */
    bool aborted;
};

struct cleaning {
    struct cli *cli;
    const char *uri;
    uint64_t now_ns, older_than_ns;
    struct stale *uploads;
    size_t count, younger, aborted;
};

/* An upload of unknown age counts as infinitely old. */
static uint64_t age_ns(const struct cleaning *self, uint64_t begun_ns)
{
    if (begun_ns == 0)
        return UINT64_MAX;
    return self->now_ns > begun_ns ? self->now_ns - begun_ns : 0;
}

static int collect(void *context, const struct s3_upload *upload, struct cb_err *err)
{
    struct cleaning *self = context;
    if (age_ns(self, upload->begun_ns) < self->older_than_ns) {
        self->younger++;
        return 0;
    }
    if (alloc_grow(&self->uploads, self->count, sizeof *self->uploads, err))
        return CB_ERR_MEMORY;
    struct stale *next = &self->uploads[self->count++];
    *next = (struct stale){.key = strdup(upload->key), .id = strdup(upload->id), .begun_ns = upload->begun_ns};
    return next->key && next->id ? 0 : alloc_fail(err, "for the list of uploads");
}

static int write_list(const struct cleaning *self, struct cb_err *err)
{
    static const char *const headings[] = {"begun", "age", "key", "upload"};
    struct listing list;
    char age[32];
    bool json = self->cli->json;
    listing_init(&list, self->cli, 2, "lrll", headings);
    if (json) {
        json_write_begin_object(&list.json);
        json_member_text(&list.json, "uri", self->uri);
        json_member_array(&list.json, "uploads");
    }
    for (size_t i = 0; i < self->count; i++) {
        const struct stale *upload = &self->uploads[i];
        listing_begin_row(&list);
        if (!json) {
            listing_date(&list, "begun", upload->begun_ns);
            table_add(&list.table, TABLE_PLAIN,
                      upload->begun_ns ? units_format_duration((double)age_ns(self, upload->begun_ns), age)
                                       : "unknown");
        }
        listing_text(&list, "key", TABLE_PLAIN, upload->key);
        if (json) {
            json_member_text(&list.json, "upload_id", upload->id);
            listing_date(&list, "begun", upload->begun_ns);
            json_member_bool(&list.json, "aborted", upload->aborted);
        } else {
            table_addf(&list.table, TABLE_DIM, "%.16s", upload->id);
        }
        listing_end_row(&list);
    }
    if (json) {
        json_write_end_array(&list.json);
        json_member_u64(&list.json, "younger", self->younger);
        json_member_u64(&list.json, "aborted", self->aborted);
    }
    return listing_end(&list, 0, err);
}

static int abort_all(struct cleaning *self, struct s3_client *client, struct cb_err *err)
{
    for (size_t i = 0; i < self->count; i++) {
        struct stale *upload = &self->uploads[i];
        int rc = s3_client_abort_upload(client, upload->key, upload->id, err);
        if (rc)
            return cb_context(err, "aborting the upload of %s (%zu of %zu are aborted)", upload->key, self->aborted,
                              self->count);
        upload->aborted = true;
        self->aborted++;
    }
    return 0;
}

static int clean(struct cleaning *self, struct s3_client *client, struct cb_err *err)
{
    struct cli *cli = self->cli;
    char older[32], question[96];
    int rc = s3_client_list_uploads(client, "", collect, self, err);
    if (rc)
        return rc;
    units_format_duration_exact(self->older_than_ns, older);
    if (!cli->json && self->count == 0)
        buf_printf(&cli->out, "no multipart upload under %s was begun more than %s ago\n", self->uri, older);
    else if (!cli->json)
        rc = write_list(self, err);
    if (rc == 0)
        rc = cli_flush(cli, err);
    if (rc == 0 && self->younger > 0)
        log_info("%zu younger than %s, perhaps of a job that runs, left alone", self->younger, older);
    snprintf(question, sizeof question, "abort %s %zu? What was uploaded of %s is lost.",
             self->count == 1 ? "this" : "these", self->count, self->count == 1 ? "it" : "them");
    if (rc == 0 && self->count > 0 && cli_confirms(cli, question, "nothing was aborted: --yes does it"))
        rc = abort_all(self, client, err);
    if (rc)
        return rc;
    if (cli->json)
        return write_list(self, err);
    if (self->aborted > 0)
        buf_printf(&cli->out, "aborted %zu of %zu\n", self->aborted, self->count);
    return 0;
}

/* s3.endpoint=URL and similar settings. */
static int read_keys(const struct cli *cli, struct s3_options *options, struct cb_err *err)
{
    struct experiment *experiment;
    char key[64];
    int rc = experiment_new(&experiment, err);
    if (rc)
        return rc;
    for (size_t i = 2; i < cli->word_count && rc == 0; i++) {
        const char *word = cli->words[i], *value = strchr(word, '=');
        if (!value || strncmp(word, "s3.", 3) != 0 || (size_t)(value - word) >= sizeof key) {
            rc = cb_fail(err, CB_ERR_USAGE,
                         "s3 clean takes one " STORE_S3 "BUCKET/PREFIX and keys as s3.endpoint=URL, not '%s'", word);
            break;
        }
        snprintf(key, sizeof key, "%.*s", (int)(value - word), word);
        rc = experiment_set(experiment, key, value + 1, "command line", err);
    }
    if (rc == 0)
        rc = s3_keys_read(experiment, options, err);
    experiment_free(experiment);
    return rc;
}

static int run_s3(struct cli *cli, struct cb_err *err)
{
    struct cleaning cleaning = {.cli = cli, .older_than_ns = OLDER_THAN_NS};
    struct s3_options options;
    struct s3_client *client = NULL;
    if (cli->word_count < 2 || strcmp(cli->words[0], "clean") != 0)
        return cb_fail(err, CB_ERR_USAGE, "s3 does one thing: `ckptbench s3 clean " STORE_S3 "BUCKET/PREFIX`");
    int rc = cli_parse_flag(cli, "older-than", units_parse_duration, &cleaning.older_than_ns, err);
    if (rc)
        return rc;
    cleaning.uri = cli->words[1];
    cleaning.now_ns = clock_wall_ns();
    rc = read_keys(cli, &options, err);
    if (rc == 0)
        rc = s3_client_open(cleaning.uri, &options, 0, &client, err);
    if (rc == 0)
        rc = clean(&cleaning, client, err);
    s3_client_free(client);
    for (size_t i = 0; i < cleaning.count; i++) {
        free(cleaning.uploads[i].key);
        free(cleaning.uploads[i].id);
    }
    free(cleaning.uploads);
    return rc;
}

static const struct verb_flag flags[] = {
    {"older-than", "TIME", "only what was begun so long ago (1d)"},
    {"yes", NULL, "abort without asking"},
};

const struct verb verb_s3 = {
    .name = "s3",
    .arguments = "clean " STORE_S3 "BUCKET/PREFIX [s3.KEY=VALUE…]",
    .summary = "list and abort multipart uploads that dead jobs left in a bucket",
    .about =
        "Parts of an upload that was never completed are in no list of objects, and are paid for until it is "
        "aborted. Lists those under a prefix that were begun long enough ago not to be a running job's, and aborts "
        "them after asking; without a terminal only with --yes. Complete objects are never touched.",
    .example = "ckptbench s3 clean " STORE_S3 "bucket/bench --older-than 1d",
    VERB_FLAGS(flags),
    .run = run_s3,
};
