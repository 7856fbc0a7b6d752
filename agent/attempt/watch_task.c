/* Names and lines of the files in ATTEMPT/watch. */
#include "agent/attempt/watch_task.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/path.h"
#include "run/run_folder.h"

#define ENDING ".task"
#define LINE_BYTES 4096

int watch_folder_path(const char *attempt_path, char folder[PATH_MAX], struct cb_err *err)
{
    return path_format(folder, PATH_MAX, err, "%s/" LINES_FOLDER, attempt_path);
}

bool watch_file_is_task(const char *name)
{
    size_t len = strlen(name), of_ending = strlen(ENDING);
    return len > of_ending && strcmp(name + len - of_ending, ENDING) == 0;
}

size_t watch_file_host_length(const char *name)
{
    const char *dash = strrchr(name, '-');
    return dash ? (size_t)(dash - name) : 0;
}

bool watch_file_is_of_host(const char *name, const char *host)
{
    size_t len = watch_file_host_length(name);
    return strlen(host) == len && strncmp(name, host, len) == 0;
}

bool watch_folder_has_others(const char *folder)
{
    char own[PROCESS_NODE_BYTES];
    DIR *entries = opendir(folder);
    bool has = false;
    process_node_name(own);
    for (struct dirent *entry; entries && !has && (entry = readdir(entries));)
        has = entry->d_name[0] != '.' && !watch_file_is_of_host(entry->d_name, own);
    if (entries)
        closedir(entries);
    return has;
}

int watch_task_open(struct watch_task *self, const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    *self = (struct watch_task){.fd = -1};
    process_node_name(self->host);
    snprintf(self->name, sizeof self->name, "%s-%d" ENDING, self->host, (int)getpid());
    int rc = path_format(path, sizeof path, err, "%s/%s", folder, self->name);
    if (rc)
        return rc;
    self->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return self->fd < 0 ? cb_fail_errno(err, errno, "creating %s", path) : 0;
}

void watch_task_close(struct watch_task *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}

struct json_writer *watch_task_begin(struct watch_task *self, const char *op)
{
    buf_init(&self->line, LINE_BYTES);
    json_writer_init(&self->json, &self->line, 0);
    json_write_begin_object(&self->json);
    json_member_text(&self->json, "op", op);
    return &self->json;
}

int watch_task_end(struct watch_task *self, struct cb_err *err)
{
    json_write_end_object(&self->json);
    buf_append_char(&self->line, '\n');
    int rc = buf_check(&self->line, "a line of a task", err);
    if (!rc && (!fd_write_all(self->fd, self->line.data, self->line.len) || fsync(self->fd) < 0))
        rc = cb_fail_errno(err, errno, "writing %s", self->name);
    buf_release(&self->line);
    return rc;
}
