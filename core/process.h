/* What every program does first, and where our programs are. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Opens closed standard streams, so that no data file gets a descriptor that messages are written to, and turns
 * SIGPIPE and SIGXFSZ into write errors. Call once, before any thread. */
void process_begin(void);

/* Identifies a process among those of all machines, including later ones with the same number. */
struct process_identity {
    char machine[128]; /* its present boot, and the namespace that numbers its processes */
    uint64_t pid, start_ticks;
};
void process_identify(struct process_identity *self); /* of this process */
/* Whether the process is known to have ended. False if it cannot be known, as on another machine. */
bool process_has_ended(const struct process_identity *other);

/* The node of a cluster that this process runs on: the machine's name, or Slurm's name of the node with the machine's after
 * a dot where they differ. Files of lines of watched processes begin with it, as in recorder.py of share/watch. */
#define PROCESS_NODE_BYTES 168
void process_node_name(char name[PROCESS_NODE_BYTES]);

/* This program's own absolute path; false and "" if the system does not report it. */
bool process_own_path(char path[PATH_MAX]);
/* The folder of this program, "" if unknown. */
void process_folder(char folder[PATH_MAX]);
/* The absolute path of a program: next to this one, else in PATH. */
bool process_find_program(const char *name, char path[PATH_MAX]);

#endif
