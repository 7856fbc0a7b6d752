/* The event loop of S3 requests: curl's multi handle, epoll, the limit of requests in flight, and lists of calls by
 * state. */
#include "store/s3/s3_loop.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"

#ifdef HAVE_CURL

#define EVENTS 64
/* Interval of the checks for stalls and deadlines. */
#define LOOK_NS (50 * NS_PER_MS)

/* A queue of calls, linked by their `next`. */
struct call_list {
    struct s3_call *first, *last;
    uint32_t count;
};

/* Every call that was started and not fetched is in exactly one of: queued, running, waiting, done. */
struct s3_loop {
    struct s3_session *session;
    CURLM *multi;
    int epoll_fd, wake_fd;
    uint64_t timer_ns; /* when curl's timer expires; UINT64_MAX: never */
    uint64_t look_ns;  /* when running calls are checked again */
    struct s3_window window;
    struct call_list queued, running, waiting, done;
    struct store_statistics statistics;
    uint64_t counted_ns; /* throttled_ns has been counted up to this time */
    uint64_t random;
    bool woken;
    uint32_t capacity;
};

/* --- lists --- */

static void append(struct call_list *list, struct s3_call *call)
{
    call->next = NULL;
    if (list->last)
        list->last->next = call;
    else
        list->first = call;
    list->last = call;
    list->count++;
}

static struct s3_call *take_first(struct call_list *list)
{
    struct s3_call *call = list->first;
    if (!call)
        return NULL;
    list->first = call->next;
    if (!list->first)
        list->last = NULL;
    list->count--;
    return call;
}

static void take_out(struct call_list *list, struct s3_call *call)
{
    struct s3_call *before = NULL, *at = list->first;
    while (at && at != call) {
        before = at;
        at = at->next;
    }
    assert(at);
    if (before)
        before->next = call->next;
    else
        list->first = call->next;
    if (list->last == call)
        list->last = before;
    list->count--;
}

/* --- curl's sockets and timer --- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *known)
{
    (void)easy;
    struct s3_loop *self = context;
    struct epoll_event event = {.data.fd = fd};
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(self->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        curl_multi_assign(self->multi, fd, NULL);
        return 0;
    }
    event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (known && epoll_ctl(self->epoll_fd, EPOLL_CTL_MOD, fd, &event) == 0)
        return 0;
    if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0 && errno != EEXIST)
        return -1;
    curl_multi_assign(self->multi, fd, self);
    return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *context)
{
    (void)multi;
    struct s3_loop *self = context;
    self->timer_ns = timeout_ms < 0 ? UINT64_MAX : clock_monotonic_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    return 0;
}

void s3_loop_free(struct s3_loop *self)
{
    if (!self)
        return;
    assert(self->queued.count + self->running.count + self->waiting.count == 0);
    if (self->multi)
        curl_multi_cleanup(self->multi);
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    if (self->wake_fd >= 0)
        close(self->wake_fd);
    free(self);
}

int s3_loop_new(struct s3_session *session, uint32_t capacity, struct s3_loop **loop, struct cb_err *err)
{
    struct s3_loop *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for requests to S3");
    self->session = session;
    self->capacity = capacity;
    self->timer_ns = self->look_ns = UINT64_MAX;
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->multi = curl_multi_init();
    s3_window_init(&self->window, capacity);
    histogram_init(&self->statistics.ttfb);
    random_bytes(&self->random, sizeof self->random);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = self->wake_fd};
    if (self->epoll_fd < 0 || self->wake_fd < 0 || !self->multi ||
        epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, self->wake_fd, &event) != 0) {
        int rc = cb_fail_errno(err, errno, "making an event loop for S3");
        s3_loop_free(self);
        return rc;
    }
    curl_multi_setopt(self->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(self->multi, CURLMOPT_SOCKETDATA, self);
    curl_multi_setopt(self->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(self->multi, CURLMOPT_TIMERDATA, self);
    curl_multi_setopt(self->multi, CURLMOPT_MAXCONNECTS, (long)capacity + 1);
    *loop = self;
    return 0;
}

struct store_statistics *s3_loop_statistics(struct s3_loop *self)
{
    return &self->statistics;
}

/* --- the outcome of a call --- */

static uint64_t next_random(struct s3_loop *self)
{
    self->random = self->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return self->random >> 17;
}

