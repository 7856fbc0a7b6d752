/* The seal of an attempt: manifest.json, written once, as the last file, and checked when read. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/hash.h"
#include "core/json_fields.h"
#include "run/record.h"
#include "run/run_folder.h"

static const struct json_field manifest_fields[] = {
    JSON_FIELD(struct manifest, FIELD_TEXT, run),
    JSON_FIELD(struct manifest, FIELD_U32, attempt),
    JSON_FIELD_NAME(struct manifest, outcome, &outcome_names),
    JSON_FIELD(struct manifest, FIELD_TEXT, message),
    {"started", FIELD_UTC, offsetof(struct manifest, started_wall_ns), sizeof(uint64_t)},
    JSON_FIELD(struct manifest, FIELD_U64, started_wall_ns),
    {"ended", FIELD_UTC, offsetof(struct manifest, ended_wall_ns), sizeof(uint64_t)},
    JSON_FIELD(struct manifest, FIELD_U64, ended_wall_ns),
    JSON_FIELD(struct manifest, FIELD_TEXT, records_sha256),
    JSON_FIELD(struct manifest, FIELD_U32, ranks),
    JSON_FIELD(struct manifest, FIELD_U32, samples),
    JSON_FIELD(struct manifest, FIELD_TEXT, sealed_by),
};

/* Gives `temporary` its final name only if that is free: by a hard link, or on file systems without hard links by a
 * rename that does not replace. */
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
    rc = json_write_file(NULL, temporary, MANIFEST_VERSION, JSON_FIELDS(manifest_fields), manifest, err);
    if (rc)
        return rc;
    rc = publish_exclusively(temporary, path, err);
    unlink(temporary);
    return rc ? rc : sync_folder(attempt_path, err);
}

/* Records that the agent left: complete and immutable, since the agent writes them once. */
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

int manifest_parse(const char *name, const char *text, size_t len, struct manifest *manifest, struct cb_err *err)
{
    struct manifest parsed = {0};
    int rc = json_read_document(name, text, len, MANIFEST_VERSION, JSON_FIELDS(manifest_fields), &parsed, err);
    if (rc == 0)
        *manifest = parsed;
    return rc;
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
    if (!rc && *parsed.records_sha256) /* if not, a records file was written after the seal and does not belong to it */
        rc = manifest_hash_records(attempt_path, hex, err);
    if (!rc && *parsed.records_sha256 && strcmp(hex, parsed.records_sha256) != 0)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s/records is not what was sealed: its SHA-256 is %s, the manifest has %s",
                     attempt_path, *hex ? hex : "absent", parsed.records_sha256);
    if (!rc)
        *manifest = parsed;
    return rc;
}
