/* S3's documents, the AWS tools' files, and credentials: what is read from foreign bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "store/s3/s3_credentials.h"
#include "store/s3/s3_list.h"
#include "store/s3/s3_profile.h"
#include "store/s3/s3_session.h"
#include "store/s3/s3_xml.h"

/* --- XML --- */

struct seen {
    char text[4096];
};

static int note(void *context, const char *path, const char *text, struct cb_err *err)
{
    (void)err;
    struct seen *seen = context;
    size_t at = strlen(seen->text);
    snprintf(seen->text + at, sizeof seen->text - at, "%s=%s;", path, text);
    return 0;
}

static void expect_xml(const char *document, const char *expected)
{
    struct seen seen = {""};
    struct cb_err err = {0};
    if (s3_xml_read("test", document, strlen(document), note, &seen, &err))
        fail_msg("%s: %s", document, err.message);
    assert_string_equal(seen.text, expected);
}

static void elements_come_at_their_end_with_their_path_and_text(void **unused)
{
    (void)unused;
    expect_xml("<a/>", "a=;");
    expect_xml("<?xml version=\"1.0\"?>\n<a x='>' y=\"<\"><b>1</b><c> 2 </c></a>\n", "a/b=1;a/c= 2 ;a=;");
    expect_xml("<n:a xmlns:n='u'><n:b>x</n:b></n:a>", "a/b=x;a=;");
    expect_xml("<a>&lt;&amp;&gt;&quot;&apos;&#65;&#x42;&#xe9;</a>", "a=<&>\"'AB\xc3\xa9;");
    expect_xml("<a><![CDATA[<&>]]></a><!-- after -->", "a=<&>;");
    expect_xml("\xef\xbb\xbf<a><!-- c --><b/></a>", "a/b=;a=;");
}

static void what_is_no_such_document_is_refused(void **unused)
{
    (void)unused;
    static const char *const cases[] = {
        "",
        "text",
        "<a>",
        "</a>",
        "<a></b>",
        "<a><b></a></b>",
        "<a/><b/>",
        "<a",
        "<a x='1",
        "<>",
        "<!DOCTYPE a><a/>",
        "<a>&nosuch;</a>",
        "<a>&#xd800;</a>",
        "<a>&#0;</a>",
        "<a>&#99999999;</a>",
        "<a>& </a>",
        "<a><!--</a>",
        "<a/>text",
        "<![CDATA[x]]>",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct seen seen = {""};
        struct cb_err err = {0};
        if (s3_xml_read("test", cases[i], strlen(cases[i]), note, &seen, &err) != CB_ERR_FORMAT)
            fail_msg("'%s' was accepted", cases[i]);
        assert_non_null(strstr(err.message, "test: not the XML"));
    }
}

static void depth_and_text_have_bounds(void **unused)
{
    (void)unused;
    char deep[256] = "", *long_text = malloc(3 * S3_XML_TEXT_BYTES);
    struct seen seen = {""};
    for (int i = 0; i < S3_XML_MAX_DEPTH + 1; i++)
        strcat(deep, "<a>");
    assert_int_equal(s3_xml_read("test", deep, strlen(deep), note, &seen, NULL), CB_ERR_FORMAT);
    memset(long_text, 'x', 3 * S3_XML_TEXT_BYTES);
    memcpy(long_text, "<a>", 3);
    memcpy(long_text + 3 * S3_XML_TEXT_BYTES - 4, "</a>", 4);
    assert_int_equal(s3_xml_read("test", long_text, 3 * S3_XML_TEXT_BYTES, note, &seen, NULL), 0);
    free(long_text);
}

/* --- lists --- */

static int note_object(void *context, const char *key, uint64_t length, struct cb_err *err)
{
    (void)err;
    struct seen *seen = context;
    size_t at = strlen(seen->text);
    snprintf(seen->text + at, sizeof seen->text - at, "%s %llu;", key, (unsigned long long)length);
    return 0;
}

static int note_upload(void *context, const struct s3_upload *upload, struct cb_err *err)
{
    (void)err;
    struct seen *seen = context;
    size_t at = strlen(seen->text);
    snprintf(seen->text + at, sizeof seen->text - at, "%s %s %llu;", upload->key, upload->id,
             (unsigned long long)(upload->begun_ns / NS_PER_S));
    return 0;
}

