/* The file of lines of a task, HOST-PID.task in ATTEMPT/watch: how its command ended (agent/attempt/watch_join.h) and
 * what the task has measured (agent/attempt/watch_nodes.h). */
#ifndef AGENT_ATTEMPT_WATCH_TASK_H
#define AGENT_ATTEMPT_WATCH_TASK_H

#include <limits.h>
#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "core/process.h"

struct watch_task {
    char host[PROCESS_NODE_BYTES], name[PROCESS_NODE_BYTES + 32]; /* process_node_name; name of the file */
    int fd;                                                       /* -1: not open */
    struct buf line;
    struct json_writer json;
};

/* Creates the file of this process in the folder of lines. */
int watch_task_open(struct watch_task *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
/* Does nothing if self->fd is -1. */
void watch_task_close(struct watch_task *self);

/* Begins a line; its members are added to the writer, which belongs to `self`. */
struct json_writer *watch_task_begin(struct watch_task *self, const char *op);
/* Writes the line. Other machines see it when the function has returned. */
int watch_task_end(struct watch_task *self, struct cb_err *err) CB_MUST_CHECK;

/* The folder of lines of an attempt's folder: ATTEMPT/watch. */
int watch_folder_path(const char *attempt_path, char folder[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;
/* Whether a file of lines is a task's; those of processes end in .jsonl. */
bool watch_file_is_task(const char *name);
/* The length of HOST in HOST-PID.task, HOST-PID.jsonl or HOST-PID.TOKEN.jsonl. */
size_t watch_file_host_length(const char *name);
bool watch_file_is_of_host(const char *name, const char *host);
/* Whether files in the folder of lines are of other machines than this one. */
bool watch_folder_has_others(const char *folder);

#endif
