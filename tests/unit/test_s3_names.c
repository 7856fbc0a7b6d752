/* S3's names, signatures, answers and backoff: the parts that need no server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "store/s3/s3_answer.h"
#include "store/s3/s3_retry.h"
#include "store/s3/s3_sign.h"
#include "store/s3/s3_uri.h"
#include "store/store.h"

/* --- names --- */

static void a_uri_is_cut_into_bucket_and_prefix(void **unused)
{
    (void)unused;
    static const struct {
        const char *uri, *bucket, *prefix;
    } cases[] = {
        {"s3://bench", "bench", ""},
        {"s3://bench/", "bench", ""},
        {"s3://my-bucket.x/a/b", "my-bucket.x", "a/b"},
        {"s3://bench//a/b//", "bench", "a/b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bucket[S3_BUCKET_BYTES], prefix[S3_KEY_BYTES];
        assert_int_equal(s3_uri_parse(cases[i].uri, bucket, prefix, NULL), 0);
        assert_string_equal(bucket, cases[i].bucket);
        assert_string_equal(prefix, cases[i].prefix);
    }
}

static void what_is_no_bucket_is_refused_by_name(void **unused)
{
    (void)unused;
    static const char *const cases[] = {"s3://",     "s3:///a",    "s3://ab/c",  "s3://a b c/d",
                                        "s3://-abc", "http://abc", "s3://abc/\n"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cb_err err = {0};
        char bucket[S3_BUCKET_BYTES], prefix[S3_KEY_BYTES];
        assert_int_equal(s3_uri_parse(cases[i], bucket, prefix, &err), CB_ERR_USAGE);
        assert_non_null(strstr(err.message, "store '"));
    }
}

static void keys_are_encoded_as_signatures_ask_for(void **unused)
{
    (void)unused;
    char text[64];
    assert_int_equal(s3_encode("a/b c+%\xc3\xa9~-._=&", true, text, sizeof text), 29);
    assert_string_equal(text, "a/b%20c%2B%25%C3%A9~-._%3D%26");
    s3_encode("a/b", false, text, sizeof text);
    assert_string_equal(text, "a%2Fb");
    assert_int_equal(s3_encode("aaaa", true, text, 4), SIZE_MAX);
    assert_int_equal(s3_encode("/", false, text, 3), SIZE_MAX);
}

static struct s3_endpoint endpoint_of(const char *url, const char *region, const char *bucket, int path_style)
{
    struct s3_endpoint endpoint;
    struct cb_err err = {0};
    if (s3_endpoint_make(url, region, bucket, path_style, &endpoint, &err))
        fail_msg("%s", err.message);
    return endpoint;
}

static void buckets_of_aws_are_in_the_host_unless_they_have_dots(void **unused)
{
    (void)unused;
    struct s3_endpoint endpoint = endpoint_of("", "eu-west-1", "bench", -1);
    assert_string_equal(endpoint.host, "bench.s3.eu-west-1.amazonaws.com");
    assert_string_equal(endpoint.name, "bench.s3.eu-west-1.amazonaws.com");
    assert_string_equal(endpoint.base, "");
    assert_true(endpoint.tls);
    assert_int_equal(endpoint.port, 443);
    endpoint = endpoint_of(NULL, "cn-north-1", "a.b.c", -1);
    assert_string_equal(endpoint.host, "s3.cn-north-1.amazonaws.com.cn");
    assert_string_equal(endpoint.base, "/a.b.c");
}

static void other_endpoints_have_the_bucket_in_the_path_unless_asked(void **unused)
{
    (void)unused;
    struct s3_endpoint endpoint = endpoint_of("http://127.0.0.1:7480", "us-east-1", "bench", -1);
    assert_string_equal(endpoint.host, "127.0.0.1:7480");
    assert_string_equal(endpoint.base, "/bench");
    assert_false(endpoint.tls);
    endpoint = endpoint_of("https://minio.example:443/", "us-east-1", "bench", 0);
    assert_string_equal(endpoint.host, "bench.minio.example");
    endpoint = endpoint_of("http://[::1]:80", "us-east-1", "bench", 1);
    assert_string_equal(endpoint.host, "[::1]");
    assert_string_equal(endpoint.name, "::1");
}

static void an_endpoint_that_is_none_is_refused(void **unused)
{
    (void)unused;
    static const char *const cases[] = {"host",          "ftp://host", "http://",     "http://h:0",  "http://h:70000",
                                        "http://h/path", "http://u@h", "http://[::1", "http://h:1x", "http://h ost"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s3_endpoint endpoint;
        assert_int_equal(s3_endpoint_make(cases[i], "r", "bench", -1, &endpoint, NULL), CB_ERR_USAGE);
    }
}

static void ranks_take_the_endpoints_of_a_list_in_turn(void **unused)
{
    (void)unused;
    static const char *const wanted[] = {"http://a:1", "https://b", "http://[::1]:80", "http://a:1"};
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        char url[64] = "http://a:1+https://b+http://[::1]:80";
        assert_int_equal(s3_endpoint_of_rank(url, rank, url, sizeof url, &count, NULL), 0);
        assert_string_equal(url, wanted[rank]);
        assert_int_equal(count, 3);
    }
    char url[64] = "";
    assert_int_equal(s3_endpoint_of_rank("", 5, url, sizeof url, &count, NULL), 0);
    assert_string_equal(url, "");
    assert_int_equal(count, 1);
}

