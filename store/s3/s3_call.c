/* One S3 request: its curl handle, what it sends, and how its reply is read. */
#include "store/s3/s3_call.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/units.h"

#ifdef HAVE_CURL
#include <curl/curl.h>

/* Limit of a reply without object data; the longest is a page of a list (1,000 keys of 1 KiB, escaped). */
#define ANSWER_MAX_BYTES ((size_t)16 << 20)
#define LINES_MAX_BYTES 65536
#define RECEIVE_BUFFER_BYTES (256 * 1024L)
#define SEND_BUFFER_BYTES (256 * 1024L)

static const char *const method_names[] = {"GET", "PUT", "POST", "DELETE", "HEAD"};

int s3_call_init(struct s3_call *self, struct s3_session *session, struct cb_err *err)
{
    *self = (struct s3_call){.session = session, .easy = curl_easy_init()};
    buf_init(&self->answer_body, ANSWER_MAX_BYTES);
    buf_init(&self->lines, LINES_MAX_BYTES);
    buf_init(&self->scratch, LINES_MAX_BYTES);
    return self->easy ? 0 : alloc_fail(err, "for a request to S3");
}

void s3_call_release(struct s3_call *self)
{
    if (!self->session)
        return;
    curl_easy_cleanup(self->easy);
    buf_release(&self->answer_body);
    explicit_bzero(self->lines.data, self->lines.len);
    buf_release(&self->lines);
    buf_release(&self->scratch);
    self->session = NULL;
}

/* --- composing --- */

static int ask(struct s3_call *self, enum s3_method method, const char *prefix, const char *key, struct cb_err *err)
{
    assert(self->state == S3_CALL_IDLE || self->state == S3_CALL_DONE);
    const char *base = self->session->endpoint.base;
    size_t at = (size_t)snprintf(self->path, sizeof self->path, "%s/", base);
    if (key && *prefix) {
        at += s3_encode(prefix, true, self->path + at, sizeof self->path - at);
        self->path[at++] = '/';
    }
    bool fits = strlen(key ? key : "") + (*prefix ? strlen(prefix) + 1 : 0) < S3_KEY_BYTES;
    if (fits && key)
        fits = s3_encode(key, true, self->path + at, sizeof self->path - at) != SIZE_MAX;
    if (!fits)
        return cb_fail(err, CB_ERR_USAGE, "the key %.80s… in bucket %s is too long: at most 1024 bytes", key,
                       self->session->bucket);
    if (!key && *base)
        self->path[at - 1] = '\0'; /* "/BUCKET" */
    self->method = method;
    self->is_data = self->with_crc = false;
    self->query[0] = '\0';
    self->body = self->into = (struct s3_cursor){0};
    self->range_offset = 0;
    self->if_match[0] = self->content_md5[0] = self->payload_hash[0] = self->crc32c[0] = '\0';
    self->algorithm = self->mark = NULL;
    self->if_absent = false;
    self->check = NULL;
    s3_answer_clear(&self->answer);
    buf_clear(&self->answer_body);
    self->code = self->curl_code = 0;
    self->detail[0] = '\0';
    self->state = S3_CALL_IDLE;
    self->attempts = self->silences = 0;
    self->part = 0;
    self->most_attempts = self->session->attempts;
    self->deadline_ns = self->session->options.deadline_ns;
    self->clock_was_set = self->was_renewed = self->was_signed = self->unsure = false;
    self->last_failure = S3_FAILURE_NONE;
    return 0;
}

int s3_call_ask(struct s3_call *self, enum s3_method method, const char *key, struct cb_err *err)
{
    return ask(self, method, self->session->prefix, key, err);
}

int s3_call_ask_key(struct s3_call *self, enum s3_method method, const char *key, struct cb_err *err)
{
    return ask(self, method, "", key, err);
}

int s3_call_add_query(struct s3_call *self, const char *name, const char *value, struct cb_err *err)
{
    size_t at = strlen(self->query);
    int len = snprintf(self->query + at, sizeof self->query - at, "%s%s=", at > 0 ? "&" : "", name);
    at += (size_t)len;
    if (at < sizeof self->query && s3_encode(value, false, self->query + at, sizeof self->query - at) != SIZE_MAX)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "a query to bucket %s is too long", self->session->bucket);
}

void s3_call_set_body(struct s3_call *self, const struct iovec *segments, uint32_t count, uint64_t bytes)
{
    self->body = (struct s3_cursor){.segments = segments, .count = count, .total = bytes};
}

