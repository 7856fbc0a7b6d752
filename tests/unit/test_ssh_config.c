/* Where ssh's configuration leads, what known_hosts says, what key files are, and what shells get and give. */
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

#include "core/hash.h"
#include "jobs/ssh/ssh_agent.h"
#include "jobs/ssh/ssh_command.h"
#include "jobs/ssh/ssh_config.h"
#include "jobs/ssh/ssh_key.h"
#include "jobs/ssh/ssh_known_hosts.h"

static const struct ssh_places places = {.home = "/home/u", .user = "u", .config_path = "none"};

static int apply(struct ssh_host *host, const char *alias, const char *text, struct cb_err *err)
{
    ssh_host_init(host, alias);
    return ssh_config_apply(host, &places, text, strlen(text), "config", 0, err);
}

/* ---- destinations ---- */

static void check_destination(const char *text, const char *user, const char *host, unsigned port)
{
    char found_user[128], found_host[SSH_HOST_BYTES];
    uint16_t found_port;
    assert_int_equal(ssh_destination_parse(text, found_user, found_host, &found_port, NULL), 0);
    assert_string_equal(found_user, user);
    assert_string_equal(found_host, host);
    assert_int_equal(found_port, port);
}

static void test_destinations_have_a_user_and_a_port_or_not(void **state)
{
    (void)state;
    check_destination("login", "", "login", 0);
    check_destination("me@login.example:2222", "me", "login.example", 2222);
    check_destination("a@b@login", "a@b", "login", 0);
    check_destination("::1", "", "::1", 0);
    check_destination("[::1]:22", "", "::1", 22);
    check_destination("ssh://me@login:22", "me", "login", 22);
}

static void test_what_could_be_taken_for_something_else_is_no_destination(void **state)
{
    static const char *const bad[] = {"",        "@host", "user@", "-v",     "me@-v", "a b",   "h:0",
                                      "h:65536", "h:1x",  "[::1",  "[::1]x", "h;id",  "$(id)", "a'b"};
    char user[128], host[SSH_HOST_BYTES];
    uint16_t port;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ssh_destination_parse(bad[i], user, host, &port, NULL), CB_ERR_USAGE);
}

/* ---- patterns ---- */

static bool matches(const char *list, const char *text)
{
    return ssh_pattern_list_matches(list, strlen(list), text);
}

static void test_patterns_know_stars_question_marks_and_exceptions(void **state)
{
    (void)state;
    assert_true(matches("*.example", "login.example"));
    assert_true(matches("LOGIN?.example", "login1.example"));
    assert_false(matches("login?.example", "login.example"));
    assert_true(matches("a,b*c", "bxxc"));
    assert_false(matches("*,!login", "login"));
    assert_false(matches("!login,*", "login"));
    assert_true(matches("*,!login", "other"));
    assert_false(matches("!other", "login"));
    assert_false(matches("[a-z]", "a"));
    assert_true(matches("a*b*c*d*e*f*g", "aXbXcXdXeXfXg"));
    assert_false(matches("", "a"));
}

/* ---- the file ---- */

static void test_the_first_value_of_the_sections_that_match_counts(void **state)
{
    static const char text[] = "# comment\n"
                               "User first # no comment here\n"
                               "Host login*  !login9\n"
                               "  HostName=real.example\n"
                               "  hostname other.example\r\n"
                               "  User second\n"
                               "  Port \"2222\"\n"
                               "  IdentityFile ~/.ssh/a b\n"
                               "  SomethingNew yes\n"
                               "Host *\n"
                               "  IdentityFile \"/keys/with blank\"\n"
                               "  Port 1\n"
                               "  ConnectTimeout 2m\n"
                               "  ServerAliveInterval 7\n"
                               "  IdentitiesOnly YES\n"
                               "  UserKnownHostsFile /a \"/b c\"\n"
                               "  UserKnownHostsFile /d\n";
    struct ssh_host host;
    (void)state;
    assert_int_equal(apply(&host, "login1", text, NULL), 0);
    assert_string_equal(host.host_name, "real.example");
    assert_string_equal(host.user, "first");
    assert_int_equal(host.port, 2222);
    assert_int_equal(host.identity_files.count, 2);
    assert_string_equal(host.identity_files.items[0], "~/.ssh/a");
    assert_string_equal(host.identity_files.items[1], "/keys/with blank");
    assert_int_equal(host.connect_timeout_s, 120);
    assert_int_equal(host.alive_interval_s, 7);
    assert_int_equal(host.identities_only, 1);
    assert_int_equal(host.user_known_hosts.count, 2);
    assert_string_equal(host.user_known_hosts.items[1], "/b c");
    assert_string_equal(host.skipped_match_place, "");
    ssh_host_release(&host);
    assert_int_equal(apply(&host, "login9", text, NULL), 0);
    assert_string_equal(host.host_name, "");
    assert_int_equal(host.port, 1);
    ssh_host_release(&host);
}

