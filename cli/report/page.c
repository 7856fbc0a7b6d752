/* Assembles a page from share/report and its data. */
#include "cli/report/page.h"

#include <string.h>

#include "cli/report/history_reading.h"
#include "core/clock.h"
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

/* If `line` is PREFIX, a name and SUFFIX, reads the file of that name in share/report; else *is_part is false. */
static int read_part(const char *line, size_t len, const char *prefix, const char *suffix, struct buf *part,
                     bool *is_part, struct cb_err *err)
{
    char name[128], path[PATH_MAX];
    size_t start = strlen(prefix), end = strlen(suffix);
    buf_clear(part);
    *is_part = false;
    if (len < start + end || memcmp(line, prefix, start) != 0 || memcmp(line + len - end, suffix, end) != 0)
        return 0;
    int rc = path_format(name, sizeof name, err, "report/%.*s", (int)(len - start - end), line + start);
    if (rc == 0)
        rc = share_file_find("a report", name, path, err);
    *is_part = true;
    return rc ? rc : buf_read_file(part, path, err);
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
    bool is_script, is_style;
    int rc = read_part(line, len, "<script src=\"", "\"></script>", part, &is_script, err);
    if (rc || is_script) {
        write_script(part, out, hashes);
        return rc;
    }
    rc = read_part(line, len, "<link rel=\"stylesheet\" href=\"", "\">", part, &is_style, err);
    if (rc)
        return rc;
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
    char path[PATH_MAX];
    buf_init(&frame, MAX_FILE_BYTES);
    int rc = share_file_find("a report", FRAME, path, err);
    if (rc == 0)
        rc = buf_read_file(&frame, path, err);
    if (rc == 0)
        rc = write_lines(self, &frame, out, err);
    buf_release(&frame);
    return rc ? rc : buf_check(out, "a page", err);
}
