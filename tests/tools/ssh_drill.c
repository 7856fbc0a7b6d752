/* ssh_drill DESTINATION [config=FILE] [path=PATH] [login_path=yes] [connect_s=N] ACTION WORD… [, ACTION WORD…]…
 * A face of the SSH transport for tests: does the actions over one transport and prints a line of JSON for
 * each, and one at the end; what was read is in base64. Actions:
 *   run [input=FILE] [max=BYTES] [time_ms=N] [env=NAME=VALUE]… [scrub=yes] [times=N] -- WORD…
 *   put LOCAL REMOTE    get REMOTE LOCAL    put_folder LOCAL REMOTE    get_folder REMOTE LOCAL
 *   get_folders PARENT LOCAL NAME…
 *   stat PATH           read PATH OFFSET BYTES                         line (waits for one on stdin) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "jobs/transport.h"

#define VARIABLES_MAX 16

static void print_base64(const char *key, const char *bytes, size_t len)
{
    char *text = malloc(4 * ((len + 2) / 3) + 1);
    if (!text)
        exit(1);
    hash_base64(bytes, len, text);
    printf(", \"%s\": \"%s\"", key, text);
    free(text);
}

static void print_end(int rc, const struct cb_err *err)
{
    if (rc)
        print_base64("message", err->message, strlen(err->message));
    printf("}\n");
    fflush(stdout);
}

static const char *value_of(const char *word, const char *key)
{
    size_t len = strlen(key);
    return strncmp(word, key, len) == 0 && word[len] == '=' ? word + len + 1 : NULL;
}

static void run_once(struct transport *transport, const struct transport_command *command)
{
    struct transport_answer answer;
    struct cb_err err = {0};
    transport_answer_init(&answer);
    int rc = transport->run(transport, command, &answer, &err);
    printf("{\"code\": \"%s\", \"status\": %d", cb_code_name(rc), answer.exit_status);
    print_base64("out", answer.out.data, answer.out.len);
    print_base64("errors", answer.errors.data, answer.errors.len);
    print_end(rc, &err);
    transport_answer_release(&answer);
}

static void run(struct transport *transport, char **words)
{
    const char *variables[VARIABLES_MAX + 1] = {NULL}, *value;
    struct transport_command command = {.environment = variables, .max_bytes = 8u << 20, .timeout_ns = 120 * NS_PER_S};
    size_t variable_count = 0;
    unsigned times = 1;
    struct buf input;
    buf_init(&input, 64u << 20);
    for (; *words && strcmp(*words, "--") != 0; words++) {
        if ((value = value_of(*words, "input"))) {
            if (buf_read_file(&input, value, NULL))
                exit(1);
            command.input = input.data;
            command.input_bytes = input.len;
        } else if ((value = value_of(*words, "max"))) {
            command.max_bytes = strtoul(value, NULL, 10);
        } else if ((value = value_of(*words, "time_ms"))) {
            command.timeout_ns = strtoull(value, NULL, 10) * NS_PER_MS;
        } else if ((value = value_of(*words, "env")) && variable_count < VARIABLES_MAX) {
            variables[variable_count++] = value;
        } else if ((value = value_of(*words, "times"))) {
            times = (unsigned)strtoul(value, NULL, 10);
        } else if (value_of(*words, "scrub")) {
            command.without_slurm = true;
        } else {
            exit(2);
        }
    }
    if (!*words)
        exit(2);
    command.argv = (const char *const *)words + 1;
    while (times--)
        run_once(transport, &command);
    buf_release(&input);
}

static void read_piece(struct transport *transport, char **words)
{
    struct buf out;
    struct cb_err err = {0};
    buf_init(&out, 64u << 20);
    int rc =
        transport->read(transport, words[0], strtoull(words[1], NULL, 10), strtoul(words[2], NULL, 10), &out, &err);
    printf("{\"code\": \"%s\"", cb_code_name(rc));
    print_base64("out", out.data, out.len);
    print_end(rc, &err);
    buf_release(&out);
}

static void look_at(struct transport *transport, const char *path)
{
    struct transport_stat status = {0};
    struct cb_err err = {0};
    int rc = transport->stat(transport, path, &status, &err);
    printf("{\"code\": \"%s\", \"is_folder\": %s, \"bytes\": %llu, \"modified_s\": %llu", cb_code_name(rc),
           status.is_folder ? "true" : "false", (unsigned long long)status.bytes,
           (unsigned long long)(status.modified_wall_ns / NS_PER_S));
    print_end(rc, &err);
}

static void copy(struct transport *transport, const char *action, char **words)
{
    struct cb_err err = {0};
    int rc = strcmp(action, "put") == 0 ? transport->put_file(transport, words[0], words[1], &err)
                                        : transport->get_file(transport, words[0], words[1], &err);
    printf("{\"code\": \"%s\"", cb_code_name(rc));
    print_end(rc, &err);
}

static void get_folders(struct transport *transport, char **words, size_t count)
{
    struct cb_err err = {0};
    int rc = transport->get_folders(transport, words[0], (const char *const *)words + 2, count - 2, words[1], &err);
    printf("{\"code\": \"%s\"", cb_code_name(rc));
    print_end(rc, &err);
}

static void act(struct transport *transport, const char *action, char **words)
{
    size_t count = 0;
    while (words[count])
        count++;
    if (strcmp(action, "run") == 0)
        run(transport, words);
    else if (strcmp(action, "line") == 0)
        (void)!getchar();
    else if (strcmp(action, "stat") == 0 && count == 1)
        look_at(transport, words[0]);
    else if (strcmp(action, "read") == 0 && count == 3)
        read_piece(transport, words);
    else if (strcmp(action, "get_folders") == 0 && count > 2)
        get_folders(transport, words, count);
    else if (count == 2)
        copy(transport, action, words);
    else
        exit(2);
}

int main(int argc, char **argv)
{
    struct transport_ssh_settings settings = {0};
    struct transport *transport;
    struct cb_err err;
    const char *value;
    int at = 2;
    if (argc < 2)
        return 2;
    for (; at < argc && strchr(argv[at], '='); at++) {
        if ((value = value_of(argv[at], "config")))
            settings.config_path = value;
        else if ((value = value_of(argv[at], "path")))
            settings.path = value;
        else if (value_of(argv[at], "login_path"))
            settings.login_path = true;
        else if ((value = value_of(argv[at], "connect_s")))
            settings.connect_timeout_ns = strtoull(value, NULL, 10) * NS_PER_S;
    }
    int rc = transport_ssh_open(argv[1], &settings, &transport, &err);
    if (rc) {
        printf("{\"code\": \"%s\"", cb_code_name(rc));
        print_end(rc, &err);
        return 1;
    }
    while (at < argc) {
        int end = at + 1;
        while (end < argc && strcmp(argv[end], ",") != 0)
            end++;
        argv[end] = NULL;
        act(transport, argv[at], argv + at + 1);
        at = end + 1;
    }
    printf("{\"code\": \"ok\", \"connections\": %u", transport->connections);
    print_base64("note", transport->note, strlen(transport->note));
    print_end(0, NULL);
    transport_close(transport);
    return 0;
}
