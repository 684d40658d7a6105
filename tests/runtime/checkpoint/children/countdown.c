/* Loaded with LD_PRELOAD: counts the calls of a process that change files, and ends it with SIGKILL right after the
   n-th one, whichever thread makes it. A sync is not counted: what a process has written outlives it.
   `countdown_arm(n)` starts to count; with 0 it only counts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int armed, left, counted;

void countdown_arm(int calls) { atomic_store(&counted, 0); atomic_store(&left, calls); atomic_store(&armed, 1); }
int countdown_counted(void) { return atomic_load(&counted); }

static void changed(void) {
    int kept = errno;
    if (atomic_load(&armed)) {
        atomic_fetch_add(&counted, 1);
        if (atomic_fetch_sub(&left, 1) == 1) { kill(getpid(), SIGKILL); for (;;) pause(); }
    }
    errno = kept;
}

static int is_file(int fd) { struct stat s; return fstat(fd, &s) == 0 && S_ISREG(s.st_mode); }

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define WRAP(type, name, params, args) \
    type name params { REAL(name); type answer = real args; changed(); return answer; }
#define WRAP_FD(type, name, params, args) \
    type name params { REAL(name); type answer = real args; if (is_file(fd)) changed(); return answer; }

WRAP(int, rename, (const char *a, const char *b), (a, b))
WRAP(int, renameat, (int x, const char *a, int y, const char *b), (x, a, y, b))
WRAP(int, mkdir, (const char *a, mode_t m), (a, m))
WRAP(int, mkdirat, (int x, const char *a, mode_t m), (x, a, m))
WRAP(int, unlink, (const char *a), (a))
WRAP(int, unlinkat, (int x, const char *a, int f), (x, a, f))
WRAP(int, rmdir, (const char *a), (a))
WRAP(int, link, (const char *a, const char *b), (a, b))
WRAP_FD(int, ftruncate, (int fd, off_t n), (fd, n))
WRAP_FD(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))
WRAP_FD(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t o), (fd, p, n, o))
WRAP_FD(ssize_t, pwrite64, (int fd, const void *p, size_t n, off_t o), (fd, p, n, o))
WRAP_FD(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))

#define WRAP_OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        int answer = real(path, flags, mode); if (flags & (O_CREAT | O_TRUNC)) changed(); return answer; }
WRAP_OPEN(open)
WRAP_OPEN(open64)
int openat(int at, const char *path, int flags, ...) {
    REAL(openat); va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
    int answer = real(at, path, flags, mode); if (flags & (O_CREAT | O_TRUNC)) changed(); return answer;
}
