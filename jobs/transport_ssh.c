/* The SSH transport's table. The connection is in jobs/ssh/ssh_session.c and jobs/ssh/ssh_login.c, commands in
 * jobs/ssh/ssh_run.c, files in jobs/ssh/ssh_files.c. */
#include "core/alloc.h"
#include "jobs/transport.h"

#ifdef HAVE_SSH2

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "jobs/ssh/ssh_command.h"
#include "jobs/ssh/ssh_config.h"
#include "jobs/ssh/ssh_files.h"
#include "jobs/ssh/ssh_link.h"

#define LOGIN_PATH_BOUND_NS (30 * NS_PER_S)

struct transport_ssh {
    struct transport base; /* first: a pointer to it is a pointer to this struct */
    struct transport_ops ops;
    struct ssh_link link;
    char note[SSH_PLACE_BYTES + 128];
};

static struct transport_ssh *own(struct transport *self)
{
    return (struct transport_ssh *)self;
}

static int op_run(struct transport *self, const struct transport_command *command, struct transport_answer *answer,
                  struct cb_err *err)
{
    return ssh_link_run(&own(self)->link, command, answer, err);
}

static int op_put_file(struct transport *self, const char *local, const char *remote, struct cb_err *err)
{
    return ssh_files_put(&own(self)->link, local, remote, err);
}

static int op_get_file(struct transport *self, const char *remote, const char *local, struct cb_err *err)
{
    return ssh_files_get(&own(self)->link, remote, local, err);
}

static int op_get_folders(struct transport *self, const char *parent, const char *const *names, size_t count,
                          const char *local, struct cb_err *err)
{
    return ssh_folders_get_many(&own(self)->link, parent, names, count, local, err);
}

static int op_stat(struct transport *self, const char *path, struct transport_stat *status, struct cb_err *err)
{
    return ssh_files_stat(&own(self)->link, path, status, err);
}

static int op_read(struct transport *self, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err)
{
    return ssh_files_read(&own(self)->link, path, offset, max_bytes, out, err);
}

static void op_close(struct transport *self)
{
    struct transport_ssh *made = own(self);
    ssh_link_drop(&made->link);
    ssh_route_release(&made->link.route);
    free(made->link.path);
    free(made->link.login_path);
    free(made);
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
    int rc = ssh_link_run(link, &command, &answer, err);
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

static void set_note(struct transport_ssh *self)
{
    for (size_t i = 0; i < self->link.route.count && !*self->note; i++) {
        const char *place = self->link.route.hops[i].skipped_match_place;
        if (*place)
            snprintf(self->note, sizeof self->note,
                     "%s: Match sections of ssh's configuration are skipped; what they say does not count here", place);
    }
}

/* Connects a transport whose memory is allocated. */
static int open_made(struct transport_ssh *self, const char *destination, const struct transport_ssh_settings *settings,
                     struct cb_err *err)
{
    const struct passwd *entry = getpwuid(geteuid());
    const char *home = getenv("HOME");
    struct ssh_places places = {.home = home && *home ? home
                                        : entry       ? entry->pw_dir
                                                      : "/",
                                .user = entry ? entry->pw_name : "",
                                .config_path = settings->config_path};
    int rc = ssh_route_resolve(&self->link.route, destination, &places, err);
    if (rc)
        return rc;
    set_note(self);
    self->link.connect_timeout_ns = settings->connect_timeout_ns;
    self->link.path = strdup(settings->path ? settings->path : "");
    if (!self->link.path)
        return alloc_fail(err, "for a transport");
    rc = ssh_session_open(&self->link.session, &self->link.route, settings->connect_timeout_ns, err);
    if (rc)
        return rc;
    self->link.connections = 1;
    return settings->login_path ? ask_login_path(&self->link, err) : 0;
}

int transport_ssh_open(const char *destination, const struct transport_ssh_settings *settings, struct transport **self,
                       struct cb_err *err)
{
    static const struct transport_ssh_settings none;
    struct transport_ssh *made = calloc(1, sizeof *made);
    if (!made)
        return alloc_fail(err, "for a transport");
    made->base.ops = &made->ops;
    int rc = open_made(made, destination, settings ? settings : &none, err);
    if (rc) {
        op_close(&made->base);
        return rc;
    }
    made->ops = (struct transport_ops){.name = ssh_link_name(&made->link),
                                       .run = op_run,
                                       .put_file = op_put_file,
                                       .get_file = op_get_file,
                                       .get_folders = op_get_folders,
                                       .stat = op_stat,
                                       .read = op_read,
                                       .close = op_close};
    *self = &made->base;
    return 0;
}

const char *transport_ssh_note(const struct transport *self)
{
    return ((const struct transport_ssh *)self)->note;
}

uint32_t transport_ssh_connections(const struct transport *self)
{
    return ((const struct transport_ssh *)self)->link.connections;
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

const char *transport_ssh_note(const struct transport *self)
{
    (void)self;
    return "";
}

uint32_t transport_ssh_connections(const struct transport *self)
{
    (void)self;
    return 0;
}

#endif
