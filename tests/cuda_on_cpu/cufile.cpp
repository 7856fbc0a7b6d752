/* A libcufile for cuda_on_cpu: what it reads and writes goes through memory of its own, which the program never sees. The
 * device's memory is that of the plugin's run-time library, in this process. CUFILE_ON_CPU has words of what does not work;
 * CUFILE_ON_CPU_LOG names a file that gets a line for each call. */
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <set>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace
{

struct error {
    int code, cuda_code;
};

struct descriptor {
    int type;
    union {
        int fd;
        void *handle;
    } file;
    const void *operations;
};

struct handle {
    int fd;
};

using move_fn = bool(void *to, const void *from, size_t bytes, bool from_device);

std::mutex lock;
std::map<const char *, size_t> registered;
std::set<handle *> handles;
bool is_open, allows_compatibility = true;
unsigned transfers;

bool broken(const char *word)
{
    const char *words = getenv("CUFILE_ON_CPU");
    return words && strstr(words, word);
}

__attribute__((format(printf, 1, 2))) void note(const char *format, ...)
{
    const char *path = getenv("CUFILE_ON_CPU_LOG");
    char line[256];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        (void)!write(file, line, size_t(length));
        close(file);
    }
}

move_fn *find_move()
{
    static move_fn *found;
    if (!found)
        if (void *plugin = dlopen(getenv("CKPTBENCH_CUDA_PLUGIN"), RTLD_NOW | RTLD_NOLOAD))
            found = reinterpret_cast<move_fn *>(dlsym(plugin, "cuda_on_cpu_move"));
    return found;
}

/* What a real call would refuse, or take a slower way for: 0, or a code of cuFile. */
int refuse(handle *file, const char *base, size_t bytes, off_t file_offset, off_t base_offset)
{
    if (!is_open)
        return 5001;
    if (!handles.count(file))
        return 5027;
    for (auto &[memory, length] : registered)
        if (base > memory && base < memory + length) /* registered memory is named by its first byte */
            return 5022;
    if (file_offset % 4096 || (base_offset + reinterpret_cast<uintptr_t>(base)) % 4096 || bytes % 4096)
        return 5022;
    return 0;
}

ssize_t transfer(const char *what, void *file, char *base, size_t bytes, off_t file_offset, off_t base_offset, bool writes)
{
    std::unique_lock<std::mutex> guard(lock);
    handle *self = static_cast<handle *>(file);
    int code = refuse(self, base, bytes, file_offset, base_offset);
    unsigned number = ++transfers;
    int fd = code ? -1 : self->fd;
    bool is_registered = registered.count(base);
    guard.unlock();
    if (!code && broken("fails") && number == 3)
        code = 5010;
    if (code)
        return -code;
    if (broken("errno") && number == 3) {
        errno = EIO;
        return -1;
    }
    if (broken("short") && bytes > 4096)
        bytes = 4096 * (1 + number % (bytes / 4096));
    void *own = nullptr;
    if (posix_memalign(&own, 4096, bytes))
        return -5030;
    bool moved = !writes || find_move()(own, base + base_offset, bytes, true);
    ssize_t done = !moved ? -5013 : writes ? pwrite(fd, own, bytes, file_offset) : pread(fd, own, bytes, file_offset);
    if (done > 0 && !writes && !find_move()(base + base_offset, own, size_t(done), false))
        done = -5013;
    free(own);
    note("%s %zd %s\n", what, done, is_registered ? "registered" : "unregistered");
    return done;
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) error cuFileDriverOpen()
{
    if (broken("no-driver"))
        return {5001, 0};
    is_open = true;
    return {0, 0};
}

__attribute__((visibility("default"))) error cuFileSetParameterBool(int parameter, bool value)
{
    if (is_open)
        return {5026, 0};
    if (parameter == 1 && !broken("compatible"))
        allows_compatibility = value;
    return {0, 0};
}

__attribute__((visibility("default"))) error cuFileDriverClose()
{
    note("end, %zu files and %zu regions are left\n", handles.size(), registered.size());
    is_open = false;
    return {0, 0};
}

__attribute__((visibility("default"))) error cuFileDriverGetProperties(void *properties)
{
    unsigned *words = static_cast<unsigned *>(properties);
    words[0] = 2;
    words[1] = 20;
    words[7] = allows_compatibility ? 2 : 0; /* the control flags */
    return {0, 0};
}

__attribute__((visibility("default"))) error cuFileHandleRegister(void **file, descriptor *what)
{
    constexpr int refused = (O_TMPFILE & ~O_DIRECTORY) | O_APPEND | O_NONBLOCK | O_NOFOLLOW | O_NOATIME;
    int flags = fcntl(what->file.fd, F_GETFL);
    struct stat status;
    if (flags < 0 || flags & refused)
        return {5019, 0};
    if (what->type != 1 || !(flags & O_DIRECT))
        return {5020, 0};
    if (fstat(what->file.fd, &status) || status.st_nlink == 0) /* it looks for the file's path */
        return {5018, 0};
    if (broken("killed"))
        kill(getpid(), SIGKILL);
    if (broken("no-filesystem"))
        return {5008, 0};
    std::lock_guard<std::mutex> guard(lock);
    *file = *handles.insert(new handle{what->file.fd}).first;
    return {0, 0};
}

__attribute__((visibility("default"))) void cuFileHandleDeregister(void *file)
{
    std::lock_guard<std::mutex> guard(lock);
    if (handles.erase(static_cast<handle *>(file)))
        delete static_cast<handle *>(file);
}

__attribute__((visibility("default"))) error cuFileBufRegister(const void *memory, size_t bytes, int)
{
    if (broken("no-memory"))
        return {5030, 0};
    std::lock_guard<std::mutex> guard(lock);
    registered[static_cast<const char *>(memory)] = bytes;
    return {0, 0};
}

__attribute__((visibility("default"))) error cuFileBufDeregister(const void *memory)
{
    std::lock_guard<std::mutex> guard(lock);
    return {registered.erase(static_cast<const char *>(memory)) ? 0 : 5024, 0};
}

__attribute__((visibility("default"))) ssize_t cuFileRead(void *file, void *base, size_t bytes, off_t file_offset, off_t base_offset)
{
    return transfer("read", file, static_cast<char *>(base), bytes, file_offset, base_offset, false);
}

__attribute__((visibility("default"))) ssize_t cuFileWrite(void *file, const void *base, size_t bytes, off_t file_offset, off_t base_offset)
{
    return transfer("write", file, const_cast<char *>(static_cast<const char *>(base)), bytes, file_offset, base_offset, true);
}

} // extern "C"
