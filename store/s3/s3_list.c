/* Lists of objects and uploads, and batch deletions: their documents, and paging. */
#include "store/s3/s3_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "store/s3/s3_client.h"
#include "store/s3/s3_credentials.h"
#include "store/s3/s3_xml.h"

#define DELETE_BATCH 1000

/* --- documents --- */

/* The names of a list's elements, below its root; NULL for a name that the list does not have. */
struct page_form {
    const char *what, *root, *item, *key, *id, *size, *begun, *token, *next_key, *next_id;
};

static const struct page_form object_form = {
    .what = "a list of objects",
    .root = "ListBucketResult",
    .item = "/Contents",
    .key = "/Contents/Key",
    .size = "/Contents/Size",
    .token = "/NextContinuationToken",
};
static const struct page_form upload_form = {
    .what = "a list of uploads",
    .root = "ListMultipartUploadsResult",
    .item = "/Upload",
    .key = "/Upload/Key",
    .id = "/Upload/UploadId",
    .begun = "/Upload/Initiated",
    .next_key = "/NextKeyMarker",
    .next_id = "/NextUploadIdMarker",
};

struct page_reader {
    const struct page_form *form;
    struct s3_page *page;
    s3_object_fn each_object; /* or */
    s3_upload_fn each_upload;
    void *context;
    char key[S3_KEY_BYTES + 1], id[S3_TOKEN_BYTES];
    uint64_t number; /* a length, or a time */
    bool seen_root, has_size;
};

static bool take_text(char *to, size_t room, const char *text)
{
    size_t len = strlen(text);
    if (len >= room)
        return false;
    memcpy(to, text, len + 1);
    return true;
}

static bool parse_size(const char *text, uint64_t *number)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 19 || text[digits])
        return false;
    *number = strtoull(text, NULL, 10);
    return *number <= INT64_MAX;
}

static int refuse_page(const char *why, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "a list from S3: %s", why);
}

static bool is_named(const char *name, const char *path)
{
    return name && strcmp(name, path) == 0;
}