void s3_call_set_range(struct s3_call *self, uint64_t offset, const struct iovec *segments, uint32_t count,
                       uint64_t bytes)
{
    self->range_offset = offset;
    self->into = (struct s3_cursor){.segments = segments, .count = count, .total = bytes};
}

/* --- curl's callbacks --- */

static void rewind_cursor(struct s3_cursor *self)
{
    self->index = 0;
    self->inside = 0;
    self->moved = 0;
}

/* The longest piece at the cursor, at most `most` bytes; advances the cursor. */
static char *next_piece(struct s3_cursor *self, size_t most, size_t *len)
{
    while (self->index < self->count && self->inside == self->segments[self->index].iov_len) {
        self->index++;
        self->inside = 0;
    }
    uint64_t left = self->total - self->moved;
    if (self->index == self->count || left == 0)
        return NULL;
    const struct iovec *segment = &self->segments[self->index];
    size_t room = segment->iov_len - self->inside;
    *len = room < most ? room : most;
    if (*len > left)
        *len = (size_t)left;
    char *piece = (char *)segment->iov_base + self->inside;
    self->inside += *len;
    self->moved += *len;
    return piece;
}

static size_t give_body(char *to, size_t size, size_t count, void *context)
{
    struct s3_call *self = context;
    size_t room = size * count, given = 0, len;
    const char *piece;
    while (given < room && (piece = next_piece(&self->body, room - given, &len))) {
        memcpy(to + given, piece, len);
        given += len;
    }
    self->progress_ns = clock_monotonic_ns();
    if (self->body.moved == self->body.total)
        self->sent_ns = self->progress_ns;
    return given;
}