static void a_list_with_an_endpoint_that_is_none_is_refused_by_every_rank(void **unused)
{
    (void)unused;
    static const char *const cases[] = {"http://a+b", "http://a+", "+http://a", "http://a++http://b"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char url[64];
        uint32_t count;
        for (uint32_t rank = 0; rank < 2; rank++)
            assert_int_equal(s3_endpoint_of_rank(cases[i], rank, url, sizeof url, &count, NULL), CB_ERR_USAGE);
    }
}

/* --- signatures: the examples of AWS's documentation ("Signature Calculations for the Authorization Header") --- */

#define EXAMPLE_KEY "AKIAIOSFODNN7EXAMPLE"
#define EXAMPLE_SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define EXAMPLE_DATE "20130524T000000Z"
#define EXAMPLE_HOST "examplebucket.s3.amazonaws.com"

static void check_signature(struct s3_to_sign request, const char *signed_names, const char *signature)
{
    unsigned char key[HASH_SHA256_BYTES];
    struct buf scratch, authorization;
    char expected[512];
    buf_init(&scratch, 4096);
    buf_init(&authorization, 4096);
    request.date = EXAMPLE_DATE;
    request.region = "us-east-1";
    request.service = "s3";
    request.access_key = EXAMPLE_KEY;
    s3_signing_key(EXAMPLE_SECRET, EXAMPLE_DATE, "us-east-1", "s3", key);
    assert_int_equal(s3_sign(&request, key, &scratch, &authorization, NULL), 0);
    snprintf(expected, sizeof expected,
             "AWS4-HMAC-SHA256 Credential=" EXAMPLE_KEY
             "/20130524/us-east-1/s3/aws4_request, SignedHeaders=%s, Signature=%s",
             signed_names, signature);
    assert_string_equal(authorization.data, expected);
    buf_release(&scratch);
    buf_release(&authorization);
}

