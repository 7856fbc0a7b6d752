/* Opens the transport over SSH. The connection is in jobs/ssh/ssh_session.c and jobs/ssh/ssh_login.c, commands in
 * jobs/ssh/ssh_link.c, files in jobs/ssh/ssh_files.c. */
#include "core/alloc.h"
#include "jobs/transport.h"

#ifdef HAVE_SSH2

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "jobs/ssh/ssh_command.h"
#include "jobs/ssh/ssh_files.h"

#define LOGIN_PATH_BOUND_NS (30 * NS_PER_S)

static void ssh_close(struct transport *transport)
{
    struct ssh_link *self = (struct ssh_link *)transport;
    ssh_link_drop(self);
    ssh_route_release(&self->route);
    free(self->path);
    free(self->login_path);
    free(self);
}

/* The PATH of a remote login shell, whatever its profile prints. If the shell prints none (tcsh accepts no command
 * with -l), PATH stays unchanged. */
static int ask_login_path(struct ssh_link *link, struct cb_err *err)
{
    char script[160], mark[SSH_MARK_BYTES];
    ssh_mark_make(mark);
    snprintf(script, sizeof script, "exec \"${SHELL:-/bin/sh}\" -l -c 'printf \"\\n%%s%%s\\n\" %s= \"$PATH\"'", mark);
    const char *const argv[] = {"sh", "-c", script, NULL};
    const struct transport_command command = {.argv = argv, .max_bytes = 1u << 20, .timeout_ns = LOGIN_PATH_BOUND_NS};
    struct transport_answer answer;
    transport_answer_init(&answer);
    int rc = ssh_link_run(&link->base, &command, &answer, err);
    const char *found = rc == 0 ? strstr(answer.out.data, mark) : NULL;
    if (found) {
        found += strlen(mark) + 1;
        link->login_path = strndup(found, strcspn(found, "\n"));
        if (!link->login_path)
            rc = alloc_fail(err, "for a PATH");
    }
    transport_answer_release(&answer);
    return rc;
}

/* Connects a transport whose memory is allocated. */
static int open_link(struct ssh_link *self, const char *destination, const struct transport_ssh_settings *settings,
                     struct cb_err *err)
{
    const struct passwd *entry = getpwuid(geteuid());
    const char *home = getenv("HOME");
    struct ssh_places places = {.home = home && *home ? home
                                        : entry       ? entry->pw_dir
                                                      : "/",
                                .user = entry ? entry->pw_name : "",
                                .config_path = settings->config_path};
    int rc = ssh_route_resolve(&self->route, destination, &places, err);
    if (rc)
        return rc;
    self->base.name = self->route.hops[self->route.count - 1].alias;
    for (size_t i = 0; i < self->route.count && !*self->note; i++)
        if (*self->route.hops[i].skipped_match_place)
            snprintf(self->note, sizeof self->note,
                     "%s: Match sections of ssh's configuration are skipped; what they say does not count here",
                     self->route.hops[i].skipped_match_place);
    self->connect_timeout_ns = settings->connect_timeout_ns;
    self->path = strdup(settings->path ? settings->path : "");
    if (!self->path)
        return alloc_fail(err, "for a transport");
    rc = ssh_session_open(&self->session, &self->route, settings->connect_timeout_ns, err);
    if (rc)
        return rc;
    self->base.connections = 1;
    return settings->login_path ? ask_login_path(self, err) : 0;
}

int transport_ssh_open(const char *destination, const struct transport_ssh_settings *settings, struct transport **self,
                       struct cb_err *err)
{
    static const struct transport_ssh_settings none;
    struct ssh_link *made = calloc(1, sizeof *made);
    if (!made)
        return alloc_fail(err, "for a transport");
    made->base = (struct transport){.note = made->note,
                                    .run = ssh_link_run,
                                    .put_file = ssh_files_put,
                                    .get_file = ssh_files_get,
                                    .get_folders = ssh_folders_get_many,
                                    .stat = ssh_files_stat,
                                    .read = ssh_files_read,
                                    .close = ssh_close};
    int rc = open_link(made, destination, settings ? settings : &none, err);
    if (rc)
        ssh_close(&made->base);
    else
        *self = &made->base;
    return rc;
}

#else

int transport_ssh_open(const char *destination, const struct transport_ssh_settings *settings, struct transport **self,
                       struct cb_err *err)
{
    (void)settings;
    (void)self;
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "%s cannot be reached: this build has no libssh2 (Debian: libssh2-1-dev, then build again)",
                   destination);
}

#endif