static void finish(struct s3_loop *self, struct s3_call *call)
{
    assert(call->state == S3_CALL_DONE);
    s3_blocked_change(&self->session->blocked, -1, 0);
    self->statistics.failed += call->code != 0 && call->answer.status != 404; /* a missing object is not a failure */
    append(&self->done, call);
}

static void begin_attempt(struct s3_loop *self, struct s3_call *call)
{
    struct cb_err err;
    call->statistics = &self->statistics;
    if (s3_call_prepare(call, &err) || curl_multi_add_handle(self->multi, call->easy) != CURLM_OK) {
        snprintf(call->detail, sizeof call->detail, "%.*s", (int)sizeof call->detail - 1,
                 *call->detail ? call->detail : err.message);
        s3_call_done(call, err.code ? err.code : CB_ERR_MEMORY);
        finish(self, call);
        return;
    }
    call->state = S3_CALL_RUNNING;
    append(&self->running, call);
    if (self->running.count > self->statistics.most_in_flight)
        self->statistics.most_in_flight = self->running.count;
    uint64_t look_ns = call->attempt_ns + LOOK_NS;
    self->look_ns = look_ns < self->look_ns ? look_ns : self->look_ns;
}

static void count_retry(struct store_statistics *statistics, enum s3_failure failure)
{
    statistics->retries_throttled += failure == S3_FAILURE_THROTTLED;
    statistics->retries_stalled += failure == S3_FAILURE_STALLED;
    statistics->retries_connection += failure == S3_FAILURE_CONNECTION;
    statistics->retries_server += failure == S3_FAILURE_SERVER || failure == S3_FAILURE_EXPIRED ||
                                  failure == S3_FAILURE_SKEWED || failure == S3_FAILURE_UNSIGNED;
}

/* Whether new credentials, the server's time or a signed body justify another attempt; at most one of each per call. */
static bool can_mend(struct s3_call *call, enum s3_failure failure, char why[512])
{
    struct cb_err err = {0};
    why[0] = '\0';
    if (failure == S3_FAILURE_EXPIRED) {
        bool first = !call->was_renewed;
        call->was_renewed = true;
        if (first && s3_session_renew(call->session, call->signed_with, &err) == 0)
            return true;
        snprintf(why, 512, "%.511s", err.message);
        return false;
    }
    if (failure == S3_FAILURE_SKEWED) {
        bool first = !call->clock_was_set;
        call->clock_was_set = true;
        if (first && call->answer.has_date) {
            (void)s3_session_set_clock(call->session, call->answer.date_ns);
            return true;
        }
        snprintf(why, 512, "this machine's clock differs too much from the server's: set it (chronyc, timedatectl)");
        return false;
    }
    if (failure == S3_FAILURE_UNSIGNED)
        s3_call_sign(call);
    return true;
}

static void retry_later(struct s3_loop *self, struct s3_call *call, enum s3_failure failure, bool pressed,
                        uint64_t now_ns)
{
    bool mended = failure == S3_FAILURE_EXPIRED || failure == S3_FAILURE_SKEWED || failure == S3_FAILURE_UNSIGNED;
    call->retry_ns = now_ns + (mended ? 0 : s3_backoff_ns(call->attempts, failure, pressed, next_random(self)));
    call->address++;
    if (call->retry_ns >= call->first_ns + call->deadline_ns) {
        s3_call_give_up(call, "s3.deadline is over");
        finish(self, call);
        return;
    }
    count_retry(&self->statistics, failure);
    self->statistics.backoff_ns += call->retry_ns - now_ns;
    time_buckets_add(&self->statistics.backoff, now_ns - self->session->time_origin_ns,
                     call->retry_ns - self->session->time_origin_ns, 0);
    self->statistics.repeated_bytes += s3_call_again(call, failure);
    call->state = S3_CALL_WAITING;
    append(&self->waiting, call);
    s3_blocked_change(&self->session->blocked, -1, 1);
}

/* Whether bytes of the request have left. Not so if the server cannot be reached: that is no silence of its. */
static bool was_sent(const struct s3_call *call)
{
    long bytes = 0;
    return curl_easy_getinfo(call->easy, CURLINFO_REQUEST_SIZE, &bytes) == CURLE_OK && bytes > 0;
}

static void count_silence(struct s3_call *call, enum s3_failure failure)
{
    if (failure != S3_FAILURE_STALLED || call->answered)
        call->silences = 0;
    else if (was_sent(call))
        call->silences++;
}