static void a_page_of_objects_gives_keys_sizes_and_the_next_page(void **unused)
{
    (void)unused;
    static const char text[] = "<ListBucketResult><Name>b</Name><IsTruncated>true</"
                               "IsTruncated><NextContinuationToken>t/1=</NextContinuationToken>"
                               "<Contents><Key>a&amp;b</Key><Size>12</Size></Contents><Contents><Size>0</Size><Key>c</"
                               "Key></Contents></ListBucketResult>";
    struct seen seen = {""};
    struct s3_page page;
    assert_int_equal(s3_read_object_page(text, sizeof text - 1, note_object, &seen, &page, NULL), 0);
    assert_string_equal(seen.text, "a&b 12;c 0;");
    assert_true(page.truncated);
    assert_string_equal(page.token, "t/1=");
    assert_int_equal(page.count, 2);
}

static void a_page_that_lacks_what_it_needs_is_refused(void **unused)
{
    (void)unused;
    static const char *const cases[] = {
        "<Other/>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>99999999999999999999</Size></Contents></ListBucketResult>",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct seen seen = {""};
        struct s3_page page;
        assert_int_equal(s3_read_object_page(cases[i], strlen(cases[i]), note_object, &seen, &page, NULL),
                         CB_ERR_FORMAT);
    }
}

static void a_page_of_uploads_gives_their_ids_and_age(void **unused)
{
    (void)unused;
    static const char text[] =
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
        "<NextUploadIdMarker>2~b</NextUploadIdMarker><Upload><Key>k</Key><UploadId>2~a</UploadId>"
        "<Initiated>2013-05-24T00:00:00.000Z</Initiated></Upload><Upload><Key>k</Key>"
        "<UploadId>2~b</UploadId></Upload></ListMultipartUploadsResult>";
    struct seen seen = {""};
    struct s3_page page;
    assert_int_equal(s3_read_upload_page(text, sizeof text - 1, note_upload, &seen, &page, NULL), 0);
    assert_string_equal(seen.text, "k 2~a 1369353600;k 2~b 0;");
    assert_string_equal(page.next_key, "k");
    assert_string_equal(page.next_id, "2~b");
}

static void a_deletion_names_what_it_could_not_delete(void **unused)
{
    (void)unused;
    static const char good[] = "<DeleteResult/>",
                      gone[] = "<DeleteResult><Error><Key>k</Key><Code>NoSuchKey</Code></Error></DeleteResult>",
                      bad[] = "<DeleteResult><Error><Key>k1</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
                              "<Error><Key>k2</Key><Code>X</Code></Error></DeleteResult>";
    struct cb_err err = {0};
    assert_int_equal(s3_read_delete_result(good, sizeof good - 1, NULL), 0);
    assert_int_equal(s3_read_delete_result(gone, sizeof gone - 1, NULL), 0);
    assert_int_equal(s3_read_delete_result(bad, sizeof bad - 1, &err), CB_ERR_SYSTEM);
    assert_non_null(strstr(err.message, "k1: AccessDenied: no"));
    assert_int_equal(s3_read_delete_result("<x/>", 4, NULL), CB_ERR_FORMAT);
}

/* --- profiles and credentials --- */

static int note_pair(void *context, const char *section, const char *key, const char *value)
{
    struct seen *seen = context;
    size_t at = strlen(seen->text);
    snprintf(seen->text + at, sizeof seen->text - at, "[%s]%s=%s;", section, key, value);
    return 0;
}

static void the_files_of_the_aws_tools_are_read_as_they_read_them(void **unused)
{
    (void)unused;
    static const char text[] =
        "lost = 1\n; c\n[default]\r\nregion=eu-west-1\r\n# c\n\n[profile  x y ]\nregion = a = b\ns3 =\n"
        "  addressing_style = path\nnothing\nlast=";
    struct seen seen = {""};
    s3_profile_parse(text, sizeof text - 1, note_pair, &seen);
    assert_string_equal(seen.text, "[default]region=eu-west-1;[profile  x y]region=a = b;[profile  x y]s3=;"
                                   "[profile  x y]s3.addressing_style=path;[profile  x y]last=;");
}

