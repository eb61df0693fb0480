// A slow disk: below the folder SLOW_DISK, every call that names a file takes SLOW_DISK_MS milliseconds while the file
// SLOW_DISK.slow exists. A call by a process's first thread, which runs the event loop, is also written to
// SLOW_DISK.calls, followed by the output of a handler of signal SIGRTMIN+5. Children are not affected.
// Loaded with LD_PRELOAD; cc -shared -fPIC.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char folder[PATH_MAX - 64], mark[PATH_MAX];
static size_t length;
static int calls = -1;
static long milliseconds;

__attribute__((constructor)) static void begin(void) {
    const char *named = getenv("SLOW_DISK"), *time = getenv("SLOW_DISK_MS");
    char path[PATH_MAX];
    if (named == NULL) return;
    snprintf(folder, sizeof folder, "%s", named);
    snprintf(mark, sizeof mark, "%s.slow", folder);
    snprintf(path, sizeof path, "%s.calls", folder);
    calls = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    milliseconds = time != NULL ? atol(time) : 200;
    length = strlen(folder);
    unsetenv("LD_PRELOAD");
    unsetenv("SLOW_DISK");
}

static void slow_path(const char *call, const char *path) {
    int before = errno;
    if (!length || path == NULL || strncmp(path, folder, length) != 0 || path[length] != '/') return;
    if (syscall(SYS_faccessat, AT_FDCWD, mark, F_OK) == 0) {
        if (syscall(SYS_gettid) == getpid()) {
            dprintf(calls, "call %s %s\n", call, path);
            raise(SIGRTMIN + 5);
        }
        struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
        while (nanosleep(&left, &left) != 0) {}
    }
    errno = before;
}

static void slow_handle(const char *call, int handle, const char *name) {
    char link[64], path[PATH_MAX];
    int before = errno;
    if (!length) return;
    if (name != NULL && name[0] == '/') return slow_path(call, name);
    snprintf(link, sizeof link, handle == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return;
    path[size] = '\0';
    slow_path(call, path);
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define PATH(type, name, parameters, arguments)  \
    type name parameters {                       \
        REAL(name);                              \
        slow_path(#name, path);                  \
        return real arguments;                   \
    }
#define AT(type, name, parameters, arguments)    \
    type name parameters {                       \
        REAL(name);                              \
        slow_handle(#name, handle, path);        \
        return real arguments;                   \
    }
#define HANDLE(type, name, parameters, arguments) \
    type name parameters {                        \
        REAL(name);                               \
        slow_handle(#name, handle, NULL);         \
        return real arguments;                    \
    }
#define OPEN(name)                                       \
    int name(const char *path, int flags, ...) {         \
        REAL(name);                                      \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = va_arg(rest, mode_t);              \
        va_end(rest);                                    \
        slow_path(#name, path);                          \
        return real(path, flags, mode);                  \
    }
#define OPEN_AT(name)                                            \
    int name(int handle, const char *path, int flags, ...) {     \
        REAL(name);                                              \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode_t mode = va_arg(rest, mode_t);                      \
        va_end(rest);                                            \
        slow_handle(#name, handle, path);                        \
        return real(handle, path, flags, mode);                  \
    }

OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
PATH(DIR *, opendir, (const char *path), (path))
PATH(int, stat, (const char *path, struct stat *found), (path, found))
PATH(int, stat64, (const char *path, struct stat64 *found), (path, found))
PATH(int, lstat, (const char *path, struct stat *found), (path, found))
PATH(int, lstat64, (const char *path, struct stat64 *found), (path, found))
AT(int, fstatat, (int handle, const char *path, struct stat *found, int flags), (handle, path, found, flags))
AT(int, fstatat64, (int handle, const char *path, struct stat64 *found, int flags), (handle, path, found, flags))
PATH(int, statvfs, (const char *path, struct statvfs *found), (path, found))
PATH(int, statvfs64, (const char *path, struct statvfs64 *found), (path, found))
PATH(int, access, (const char *path, int mode), (path, mode))
PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
PATH(int, rmdir, (const char *path), (path))
PATH(int, unlink, (const char *path), (path))
AT(int, unlinkat, (int handle, const char *path, int flags), (handle, path, flags))
PATH(int, rename, (const char *path, const char *other), (path, other))
PATH(int, link, (const char *path, const char *other), (path, other))
PATH(int, chmod, (const char *path, mode_t mode), (path, mode))
AT(int, utimensat, (int handle, const char *path, const struct timespec times[2], int flags), (handle, path, times, flags))
HANDLE(int, fsync, (int handle), (handle))

ssize_t write(int handle, const void *data, size_t size) {
    REAL(write);
    struct stat found;
    if (length && handle != calls && fstat(handle, &found) == 0 && S_ISREG(found.st_mode))
        slow_handle("write", handle, NULL);
    return real(handle, data, size);
}
