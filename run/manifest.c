/* The seal of an attempt: manifest.json, written once, last and by one, and checked when it is read. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/json.h"
#include "run/record.h"
#include "run/run_folder.h"

static int describe_manifest(const struct manifest *manifest, struct buf *text, struct cb_err *err)
{
    char utc[21];
    struct json_writer json;
    json_writer_init(&json, text, 2);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", MANIFEST_VERSION);
    json_member_text(&json, "run", manifest->run);
    json_member_u64(&json, "attempt", manifest->attempt);
    json_member_text(&json, "outcome", outcome_name(manifest->outcome));
    json_member_text(&json, "message", manifest->message);
    clock_format_utc(manifest->started_wall_ns, utc);
    json_member_text(&json, "started", utc);
    json_member_u64(&json, "started_wall_ns", manifest->started_wall_ns);
    clock_format_utc(manifest->ended_wall_ns, utc);
    json_member_text(&json, "ended", utc);
    json_member_u64(&json, "ended_wall_ns", manifest->ended_wall_ns);
    json_member_text(&json, "records_sha256", manifest->records_sha256);
    json_member_u64(&json, "ranks", manifest->ranks);
    json_member_u64(&json, "samples", manifest->samples);
    json_member_text(&json, "sealed_by", manifest->sealed_by);
    json_write_end_object(&json);
    buf_append_char(text, '\n');
    return buf_check(text, "the manifest", err);
}

/* Gives `temporary` its final name only where nothing has it: by a hard link, or where the file system
 * has none by a rename that replaces nothing. */
static int publish_exclusively(const char *temporary, const char *path, struct cb_err *err)
{
    int failed = link(temporary, path) < 0 ? errno : 0;
    if (failed == EPERM || failed == EOPNOTSUPP || failed == ENOSYS || failed == EMLINK)
        failed = renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE) < 0 ? errno : 0;
    return failed ? cb_fail_errno(err, failed, "sealing the attempt with %s", path) : 0;
}

static int sync_folder(const char *path, struct cb_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening the folder %s", path);
    int failed = fsync(fd) < 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return failed ? cb_fail_errno(err, failed, "syncing the folder %s", path) : 0;
}

int manifest_write(const char *attempt_path, const struct manifest *manifest, struct cb_err *err)
{
    char path[PATH_MAX], name[64], temporary[PATH_MAX];
    uint64_t random;
    random_bytes(&random, sizeof random);
    snprintf(name, sizeof name, "manifest.json.%016llx", (unsigned long long)random);
    int rc = run_folder_join(path, attempt_path, "manifest.json", err);
    if (!rc)
        rc = run_folder_join(temporary, attempt_path, name, err);
    if (rc)
        return rc;
    struct buf text;
    buf_init(&text, RUN_FOLDER_FILE_MAX_BYTES);
    rc = describe_manifest(manifest, &text, err);
    if (!rc)
        rc = buf_write_file(&text, temporary, 0644, err);
    buf_release(&text);
    if (rc)
        return rc;
    rc = publish_exclusively(temporary, path, err);
    unlink(temporary);
    return rc ? rc : sync_folder(attempt_path, err);
}

/* Records that the agent left: it writes them once, whole, so that they do not change any more. */
static void take_records(const char *attempt_path, struct manifest *manifest)
{
    char path[PATH_MAX];
    struct record record;
    struct cb_err own;
    size_t used = strlen(manifest->message);
    int rc = manifest_hash_records(attempt_path, manifest->records_sha256, &own);
    if (!rc && !*manifest->records_sha256)
        return;
    if (!rc)
        rc = run_folder_join(path, attempt_path, "records", &own);
    if (!rc)
        rc = record_read(path, &record, &own);
    if (rc) {
        manifest->records_sha256[0] = '\0';
        snprintf(manifest->message + used, sizeof manifest->message - used, "; its records are left out: %s",
                 own.message);
        return;
    }
    manifest->ranks = record.rank_count;
    for (uint32_t i = 0; i < record.rank_count; i++)
        manifest->samples += record.ranks[i].sample_count;
    record_release(&record);
}

int manifest_write_for_agent(const char *attempt_path, struct manifest *manifest, struct cb_err *err)
{
    snprintf(manifest->sealed_by, sizeof manifest->sealed_by, "collect");
    take_records(attempt_path, manifest);
    return manifest_write(attempt_path, manifest, err);
}