/* curl calls this if a kept connection was dead, and sends again on another. */
static int rewind_body(void *context, curl_off_t offset, int origin)
{
    struct s3_call *self = context;
    if (offset != 0 || origin != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    rewind_cursor(&self->body);
    return CURL_SEEKFUNC_OK;
}

static bool is_success(const struct s3_answer *answer)
{
    return answer->status >= 200 && answer->status < 300;
}

static size_t take_line(char *line, size_t size, size_t count, void *context)
{
    struct s3_call *self = context;
    self->progress_ns = clock_monotonic_ns();
    if (!self->answered) {
        self->answered = true;
        histogram_record(&self->statistics->ttfb, self->progress_ns - self->sent_ns);
    }
    s3_answer_take_line(&self->answer, line, size * count);
    return size * count;
}

/* Whether a reply contains the rest of the range. The bytes of earlier attempts are kept, so the reply must continue
 * exactly after them. */
static bool is_range(const struct s3_call *self)
{
    const struct s3_answer *answer = &self->answer;
    uint64_t first = self->range_offset + self->begun_at;
    bool whole = answer->status == 200 && first == 0 && answer->has_length && answer->length == self->into.total;
    bool part = answer->status == 206 && answer->has_range && answer->range_first == first &&
                answer->range_last == self->range_offset + self->into.total - 1;
    return whole || part;
}

static size_t take_body(char *bytes, size_t size, size_t count, void *context)
{
    struct s3_call *self = context;
    size_t len = size * count, taken = 0, piece_len;
    self->progress_ns = clock_monotonic_ns();
    if (!is_success(&self->answer) || self->into.total == 0) {
        buf_append(&self->answer_body, bytes, len);
        return self->answer_body.code ? 0 : len;
    }
    if (!is_range(self) || len > self->into.total - self->into.moved)
        return 0; /* another range, or more than was requested: ends the attempt */
    char *piece;
    while (taken < len && (piece = next_piece(&self->into, len - taken, &piece_len))) {
        memcpy(piece, bytes + taken, piece_len);
        taken += piece_len;
    }
    return taken;
}

/* --- one attempt --- */

static enum s3_checksum checksum_of(const struct s3_call *self)
{
    enum s3_checksum checksum = self->is_data ? self->session->options.checksum : S3_CHECKSUM_SHA256;
    if (checksum != S3_CHECKSUM_AUTO)
        return checksum;
    return self->was_signed || self->session->crc == S3_CRC_REFUSED ? S3_CHECKSUM_SHA256 : S3_CHECKSUM_CRC32C;
}

static void compute_checksum(struct s3_call *self)
{
    enum s3_checksum checksum = checksum_of(self);
    if (self->payload_hash[0])
        return; /* from an earlier attempt, with the same bytes */
    if (self->body.total == 0) {
        memcpy(self->payload_hash, S3_EMPTY_HASH, sizeof S3_EMPTY_HASH);
    } else if (checksum == S3_CHECKSUM_SHA256) {
        unsigned char digest[HASH_SHA256_BYTES];
        hash_sha256_segments(self->body.segments, self->body.count, digest);
        hash_hex(digest, sizeof digest, self->payload_hash);
    } else {
        snprintf(self->payload_hash, sizeof self->payload_hash, S3_UNSIGNED_PAYLOAD);
    }
    if (self->with_crc || checksum == S3_CHECKSUM_CRC32C) {
        uint32_t crc = 0;
        for (uint32_t i = 0; i < self->body.count; i++)
            crc = crc32c(crc, self->body.segments[i].iov_base, self->body.segments[i].iov_len);
        const unsigned char bytes[4] = {(unsigned char)(crc >> 24), (unsigned char)(crc >> 16),
                                        (unsigned char)(crc >> 8), (unsigned char)crc};
        hash_base64(bytes, sizeof bytes, self->crc32c);
    }
}

static int compose_lines(struct s3_call *self, struct cb_err *err)
{
    if (self->into.total > 0)
        snprintf(self->range, sizeof self->range, "bytes=%" PRIu64 "-%" PRIu64, self->range_offset + self->begun_at,
                 self->range_offset + self->into.total - 1);
    struct s3_outgoing outgoing = {
        .method = method_names[self->method],
        .path = self->path,
        .query = self->query,
        .payload_hash = self->payload_hash,
        .crc32c = self->crc32c,
        .algorithm = self->algorithm,
        .mark = self->mark,
        .range = self->into.total > 0 ? self->range : NULL,
        .if_match = self->if_match,
        .if_none_match = self->if_absent ? "*" : NULL,
        .content_md5 = self->content_md5,
    };
    return s3_session_headers(self->session, &outgoing, &self->scratch, &self->lines, &self->signed_with, err);
}

/* Makes curl's list from the header lines; an empty "Expect:" keeps curl from waiting for a "100 Continue". */
static void link_lines(struct s3_call *self)
{
    size_t count = 0;
    static char no_expect[] = "Expect:";
    self->nodes[count++].data = no_expect;
    for (char *line = self->lines.data; line < self->lines.data + self->lines.len; line += strlen(line) + 1) {
        assert(count < S3_MAX_LINES);
        self->nodes[count++].data = line;
    }
    for (size_t i = 0; i < count; i++)
        self->nodes[i].next = i + 1 < count ? &self->nodes[i + 1] : NULL;
}

static void set_method(const struct s3_call *self)
{
    CURL *easy = self->easy;
    bool sends = self->method == S3_PUT || self->method == S3_POST;
    if (self->method == S3_HEAD)
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    else if (!sends)
        curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    if (sends) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)self->body.total);
    }
    if (self->method != S3_HEAD)
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method_names[self->method]);
}

static void set_tls(const struct s3_call *self)
{
    const struct s3_options *options = &self->session->options;
    CURL *easy = self->easy;
    if (!self->session->endpoint.tls)
        return;
    if (options->tls_ca[0])
        curl_easy_setopt(easy, CURLOPT_CAINFO, options->tls_ca);
    if (options->tls_cert[0]) {
        curl_easy_setopt(easy, CURLOPT_SSLCERT, options->tls_cert);
        curl_easy_setopt(easy, CURLOPT_SSLKEY, options->tls_key);
    }
}

static void set_callbacks(struct s3_call *self)
{
    CURL *easy = self->easy;
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
    curl_easy_setopt(easy, CURLOPT_READDATA, self);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, rewind_body);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, self);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_line);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, self);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, self);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, self->curl_error);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, self);
}

static long connect_timeout_ms(const struct s3_call *self)
{
    uint64_t ms = self->session->options.stall_ns / NS_PER_MS;
    return ms < 1 ? 1 : ms > 3600000 ? 3600000 : (long)ms;
}

/* Calls are spread over the addresses. Each call keeps its address, where its connection is; a retry goes to the next
 * address, and once all have been tried, curl chooses. */
static struct curl_slist *address_of(struct s3_call *self)
{
    const struct s3_session *session = self->session;
    if (session->address_count < 2 || self->attempts > session->address_count)
        return NULL;
    self->address_node = (struct curl_slist){.data = session->addresses[self->address % session->address_count]};
    return &self->address_node;
}

