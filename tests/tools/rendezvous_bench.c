/* A rendezvous of many nodes: a head, and in another process as many agents with real connections, real
 * handshakes and real messages. Prints how long it took and what memory the head needed, as JSON.
 *
 * usage: rendezvous_bench [NODES] (1000) */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/node/page_copy.h"
#include "agent/node/rendezvous.h"
#include "core/clock.h"
#include "core/version.h"

#define LIMIT_NS (110 * NS_PER_S)
#define SAMPLES 40

static void die(const char *what)
{
    fprintf(stderr, "rendezvous_bench: %s\n", what);
    _exit(1);
}

/* The agents */

struct agent {
    struct channel *channel;
    bool greeted, pinged, finished;
};

static void say(struct agent *agent, struct buf *bytes, enum wire_kind kind, const void *message)
{
    wire_write(bytes, kind, message);
    if (channel_send(agent->channel, bytes->data, bytes->len, NULL) != 0)
        die("an agent cannot send");
}

static void greet(struct agent *agent, uint32_t index, struct buf *message)
{
    struct wire_hello hello = {
        .protocol = WIRE_PROTOCOL, .page_version = STATUS_PAGE_VERSION, .page_bytes = sizeof(struct status_page)};
    snprintf(hello.version, sizeof hello.version, "%s", version_text());
    snprintf(hello.commit, sizeof hello.commit, "%s", version_commit());
    snprintf(hello.name, sizeof hello.name, "n%u", index);
    say(agent, message, WIRE_HELLO, &hello);
    agent->greeted = true;
}

static void answer(struct agent *agent, uint32_t index, const void *bytes, size_t len, struct buf *message)
{
    struct wire_joined joined = {.round_trip_ns = 1, .store_free_bytes = UINT64_MAX};
    struct wire_process process = {.rank = index, .pid = 1, .state = 'R'};
    switch (wire_kind_of(bytes, len)) {
    case WIRE_WELCOME:
        say(agent, message, WIRE_PING, &(struct wire_ping){clock_monotonic_ns()});
        break;
    case WIRE_PONG:
        say(agent, message, WIRE_JOINED, &joined);
        say(agent, message, WIRE_PROCESS, &process);
        break;
    case WIRE_FINISH:
        say(agent, message, WIRE_FINISHED, NULL);
        agent->finished = true;
        break;
    case WIRE_BEAT:
        break;
    default:
        die("an agent was told something strange");
    }
}

static void work(struct agent *agent, uint32_t index, struct buf *message)
{
    const void *bytes;
    size_t len;
    int rc = channel_work(agent->channel, NULL);
    if (rc && !agent->finished)
        die("an agent was dropped");
    if (channel_is_open(agent->channel) && !agent->greeted)
        greet(agent, index, message);
    while (channel_next(agent->channel, &bytes, &len))
        answer(agent, index, bytes, len, message);
    if (!rc && channel_unsent(agent->channel) > 0)
        rc = channel_work(agent->channel, NULL);
    if (rc) {
        channel_free(agent->channel);
        agent->channel = NULL;
    }
}

static void play_agents(const struct channel_key *key, uint16_t port, uint32_t count)
{
    struct agent *agents = calloc(count, sizeof *agents);
    struct pollfd *polls = calloc(count, sizeof *polls);
    struct channel_context *context;
    struct buf message;
    buf_init(&message, CHANNEL_MAX_MESSAGE_BYTES);
    if (!agents || !polls || channel_context_new(key, CHANNEL_CLIENT, &context, NULL))
        die("no memory for agents");
    for (uint32_t i = 0; i < count; i++)
        if (channel_connect(context, "127.0.0.1", port, &agents[i].channel, NULL))
            die("an agent cannot connect");
    for (uint32_t left = count; left > 0;) {
        left = 0;
        for (uint32_t i = 0; i < count; i++) {
            const struct channel *channel = agents[i].channel;
            polls[i] = (struct pollfd){.fd = channel ? channel_fd(channel) : -1,
                                       .events = channel ? channel_events(channel) : 0};
            left += channel != NULL;
        }
        if (poll(polls, count, 1000) < 0)
            die("poll");
        for (uint32_t i = 0; i < count; i++)
            if (polls[i].revents && agents[i].channel)
                work(&agents[i], i, &message);
    }
    _exit(0);
}

/* The head */

static double peak_bytes(void)
{
    char line[256];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "VmHWM: %lu kB", &kib);
    if (status)
        fclose(status);
    return (double)kib * 1024;
}

static uint32_t count_in(const struct rendezvous *head, uint32_t count, enum node_state state)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += rendezvous_report(head, i)->state == state;
    return found;
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    struct nodes nodes = {.name = calloc(count, NODE_NAME_BYTES), .count = count, .own = -1, .slurm = true};
    struct status_page **page = calloc(count, sizeof(struct status_page *));
    if (!nodes.name || !page)
        die("no memory");
    for (uint32_t i = 0; i < count; i++) {
        snprintf(nodes.name[i], NODE_NAME_BYTES, "n%u", i);
        if (page_copy_new(i, count, SAMPLES, &page[i], NULL))
            die("no memory for pages");
    }
    const struct rendezvous_setup setup = {.run = "bench",
                                           .attempt = 1,
                                           .nodes = &nodes,
                                           .ranks = count,
                                           .sample_capacity = SAMPLES,
                                           .pages = "/dev/shm/ckptbench-bench",
                                           .experiment = "version: 1\n",
                                           .page = page};
    struct rendezvous *head;
    if (rendezvous_new(&setup, &head, NULL))
        die("no rendezvous");
    pid_t pid = fork();
    if (pid == 0)
        play_agents(rendezvous_key(head), rendezvous_port(head), count);
    uint64_t start_ns = clock_monotonic_ns(), now_ns = start_ns;
    for (; !rendezvous_is_complete(head) && now_ns < start_ns + LIMIT_NS; now_ns = clock_monotonic_ns())
        rendezvous_work(head, now_ns, 10);
    double joined_s = (double)(now_ns - start_ns) / (double)NS_PER_S;
    uint32_t joined = count_in(head, count, NODE_JOINED);
    double memory = peak_bytes();
    rendezvous_finish(head, clock_monotonic_ns() + LIMIT_NS);
    printf("{\"nodes\": %u, \"joined\": %u, \"finished\": %u, \"lost\": %u, \"joined_s\": %.3f, "
           "\"head_memory_bytes\": %.0f}\n",
           count, joined, count_in(head, count, NODE_FINISHED), count_in(head, count, NODE_LOST), joined_s, memory);
    rendezvous_free(head);
    int status = 1;
    waitpid(pid, &status, 0);
    for (uint32_t i = 0; i < count; i++)
        status_page_close(page[i]);
    free(page);
    free(nodes.name);
    return joined == count && status == 0 ? 0 : 1;
}
