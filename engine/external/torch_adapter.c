/* Starts the Python process of an engine in PyTorch, and exchanges requests and answers with it. */
#include "engine/external/torch_adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/process.h"
#include "core/share_file.h"
#include "engine/external/external_engine.h"

#define LINE_MAX_BYTES (UINT64_C(1) << 20)
#define ANSWER_SLICE_MS 100
#define QUIT_GRACE_NS (2 * NS_PER_S)

void torch_adapter_init(struct torch_adapter *self, const char *engine, struct comm *comm, struct status_page *page)
{
    *self = (struct torch_adapter){
        .engine = engine, .comm = comm, .page = page, .to_child = -1, .from_child = -1, .stderr_fd = -1};
    buf_init(&self->request, LINE_MAX_BYTES);
    buf_init(&self->received, LINE_MAX_BYTES);
}

void torch_adapter_end(struct torch_adapter *self)
{
    if (self->to_child >= 0)
        close(self->to_child);
    if (child_wait(&self->child, clock_monotonic_ns() + QUIT_GRACE_NS, NULL))
        child_end(&self->child, QUIT_GRACE_NS);
    if (self->from_child >= 0)
        close(self->from_child);
    if (self->stderr_fd >= 0)
        close(self->stderr_fd);
    buf_release(&self->request);
    buf_release(&self->received);
}

/* --- finding files --- */

static void find_python(char path[PATH_MAX])
{
    const char *given = getenv("CKPTBENCH_PYTHON");
    if (given && given[0]) {
        snprintf(path, PATH_MAX, "%s", given);
        return;
    }
    char folder[PATH_MAX];
    process_folder(folder);
    int length = snprintf(path, PATH_MAX, "%.*s/venv/bin/python", PATH_MAX - 32, folder);
    if (length < 0 || length >= PATH_MAX || access(path, X_OK) != 0)
        snprintf(path, PATH_MAX, "python3");
}

int torch_adapter_start(struct torch_adapter *self, struct cb_err *err)
{
    char adapter[PATH_MAX], python[PATH_MAX], user[64];
    int in[2], out[2];
    bool is_native = strcmp(self->engine, "torch-native") == 0;
    snprintf(user, sizeof user, "engine=%s", self->engine);
    int rc = share_file_find(user, is_native ? "adapters/torch_native.py" : "adapters/torch_dcp.py", adapter, err);
    if (rc)
        return rc;
    find_python(python);
    self->stderr_fd = memfd_create("ckptbench-torch", MFD_CLOEXEC);
    if (self->stderr_fd < 0 || pipe2(in, O_CLOEXEC))
        return cb_fail_errno(err, errno, "making a pipe to Python");
    if (pipe2(out, O_CLOEXEC)) {
        int failed = errno;
        close(in[0]);
        close(in[1]);
        return cb_fail_errno(err, failed, "making a pipe to Python");
    }
    const char *argv[] = {python, adapter, NULL};
    struct child_options options = {.argv = argv, .stdin_fd = in[0], .stdout_fd = out[1], .stderr_fd = self->stderr_fd};
    rc = child_start(&self->child, &options, err);
    close(in[0]);
    close(out[1]);
    self->to_child = in[1];
    self->from_child = out[0];
    return rc ? cb_context(err, "%s needs Python with torch (CKPTBENCH_PYTHON names one)", user) : 0;
}

/* --- requests --- */

static int fail_child(struct torch_adapter *self, struct cb_err *err)
{
    char how[64], last[512];
    child_end(&self->child, QUIT_GRACE_NS);
    external_last_line(self->stderr_fd, last);
    return cb_fail(err, CB_ERR_SYSTEM, "the Python process of engine=%s ended: %s%s%s", self->engine,
                   child_describe(&self->child, how), last[0] ? ": " : "", last);
}