/* `call` has left curl and every list. */
static void settle(struct s3_loop *self, struct s3_call *call, enum s3_failure failure)
{
    char why[512];
    uint64_t now_ns = clock_monotonic_ns();
    call->last_failure = failure;
    if (failure == S3_FAILURE_NONE) {
        s3_window_success(&self->window);
        s3_call_done(call, 0);
        finish(self, call);
        return;
    }
    bool pressed = failure == S3_FAILURE_THROTTLED && s3_window_throttled(&self->window, call->attempt_ns, now_ns);
    count_silence(call, failure);
    if (failure == S3_FAILURE_FATAL || !can_mend(call, failure, why)) {
        s3_call_give_up(call, failure == S3_FAILURE_FATAL ? "" : why);
        finish(self, call);
    } else if (call->silences >= s3_most_silences((uint32_t)self->session->address_count)) {
        s3_call_give_up(call, "none of the last was answered with a single byte");
        finish(self, call);
    } else if (call->attempts >= call->most_attempts && failure != S3_FAILURE_UNSIGNED) { /* one of these at most */
        s3_call_give_up(call, "");
        finish(self, call);
    } else {
        retry_later(self, call, failure, pressed, now_ns);
    }
}

static void take_messages(struct s3_loop *self)
{
    int left;
    for (CURLMsg *message = curl_multi_info_read(self->multi, &left); message;
         message = curl_multi_info_read(self->multi, &left)) {
        struct s3_call *call = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode result = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        curl_multi_remove_handle(self->multi, call->easy);
        take_out(&self->running, call);
        settle(self, call, s3_call_judge(call, result));
    }
}

static void start_queued(struct s3_loop *self)
{
    while (self->queued.first && self->running.count < s3_window_size(&self->window))
        begin_attempt(self, take_first(&self->queued));
}

/* Moves calls whose backoff is over to the front of the queue, since they have waited longest. */
static void start_waiting(struct s3_loop *self, uint64_t now_ns)
{
    for (struct s3_call *call = self->waiting.first, *next; call; call = next) {
        next = call->next;
        if (call->retry_ns > now_ns)
            continue;
        take_out(&self->waiting, call);
        s3_blocked_change(&self->session->blocked, 1, -1);
        call->state = S3_CALL_QUEUED;
        call->next = self->queued.first;
        self->queued.first = call;
        if (!self->queued.last)
            self->queued.last = call;
        self->queued.count++;
    }
}

/* Cancels calls that stall or take too long. */
static void look_at_running(struct s3_loop *self, uint64_t now_ns)
{
    const struct s3_options *options = &self->session->options;
    if (now_ns < self->look_ns)
        return;
    self->look_ns = self->running.count > 0 ? now_ns + LOOK_NS : UINT64_MAX;
    for (struct s3_call *call = self->running.first, *next; call; call = next) {
        next = call->next;
        bool late = now_ns >= call->first_ns + call->deadline_ns;
        if (!late && now_ns < call->progress_ns + options->stall_ns)
            continue;
        curl_multi_remove_handle(self->multi, call->easy); /* closes its connection */
        take_out(&self->running, call);
        snprintf(call->curl_error, sizeof call->curl_error,
                 late ? call->answered ? "the answer was still under way" : "no answer came"
                      : "no byte moved for %.3g s (s3.stall)",
                 (double)options->stall_ns / 1e9);
        (void)s3_call_judge(call, CURLE_OPERATION_TIMEDOUT); /* for its counters */
        call->last_failure = S3_FAILURE_STALLED;
        if (late) {
            s3_call_give_up(call, "s3.deadline is over");
            finish(self, call);
        } else {
            settle(self, call, S3_FAILURE_STALLED);
        }
    }
}

/* Counts the time in which calls wait because the server asked for fewer requests. */
static void count_throttled(struct s3_loop *self, uint64_t now_ns)
{
    bool throttled = self->queued.count > 0 && self->window.size < self->window.most;
    for (const struct s3_call *call = self->waiting.first; call && !throttled; call = call->next)
        throttled = call->last_failure == S3_FAILURE_THROTTLED;
    if (throttled && self->counted_ns > 0)
        self->statistics.throttled_ns += now_ns - self->counted_ns;
    self->counted_ns = now_ns;
}

/* --- driving --- */