/* False if the text is malformed for this element. */
static bool take_value(struct page_reader *self, const char *path, const char *text)
{
    const struct page_form *form = self->form;
    struct s3_page *page = self->page;
    const struct {
        const char *name;
        char *to;
        size_t room;
    } texts[] = {
        {form->key, self->key, sizeof self->key},
        {form->id, self->id, sizeof self->id},
        {form->token, page->token, sizeof page->token},
        {form->next_key, page->next_key, sizeof page->next_key},
        {form->next_id, page->next_id, sizeof page->next_id},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (is_named(texts[i].name, path))
            return take_text(texts[i].to, texts[i].room, text);
    if (strcmp(path, "") == 0)
        self->seen_root = true;
    else if (strcmp(path, "/IsTruncated") == 0)
        page->truncated = strcmp(text, "true") == 0;
    else if (is_named(form->size, path))
        return self->has_size = parse_size(text, &self->number);
    else if (is_named(form->begun, path) && !s3_parse_time(text, &self->number))
        self->number = 0; /* unknown */
    return true;
}

/* An object or an upload is complete. */
static int pass_item(struct page_reader *self, struct cb_err *err)
{
    struct s3_upload upload = {.key = self->key, .id = self->id, .begun_ns = self->number};
    if (self->each_upload && (!self->key[0] || !self->id[0]))
        return refuse_page("an upload without key or id", err);
    if (self->each_object && (!self->key[0] || !self->has_size))
        return refuse_page("an object without key or size", err);
    self->page->count++;
    int rc = 0;
    if (self->each_upload)
        rc = self->each_upload(self->context, &upload, err);
    else if (self->each_object)
        rc = self->each_object(self->context, self->key, self->number, err);
    self->key[0] = self->id[0] = '\0';
    self->number = 0;
    self->has_size = false;
    return rc;
}

static int take_element(void *context, const char *path, const char *text, struct cb_err *err)
{
    struct page_reader *self = context;
    size_t root = strlen(self->form->root);
    if (strncmp(path, self->form->root, root) != 0)
        return 0;
    path += root;
    if (!take_value(self, path, text))
        return refuse_page("a key, id, size or token is not what it should be", err);
    return strcmp(path, self->form->item) == 0 ? pass_item(self, err) : 0;
}

static int read_page(struct page_reader *self, const char *bytes, size_t len, struct cb_err *err)
{
    struct s3_page *page = self->page;
    *page = (struct s3_page){0};
    int rc = s3_xml_read(self->form->what, bytes, len, take_element, self, err);
    if (!rc && !self->seen_root)
        rc = refuse_page("it is another document", err);
    if (!rc && page->truncated && !page->token[0] && !page->next_key[0])
        rc = refuse_page("it goes on, but does not say where", err);
    return rc;
}

int s3_read_object_page(const char *bytes, size_t len, s3_object_fn each, void *context, struct s3_page *page,
                        struct cb_err *err)
{
    struct page_reader reader = {.form = &object_form, .page = page, .each_object = each, .context = context};
    return read_page(&reader, bytes, len, err);
}

int s3_read_upload_page(const char *bytes, size_t len, s3_upload_fn each, void *context, struct s3_page *page,
                        struct cb_err *err)
{
    struct page_reader reader = {.form = &upload_form, .page = page, .each_upload = each, .context = context};
    return read_page(&reader, bytes, len, err);
}

struct delete_reader {
    char key[S3_KEY_BYTES + 1], code[64], message[256];
    bool seen_root, failed;
};

static int take_delete_element(void *context, const char *path, const char *text, struct cb_err *err)
{
    (void)err;
    struct delete_reader *self = context;
    self->seen_root = self->seen_root || strcmp(path, "DeleteResult") == 0;
    if (self->failed)
        return 0;
    if (strcmp(path, "DeleteResult/Error/Key") == 0)
        snprintf(self->key, sizeof self->key, "%s", text);
    else if (strcmp(path, "DeleteResult/Error/Code") == 0)
        snprintf(self->code, sizeof self->code, "%s", text);
    else if (strcmp(path, "DeleteResult/Error/Message") == 0)
        snprintf(self->message, sizeof self->message, "%s", text);
    else if (strcmp(path, "DeleteResult/Error") == 0)
        self->failed = strcmp(self->code, "NoSuchKey") != 0;
    return 0;
}

int s3_read_delete_result(const char *bytes, size_t len, struct cb_err *err)
{
    struct delete_reader reader = {0};
    int rc = s3_xml_read("the answer to a deletion", bytes, len, take_delete_element, &reader, err);
    if (!rc && !reader.seen_root)
        rc = cb_fail(err, CB_ERR_FORMAT, "the answer to a deletion is another document");
    if (!rc && reader.failed)
        rc = cb_fail(err, CB_ERR_SYSTEM, "deleting %.300s: %s%s%s", reader.key, reader.code,
                     reader.message[0] ? ": " : "", reader.message);
    return rc;
}

#ifdef HAVE_CURL

/* --- lists --- */

struct listing {
    const struct s3_session *session;
    store_list_fn each;
    void *context;
};

/* Keys that end in '/' are folders created by other tools, not objects. */
static int pass_on(void *context, const char *key, uint64_t length, struct cb_err *err)
{
    struct listing *self = context;
    const char *name = s3_name_of_key(self->session, key);
    size_t len = name ? strlen(name) : 0;
    return len > 0 && name[len - 1] != '/' ? self->each(self->context, name, length, err) : 0;
}

static int ask_for_objects(struct s3_client *self, const char *folder_key, const char *token, struct cb_err *err)
{
    int rc = s3_call_ask(&self->call, S3_GET, NULL, err);
    if (!rc && *token)
        rc = s3_call_add_query(&self->call, "continuation-token", token, err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "list-type", "2", err);
    if (!rc && *folder_key)
        rc = s3_call_add_query(&self->call, "prefix", folder_key, err);
    return rc ? rc : s3_client_run(self, err);
}

int s3_client_list(struct s3_client *self, const char *folder, store_list_fn each, void *context, struct cb_err *err)
{
    struct listing listing = {.session = &self->session, .each = each, .context = context};
    struct s3_page page = {0};
    char folder_key[S3_KEY_BYTES + 8], before[sizeof page.token];
    int rc = s3_folder_key(&self->session, folder, folder_key, err);
    do {
        memcpy(before, page.token, sizeof before);
        if (!rc)
            rc = ask_for_objects(self, folder_key, page.token, err);
        if (!rc)
            rc = s3_read_object_page(self->call.answer_body.data, self->call.answer_body.len, pass_on, &listing, &page,
                                     err);
        if (!rc && page.truncated && strcmp(before, page.token) == 0)
            rc = refuse_page("it goes on where it began: the same token again", err);
    } while (!rc && page.truncated);
    return rc;
}

static int ask_for_uploads(struct s3_client *self, const char *folder_key, const struct s3_page *page,
                           struct cb_err *err)
{
    int rc = s3_call_ask(&self->call, S3_GET, NULL, err);
    if (!rc && page->next_key[0])
        rc = s3_call_add_query(&self->call, "key-marker", page->next_key, err);
    if (!rc && *folder_key)
        rc = s3_call_add_query(&self->call, "prefix", folder_key, err);
    if (!rc && page->next_id[0])
        rc = s3_call_add_query(&self->call, "upload-id-marker", page->next_id, err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "uploads", "", err);
    return rc ? rc : s3_client_run(self, err);
}

static int list_uploads_under(struct s3_client *self, const char *key_prefix, s3_upload_fn each, void *context,
                              struct cb_err *err)
{
    struct s3_page page = {0};
    char key_before[sizeof page.next_key], id_before[sizeof page.next_id];
    int rc;
    do {
        memcpy(key_before, page.next_key, sizeof key_before);
        memcpy(id_before, page.next_id, sizeof id_before);
        rc = ask_for_uploads(self, key_prefix, &page, err);
        if (!rc)
            rc =
                s3_read_upload_page(self->call.answer_body.data, self->call.answer_body.len, each, context, &page, err);
        if (!rc && page.truncated && strcmp(key_before, page.next_key) == 0 && strcmp(id_before, page.next_id) == 0)
            rc = refuse_page("it goes on where it began: the same upload again", err);
    } while (!rc && page.truncated);
    return rc;
}

int s3_client_list_uploads(struct s3_client *self, const char *folder, s3_upload_fn each, void *context,
                           struct cb_err *err)
{
    char folder_key[S3_KEY_BYTES + 8];
    int rc = s3_folder_key(&self->session, folder, folder_key, err);
    return rc ? rc : list_uploads_under(self, folder_key, each, context, err);
}

int s3_client_abort_upload(struct s3_client *self, const char *key, const char *id, struct cb_err *err)
{
    int rc = s3_call_ask_key(&self->call, S3_DELETE, key, err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "uploadId", id, err);
    if (!rc)
        rc = s3_client_run(self, err);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

int s3_client_abort_upload_of(struct s3_client *self, const char *name, const char *id, struct cb_err *err)
{
    int rc = s3_call_ask(&self->call, S3_DELETE, name, err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "uploadId", id, err);
    if (!rc)
        rc = s3_client_run(self, err);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

struct upload_collector {
    struct buf pairs;     /* keys and ids, each ended by a NUL */
    const char *only_key; /* or NULL */
    const char *folder_key;
    bool (*is_theirs)(const char *name); /* asked about the key behind folder_key; NULL: all are */
};

static bool is_wanted(const struct upload_collector *self, const char *key)
{
    if (self->only_key)
        return strcmp(key, self->only_key) == 0;
    size_t skip = strlen(self->folder_key);
    return !self->is_theirs || (strncmp(key, self->folder_key, skip) == 0 && self->is_theirs(key + skip));
}

static int collect_upload(void *context, const struct s3_upload *upload, struct cb_err *err)
{
    struct upload_collector *self = context;
    if (!is_wanted(self, upload->key))
        return 0;
    buf_append(&self->pairs, upload->key, strlen(upload->key) + 1);
    buf_append(&self->pairs, upload->id, strlen(upload->id) + 1);
    return buf_check(&self->pairs, "the list of uploads", err);
}

static int abort_under(struct s3_client *self, const char *key_prefix, struct upload_collector *collector,
                       uint64_t *count, struct cb_err *err)
{
    struct buf *pairs = &collector->pairs;
    uint64_t aborted = 0;
    buf_init(pairs, (size_t)256 << 20);
    int rc = list_uploads_under(self, key_prefix, collect_upload, collector, err);
    for (const char *at = pairs->data; at < pairs->data + pairs->len && !rc; aborted += rc == 0) {
        const char *key = at, *id = key + strlen(key) + 1;
        rc = s3_client_abort_upload(self, key, id, err);
        at = id + strlen(id) + 1;
    }
    buf_release(pairs);
    *count = aborted;
    return rc;
}

int s3_client_abort_uploads(struct s3_client *self, const char *folder, bool (*is_theirs)(const char *name),
                            uint64_t *count, struct cb_err *err)
{
    char folder_key[S3_KEY_BYTES + 8];
    int rc = s3_folder_key(&self->session, folder, folder_key, err);
    struct upload_collector collector = {.folder_key = folder_key, .is_theirs = is_theirs};
    return rc ? rc : abort_under(self, folder_key, &collector, count, err);
}

int s3_client_abort_uploads_of(struct s3_client *self, const char *name, struct cb_err *err)
{
    char key[S3_KEY_BYTES + 8];
    uint64_t unused;
    int rc = s3_folder_key(&self->session, name, key, err);
    if (rc)
        return rc;
    key[strlen(key) - 1] = '\0'; /* an object's key must not end in '/' */
    struct upload_collector collector = {.only_key = key};
    return abort_under(self, key, &collector, &unused, err);
}

/* --- deletions --- */

static int compose_deletion(struct s3_client *self, const char *const *names, size_t count, struct cb_err *err)
{
    const char *prefix = self->session.prefix;
    struct buf *document = &self->document;
    buf_clear(document);
    buf_append_text(document, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>");
    int rc = 0;
    for (size_t i = 0; i < count && !rc; i++) {
        buf_append_text(document, "<Object><Key>");
        rc = s3_append_xml(document, prefix, err);
        if (*prefix)
            buf_append_char(document, '/');
        if (!rc)
            rc = s3_append_xml(document, names[i], err);
        buf_append_text(document, "</Key></Object>");
    }
    buf_append_text(document, "</Delete>");
    return rc ? rc : buf_check(document, "a list of objects to delete", err);
}

static int remove_one(struct s3_client *self, const char *name, struct cb_err *err)
{
    int rc = s3_call_ask(&self->call, S3_DELETE, name, err);
    if (!rc)
        rc = s3_client_run(self, err);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

static int remove_batch(struct s3_client *self, const char *const *names, size_t count, struct cb_err *err)
{
    unsigned char digest[HASH_MD5_BYTES];
    int rc = compose_deletion(self, names, count, err);
    if (!rc)
        rc = s3_call_ask(&self->call, S3_POST, NULL, err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "delete", "", err);
    if (rc)
        return rc;
    /* S3 requires an MD5 of this body; if OpenSSL has no MD5, objects are deleted one by one. */
    if (!hash_md5(self->document.data, self->document.len, digest)) {
        for (size_t i = 0; i < count && !rc; i++)
            rc = remove_one(self, names[i], err);
        return rc;
    }
    struct iovec body = {.iov_base = self->document.data, .iov_len = self->document.len};
    hash_base64(digest, sizeof digest, self->call.content_md5);
    s3_call_set_body(&self->call, &body, 1, self->document.len);
    rc = s3_client_run(self, err);
    return rc ? rc : s3_read_delete_result(self->call.answer_body.data, self->call.answer_body.len, err);
}

int s3_client_remove(struct s3_client *self, const char *const *names, size_t count, struct cb_err *err)
{
    if (count == 1)
        return remove_one(self, names[0], err);
    int rc = 0;
    for (size_t at = 0; at < count && !rc; at += DELETE_BATCH)
        rc = remove_batch(self, names + at, count - at < DELETE_BATCH ? count - at : DELETE_BATCH, err);
    return rc;
}

#endif
