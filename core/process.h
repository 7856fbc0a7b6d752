/* What every program does before anything else. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H

/* Fills closed standard streams, so that no data file gets the number that messages are written to, and
 * turns the signals of a pipe without a reader and of a file at its size limit into errors of the write.
 * Called once, before any thread. */
void process_begin(void);

#endif