/* Calls to one address are spread over the interfaces, so that each address is reached from every interface. */
static void set_interface(const struct s3_call *self)
{
    const struct s3_session *session = self->session;
    const char *names = session->options.interface, *end;
    uint32_t addresses = session->address_count > 1 ? (uint32_t)session->address_count : 1, count = 1;
    if (!*names)
        return;
    for (const char *at = names; *at; at++)
        count += *at == '+';
    for (uint32_t skip = self->address / addresses % count; skip > 0; skip--)
        names = strchr(names, '+') + 1;
    end = names + strcspn(names, "+");
    char name[sizeof session->options.interface];
    snprintf(name, sizeof name, "%.*s", (int)(end - names), names);
    curl_easy_setopt(self->easy, CURLOPT_INTERFACE, name);
}

int s3_call_prepare(struct s3_call *self, struct cb_err *err)
{
    const struct s3_endpoint *endpoint = &self->session->endpoint;
    CURL *easy = self->easy;
    compute_checksum(self);
    self->begun_at = self->into.moved;
    int rc = compose_lines(self, err);
    if (rc)
        return rc;
    link_lines(self);
    buf_clear(&self->scratch);
    buf_printf(&self->scratch, "%s://%s%s%s%s", endpoint->tls ? "https" : "http", endpoint->host, self->path,
               self->query[0] ? "?" : "", self->query);
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, self->scratch.data);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "ckptbench");
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, SEND_BUFFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, connect_timeout_ms(self));
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, self->nodes);
    curl_easy_setopt(easy, CURLOPT_CONNECT_TO, address_of(self));
    set_interface(self);
    set_method(self);
    set_tls(self);
    set_callbacks(self);
    rewind_cursor(&self->body);
    s3_answer_clear(&self->answer);
    buf_clear(&self->answer_body);
    self->curl_error[0] = '\0';
    self->answered = false;
    self->attempts++;
    self->attempt_ns = self->progress_ns = self->sent_ns = clock_monotonic_ns();
    if (self->attempts == 1)
        self->first_ns = self->attempt_ns;
    return 0;
}

/* --- the outcome --- */

static enum s3_failure class_of_curl(CURLcode code)
{
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_INTERFACE_FAILED:
    case CURLE_OUT_OF_MEMORY:
        return S3_FAILURE_FATAL;
    case CURLE_OPERATION_TIMEDOUT:
        return S3_FAILURE_STALLED;
    case CURLE_WRITE_ERROR: /* our callback rejected the data */
    case CURLE_WEIRD_SERVER_REPLY:
        return S3_FAILURE_SERVER;
    default:
        return S3_FAILURE_CONNECTION;
    }
}

/* Advice for a request without a reply; "" if the message needs none. */
static const char *hint_at_connection(const struct s3_call *self)
{
    switch (self->curl_code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
        return "; does the server run, and is the endpoint right (s3.endpoint, AWS_ENDPOINT_URL)?";
    case CURLE_PEER_FAILED_VERIFICATION:
        return "; name the authority that signed its certificate with s3.tls.ca, and the server as the certificate "
               "does with s3.endpoint";
    case CURLE_INTERFACE_FAILED:
        return "; has this machine what s3.interface names (`ip address`)?";
    case CURLE_SSL_CACERT_BADFILE:
        return "; is s3.tls.ca (AWS_CA_BUNDLE) a file of certificates?";
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return "; is the endpoint an S3 server (s3.endpoint, AWS_ENDPOINT_URL)?";
    case CURLE_SSL_CERTPROBLEM:
        return "; are s3.tls.cert and s3.tls.key a certificate and its key?";
    default:
        return "";
    }
}