static int read_manifest_fields(const struct json_value *root, struct manifest *manifest, struct cb_err *err)
{
    uint32_t version = 0;
    char outcome[32] = "";
    int rc = json_need_u32(root, "version", &version, err);
    if (!rc && version != MANIFEST_VERSION)
        rc = cb_fail(err, CB_ERR_FORMAT, "version %u, this program reads %d", version, MANIFEST_VERSION);
    if (!rc)
        rc = json_copy_text(root, "run", manifest->run, sizeof manifest->run, err);
    if (!rc)
        rc = json_need_u32(root, "attempt", &manifest->attempt, err);
    if (!rc)
        rc = json_copy_text(root, "outcome", outcome, sizeof outcome, err);
    if (!rc && !outcome_find(outcome, &manifest->outcome))
        rc = cb_fail(err, CB_ERR_FORMAT, "unknown outcome %s", outcome);
    if (!rc)
        rc = json_copy_text(root, "message", manifest->message, sizeof manifest->message, err);
    if (!rc)
        rc = json_need_u64(root, "started_wall_ns", &manifest->started_wall_ns, err);
    if (!rc)
        rc = json_need_u64(root, "ended_wall_ns", &manifest->ended_wall_ns, err);
    if (!rc)
        rc = json_copy_text(root, "records_sha256", manifest->records_sha256, sizeof manifest->records_sha256, err);
    if (!rc)
        rc = json_need_u32(root, "ranks", &manifest->ranks, err);
    if (!rc)
        rc = json_need_u32(root, "samples", &manifest->samples, err);
    if (!rc)
        rc = json_copy_text(root, "sealed_by", manifest->sealed_by, sizeof manifest->sealed_by, err);
    return rc;
}

int manifest_parse(const char *name, const char *text, size_t len, struct manifest *manifest, struct cb_err *err)
{
    struct json_value *root = NULL;
    struct manifest parsed = {0};
    struct cb_err own;
    int rc = json_parse(text, len, &root, &own);
    if (!rc)
        rc = read_manifest_fields(root, &parsed, &own);
    json_value_free(root);
    if (rc) {
        cb_context(&own, "%s", name);
        if (err)
            *err = own;
        return rc;
    }
    *manifest = parsed;
    return 0;
}

static int hash_file(int fd, const char *path, char hex[65], struct cb_err *err)
{
    struct stat facts;
    if (fstat(fd, &facts) < 0)
        return cb_fail_errno(err, errno, "looking at %s", path);
    if (facts.st_size == 0) {
        hash_sha256_hex("", 0, hex);
        return 0;
    }
    void *bytes = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return cb_fail_errno(err, errno, "reading %s", path);
    hash_sha256_hex(bytes, (size_t)facts.st_size, hex);
    munmap(bytes, (size_t)facts.st_size);
    return 0;
}

int manifest_hash_records(const char *attempt_path, char hex[65], struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, attempt_path, "records", err);
    if (rc)
        return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        hex[0] = '\0';
        return 0;
    }
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    rc = hash_file(fd, path, hex, err);
    close(fd);
    return rc;
}

int manifest_read(const char *attempt_path, struct manifest *manifest, struct cb_err *err)
{
    char path[PATH_MAX], hex[65];
    struct buf text;
    struct manifest parsed;
    buf_init(&text, RUN_FOLDER_FILE_MAX_BYTES);
    int rc = run_folder_join(path, attempt_path, "manifest.json", err);
    if (!rc)
        rc = buf_read_file(&text, path, err);
    if (!rc)
        rc = manifest_parse(path, text.data, text.len, &parsed, err);
    buf_release(&text);
    if (!rc && *parsed.records_sha256) /* else a file of that name came after the seal, and is no part of it */
        rc = manifest_hash_records(attempt_path, hex, err);
    if (!rc && *parsed.records_sha256 && strcmp(hex, parsed.records_sha256) != 0)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s/records is not what was sealed: its SHA-256 is %s, the manifest has %s",
                     attempt_path, *hex ? hex : "absent", parsed.records_sha256);
    if (!rc)
        *manifest = parsed;
    return rc;
}
