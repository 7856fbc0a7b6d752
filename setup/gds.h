/* io.gds: whether saves and loads of a state on a GPU move between its memory and files without host memory. */
#ifndef SETUP_GDS_H
#define SETUP_GDS_H

#include "core/err.h"
#include "engine/device.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "setup/folder/folder.h"

struct gds {
    struct device_files *files; /* NULL: through pinned memory */
    bool required;              /* io.gds=on */
    char reason[512];           /* with io.gds=auto: why `files` is NULL; else "" */
};

/* Decides, and opens what the device has for it. With io.gds=on it fails if that is not possible: CB_ERR_USAGE if another
 * key is the reason. */
int gds_open(struct gds *self, const struct experiment *experiment, struct device *device,
             struct cb_err *err) CB_MUST_CHECK;
/* Ends the use of files, whose store has been closed. */
void gds_end(struct gds *self);
/* Opens the rank's store with the files; with io.gds=auto without them, if the store does not support that. To find out,
 * it opens a file of the run's folder, and makes none: a process that is killed leaves nothing. */
int gds_open_store(struct gds *self, const struct experiment *experiment, const struct status_page *page,
                   const char *pages_folder, const struct folder *folder, struct store **store,
                   struct cb_err *err) CB_MUST_CHECK;
/* After the ranks have agreed on the least and the most of what each has: 1 with files, else 0. Fails if only some have
 * them. */
int gds_check(const struct gds *self, uint64_t least, uint64_t most, struct cb_err *err) CB_MUST_CHECK;
/* Adds fact "io.gds", unless io.gds=off. */
void gds_note(const struct gds *self, struct status_page *page);

#endif