/* The same for a reply. */
static void hint(const struct s3_call *self, char *text, size_t room)
{
    struct s3_session *session = self->session;
    const struct s3_answer *answer = &self->answer;
    text[0] = '\0';
    pthread_mutex_lock(&session->lock); /* of the credentials' source */
    if (answer->region[0] && strcmp(answer->region, session->options.region) != 0 && answer->status >= 300)
        snprintf(text, room, "; the bucket is in region %s: set s3.region=%s", answer->region, answer->region);
    else if (answer->status >= 300 && answer->status < 400)
        snprintf(text, room, "; the bucket is elsewhere: set s3.endpoint or s3.region");
    else if (strcmp(answer->code, "SignatureDoesNotMatch") == 0)
        snprintf(text, room, "; is the secret key right? (credentials: %s)", session->credentials.source);
    else if (strcmp(answer->code, "InvalidAccessKeyId") == 0 || strcmp(answer->code, "ExpiredToken") == 0 ||
             answer->status == 403)
        snprintf(text, room, " (credentials: %s)", session->credentials.source);
    else if (strcmp(answer->code, "NoSuchBucket") == 0)
        snprintf(text, room, "; make it, or name another");
    else if (answer->status == 412)
        snprintf(text, room, "; the object was replaced while it was being read");
    else if (!answer->code[0] && self->method != S3_HEAD) /* S3 always includes it in a reply with a body */
        snprintf(text, room, "; is %.250s an S3 server (s3.endpoint, AWS_ENDPOINT_URL), with no proxy before it?",
                 session->endpoint.host);
    pthread_mutex_unlock(&session->lock);
}

/* The cause of the last failure, without the name of the request. */
static void describe_failure(const struct s3_call *self, char *text, size_t room)
{
    const struct s3_answer *answer = &self->answer;
    char advice[400];
    hint(self, advice, sizeof advice);
    if (self->curl_error[0] && (answer->status == 0 || is_success(answer)))
        snprintf(text, room, "%s%s%s%s", self->curl_error, answer->request_id[0] ? ", request id " : "",
                 answer->request_id, hint_at_connection(self));
    else
        snprintf(text, room, "status %ld%s%s%s%s%s%s%s%s", answer->status, answer->code[0] ? " " : "", answer->code,
                 answer->message[0] ? " (" : "", answer->message, answer->message[0] ? ")" : "",
                 answer->request_id[0] ? ", request id " : "", answer->request_id, advice);
}

static enum s3_failure refuse_answer(struct s3_call *self, const char *why)
{
    snprintf(self->curl_error, sizeof self->curl_error, "the answer makes no sense: %s", why);
    return S3_FAILURE_SERVER;
}

static enum s3_failure judge_range(struct s3_call *self)
{
    if (!is_range(self))
        return refuse_answer(self, "it is not the range that was asked for");
    if (self->into.moved != self->into.total)
        return refuse_answer(self, "it is shorter than it says");
    return S3_FAILURE_NONE;
}

/* --- whether the server checks bodies --- */

static bool is_unsigned(const struct s3_call *self)
{
    return strcmp(self->payload_hash, S3_UNSIGNED_PAYLOAD) == 0;
}

/* A server that checked a CRC-32C says so in its reply; a server that does not support it says nothing. After one reply
 * without it, bodies count as unchecked. */
static void take_protection(struct s3_call *self)
{
    struct s3_session *session = self->session;
    if (self->was_signed && session->crc == S3_CRC_UNKNOWN)
        session->crc = S3_CRC_REFUSED;
    else if (self->crc32c[0] && is_unsigned(self) && session->crc != S3_CRC_IGNORED)
        session->crc = self->answer.has_crc32c ? S3_CRC_COMPARED : S3_CRC_IGNORED;
}

/* Whether the server may have refused a request because its body is unsigned or because of its CRC-32C: servers have
 * no common code for that. A body that it compared with its CRC-32C was damaged, which must not be hidden. */
static bool may_refuse_crc(const struct s3_call *self)
{
    static const char *const damaged[] = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"};
    const struct s3_answer *answer = &self->answer;
    bool has_crc = self->algorithm || (self->crc32c[0] && is_unsigned(self));
    enum s3_crc crc = self->session->crc;
    bool accepted = crc == S3_CRC_COMPARED || crc == S3_CRC_IGNORED;
    if (self->session->options.checksum != S3_CHECKSUM_AUTO || accepted || !has_crc)
        return false;
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++)
        if (strcmp(answer->code, damaged[i]) == 0)
            return false;
    return answer->status == 400 || answer->status == 403 || answer->status == 501;
}

void s3_call_sign(struct s3_call *self)
{
    self->was_signed = true;
    self->algorithm = NULL;
    self->payload_hash[0] = self->crc32c[0] = '\0';
}

static enum s3_failure judge_success(struct s3_call *self)
{
    struct s3_answer *answer = &self->answer;
    if (self->into.total > 0)
        return judge_range(self);
    if (s3_answer_take_error(answer, self->answer_body.data, self->answer_body.len))
        return s3_classify(answer->status, answer->code);
    if (self->check && !self->check(self))
        return refuse_answer(self, "its body is not what it should be");
    take_protection(self);
    return S3_FAILURE_NONE;
}

