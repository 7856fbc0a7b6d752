/* The optional libraries: whether this build has them, and which features are missing without them. */
#ifndef CLI_DOCTOR_LIBRARIES_H
#define CLI_DOCTOR_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>

struct library {
    const char *name;
    const char *package; /* Debian package to build with */
    bool present;
    const char *gives;      /* what it is used for */
    const char *without_it; /* feature that is missing without it */
};

size_t library_count(void);
const struct library *library_at(size_t index);

#endif
