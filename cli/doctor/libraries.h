/* The optional libraries: which this build has, and what the absence of one costs. Read-only data. */
#ifndef CLI_DOCTOR_LIBRARIES_H
#define CLI_DOCTOR_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>

struct library {
    const char *name;
    const char *package; /* Debian's, to build with it */
    bool present;
    const char *gives;      /* what it is used for */
    const char *without_it; /* what its absence costs */
};

size_t library_count(void);
const struct library *library_at(size_t index);

#endif