struct store_location {
    char folder[64], config[128], credentials[128];
};

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static int make_place(void **state)
{
    static struct store_location place;
    snprintf(place.folder, sizeof place.folder, "/tmp/ckptbench-test-aws-XXXXXX");
    assert_non_null(mkdtemp(place.folder));
    snprintf(place.config, sizeof place.config, "%s/config", place.folder);
    snprintf(place.credentials, sizeof place.credentials, "%s/credentials", place.folder);
    static const char *const variables[] = {"AWS_ACCESS_KEY_ID",
                                            "AWS_SECRET_ACCESS_KEY",
                                            "AWS_SESSION_TOKEN",
                                            "AWS_PROFILE",
                                            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                            "AWS_CONTAINER_CREDENTIALS_FULL_URI"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    setenv("AWS_CONFIG_FILE", place.config, 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", place.credentials, 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    *state = &place;
    return 0;
}

static int remove_place(void **state)
{
    const struct store_location *place = *state;
    unlink(place->config);
    unlink(place->credentials);
    return rmdir(place->folder);
}

static void expect_found(const char *profile, const char *access_key, const char *source)
{
    struct s3_credentials credentials;
    struct cb_err err = {0};
    if (s3_credentials_find(profile, &credentials, &err))
        fail_msg("%s", err.message);
    assert_string_equal(credentials.access_key, access_key);
    if (!strstr(credentials.source, source))
        fail_msg("'%s' does not say '%s'", credentials.source, source);
}

static void expect_none(const char *profile, const char *says)
{
    struct s3_credentials credentials;
    struct cb_err err = {0};
    assert_int_not_equal(s3_credentials_find(profile, &credentials, &err), 0);
    if (!strstr(err.message, says))
        fail_msg("'%s' does not say '%s'", err.message, says);
    assert_null(strstr(err.message, "hush"));
}

static void credentials_are_found_in_the_order_of_the_aws_tools(void **state)
{
    const struct store_location *place = *state;
    expect_none("", "no S3 credentials");
    write_text(place->config, "[default]\naws_access_key_id=C\naws_secret_access_key=hush\n[profile p]\nregion=x\n");
    expect_found("", "C", "config");
    write_text(place->credentials, "[default]\naws_access_key_id=F\naws_secret_access_key=hush\n"
                                   "[p]\naws_access_key_id=P\naws_secret_access_key=hush\n");
    expect_found("", "F", "profile default in");
    setenv("AWS_PROFILE", "p", 1);
    expect_found("", "P", "profile p in");
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    expect_found("", "E", "environment");
    expect_found("default", "F", "profile default in");
    expect_none("nosuch", "there is no profile nosuch");
}

static void a_program_may_hand_out_credentials(void **state)
{
    const struct store_location *place = *state;
    write_text(place->config, "[default]\ncredential_process = printf "
                              "'{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"hush\"}'\n"
                              "[profile bad]\ncredential_process = echo hush\n"
                              "[profile fails]\ncredential_process = echo no luck >&2; exit 3\n");
    expect_found("", "A", "credential_process of profile default");
    expect_none("bad", "not JSON");
    expect_none("fails", "no luck");
}

static void a_way_that_is_not_spoken_is_said_with_one_that_is(void **state)
{
    const struct store_location *place = *state;
    write_text(place->config, "[profile s]\nsso_session = x\n[profile h]\nregion = x\n");
    write_text(place->credentials, "[half]\naws_access_key_id = A\n");
    expect_none("s", "credential_process = aws configure export-credentials --profile s");
    expect_none("h", "no S3 credentials");
    expect_none("half", "no aws_secret_access_key");
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    expect_none("", "AWS_SECRET_ACCESS_KEY is not");
}

/* A program that counts its calls in a file and hands out keys A1, A2, … that end after `seconds`. */
static void write_counting_program(const struct store_location *place, uint64_t seconds)
{
    char text[1024], count[128], ends[21];
    clock_format_utc(clock_wall_ns() + seconds * NS_PER_S, ends);
    snprintf(count, sizeof count, "%s/count", place->folder);
    write_text(count, "0\n");
    snprintf(text, sizeof text,
             "[default]\ncredential_process = read n <%s; n=$((n+1)); echo $n >%s; printf "
             "'{\"Version\":1,\"AccessKeyId\":\"A%%d\",\"SecretAccessKey\":\"hush\",\"SessionToken\":\"T%%d\","
             "\"Expiration\":"
             "\"%s\"}' $n $n\n",
             count, count, ends);
    write_text(place->config, text);
}

static void open_session(struct s3_session *session)
{
    struct s3_options options = s3_options_default;
    struct cb_err err;
    snprintf(options.endpoint, sizeof options.endpoint, "http://127.0.0.1:1");
    if (s3_session_open(session, "s3://bucket/p", &options, 0, &err))
        fail_msg("%s", err.message);
}

/* The next request is signed with this key; the number of the credentials. */
static uint32_t expect_signed_with(struct s3_session *session, const char *access_key)
{
    const struct s3_outgoing request = {.method = "GET", .path = "/bucket/p/x", .query = "", .payload_hash = "hash"};
    struct buf scratch, lines;
    uint32_t signed_with;
    char wanted[64];
    size_t len = (size_t)snprintf(wanted, sizeof wanted, "Credential=%s/", access_key);
    buf_init(&scratch, 65536);
    buf_init(&lines, 65536);
    assert_int_equal(s3_session_headers(session, &request, &scratch, &lines, &signed_with, NULL), 0);
    if (!memmem(lines.data, lines.len, wanted, len))
        fail_msg("%s is not in the headers", wanted);
    buf_release(&scratch);
    buf_release(&lines);
    return signed_with;
}

static void credentials_that_end_soon_are_replaced_before_they_do(void **state)
{
    const struct store_location *place = *state;
    struct s3_session session;
    char count[128];
    snprintf(count, sizeof count, "%s/count", place->folder);
    write_counting_program(place, 3600);
    open_session(&session);
    expect_signed_with(&session, "A1"); /* good for an hour: nobody is asked */
    s3_session_release(&session);
    write_counting_program(place, 300);
    open_session(&session);
    expect_signed_with(&session, "A2"); /* within minutes of their end, and still good */
    expect_signed_with(&session, "A2"); /* not at every request */
    s3_session_release(&session);
    unlink(count);
}

static void credentials_that_a_server_refuses_as_ended_are_replaced_or_named(void **state)
{
    const struct store_location *place = *state;
    struct s3_session session;
    struct cb_err err = {0};
    char count[128];
    snprintf(count, sizeof count, "%s/count", place->folder);
    write_counting_program(place, 3600);
    open_session(&session);
    uint32_t first = expect_signed_with(&session, "A1"); /* two requests, both under way when their keys end */
    assert_int_equal(s3_session_renew(&session, first, &err), 0);
    assert_int_equal(s3_session_renew(&session, first, &err), 0); /* found by the other: nobody is asked again */
    expect_signed_with(&session, "A2");
    s3_session_release(&session);
    write_text(place->config, "[default]\ncredential_process = printf '{\"Version\":1,\"AccessKeyId\":\"A\","
                              "\"SecretAccessKey\":\"hush\",\"SessionToken\":\"T\"}'\n");
    open_session(&session);
    assert_int_not_equal(s3_session_renew(&session, expect_signed_with(&session, "A"), &err), 0);
    assert_non_null(strstr(err.message, "there are no new ones"));
    s3_session_release(&session);
    unlink(count);
}

static void documents_of_credentials_are_taken_whole_or_refused_without_a_quote(void **unused)
{
    (void)unused;
    static const char good[] =
        "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Token\":\"T\",\"Expiration\":\"2013-05-24T00:00:00Z\"}";
    struct s3_credentials credentials = {.source = "kept"};
    assert_int_equal(s3_credentials_parse("x", good, sizeof good - 1, false, &credentials, NULL), 0);
    assert_string_equal(credentials.session_token, "T");
    assert_string_equal(credentials.source, "kept");
    assert_int_equal(credentials.expires_ns, UINT64_C(1369353600) * NS_PER_S);
    assert_true(s3_credentials_are_old(&credentials, UINT64_C(1369353599) * NS_PER_S));
    assert_false(s3_credentials_are_old(&credentials, UINT64_C(1369350000) * NS_PER_S));
    static const char *const bad[] = {"",
                                      "{",
                                      "{}",
                                      "{\"AccessKeyId\":\"hush\"}",
                                      "[\"hush\"]",
                                      "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"\"}",
                                      "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"hush\\n\"}",
                                      "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"hush\",\"Expiration\":\"soon\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cb_err err = {0};
        assert_int_equal(s3_credentials_parse("x", bad[i], strlen(bad[i]), false, &credentials, &err), CB_ERR_FORMAT);
        assert_null(strstr(err.message, "hush"));
    }
    assert_int_equal(s3_credentials_parse("x", good, sizeof good - 1, true, &credentials, NULL), CB_ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_come_at_their_end_with_their_path_and_text),
        cmocka_unit_test(what_is_no_such_document_is_refused),
        cmocka_unit_test(depth_and_text_have_bounds),
        cmocka_unit_test(a_page_of_objects_gives_keys_sizes_and_the_next_page),
        cmocka_unit_test(a_page_that_lacks_what_it_needs_is_refused),
        cmocka_unit_test(a_page_of_uploads_gives_their_ids_and_age),
        cmocka_unit_test(a_deletion_names_what_it_could_not_delete),
        cmocka_unit_test(the_files_of_the_aws_tools_are_read_as_they_read_them),
        cmocka_unit_test_setup_teardown(credentials_are_found_in_the_order_of_the_aws_tools, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_program_may_hand_out_credentials, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_way_that_is_not_spoken_is_said_with_one_that_is, make_place, remove_place),
        cmocka_unit_test_setup_teardown(credentials_that_end_soon_are_replaced_before_they_do, make_place,
                                        remove_place),
        cmocka_unit_test_setup_teardown(credentials_that_a_server_refuses_as_ended_are_replaced_or_named, make_place,
                                        remove_place),
        cmocka_unit_test(documents_of_credentials_are_taken_whole_or_refused_without_a_quote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
