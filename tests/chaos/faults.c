/* Preloaded by a test: calls on files below FAULTS_BELOW fail now and then, as they do on storage in trouble.

   FAULTS_BELOW    a directory; other files are never touched
   FAULTS_SPARED   a directory below it that is not touched either
   FAULTS_PERCENT  how many of the calls fail
   FAULTS_LOG      one line per fault: the call, the error, the process */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const int ERRORS[] = {EIO, ENOSPC, EDQUOT, ESTALE};
static const char *const NAMES[] = {"EIO", "ENOSPC", "EDQUOT", "ESTALE"};

static uint64_t next_random(void) {
    static __thread uint64_t state;
    if (!state || (uint32_t)(state >> 32) == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = ((uint64_t)now.tv_nsec << 20) ^ ((uint64_t)getpid() << 40) ^ 0x9e3779b97f4a7c15u;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int is_below(const char *path) {
    const char *below = getenv("FAULTS_BELOW"), *spared = getenv("FAULTS_SPARED");
    return below && path && !strncmp(path, below, strlen(below)) && !(spared && !strncmp(path, spared, strlen(spared)));
}

/* Writing errors are those of a full disk too; what only reads meets a server in trouble. */
static int fails(const char *call, const char *path, int writes) {
    const char *percent = getenv("FAULTS_PERCENT");
    if (!percent || !is_below(path) || (double)(next_random() >> 11) / 9007199254740992.0 * 100 >= atof(percent))
        return 0;
    int index = (int)(next_random() % 4);
    if (!writes && (index == 1 || index == 2))
        index = index == 1 ? 0 : 3;
    const char *log = getenv("FAULTS_LOG");
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%d %s %s %s\n", getpid(), call, NAMES[index], path);
        syscall(SYS_write, fd, line, length);
        syscall(SYS_close, fd);
    }
    errno = ERRORS[index];
    return 1;
}

static const char *path_of(int fd, char *room) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, room, PATH_MAX - 1);
    if (length < 0)
        return NULL;
    room[length] = 0;
    return room;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(int, name, const char *, int, ...); \
        return fails("open", path, flags & O_CREAT) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define WRITE(name, parameters, arguments, ...) \
    ssize_t name parameters { \
        char room[PATH_MAX]; \
        REAL(ssize_t, name, __VA_ARGS__); \
        return fails(#name, path_of(fd, room), 1) ? -1 : real arguments; \
    }
WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), int, const void *, size_t)
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), int, const void *, size_t, off_t)
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), int, const void *, size_t,
      off64_t)

int fsync(int fd) {
    char room[PATH_MAX];
    REAL(int, fsync, int);
    return fails("fsync", path_of(fd, room), 1) ? -1 : real(fd);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return fails("mkdir", path, 1) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return fails("rename", to, 1) ? -1 : real(from, to);
}

int stat(const char *path, struct stat *found) {
    REAL(int, stat, const char *, struct stat *);
    return fails("stat", path, 0) ? -1 : real(path, found);
}

int stat64(const char *path, struct stat64 *found) {
    REAL(int, stat64, const char *, struct stat64 *);
    return fails("stat", path, 0) ? -1 : real(path, found);
}

int lstat64(const char *path, struct stat64 *found) {
    REAL(int, lstat64, const char *, struct stat64 *);
    return fails("lstat", path, 0) ? -1 : real(path, found);
}