static void test_match_sections_are_skipped_and_their_place_is_kept(void **state)
{
    struct ssh_host host;
    (void)state;
    assert_int_equal(
        apply(&host, "h", "Match exec \"true\"\n  Port 7\nMatch user x\n Port 6\nMatch all\n  Port 5\n", NULL), 0);
    assert_int_equal(host.port, 5);
    assert_string_equal(host.skipped_match_place, "config:1");
    ssh_host_release(&host);
}

static void test_values_that_cannot_be_name_their_line(void **state)
{
    static const char *const bad[] = {"\nPort x\n", "\nPort 70000\n", "\nIdentitiesOnly maybe\n",
                                      "\nConnectTimeout 1y\n", "\nServerAliveInterval -1\n"};
    struct ssh_host host;
    struct cb_err err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(apply(&host, "h", bad[i], &err), CB_ERR_FORMAT);
        assert_non_null(strstr(err.message, "config:2"));
        ssh_host_release(&host);
    }
    char text[400] = "HostName ";
    memset(text + 9, 'x', 300);
    assert_int_equal(apply(&host, "h", text, &err), CB_ERR_FORMAT); /* not cut: another host could have that name */
    ssh_host_release(&host);
}

/* ---- with files ---- */

static char folder[] = "/tmp/ckptbench-ssh-XXXXXX";

static void write_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static struct ssh_route *resolve(const char *destination, int wanted, struct cb_err *err)
{
    char config[256];
    struct ssh_route *route = calloc(1, sizeof *route);
    snprintf(config, sizeof config, "%s/config", folder);
    const struct ssh_places here = {.home = folder, .user = "local", .config_path = config};
    assert_non_null(route);
    assert_int_equal(ssh_route_resolve(route, destination, &here, err), wanted);
    return route;
}

static void drop(struct ssh_route *route)
{
    ssh_route_release(route);
    free(route);
}

static void test_jumps_become_a_chain_and_only_the_first_has_its_own(void **state)
{
    (void)state;
    write_text("config",
               "Host far\n  ProxyJump me@one:7,two\nHost one\n  ProxyJump zero\nHost two\n  ProxyJump nobody\n"
               "Host direct\n  ProxyJump none\nHost *\n  ProxyJump far\n");
    struct ssh_route *route = resolve("far", CB_ERR_USAGE, NULL); /* zero goes by far: round and round */
    drop(route);
    write_text("config",
               "Host far\n  ProxyJump me@one:7,two\nHost one\n  ProxyJump zero\nHost two\n  ProxyJump nobody\n");
    route = resolve("far", 0, NULL);
    assert_int_equal(route->count, 4);
    assert_string_equal(route->hops[0].alias, "zero");
    assert_string_equal(route->hops[1].alias, "one");
    assert_string_equal(route->hops[1].user, "me");
    assert_int_equal(route->hops[1].port, 7);
    assert_string_equal(route->hops[2].alias, "two");
    assert_string_equal(route->hops[3].host_name, "far");
    assert_string_equal(route->hops[3].user, "local");
    drop(route);
}