static int send_line(struct torch_adapter *self, struct cb_err *err)
{
    buf_append_char(&self->request, '\n');
    int rc = buf_check(&self->request, "a request to Python", err);
    for (size_t sent = 0; !rc && sent < self->request.len;) {
        ssize_t len = write(self->to_child, self->request.data + sent, self->request.len - sent);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            rc = fail_child(self, err);
        else
            sent += (size_t)len;
    }
    return rc;
}

/* Waits for a complete line; *end is its end. */
static int receive_line(struct torch_adapter *self, uint64_t deadline_ns, size_t *end, struct cb_err *err)
{
    char bytes[4096];
    for (;;) {
        const char *feed = memchr(self->received.data, '\n', self->received.len);
        if (feed) {
            *end = (size_t)(feed - self->received.data);
            return 0;
        }
        struct pollfd ready = {.fd = self->from_child, .events = POLLIN};
        if (poll(&ready, 1, ANSWER_SLICE_MS) <= 0) {
            child_activity_look(&self->activity, self->child.pid, self->page, clock_monotonic_ns());
            int rc = comm_check(self->comm, err);
            if (!rc && clock_monotonic_ns() > deadline_ns)
                rc = cb_fail(err, CB_ERR_TIMEOUT, "the Python process of engine=%s did not answer in time",
                             self->engine);
            if (rc)
                return rc;
            continue;
        }
        ssize_t len = read(self->from_child, bytes, sizeof bytes);
        if (len < 0 && errno == EINTR)
            continue;
        if (len <= 0)
            return fail_child(self, err);
        buf_append(&self->received, bytes, (size_t)len);
        int rc = buf_check(&self->received, "an answer from Python", err);
        if (rc)
            return rc;
    }
}

static double number_of(const struct json_value *root, const char *key)
{
    double number = NAN;
    (void)json_as_double(json_get(root, key), &number);
    return number >= 0 ? number : (double)NAN;
}

int torch_answer_parse(const char *line, size_t len, struct torch_answer *answer, struct cb_err *err)
{
    struct json_value *root = NULL;
    bool ok = false;
    int rc = json_parse(line, len, &root, err);
    if (rc)
        return cb_context(err, "an answer from Python");
    const char *why = "no reason given", *version = "unknown";
    if (!json_as_bool(json_get(root, "ok"), &ok) || !ok) {
        (void)json_as_text(json_get(root, "error"), &why);
        rc = cb_fail(err, CB_ERR_CORRUPT, "PyTorch: %s", why);
    } else {
        (void)json_as_text(json_get(root, "torch"), &version);
        snprintf(answer->version, sizeof answer->version, "%s", version);
        answer->plan_s = number_of(root, "plan_s");
        answer->io_s = number_of(root, "io_s");
        answer->commit_s = number_of(root, "commit_s");
        answer->wait_s = number_of(root, "wait_s");
        answer->cpu_s = number_of(root, "cpu_s");
        answer->save_cpu_s = number_of(root, "save_cpu_s");
        answer->ended_s = number_of(root, "ended_s");
        answer->bytes = number_of(root, "bytes");
        answer->rss_bytes = number_of(root, "rss_bytes");
    }
    json_value_free(root);
    return rc;
}

void torch_adapter_begin(struct torch_adapter *self, struct json_writer *writer, const char *command)
{
    buf_clear(&self->request);
    json_writer_init(writer, &self->request, 0);
    json_write_begin_object(writer);
    json_member_text(writer, "command", command);
}

int torch_adapter_ask(struct torch_adapter *self, struct json_writer *writer, uint64_t deadline_ns,
                      struct torch_answer *answer, struct cb_err *err)
{
    size_t end = 0;
    struct torch_answer unused;
    json_write_end_object(writer);
    int rc = send_line(self, err);
    if (!rc)
        rc = receive_line(self, deadline_ns, &end, err);
    if (rc)
        return rc;
    rc = torch_answer_parse(self->received.data, end, answer ? answer : &unused, err);
    size_t rest = self->received.len - end - 1;
    memmove(self->received.data, self->received.data + end + 1, rest);
    self->received.len = rest;
    self->received.data[rest] = '\0';
    return rc;
}
