/* ckptbench s3: finds and aborts multipart uploads that dead jobs left in a bucket. They appear in no list of
 * objects, and cost money until they are aborted. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/report/history_reading.h"
#include "cli/report/table.h"
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

static void cleaning_release(struct cleaning *self)
{
    for (size_t i = 0; i < self->count; i++) {
        free(self->uploads[i].key);
        free(self->uploads[i].id);
    }
    free(self->uploads);
}

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

static const char *age_text(const struct cleaning *self, const struct stale *upload, char text[32])
{
    uint64_t age = age_ns(self, upload->begun_ns);
    return age == UINT64_MAX ? "unknown" : units_format_duration((double)age, text);
}

static int write_table(const struct cleaning *self, struct cb_err *err)
{
    static const char *const headings[] = {"begun", "age", "key", "upload"};
    struct table table;
    char date[21], age[32];
    table_init(&table, "lrll");
    table_add_headings(&table, headings);
    for (size_t i = 0; i < self->count; i++) {
        const struct stale *upload = &self->uploads[i];
        table_add(&table, TABLE_PLAIN, date_text(upload->begun_ns, date));
        table_add(&table, TABLE_PLAIN, age_text(self, upload, age));
        table_add(&table, TABLE_PLAIN, upload->key);
        table_addf(&table, TABLE_DIM, "%.16s", upload->id);
    }
    int rc = table_write(&table, 0, self->cli->colour, &self->cli->out, err);
    table_release(&table);
    return rc;
}

static int write_json(const struct cleaning *self, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &self->cli->out, 2);
    json_write_begin_object(&json);
    json_member_text(&json, "uri", self->uri);
    json_write_key(&json, "uploads");
    json_write_begin_array(&json);
    for (size_t i = 0; i < self->count; i++) {
        json_write_begin_object(&json);
        json_member_text(&json, "key", self->uploads[i].key);
        json_member_text(&json, "upload_id", self->uploads[i].id);
        json_write_key(&json, "begun");
        json_write_date(&json, self->uploads[i].begun_ns);
        json_member_bool(&json, "aborted", self->uploads[i].aborted);
        json_write_end_object(&json);
    }
    json_write_end_array(&json);
    json_member_u64(&json, "younger", self->younger);
    json_member_u64(&json, "aborted", self->aborted);
    json_write_end_object(&json);
    return cli_end_json(self->cli, err);
}

/* Without --yes, asks for confirmation on a terminal. */
static bool may_abort(const struct cleaning *self)
{
    char answer[16] = "";
    if (cli_has_flag(self->cli, "yes"))
        return true;
    if (self->cli->json || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        log_info("nothing was aborted: --yes does it");
        return false;
    }
    fprintf(stderr, "abort %s %zu? What was uploaded of %s is lost. [y/N] ", self->count == 1 ? "this" : "these",
            self->count, self->count == 1 ? "it" : "them");
    fflush(stderr);
    if (!fgets(answer, sizeof answer, stdin))
        return false;
    return answer[0] == 'y' || answer[0] == 'Y';
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
    char older[32];
    int rc = s3_client_list_uploads(client, "", collect, self, err);
    if (rc)
        return rc;
    units_format_duration_exact(self->older_than_ns, older);
    if (!cli->json && self->count == 0)
        buf_printf(&cli->out, "no multipart upload under %s was begun more than %s ago\n", self->uri, older);
    else if (!cli->json)
        rc = write_table(self, err);
    if (rc == 0)
        rc = cli_flush(cli, err);
    if (rc == 0 && self->younger > 0)
        log_info("%zu younger than %s, perhaps of a job that runs, left alone", self->younger, older);
    if (rc == 0 && self->count > 0 && may_abort(self))
        rc = abort_all(self, client, err);
    if (rc)
        return rc;
    if (cli->json)
        return write_json(self, err);
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
    const char *older = cli_flag_value(cli, "older-than");
    if (cli->word_count < 2 || strcmp(cli->words[0], "clean") != 0)
        return cb_fail(err, CB_ERR_USAGE, "s3 does one thing: `ckptbench s3 clean " STORE_S3 "BUCKET/PREFIX`");
    int rc = older ? units_parse_duration(older, &cleaning.older_than_ns, err) : 0;
    if (rc)
        return cb_context(err, "--older-than");
    cleaning.uri = cli->words[1];
    cleaning.now_ns = clock_wall_ns();
    rc = read_keys(cli, &options, err);
    if (rc == 0)
        rc = s3_client_open(cleaning.uri, &options, 0, &client, err);
    if (rc == 0)
        rc = clean(&cleaning, client, err);
    s3_client_free(client);
    cleaning_release(&cleaning);
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
