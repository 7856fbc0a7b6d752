/* Assembles a page from share/report and its data. */
#include "cli/report/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/history_reading.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file_batch.h"
#include "core/hash.h"
#include "core/path.h"
#include "core/share_file.h"
#include "core/units.h"
#include "core/version.h"

#define FRAME "report/page.html"
#define MAX_PAGE_BYTES (512 * MIB)
#define MAX_FILE_BYTES (16 * MIB)

void page_init(struct page *self, const char *kind, const char *command)
{
    buf_init(&self->data, MAX_PAGE_BYTES);
    self->shared = NULL;
    json_writer_init(&self->json, &self->data, 0);
    json_write_begin_object(&self->json);
    json_member_text(&self->json, "kind", kind);
    json_member_text(&self->json, "command", command);
    json_member_text(&self->json, "version", version_text());
    json_member_date(&self->json, "made", clock_wall_ns());
    json_member_object(&self->json, "documents");
}

void page_release(struct page *self)
{
    buf_release(&self->data);
}

void page_add(struct page *self, const char *name, const char *command, const char *document)
{
    json_member_object(&self->json, name);
    json_member_text(&self->json, "command", command);
    json_write_key(&self->json, "data");
    json_write_raw(&self->json, document);
    json_write_end_object(&self->json);
}

int page_end(struct page *self, struct cb_err *err)
{
    json_write_end_all(&self->json);
    return buf_check(&self->data, "the data of a page", err);
}

/* Writes the data without the blanks between its tokens. A text cannot end the script element that has it: `<`, which
 * is in texts alone, is written as an escape. */
static void write_data(const struct buf *data, struct buf *out)
{
    bool in_text = false;
    for (size_t i = 0; i < data->len; i++) {
        char c = data->data[i];
        if (c == '"')
            in_text = !in_text;
        if (c == '<')
            buf_append_text(out, "\\u003c");
        else if (in_text || !strchr(" \t\r\n", c))
            buf_append_char(out, c);
        if (in_text && c == '\\' && i + 1 < data->len)
            buf_append_char(out, data->data[++i]);
    }
}

/* If `line` is PREFIX, a name and SUFFIX, `path` receives report/NAME. */
static bool find_part(const char *line, size_t len, const char *prefix, const char *suffix, char path[PART_PATH_BYTES])
{
    size_t start = strlen(prefix), end = strlen(suffix);
    return len >= start + end && memcmp(line, prefix, start) == 0 && memcmp(line + len - end, suffix, end) == 0 &&
           path_format(path, PART_PATH_BYTES, NULL, "report/%.*s", (int)(len - start - end), line + start) == 0;
}

static bool find_script(const char *line, size_t len, char path[PART_PATH_BYTES])
{
    return find_part(line, len, "<script src=\"", "\"></script>", path);
}

static bool find_style(const char *line, size_t len, char path[PART_PATH_BYTES])
{
    return find_part(line, len, "<link rel=\"stylesheet\" href=\"", "\">", path);
}

/* Replaces the text by a file of share/. */
static int read_file(const char *name, struct buf *text, struct cb_err *err)
{
    char path[PATH_MAX];
    buf_clear(text);
    int rc = share_file_find("a report", name, path, err);
    return rc ? rc : buf_read_file(text, path, err);
}

static void write_script(const struct buf *script, struct buf *out, struct buf *hashes)
{
    unsigned char digest[HASH_SHA256_BYTES];
    char base64[HASH_SHA256_BYTES * 2];
    hash_sha256(script->data, script->len, digest);
    hash_base64(digest, sizeof digest, base64);
    buf_printf(hashes, "%s'sha256-%s'", hashes->len ? " " : "", base64);
    buf_append_text(out, "<script>");
    buf_append(out, script->data, script->len);
    buf_append_text(out, "</script>\n");
}

/* One line of the frame. `part` is scratch. */
static int write_line(const struct page *self, const char *line, size_t len, struct buf *part, struct buf *out,
                      struct buf *hashes, struct cb_err *err)
{
    char name[PART_PATH_BYTES];
    bool is_script = find_script(line, len, name), is_style = !is_script && find_style(line, len, name);
    if (is_script && self->shared) {
        buf_printf(out, "<script src=\"%s%s?%s\"></script>\n", self->root, name, self->shared->digest);
        return 0;
    }
    int rc = is_script || is_style ? read_file(name, part, err) : 0;
    if (rc || is_script) {
        write_script(part, out, hashes);
        return rc;
    }
    const char *place = memmem(line, len, "@DATA@", strlen("@DATA@"));
    if (is_style) {
        buf_append_text(out, "<style>");
        buf_append(out, part->data, part->len);
        buf_append_text(out, "</style>");
    } else if (place) {
        buf_append(out, line, (size_t)(place - line));
        write_data(&self->data, out);
        buf_append(out, place + strlen("@DATA@"), (size_t)(line + len - place) - strlen("@DATA@"));
    } else {
        buf_append(out, line, len);
    }
    buf_append_char(out, '\n');
    return 0;
}

