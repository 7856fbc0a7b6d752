/* HOME/changes: the names of runs that changed after they had ended. Indexes of other machines read it. */
#include "db/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/log.h"

#define CHANGES_MAX_BYTES (64u << 20)
#define NAME_BYTES 64

static int changes_path(const struct history *self, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/changes", self->folder) < PATH_MAX ? 0 : -1;
}

uint64_t changes_tell(const struct history *self, const char *run)
{
    char path[PATH_MAX], line[NAME_BYTES + 2];
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = changes_path(self, path) ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    /* A writer that was killed may have left half a line, hence the newline before the name. */
    int len = snprintf(line, sizeof line, "\n%.62s\n", run);
    off_t end = 0;
    if (fd < 0)
        return 0;
    while (fcntl(fd, F_OFD_SETLKW, &whole) < 0 && errno == EINTR) /* without locks, O_APPEND must suffice */
        ;
    if (!fd_write_all(fd, line, (size_t)len) || fsync(fd) < 0)
        log_verbose("%s cannot be written: other machines see run %s as it was", path, run);
    else
        end = lseek(fd, 0, SEEK_CUR);
    whole.l_type = F_UNLCK; /* a close alone is not enough: see run_folder_unlock */
    (void)fcntl(fd, F_OFD_SETLK, &whole);
    close(fd);
    return end > 0 ? (uint64_t)end : 0;
}

int changes_read(const struct history *self, uint64_t *offset, struct run_selection *names, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct stat facts;
    int rc = 0, fd = changes_path(self, path) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) < 0 || (uint64_t)facts.st_size == *offset) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    if ((uint64_t)facts.st_size < *offset)
        *offset = 0;
    buf_init(&text, CHANGES_MAX_BYTES);
    char *bytes = buf_extend(&text, (size_t)((uint64_t)facts.st_size - *offset) + 1);
    ssize_t got = bytes ? pread(fd, bytes, text.len - 1, (off_t)*offset) : -1;
    close(fd);
    for (ssize_t start = 0, end; rc == 0 && start < got; start = end + 1) {
        const char *newline = memchr(bytes + start, '\n', (size_t)(got - start));
        if (!newline)
            break;
        end = newline - bytes;
        bytes[end] = '\0';
        if (end > start && end - start < NAME_BYTES)
            rc = selection_add(names, bytes + start, err);
        *offset += (uint64_t)(end + 1 - start);
    }
    buf_release(&text);
    return rc;
}