static uint64_t wake_up_ns(const struct s3_loop *self, uint64_t deadline_ns)
{
    uint64_t until_ns = deadline_ns;
    until_ns = self->timer_ns < until_ns ? self->timer_ns : until_ns;
    until_ns = self->look_ns < until_ns ? self->look_ns : until_ns;
    for (const struct s3_call *call = self->waiting.first; call; call = call->next)
        until_ns = call->retry_ns < until_ns ? call->retry_ns : until_ns;
    return until_ns;
}

static int wait_timeout_ms(uint64_t until_ns, uint64_t now_ns)
{
    if (until_ns <= now_ns)
        return 0;
    uint64_t ms = (until_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS;
    return ms > 60000 ? 60000 : (int)ms;
}

static int handle_events(struct s3_loop *self, int timeout_ms, struct cb_err *err)
{
    struct epoll_event events[EVENTS];
    int running, count = epoll_wait(self->epoll_fd, events, EVENTS, timeout_ms);
    if (count < 0)
        return errno == EINTR ? 0 : cb_fail_errno(err, errno, "waiting for S3");
    for (int i = 0; i < count; i++) {
        if (events[i].data.fd == self->wake_fd) {
            uint64_t unused;
            self->woken = read(self->wake_fd, &unused, sizeof unused) > 0;
            continue;
        }
        int what = (events[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                   (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (events[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(self->multi, events[i].data.fd, what, &running);
    }
    if (self->timer_ns <= clock_monotonic_ns()) {
        self->timer_ns = UINT64_MAX;
        curl_multi_socket_action(self->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    return 0;
}

static int step(struct s3_loop *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t now_ns = clock_monotonic_ns();
    count_throttled(self, now_ns);
    start_waiting(self, now_ns);
    start_queued(self);
    now_ns = clock_monotonic_ns();
    uint64_t until_ns = self->done.count > 0 ? now_ns : wake_up_ns(self, deadline_ns);
    int rc = handle_events(self, wait_timeout_ms(until_ns, now_ns), err);
    take_messages(self);
    look_at_running(self, clock_monotonic_ns());
    start_queued(self);
    return rc;
}

void s3_loop_start(struct s3_loop *self, struct s3_call *call)
{
    assert(call->state == S3_CALL_IDLE);
    call->state = S3_CALL_QUEUED;
    append(&self->queued, call);
    s3_blocked_change(&self->session->blocked, 1, 0);
    start_queued(self);
}

int s3_loop_drive(struct s3_loop *self, uint64_t deadline_ns, struct cb_err *err)
{
    for (;;) {
        int rc = step(self, deadline_ns, err);
        if (rc || self->done.count > 0 || self->woken || clock_monotonic_ns() >= deadline_ns) {
            self->woken = false;
            return rc;
        }
    }
}

struct s3_call *s3_loop_take_done(struct s3_loop *self)
{
    return take_first(&self->done);
}

int s3_loop_run(struct s3_loop *self, struct s3_call *call, struct cb_err *err)
{
    int rc = 0;
    s3_loop_start(self, call);
    s3_blocked_wait(&self->session->blocked, true);
    while (call->state != S3_CALL_DONE && !rc) {
        struct call_list others = self->done;
        self->done = (struct call_list){0};
        rc = s3_loop_drive(self, UINT64_MAX, err);
        struct call_list ended = self->done;
        self->done = others;
        while (ended.first)
            append(&self->done, take_first(&ended));
    }
    s3_blocked_wait(&self->session->blocked, false);
    if (rc)
        return rc; /* the loop itself is broken: nothing will end any more */
    take_out(&self->done, call);
    return call->code ? cb_fail(err, call->code, "%s", call->detail) : 0;
}

void s3_loop_cancel(struct s3_loop *self)
{
    struct call_list *const lists[] = {&self->running, &self->queued, &self->waiting};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (struct s3_call *call = take_first(lists[i]); call; call = take_first(lists[i])) {
            if (call->state == S3_CALL_RUNNING) {
                curl_multi_remove_handle(self->multi, call->easy);
                call->unsure = true;
            }
            bool paused = call->state == S3_CALL_WAITING;
            s3_blocked_change(&self->session->blocked, paused ? 0 : -1, paused ? -1 : 0);
            call->detail[0] = '\0';
            s3_call_done(call, CB_ERR_ABORTED);
            append(&self->done, call);
        }
    }
}

void s3_loop_wake(struct s3_loop *self)
{
    uint64_t one = 1;
    ssize_t written = write(self->wake_fd, &one, sizeof one);
    (void)written; /* EAGAIN: it is awake already */
}

#endif
