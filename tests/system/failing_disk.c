// A disk that loses data: below the folder FAILING_DISK, fsync(2) fails with EIO while the file FAILING_DISK/failing
// exists. Loaded with LD_PRELOAD; cc -shared -fPIC.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_failing(int handle) {
    const char *folder = getenv("FAILING_DISK");
    char name[64], path[PATH_MAX], mark[PATH_MAX];
    if (folder == NULL) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    if (strncmp(path, folder, strlen(folder)) != 0) return 0;
    snprintf(mark, sizeof mark, "%s/failing", folder);
    return access(mark, F_OK) == 0;
}

int fsync(int handle) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (!is_failing(handle)) return real(handle);
    errno = EIO;
    return -1;
}
