/* What ssh's files and other sides say, of foreign bytes: the first byte says which. */
#include <stdint.h>
#include <string.h>

#include "jobs/ssh/ssh_agent.h"
#include "jobs/ssh/ssh_command.h"
#include "jobs/ssh/ssh_config.h"
#include "jobs/ssh/ssh_key.h"
#include "jobs/ssh/ssh_known_hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Include is an error at this depth: no file of this machine is read. */
static int read_config(const char *text, size_t len)
{
    static const struct ssh_places places = {.home = "/home/u", .user = "u", .config_path = "none"};
    struct ssh_host host;
    ssh_host_init(&host, "login.example");
    int rc = ssh_config_apply(&host, &places, text, len, "config", SSH_INCLUDE_DEPTH_MAX, NULL);
    ssh_host_release(&host);
    return rc;
}

static int read_destination(const char *text, size_t len)
{
    char own[2048], user[128], host[SSH_HOST_BYTES];
    uint16_t port;
    if (len >= sizeof own)
        return 0;
    memcpy(own, text, len);
    own[len] = '\0';
    return ssh_destination_parse(own, user, host, &port, NULL);
}

static int read_agent(const char *answer, size_t len)
{
    struct ssh_agent agent = {.socket = -1};
    int rc = ssh_agent_parse_keys(&agent, answer, len, NULL);
    ssh_agent_close(&agent);
    return rc;
}

/* In two pieces, cut where the second byte says. */
static void read_stream(const char *bytes, size_t len)
{
    struct ssh_stream stream;
    size_t cut = len ? (uint8_t)bytes[0] % len : 0;
    ssh_stream_init(&stream, "M", 1000);
    ssh_stream_take(&stream, bytes, cut);
    ssh_stream_take(&stream, bytes + cut, len - cut);
    ssh_stream_release(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ssh_known known = {0};
    struct ssh_key key;
    int rc = 0;
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 6) {
    case 0:
        rc = read_config(text, size - 1);
        break;
    case 1:
        ssh_known_scan(&known, text, size - 1, "[login.example]:2222", "\0\0\0\x0bssh-ed25519x", 16);
        break;
    case 2:
        rc = ssh_key_parse(&key, text, size - 1, "key", NULL);
        break;
    case 3:
        rc = read_agent(text, size - 1);
        break;
    case 4:
        read_stream(text, size - 1);
        break;
    default:
        rc = read_destination(text, size - 1);
    }
    (void)rc; /* any answer is fine, as long as there is one */
    return 0;
}
