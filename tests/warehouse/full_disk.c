// Makes the disk full from the nth call on that needs room. Preloaded into tests.warehouse.filling.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long left = -1;  // calls; negative: no limit
static long used;

// Called by the test, in the process.
__attribute__((visibility("default"))) void disk_has_room_for(long calls) {
    left = calls;
    used = 0;
}
__attribute__((visibility("default"))) long disk_calls(void) { return used; }

static int is_file(int fd) {
    struct stat status;
    return !fstat(fd, &status) && S_ISREG(status.st_mode);
}

static int is_full(void) {
    used++;
    if (left < 0) return 0;
    if (left > 0) {
        left--;
        return 0;
    }
    errno = ENOSPC;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    if (is_file(fd) && is_full()) return -1;
    return REAL(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_file(fd) && is_full()) return -1;
    return REAL(writev)(fd, parts, count);
}

// Half of what is written fits: writes are torn before they fail.
static ssize_t torn(int fd, const void *data, size_t size, off_t at) {
    if (is_file(fd) && is_full()) {
        if (size > 1 && REAL(pwrite)(fd, data, size / 2, at) < 0) return -1;
        errno = ENOSPC;
        return -1;
    }
    return REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return torn(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return torn(fd, data, size, at); }

int fsync(int fd) { return is_file(fd) && is_full() ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return is_file(fd) && is_full() ? -1 : REAL(fdatasync)(fd); }

int mkdir(const char *path, mode_t mode) { return is_full() ? -1 : REAL(mkdir)(path, mode); }
int rename(const char *from, const char *to) { return is_full() ? -1 : REAL(rename)(from, to); }

static int create(const char *symbol, const char *path, int flags, mode_t mode) {
    if ((flags & O_CREAT) && access(path, F_OK) && is_full()) return -1;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, symbol);
    return real(path, flags, mode);
}
#define OPEN(name)                                    \
    int name(const char *path, int flags, ...) {      \
        va_list rest;                                 \
        va_start(rest, flags);                        \
        mode_t mode = va_arg(rest, mode_t);           \
        va_end(rest);                                 \
        return create(#name, path, flags, mode);      \
    }
OPEN(open)
OPEN(open64)
