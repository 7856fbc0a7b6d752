/* What every program does before anything else, and where programs are. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H

#include <limits.h>
#include <stdbool.h>

/* Fills closed standard streams, so that no data file gets the number that messages are written to, and
 * turns the signals of a pipe without a reader and of a file at its size limit into errors of the write.
 * Called once, before any thread. */
void process_begin(void);

/* This program's own absolute path; false, and "", where the system does not say. */
bool process_own_path(char path[PATH_MAX]);
/* The folder that it lies in, "" where the system does not say. */
void process_folder(char folder[PATH_MAX]);
/* The absolute path of a program: beside this one, else in PATH. */
bool process_find_program(const char *name, char path[PATH_MAX]);

#endif