static void count_attempt(struct s3_call *self)
{
    curl_off_t sent = 0, received = 0;
    long connections = 0, request_bytes = 0, header_bytes = 0;
    curl_easy_getinfo(self->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    curl_easy_getinfo(self->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
    curl_easy_getinfo(self->easy, CURLINFO_NUM_CONNECTS, &connections);
    curl_easy_getinfo(self->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    curl_easy_getinfo(self->easy, CURLINFO_HEADER_SIZE, &header_bytes);
    self->statistics->requests++;
    self->statistics->connections += (uint64_t)connections;
    self->statistics->wire_sent_bytes += (uint64_t)sent + (uint64_t)request_bytes;
    self->statistics->wire_received_bytes += (uint64_t)received + (uint64_t)header_bytes;
}

enum s3_failure s3_call_judge(struct s3_call *self, int curl_code)
{
    struct s3_answer *answer = &self->answer;
    count_attempt(self);
    self->curl_code = curl_code;
    self->unsure = self->unsure || (curl_code != CURLE_OK && answer->status < 300);
    if (curl_code == CURLE_WRITE_ERROR && is_success(answer) && self->into.total > 0 && !is_range(self))
        return judge_range(self);
    if (curl_code != CURLE_OK && (answer->status < 300 || class_of_curl((CURLcode)curl_code) == S3_FAILURE_STALLED)) {
        if (self->answer_body.code)
            snprintf(self->curl_error, sizeof self->curl_error, "the answer is longer than any of S3's");
        else if (!self->curl_error[0])
            snprintf(self->curl_error, sizeof self->curl_error, "%s", curl_easy_strerror((CURLcode)curl_code));
        return class_of_curl((CURLcode)curl_code);
    }
    self->curl_error[0] = '\0';
    if (is_success(answer))
        return judge_success(self);
    (void)s3_answer_take_error(answer, self->answer_body.data, self->answer_body.len);
    enum s3_failure failure = s3_classify(answer->status, answer->code);
    return failure == S3_FAILURE_FATAL && may_refuse_crc(self) ? S3_FAILURE_UNSIGNED : failure;
}

static int code_of(const struct s3_call *self)
{
    const struct s3_answer *answer = &self->answer;
    if (strcmp(answer->code, "QuotaExceeded") == 0 || answer->status == 507)
        return CB_ERR_NO_SPACE;
    if (answer->status == 404)
        return CB_ERR_NOT_FOUND;
    if (answer->status == 412)
        return CB_ERR_CORRUPT;
    return self->last_failure == S3_FAILURE_STALLED ? CB_ERR_TIMEOUT : CB_ERR_SYSTEM;
}

uint64_t s3_call_again(struct s3_call *self, enum s3_failure failure)
{
    uint64_t moved = self->body.moved;
    bool keeps = failure == S3_FAILURE_CONNECTION || failure == S3_FAILURE_STALLED || failure == S3_FAILURE_THROTTLED;
    /* The rest must come from the same version of the object, so that version must be known. */
    if (!keeps || !self->if_match[0] || self->into.moved == self->into.total) {
        moved += self->into.moved;
        rewind_cursor(&self->into);
    }
    return moved;
}

void s3_call_give_up(struct s3_call *self, const char *why)
{
    char reason[640], part[32] = "", time[32];
    describe_failure(self, reason, sizeof reason);
    if (self->part > 0)
        snprintf(part, sizeof part, ", part %" PRIu32, self->part);
    bool by_path = self->session->endpoint.base[0]; /* if so, the path begins with the bucket */
    snprintf(self->detail, sizeof self->detail, "%s %.63s%.260s%s: %.400s", method_names[self->method],
             by_path ? "" : self->session->bucket, self->path + (by_path ? 1 : 0), part, reason);
    size_t at = strlen(self->detail);
    if (*why || self->attempts > 1)
        snprintf(self->detail + at, sizeof self->detail - at, "; gave up after %" PRIu32 " attempt%s in %s%s%s",
                 self->attempts, units_plural(self->attempts),
                 units_format_duration((double)(clock_monotonic_ns() - self->first_ns), time), *why ? ": " : "", why);
    s3_call_done(self, code_of(self));
}

void s3_call_done(struct s3_call *self, int code)
{
    self->code = code;
    self->state = S3_CALL_DONE;
}

#endif