static void a_ranged_get_is_signed_as_published(void **unused)
{
    (void)unused;
    const struct s3_header headers[] = {{"host", EXAMPLE_HOST},
                                        {"range", "bytes=0-9"},
                                        {"x-amz-content-sha256", S3_EMPTY_HASH},
                                        {"x-amz-date", EXAMPLE_DATE}};
    check_signature((struct s3_to_sign){.method = "GET",
                                        .path = "/test.txt",
                                        .query = "",
                                        .headers = headers,
                                        .header_count = 4,
                                        .payload_hash = S3_EMPTY_HASH},
                    "host;range;x-amz-content-sha256;x-amz-date",
                    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

static void a_put_is_signed_as_published(void **unused)
{
    (void)unused;
    char hash[65], path[64];
    hash_sha256_hex("Welcome to Amazon S3.", 21, hash);
    s3_encode("/test$file.text", true, path, sizeof path);
    const struct s3_header headers[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                        {"host", EXAMPLE_HOST},
                                        {"x-amz-content-sha256", hash},
                                        {"x-amz-date", EXAMPLE_DATE},
                                        {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
    check_signature(
        (struct s3_to_sign){
            .method = "PUT", .path = path, .query = "", .headers = headers, .header_count = 5, .payload_hash = hash},
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

static void a_list_is_signed_as_published(void **unused)
{
    (void)unused;
    const struct s3_header headers[] = {
        {"host", EXAMPLE_HOST}, {"x-amz-content-sha256", S3_EMPTY_HASH}, {"x-amz-date", EXAMPLE_DATE}};
    check_signature((struct s3_to_sign){.method = "GET",
                                        .path = "/",
                                        .query = "max-keys=2&prefix=J",
                                        .headers = headers,
                                        .header_count = 3,
                                        .payload_hash = S3_EMPTY_HASH},
                    "host;x-amz-content-sha256;x-amz-date",
                    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    check_signature((struct s3_to_sign){.method = "GET",
                                        .path = "/",
                                        .query = "lifecycle=",
                                        .headers = headers,
                                        .header_count = 3,
                                        .payload_hash = S3_EMPTY_HASH},
                    "host;x-amz-content-sha256;x-amz-date",
                    "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

static void dates_are_those_of_utc(void **unused)
{
    (void)unused;
    char date[S3_DATE_BYTES];
    s3_format_date(UINT64_C(1369353600) * NS_PER_S, date);
    assert_string_equal(date, EXAMPLE_DATE);
}

static void no_object_has_more_than_ten_thousand_parts(void **unused)
{
    (void)unused;
    const uint64_t mib = 1 << 20, gib = 1 << 30;
    const struct store_capabilities s3 = {.part_bytes = 8 * mib, .max_parts = 10000}, file = {0};
    assert_int_equal(store_part_bytes(&file, 100 * gib), 0);
    assert_int_equal(store_part_bytes(&s3, 0), 8 * mib);
    assert_int_equal(store_part_bytes(&s3, 80000 * mib), 8 * mib);
    assert_int_equal(store_part_bytes(&s3, 80000 * mib + 1), 9 * mib);
    assert_int_equal(store_part_bytes(&s3, 5120 * gib), 525 * mib); /* S3's longest object */
    assert_true(5120 * gib / (525 * mib) < 10000);
}

/* --- answers --- */

static void take(struct s3_answer *answer, const char *line)
{
    s3_answer_take_line(answer, line, strlen(line));
}

static void headers_are_read_whatever_their_case(void **unused)
{
    (void)unused;
    struct s3_answer answer = {0};
    take(&answer, "HTTP/1.1 206 Partial Content\r\n");
    take(&answer, "content-LENGTH: 100\r\n");
    take(&answer, "Content-Range: bytes 100-199/1000\r\n");
    take(&answer, "ETag:   \"0123-7\"  \r\n");
    take(&answer, "x-amz-request-id: tx1\r\n");
    take(&answer, "Date: Fri, 24 May 2013 00:00:00 GMT\r\n");
    assert_int_equal(answer.status, 206);
    assert_true(answer.has_length && answer.has_range && answer.has_date);
    assert_int_equal(answer.length, 100);
    assert_int_equal(answer.range_first, 100);
    assert_int_equal(answer.range_last, 199);
    assert_int_equal(answer.range_all, 1000);
    assert_string_equal(answer.etag, "\"0123-7\"");
    assert_int_equal(s3_etag_parts(answer.etag), 7);
    assert_int_equal(answer.date_ns, UINT64_C(1369353600) * NS_PER_S);
    take(&answer, "HTTP/1.1 200 OK\r\n"); /* after a 100, a new answer */
    assert_false(answer.has_length);
    assert_string_equal(answer.etag, "");
}

static void damaged_headers_are_not_believed(void **unused)
{
    (void)unused;
    uint64_t first, last, all;
    static const char *const ranges[] = {"bytes 5-4/10", "bytes 0-10/10", "bytes -/10",
                                         "bytes 0-1",    "0-1/2",         "bytes 0-99999999999999999999/*",
                                         "bytes 0-1/2x"};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        assert_false(s3_parse_content_range(ranges[i], &first, &last, &all));
    assert_true(s3_parse_content_range("bytes 0-0/*", &first, &last, &all));
    struct s3_answer answer = {0};
    take(&answer, "Content-Length: -5");
    take(&answer, "HTTP/1.1 abc");
    assert_false(answer.has_length);
    assert_int_equal(answer.status, 0);
    assert_int_equal(s3_etag_parts("\"abc\""), 0);
    assert_int_equal(s3_etag_parts("\"abc-99999999999999\""), 0);
}

static void an_error_document_gives_code_message_and_region(void **unused)
{
    (void)unused;
    static const char body[] =
        "<?xml version=\"1.0\"?><Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'a' is "
        "wrong; expecting &apos;b&apos;</Message><Region>b</Region><RequestId>r1</RequestId></Error>";
    struct s3_answer answer = {.status = 400};
    assert_true(s3_answer_take_error(&answer, body, sizeof body - 1));
    assert_string_equal(answer.code, "AuthorizationHeaderMalformed");
    assert_string_equal(answer.message, "the region 'a' is wrong; expecting 'b'");
    assert_string_equal(answer.region, "b");
    assert_string_equal(answer.request_id, "r1");
    assert_false(s3_answer_take_error(&answer, "<html></html>", 13));
    assert_false(s3_answer_take_error(&answer, "", 0));
}

/* --- repeating --- */

static void failures_have_their_class(void **unused)
{
    (void)unused;
    static const struct {
        long status;
        const char *code;
        enum s3_failure failure;
    } cases[] = {
        {200, "", S3_FAILURE_NONE},
        {204, "", S3_FAILURE_NONE},
        {200, "InternalError", S3_FAILURE_SERVER},
        {200, "SlowDown", S3_FAILURE_THROTTLED},
        {200, "InvalidPart", S3_FAILURE_FATAL},
        {301, "PermanentRedirect", S3_FAILURE_FATAL},
        {400, "", S3_FAILURE_FATAL},
        {400, "ExpiredToken", S3_FAILURE_EXPIRED},
        {403, "AccessDenied", S3_FAILURE_FATAL},
        {403, "RequestTimeTooSkewed", S3_FAILURE_SKEWED},
        {404, "NoSuchKey", S3_FAILURE_FATAL},
        {408, "", S3_FAILURE_SERVER},
        {412, "PreconditionFailed", S3_FAILURE_FATAL},
        {429, "", S3_FAILURE_THROTTLED},
        {500, "", S3_FAILURE_SERVER},
        {501, "NotImplemented", S3_FAILURE_FATAL},
        {503, "SlowDown", S3_FAILURE_THROTTLED},
        {503, "", S3_FAILURE_THROTTLED},
        {504, "", S3_FAILURE_SERVER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(s3_classify(cases[i].status, cases[i].code), cases[i].failure);
}

static void silence_is_endured_three_times_or_once_an_address(void **unused)
{
    (void)unused;
    assert_int_equal(s3_most_silences(0), 3); /* a proxy resolves */
    assert_int_equal(s3_most_silences(1), 3);
    assert_int_equal(s3_most_silences(8), 8);
}

static void backoff_is_anything_up_to_a_bound_that_doubles(void **unused)
{
    (void)unused;
    assert_int_equal(s3_backoff_ns(1, S3_FAILURE_SERVER, false, 0), 0);
    assert_int_equal(s3_backoff_ns(2, S3_FAILURE_SERVER, false, 100 * NS_PER_MS), 100 * NS_PER_MS);
    assert_int_equal(s3_backoff_ns(2, S3_FAILURE_SERVER, false, 100 * NS_PER_MS + 1), 0);
    assert_int_equal(s3_backoff_ns(3, S3_FAILURE_SERVER, false, 200 * NS_PER_MS), 200 * NS_PER_MS);
    assert_int_equal(s3_backoff_ns(1, S3_FAILURE_THROTTLED, true, 500 * NS_PER_MS), 500 * NS_PER_MS);
    assert_int_equal(s3_backoff_ns(2, S3_FAILURE_THROTTLED, true, NS_PER_S), NS_PER_S);
    assert_int_equal(s3_backoff_ns(1000, S3_FAILURE_THROTTLED, true, 20 * NS_PER_S), 20 * NS_PER_S);
    assert_int_equal(s3_backoff_ns(1000, S3_FAILURE_THROTTLED, true, 20 * NS_PER_S + 1), 0);
}

static void what_failed_once_is_repeated_almost_at_once(void **unused)
{
    (void)unused;
    static const enum s3_failure failures[] = {S3_FAILURE_SERVER, S3_FAILURE_CONNECTION, S3_FAILURE_STALLED,
                                               S3_FAILURE_THROTTLED};
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        assert_int_equal(s3_backoff_ns(1, failures[i], false, 10 * NS_PER_MS), 10 * NS_PER_MS);
        assert_int_equal(s3_backoff_ns(1, failures[i], false, 10 * NS_PER_MS + 1), 0);
    }
}

static void a_few_refusals_among_many_answers_change_nothing(void **unused)
{
    (void)unused;
    struct s3_window window;
    s3_window_init(&window, 16);
    for (uint64_t i = 0; i < 10000; i++) { /* 2 in 100, together */
        if (i % 100 < 2)
            assert_false(s3_window_throttled(&window, i, i + 1));
        else
            s3_window_success(&window);
        assert_int_equal(s3_window_size(&window), 16);
    }
    for (uint64_t i = 0; i < 100; i++) { /* 1 in 4 */
        if (i % 4 == 0)
            (void)s3_window_throttled(&window, 20000 + i, 20000 + i + 1);
        else
            s3_window_success(&window);
    }
    assert_true(s3_window_size(&window) < 4);
}

static void the_window_halves_once_a_burst_and_grows_back(void **unused)
{
    (void)unused;
    struct s3_window window;
    s3_window_init(&window, 16);
    assert_false(s3_window_throttled(&window, 8, 10)); /* it may be chance */
    assert_false(s3_window_throttled(&window, 9, 11));
    assert_int_equal(s3_window_size(&window), 16);
    assert_true(s3_window_throttled(&window, 10, 20));
    assert_int_equal(s3_window_size(&window), 8);
    assert_true(s3_window_throttled(&window, 15, 25)); /* under way at the same time */
    assert_int_equal(s3_window_size(&window), 8);
    assert_true(s3_window_throttled(&window, 21, 30));
    assert_int_equal(s3_window_size(&window), 4);
    for (int i = 0; i < 4; i++)
        s3_window_success(&window);
    assert_int_equal(s3_window_size(&window), 4); /* 4.9… */
    s3_window_success(&window);
    assert_int_equal(s3_window_size(&window), 5);
    for (int i = 0; i < 1000; i++)
        s3_window_success(&window);
    assert_int_equal(s3_window_size(&window), 16);
    for (uint64_t i = 0; i < 20; i++)
        (void)s3_window_throttled(&window, 100 + i * 10, 105 + i * 10);
    assert_int_equal(s3_window_size(&window), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uri_is_cut_into_bucket_and_prefix),
        cmocka_unit_test(what_is_no_bucket_is_refused_by_name),
        cmocka_unit_test(keys_are_encoded_as_signatures_ask_for),
        cmocka_unit_test(buckets_of_aws_are_in_the_host_unless_they_have_dots),
        cmocka_unit_test(other_endpoints_have_the_bucket_in_the_path_unless_asked),
        cmocka_unit_test(an_endpoint_that_is_none_is_refused),
        cmocka_unit_test(ranks_take_the_endpoints_of_a_list_in_turn),
        cmocka_unit_test(a_list_with_an_endpoint_that_is_none_is_refused_by_every_rank),
        cmocka_unit_test(a_ranged_get_is_signed_as_published),
        cmocka_unit_test(a_put_is_signed_as_published),
        cmocka_unit_test(a_list_is_signed_as_published),
        cmocka_unit_test(no_object_has_more_than_ten_thousand_parts),
        cmocka_unit_test(dates_are_those_of_utc),
        cmocka_unit_test(headers_are_read_whatever_their_case),
        cmocka_unit_test(damaged_headers_are_not_believed),
        cmocka_unit_test(an_error_document_gives_code_message_and_region),
        cmocka_unit_test(failures_have_their_class),
        cmocka_unit_test(silence_is_endured_three_times_or_once_an_address),
        cmocka_unit_test(backoff_is_anything_up_to_a_bound_that_doubles),
        cmocka_unit_test(what_failed_once_is_repeated_almost_at_once),
        cmocka_unit_test(a_few_refusals_among_many_answers_change_nothing),
        cmocka_unit_test(the_window_halves_once_a_burst_and_grows_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
