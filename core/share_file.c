/* Searches the places where files of share/ may be. */
#include "core/share_file.h"

#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "core/process.h"
#include "core/version.h"

int share_file_find(const char *what, const char *name, char path[PATH_MAX], struct cb_err *err)
{
    char folder[PATH_MAX];
    process_folder(folder);
    const struct {
        const char *folder, *below;
    } places[] = {{folder, "/../share"},
                  {folder, "/../../share"},
                  {folder, "/../share/ckptbench"},
                  {version_prefix(), "/share/ckptbench"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_MAX, "%s%s/%s", places[i].folder, places[i].below, name) < PATH_MAX &&
            access(path, R_OK) == 0)
            return 0;
    return cb_fail(err, CB_ERR_NOT_FOUND, "%s needs %s, which is neither near %s nor in %s/share/ckptbench", what, name,
                   folder, version_prefix());
}