/* The policy is before the scripts whose hashes it has: what follows it is assembled in `after`. */
static int write_lines(const struct page *self, const struct buf *frame, struct buf *out, struct cb_err *err)
{
    struct buf part, after, hashes;
    const char *policy = strstr(frame->data, "@SCRIPTS@");
    buf_init(&part, MAX_FILE_BYTES);
    buf_init(&after, MAX_PAGE_BYTES);
    buf_init(&hashes, MAX_FILE_BYTES);
    int rc = policy ? 0 : cb_fail(err, CB_ERR_FORMAT, FRAME " has no @SCRIPTS@ in its content security policy");
    for (const char *line = policy ? strchr(policy, '\n') : NULL; rc == 0 && line && *++line;) {
        size_t len = strcspn(line, "\n");
        rc = write_line(self, line, len, &part, &after, &hashes, err);
        line += len;
    }
    if (rc == 0) {
        size_t line_end = strcspn(policy, "\n"), marker = strlen("@SCRIPTS@");
        buf_append(out, frame->data, (size_t)(policy - frame->data));
        if (self->shared) /* 'self' is no folder of files */
            buf_append_text(out, "'self' file:");
        else
            buf_append(out, hashes.data, hashes.len);
        buf_append(out, policy + marker, line_end - marker + 1);
        buf_append(out, after.data, after.len);
        rc = buf_check(&after, "a page", err);
    }
    buf_release(&part);
    buf_release(&after);
    buf_release(&hashes);
    return rc;
}

int page_write(const struct page *self, struct buf *out, struct cb_err *err)
{
    struct buf frame;
    buf_init(&frame, MAX_FILE_BYTES);
    int rc = read_file(FRAME, &frame, err);
    if (rc == 0)
        rc = write_lines(self, &frame, out, err);
    buf_release(&frame);
    return rc ? rc : buf_check(out, "a page", err);
}

static int add_script(struct page_scripts *self, const char *name, struct buf *text, struct cb_err *err)
{
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct page_script *script = &self->items[self->count++];
    snprintf(script->path, sizeof script->path, "%s", name);
    script->len = text->len;
    script->text = buf_take(text);
    return script->text ? 0 : alloc_fail(err, "for the scripts of a page");
}

int page_scripts_load(struct page_scripts *self, struct cb_err *err)
{
    struct buf frame, part;
    char name[PART_PATH_BYTES];
    *self = (struct page_scripts){0};
    buf_init(&frame, MAX_FILE_BYTES);
    buf_init(&part, MAX_FILE_BYTES);
    int rc = read_file(FRAME, &frame, err);
    uint64_t sum = hash_u64(frame.data, frame.len);
    for (const char *line = frame.data; rc == 0 && *line;) {
        size_t len = strcspn(line, "\n");
        bool is_script = find_script(line, len, name);
        if (is_script || find_style(line, len, name)) {
            rc = read_file(name, &part, err);
            uint64_t both[] = {sum, hash_u64(part.data, part.len)};
            sum = hash_u64(both, sizeof both);
        }
        if (rc == 0 && is_script)
            rc = add_script(self, name, &part, err);
        line += len + (line[len] != '\0');
    }
    snprintf(self->digest, sizeof self->digest, "%016llx", (unsigned long long)sum);
    buf_release(&frame);
    buf_release(&part);
    return rc;
}

/* Whether the file has this text already. */
static bool is_written(const char *path, const struct page_script *script)
{
    struct buf text;
    buf_init(&text, MAX_FILE_BYTES);
    bool same = buf_read_file(&text, path, NULL) == 0 && text.len == script->len &&
                memcmp(text.data, script->text, text.len) == 0;
    buf_release(&text);
    return same;
}

int page_scripts_write(const struct page_scripts *self, const char *folder, struct cb_err *err)
{
    struct file_batch batch = {0};
    char path[PATH_MAX];
    int rc = 0;
    for (size_t i = 0; i < self->count && rc == 0; i++) {
        struct buf text;
        rc = path_format(path, sizeof path, err, "%s/%s", folder, self->items[i].path);
        if (rc || is_written(path, &self->items[i]))
            continue;
        rc = path_make_folders(path, 0755, err);
        buf_init(&text, MAX_FILE_BYTES);
        buf_append(&text, self->items[i].text, self->items[i].len);
        if (rc == 0)
            rc = file_batch_add(&batch, &text, path, 0644, err);
        buf_release(&text);
    }
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    return rc;
}

void page_scripts_release(struct page_scripts *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i].text);
    free(self->items);
    *self = (struct page_scripts){0};
}

void page_share_scripts(struct page *self, const struct page_scripts *scripts, const char *root)
{
    self->shared = scripts;
    self->root = root;
}
