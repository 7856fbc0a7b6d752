/* Small HTTP exchanges with curl's easy interface; knows nothing of S3. */
#include "store/s3/s3_fetch.h"

#include "core/alloc.h"
#include "core/clock.h"

#ifdef HAVE_CURL
#include <curl/curl.h>

static size_t take_body(char *bytes, size_t size, size_t count, void *context)
{
    struct buf *body = context;
    buf_append(body, bytes, size * count);
    return body->code ? 0 : size * count;
}

int s3_fetch(const struct s3_fetch *request, struct buf *body, struct cb_err *err)
{
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = request->header && easy ? curl_slist_append(NULL, request->header) : NULL;
    if (!easy || (request->header && !headers)) {
        curl_easy_cleanup(easy);
        return alloc_fail(err, "to ask %s", request->url);
    }
    long status = 0;
    curl_easy_setopt(easy, CURLOPT_URL, request->url);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(request->timeout_ns / NS_PER_MS));
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, body);
    CURLcode code = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return cb_fail(err, CB_ERR_TIMEOUT, "%s does not answer", request->url);
    if (code != CURLE_OK)
        return cb_fail(err, CB_ERR_SYSTEM, "asking %s: %s", request->url, curl_easy_strerror(code));
    if (status == 200)
        return 0;
    return cb_fail(err, status == 404 ? CB_ERR_NOT_FOUND : CB_ERR_SYSTEM, "%s answered with status %ld", request->url,
                   status);
}

#else /* !HAVE_CURL */

int s3_fetch(const struct s3_fetch *request, struct buf *body, struct cb_err *err)
{
    (void)body;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "%s cannot be asked: this program was built without libcurl", request->url);
}

#endif