static void test_tokens_variables_and_the_home_are_replaced(void **state)
{
    char wanted[256];
    (void)state;
    setenv("SSH_TEST_FOLDER", "/f", 1);
    write_text("config",
               "Host short\n  HostName %h.example\n  Port 7\n  IdentityFile ~/k-%r-%n-%h-%p-%%\n  IdentityFile "
               "${SSH_TEST_FOLDER}/k\n  HostKeyAlias Name\n");
    struct ssh_route *route = resolve("me@short", 0, NULL);
    snprintf(wanted, sizeof wanted, "%s/k-me-short-short.example-7-%%", folder);
    assert_string_equal(route->hops[0].host_name, "short.example");
    assert_string_equal(route->hops[0].identity_files.items[0], wanted);
    assert_string_equal(route->hops[0].identity_files.items[1], "/f/k");
    char name[SSH_HOST_BYTES + 16];
    ssh_host_known_name(&route->hops[0], name);
    assert_string_equal(name, "name");
    drop(route);
    struct cb_err err;
    write_text("config", "IdentityFile ~/%C\n");
    drop(resolve("h", CB_ERR_UNSUPPORTED, &err));
    assert_non_null(strstr(err.message, "%C"));
    unsetenv("SSH_TEST_FOLDER");
}

static void test_included_files_count_where_they_stand_and_circles_end(void **state)
{
    char path[256];
    struct cb_err err;
    (void)state;
    snprintf(path, sizeof path, "%s/.ssh", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_text(".ssh/one", "Host a\n  Port 1\nHost b\n  Port 2\n");
    write_text("config", "Host b\n  Include one\n  User inner\nHost *\n  Port 3\n");
    struct ssh_route *route = resolve("b", 0, NULL);
    assert_int_equal(route->hops[0].port, 2);
    assert_string_equal(route->hops[0].user, "inner"); /* the section goes on after what was included */
    drop(route);
    route = resolve("a", 0, NULL);
    assert_int_equal(route->hops[0].port, 3); /* the section around the Include is not about it */
    drop(route);
    write_text("config", "Include none-of-these-*\nInclude loop\n");
    write_text(".ssh/loop", "Include loop\n");
    drop(resolve("a", CB_ERR_FORMAT, &err));
    assert_non_null(strstr(err.message, "deep"));
}

static void test_a_configuration_that_is_named_must_be_there(void **state)
{
    char config[256];
    (void)state;
    snprintf(config, sizeof config, "%s/config", folder);
    unlink(config);
    drop(resolve("h", CB_ERR_NOT_FOUND, NULL));
}

/* ---- known_hosts ---- */

/* Two Ed25519 keys that differ in the last bits. */
#define KEY "AAAAC3NzaC1lZDI1NTE5AAAAIL58/AYnR5R9ETD/9WsWsEqzeHC0TcFhDwXn5O4lsMQw"
#define OTHER "AAAAC3NzaC1lZDI1NTE5AAAAIL58/AYnR5R9ETD/9WsWsEqzeHC0TcFhDwXn5O4lsMQx"

static struct ssh_known scan(const char *text, const char *name)
{
    struct ssh_known known = {0};
    unsigned char blob[128];
    size_t len;
    assert_true(hash_base64_decode(KEY, strlen(KEY), blob, &len));
    ssh_known_scan(&known, text, strlen(text), name, blob, len);
    return known;
}

static void test_a_key_is_known_changed_revoked_or_of_a_stranger(void **state)
{
    (void)state;
    assert_true(scan("login.example ssh-ed25519 " KEY "\n", "login.example").matches);
    assert_true(scan("a,login.*\tssh-ed25519  " KEY " comment", "login.example").matches);
    assert_true(
        scan("login.example ssh-ed25519 " OTHER "\nlogin.example ssh-ed25519 " KEY "\n", "login.example").matches);
    struct ssh_known known = scan("\n# x\nlogin.example ssh-ed25519 " OTHER "\r\n", "login.example");
    assert_true(known.differs && !known.matches);
    assert_int_equal(known.differs_line, 3);
    assert_true(scan("@revoked * ssh-ed25519 " KEY "\n", "login.example").revoked);
    assert_false(scan("@revoked * ssh-ed25519 " KEY "\n", "login.example").matches);
    known = scan("@cert-authority * ssh-ed25519 " KEY "\nother ssh-ed25519 " KEY "\nlogin.example ssh-ed25519 AA=A\n"
                 "login.example ecdsa-sha2-nistp256 " KEY "\nlogin.example\n#login.example ssh-ed25519 " KEY "\n",
                 "login.example");
    assert_false(known.matches || known.differs || known.revoked);
    assert_int_equal(known.kinds, 0);
}

static void test_hashed_names_and_ports_are_found(void **state)
{
    unsigned char salt[20] = "0123456789abcdefghi", digest[HASH_SHA1_BYTES];
    char salt_text[32], digest_text[32], line[256];
    (void)state;
    assert_true(hash_hmac_sha1(salt, sizeof salt, "[login]:2222", 12, digest));
    hash_base64(salt, sizeof salt, salt_text);
    hash_base64(digest, sizeof digest, digest_text);
    snprintf(line, sizeof line, "|1|%s|%s ssh-ed25519 %s\n", salt_text, digest_text, KEY);
    assert_true(scan(line, "[login]:2222").matches);
    assert_false(scan(line, "login").matches);
    assert_true(scan("[login]:2222 ssh-ed25519 " KEY "\n", "[login]:2222").matches);
    assert_false(scan("|1|AAAA ssh-ed25519 " KEY "\n", "login").matches);
}

/* RFC 2202, test case 2; and the base64 of RFC 4648. */
static void test_the_hash_and_the_encoding_of_known_hosts_are_the_published_ones(void **state)
{
    unsigned char digest[HASH_SHA1_BYTES], bytes[16];
    char hex[2 * HASH_SHA1_BYTES + 1];
    size_t len;
    (void)state;
    assert_true(hash_hmac_sha1("Jefe", 4, "what do ya want for nothing?", 28, digest));
    hash_hex(digest, sizeof digest, hex);
    assert_string_equal(hex, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
    static const char *const pairs[][2] = {{"", ""},        {"Zg==", "f"},        {"Zm8=", "fo"},
                                           {"Zm9v", "foo"}, {"Zm9vYg==", "foob"}, {"Zm9vYmFy", "foobar"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        assert_true(hash_base64_decode(pairs[i][0], strlen(pairs[i][0]), bytes, &len));
        assert_int_equal(len, strlen(pairs[i][1]));
        assert_memory_equal(bytes, pairs[i][1], len);
    }
    static const char *const bad[] = {"Z", "Zg=", "Z===", "====", "Zg==Zg==", "Zm 9", "Zm9v\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(hash_base64_decode(bad[i], strlen(bad[i]), bytes, &len));
}

/* ---- keys ---- */

static int parse_key(const char *text, struct ssh_key *key)
{
    return ssh_key_parse(key, text, strlen(text), "key", NULL);
}

static void test_key_files_show_their_kind_and_whether_they_are_locked(void **state)
{
    struct ssh_key key;
    (void)state;
    assert_int_equal(parse_key("ssh-ed25519 " KEY " me@here\n", &key), 0);
    assert_int_equal(key.kind, SSH_KEY_ED25519);
    assert_false(key.is_private);
    assert_int_equal(parse_key("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n", &key), 0);
    assert_true(key.kind == SSH_KEY_RSA && key.is_private && key.has_passphrase);
    assert_int_equal(parse_key("-----BEGIN EC PRIVATE KEY-----\nAAAA\n", &key), 0);
    assert_true(key.kind == SSH_KEY_ECDSA_256 && !key.has_passphrase);
    assert_int_equal(parse_key("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n", &key), 0);
    assert_true(key.has_passphrase);
    static const char *const bad[] = {"",
                                      "hello",
                                      "ssh-ed25519",
                                      "ssh-ed25519 x",
                                      "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n",
                                      "-----BEGIN CERTIFICATE-----\nAAAA\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(parse_key(bad[i], &key), CB_ERR_FORMAT);
}

static void test_answers_of_an_agent_that_end_early_are_refused(void **state)
{
    static const unsigned char good[] = {12, 0, 0, 0, 1, 0, 0, 0, 2, 'a', 'b', 0, 0, 0, 1, 'c'};
    struct ssh_agent agent;
    (void)state;
    for (size_t len = 0; len <= sizeof good; len++) {
        agent = (struct ssh_agent){.socket = -1};
        assert_int_equal(ssh_agent_parse_keys(&agent, good, len, NULL), len == sizeof good ? 0 : CB_ERR_FORMAT);
        assert_int_equal(agent.count, len == sizeof good);
        ssh_agent_close(&agent);
    }
}

/* ---- commands ---- */

static void test_quoted_words_are_one_word_for_sh(void **state)
{
    struct buf text;
    (void)state;
    buf_init(&text, 100);
    buf_append_quoted(&text, "a'b $(c) \n\"");
    assert_string_equal(text.data, "'a'\\''b $(c) \n\"'");
    buf_release(&text);
}

static void test_a_script_that_was_cut_runs_nothing(void **state)
{
    char made[256], cut[4096];
    const char *const argv[] = {"touch", made, NULL};
    const struct transport_command command = {.argv = argv};
    struct buf script;
    (void)state;
    snprintf(made, sizeof made, "%s/made", folder);
    buf_init(&script, sizeof cut - 1);
    assert_int_equal(ssh_script_append(&script, &command, "mark", NULL, NULL, NULL), 0);
    for (size_t len = 0; len <= script.len; len += len + 40 < script.len ? 9 : 1) {
        snprintf(cut, sizeof cut, "%.*s", (int)len, script.data);
        setenv("CKPTBENCH_TEST_SCRIPT", cut, 1);
        (void)!system("sh -c 'eval \"$CKPTBENCH_TEST_SCRIPT\"' >/dev/null 2>&1");
        assert_int_equal(access(made, F_OK), len == script.len ? 0 : -1);
    }
    unsetenv("CKPTBENCH_TEST_SCRIPT");
    buf_release(&script);
}

/* The same in pieces of every size. */
static void test_output_lies_between_the_marks_however_it_comes(void **state)
{
    static const char said[] = "welcome\nno feedM-begin 77\nout\nput\nM-end 3\nlogout\n";
    (void)state;
    for (size_t piece = 1; piece <= sizeof said; piece++) {
        struct ssh_stream stream;
        ssh_stream_init(&stream, "M", 100);
        for (size_t at = 0; at < sizeof said - 1; at += piece)
            ssh_stream_take(&stream, said + at, at + piece < sizeof said ? piece : sizeof said - 1 - at);
        assert_true(stream.begun && stream.ended);
        assert_string_equal(stream.first, "77");
        assert_string_equal(stream.last, "3");
        assert_string_equal(stream.text.data, "out\nput");
        ssh_stream_release(&stream);
    }
}

static void test_endless_noise_is_given_up(void **state)
{
    struct ssh_stream stream;
    static char noise[65536];
    (void)state;
    memset(noise, 'x', sizeof noise);
    ssh_stream_init(&stream, "M", 100);
    for (int i = 0; i < 64 && !stream.too_much; i++)
        ssh_stream_take(&stream, noise, sizeof noise);
    assert_true(stream.too_much && !stream.begun);
    ssh_stream_release(&stream);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_destinations_have_a_user_and_a_port_or_not),
        cmocka_unit_test(test_what_could_be_taken_for_something_else_is_no_destination),
        cmocka_unit_test(test_patterns_know_stars_question_marks_and_exceptions),
        cmocka_unit_test(test_the_first_value_of_the_sections_that_match_counts),
        cmocka_unit_test(test_match_sections_are_skipped_and_their_place_is_kept),
        cmocka_unit_test(test_values_that_cannot_be_name_their_line),
        cmocka_unit_test(test_jumps_become_a_chain_and_only_the_first_has_its_own),
        cmocka_unit_test(test_tokens_variables_and_the_home_are_replaced),
        cmocka_unit_test(test_included_files_count_where_they_stand_and_circles_end),
        cmocka_unit_test(test_a_configuration_that_is_named_must_be_there),
        cmocka_unit_test(test_a_key_is_known_changed_revoked_or_of_a_stranger),
        cmocka_unit_test(test_hashed_names_and_ports_are_found),
        cmocka_unit_test(test_the_hash_and_the_encoding_of_known_hosts_are_the_published_ones),
        cmocka_unit_test(test_key_files_show_their_kind_and_whether_they_are_locked),
        cmocka_unit_test(test_answers_of_an_agent_that_end_early_are_refused),
        cmocka_unit_test(test_quoted_words_are_one_word_for_sh),
        cmocka_unit_test(test_a_script_that_was_cut_runs_nothing),
        cmocka_unit_test(test_output_lies_between_the_marks_however_it_comes),
        cmocka_unit_test(test_endless_noise_is_given_up),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
