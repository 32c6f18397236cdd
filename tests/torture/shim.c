/* LD_PRELOAD: sees every call that changes files under one directory. It writes them, with their data, to a log from which
 * the disk after a power loss can be made; and it lets the Nth of them fail. Linux; x86-64 and arm64.
 *
 * All such calls are made one at a time, so that the order of the log is the order in which they were done. The kernel is
 * asked directly; nothing is kept of file descriptors but what /proc says of them.
 *
 * A record: the header below, then name1, name2 and data. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, RESIZE, SYNC, RENAME, LINK, UNLINK, MARK };          /* of records */
enum { IS_DIRECTORY = 1, DURABLE = 2, FAILED = 4 };                                         /* flags of records */
enum { NO_FAULT, ANY_EIO, ANY_ENOSPC, SHORT_WRITE, FSYNC_EIO, META_EIO, END }; /* kinds of faults */

struct record {
    uint32_t kind, flags;
    uint64_t inode, other; /* CREATE: directory, new; RENAME: directories; LINK: directory, file; UNLINK: directory */
    int64_t offset;        /* WRITE; RESIZE: the new size */
    uint32_t name1, name2, data, reserved;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_size;
static int log_fd = -1, hides_syncs;
static int64_t position;                 /* records so far */
static int fault, sticky, fired;
static int64_t fault_at, eligible;       /* calls that the kind of fault is for, since it was armed */
static int64_t calls;

/* -- for the process that is watched, by ctypes ------------------------------------------------------------------------ */

/* Watches the files under `directory` (absolute, resolved; NULL: none any more); logs to `log` unless it is NULL. */
int torture_watch(const char *directory, const char *log, int without_syncs) {
    pthread_mutex_lock(&lock);
    root_size = 0;
    if (log_fd >= 0) close(log_fd);
    log_fd = -1;
    hides_syncs = without_syncs;
    position = calls = 0;
    if (directory != NULL) {
        root_size = strlen(strncpy(root, directory, sizeof root - 1));
        if (log != NULL) {
            log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
            if (log_fd < 0) root_size = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return directory != NULL && root_size == 0 ? -1 : 0;
}

void torture_arm(int kind, int64_t nth, int stays) {
    pthread_mutex_lock(&lock);
    fault = kind, fault_at = nth, sticky = stays, fired = 0, eligible = 0;
    pthread_mutex_unlock(&lock);
}

int torture_fired(void) { return fired; }
int64_t torture_calls(void) { return calls; }
int64_t torture_eligible(void) { return eligible; }

static void put(struct record head, const char *name1, const char *name2, const struct iovec *data, int parts, size_t size) {
    struct iovec all[3 + IOV_MAX];
    int count = 0;
    calls += head.kind != MARK;
    if (log_fd < 0) return;
    if (hides_syncs && head.kind == SYNC) return;
    if (hides_syncs) head.flags &= ~(uint32_t)DURABLE;
    head.name1 = name1 != NULL ? (uint32_t)strlen(name1) : 0;
    head.name2 = name2 != NULL ? (uint32_t)strlen(name2) : 0;
    head.data = (uint32_t)size;
    all[count++] = (struct iovec){&head, sizeof head};
    if (head.name1) all[count++] = (struct iovec){(void *)name1, head.name1};
    if (head.name2) all[count++] = (struct iovec){(void *)name2, head.name2};
    for (int i = 0; i < parts && size; i++) {
        size_t part = data[i].iov_len < size ? data[i].iov_len : size;
        all[count++] = (struct iovec){data[i].iov_base, part};
        size -= part;
    }
    size_t whole = 0;
    for (int i = 0; i < count; i++) whole += all[i].iov_len;
    if (syscall(SYS_writev, log_fd, all, count) != (ssize_t)whole) {
        dprintf(2, "shim: the log cannot be written\n");
        abort();
    }
    position++;
}

/* Notes what the process wants to remember at this place of the log. */
void torture_mark(const char *text) {
    struct iovec data = {(void *)text, strlen(text)};
    pthread_mutex_lock(&lock);
    put((struct record){.kind = MARK}, NULL, NULL, &data, 1, data.iov_len);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("TORTURE_DIRECTORY");
    if (directory != NULL && torture_watch(directory, getenv("TORTURE_LOG"), getenv("TORTURE_WITHOUT_SYNCS") != NULL)) {
        dprintf(2, "shim: TORTURE_LOG cannot be opened\n");
        abort();
    }
}

/* -- what is watched --------------------------------------------------------------------------------------------------- */

static int is_inside(const char *path) {
    return root_size && strncmp(path, root, root_size) == 0 && (path[root_size] == '/' || path[root_size] == 0);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
    return size > 0;
}

static int watches(int fd) {
    char path[PATH_MAX];
    return root_size && path_of(fd, path) && is_inside(path);
}

/* Makes an absolute path of what a call was given; returns whether it is watched. */
static int resolve(int directory, const char *given, char *path) {
    if (!root_size || given == NULL) return 0;
    if (given[0] == '/') {
        snprintf(path, PATH_MAX, "%s", given);
    } else {
        char base[PATH_MAX] = "";
        if (directory == AT_FDCWD ? getcwd(base, sizeof base) == NULL : !path_of(directory, base)) return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", base, given) >= PATH_MAX) return 0;
    }
    for (size_t size = strlen(path); size > 1 && path[size - 1] == '/'; size--) path[size - 1] = 0;
    return is_inside(path);
}

static const char *name_of(const char *path) { return strrchr(path, '/') + 1; }

static int look(const char *path, struct stat *status) { return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW) == 0; }

static uint64_t inode_of(const char *path) {
    struct stat status;
    return look(path, &status) ? status.st_ino : 0;
}

static uint64_t parent_of(const char *path) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = 0;
    return inode_of(parent);
}

static uint64_t inode_behind(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

static int is_durable(int fd) { return (int)syscall(SYS_fcntl, fd, F_GETFL) & O_DSYNC; }

/* -- faults: the errno to fail with, -1 for a short write, 0 for none --------------------------------------------------- */

enum { ANOTHER_CALL, WRITE_CALL, META_CALL, SYNC_CALL };

static int trouble(int call) {
    int error = 0, is_write = call == WRITE_CALL || call == META_CALL;
    switch (fault) {
    case ANY_EIO: error = EIO; break;
    case ANY_ENOSPC: error = ENOSPC; break;
    case SHORT_WRITE: error = is_write ? -1 : 0; break;
    case FSYNC_EIO: error = call == SYNC_CALL ? EIO : 0; break;
    case META_EIO: error = call == META_CALL ? EIO : 0; break;
    case END: error = EIO; break;
    }
    if (!error) return 0;
    eligible++;
    if (eligible != fault_at && !(sticky && eligible > fault_at)) return 0;
    fired++;
    if (fault == END && call != META_CALL) _exit(0);
    return error;
}

#define FAILS(call)                         \
    do {                                    \
        int error = trouble(call);          \
        if (error > 0) {                    \
            pthread_mutex_unlock(&lock);    \
            errno = error;                  \
            return -1;                      \
        }                                   \
    } while (0)

#define DONE(result)                        \
    do {                                    \
        int kept = errno;                   \
        pthread_mutex_unlock(&lock);        \
        errno = kept;                       \
        return result;                      \
    } while (0)

/* -- writing ------------------------------------------------------------------------------------------------------------ */

static ssize_t do_write(int fd, const struct iovec *given, int parts, off_t offset, int placed) {
    if (!watches(fd))
        return placed ? syscall(SYS_pwritev, fd, given, parts, offset, 0L) : syscall(SYS_writev, fd, given, parts);
    struct iovec data[IOV_MAX];
    size_t size = 0;
    memcpy(data, given, sizeof *given * (size_t)parts);
    for (int i = 0; i < parts; i++) size += data[i].iov_len;
    pthread_mutex_lock(&lock);
    int durable = is_durable(fd);
    int error = trouble(durable ? META_CALL : WRITE_CALL), unsynced = error > 0 && (fault == META_EIO || fault == END);
    if (error > 0 && !unsynced) {
        pthread_mutex_unlock(&lock);
        errno = error;
        return -1;
    }
    if (error < 0 && size > 1) { /* half of it */
        size_t left = size / 2;
        for (int i = 0; i < parts; i++) {
            if (data[i].iov_len > left) data[i].iov_len = left;
            left -= data[i].iov_len;
        }
    }
    if (!placed) {
        struct stat status;
        int appends = (int)syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
        offset = appends && fstat(fd, &status) == 0 ? status.st_size : lseek(fd, 0, SEEK_CUR);
    }
    ssize_t done = placed ? syscall(SYS_pwritev, fd, data, parts, offset, 0L) : syscall(SYS_writev, fd, data, parts);
    if (done > 0) {
        uint32_t flags = durable && !unsynced ? DURABLE : 0;
        put((struct record){.kind = WRITE, .flags = flags, .inode = inode_behind(fd), .offset = offset}, NULL, NULL, data, parts,
            (size_t)done);
    }
    if (unsynced && fault == END) _exit(0);
    if (unsynced) { /* as a disk does it that takes nothing: the page cache has the bytes, and the caller an error */
        errno = error;
        done = -1;
    }
    DONE(done);
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    return do_write(fd, &part, 1, 0, 0);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return do_write(fd, parts, count, 0, 0); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    struct iovec part = {(void *)data, size};
    return do_write(fd, &part, 1, offset, 1);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return do_write(fd, parts, count, offset, 1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return do_write(fd, parts, count, offset, 1); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    if (flags && watches(fd)) { /* nobody here does that; better to know than to guess */
        errno = EOPNOTSUPP;
        return -1;
    }
    if (flags) return syscall(SYS_pwritev2, fd, parts, count, offset, 0L, flags);
    return do_write(fd, parts, count, offset, offset != -1);
}

/* Copies within the kernel: where the target is watched, by reading and writing. */
static ssize_t do_copy(int out, off64_t *out_offset, int in, off64_t *in_offset, size_t size) {
    if (size > 1 << 20) size = 1 << 20;
    char *data = malloc(size);
    if (data == NULL) return -1;
    ssize_t got = in_offset != NULL ? pread64(in, data, size, *in_offset) : read(in, data, size);
    ssize_t done = got;
    if (got > 0) {
        struct iovec part = {data, (size_t)got};
        done = do_write(out, &part, 1, out_offset != NULL ? *out_offset : 0, out_offset != NULL);
        if (done < got && in_offset == NULL) lseek(in, (done > 0 ? done : 0) - got, SEEK_CUR);
    }
    if (done > 0 && in_offset != NULL) *in_offset += done;
    if (done > 0 && out_offset != NULL) *out_offset += done;
    free(data);
    return done;
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    return watches(out) ? do_copy(out, NULL, in, offset, size) : syscall(SYS_sendfile, out, in, offset, size);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t size) { return sendfile64(out, in, offset, size); }
ssize_t copy_file_range(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t size, unsigned flags) {
    if (watches(out)) return do_copy(out, out_offset, in, in_offset, size);
    return syscall(SYS_copy_file_range, in, in_offset, out, out_offset, size, flags);
}

/* -- size and durability ------------------------------------------------------------------------------------------------ */

int ftruncate64(int fd, off64_t size) {
    if (!watches(fd)) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    FAILS(ANOTHER_CALL);
    int result = (int)syscall(SYS_ftruncate, fd, size);
    if (result == 0) put((struct record){.kind = RESIZE, .inode = inode_behind(fd), .offset = size}, NULL, NULL, NULL, 0, 0);
    DONE(result);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    if (!watches(fd)) return (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (mode & ~FALLOC_FL_KEEP_SIZE) { /* holes: nobody here makes them */
        errno = EOPNOTSUPP;
        return -1;
    }
    pthread_mutex_lock(&lock);
    FAILS(ANOTHER_CALL);
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (result == 0) {
        struct stat status;
        fstat(fd, &status);
        put((struct record){.kind = RESIZE, .inode = status.st_ino, .offset = status.st_size}, NULL, NULL, NULL, 0, 0);
    }
    DONE(result);
}
int fallocate(int fd, int mode, off_t offset, off_t size) { return fallocate64(fd, mode, offset, size); }
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return fallocate64(fd, 0, offset, size) == 0 ? 0 : errno; }
int posix_fallocate(int fd, off_t offset, off_t size) { return posix_fallocate64(fd, offset, size); }

static int do_sync(int fd, long number) {
    if (!watches(fd)) return (int)syscall(number, fd);
    pthread_mutex_lock(&lock);
    struct record head = {.kind = SYNC, .inode = inode_behind(fd)};
    int error = trouble(SYNC_CALL), result = -1;
    if (error <= 0) {
        result = (int)syscall(number, fd);
    } else {
        head.flags = FAILED;
        errno = error;
    }
    if (result == 0 || head.flags) put(head, NULL, NULL, NULL, 0, 0);
    DONE(result);
}
int fsync(int fd) { return do_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_sync(fd, SYS_fdatasync); }

/* A writable map changes files unseen. LMDB makes one of `lock.mdb` alone, whose bytes mean nothing afterwards; of no other
 * file do we want one. */
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t offset) {
    char path[PATH_MAX];
    int shared = (flags & MAP_TYPE) != MAP_PRIVATE && (protection & PROT_WRITE) && fd >= 0;
    if (shared && root_size && path_of(fd, path) && is_inside(path) && strcmp(name_of(path), "lock.mdb") != 0) {
        dprintf(2, "shim: %s is mapped writable\n", path);
        abort();
    }
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}
void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap64(address, size, protection, flags, fd, offset);
}

/* -- names -------------------------------------------------------------------------------------------------------------- */

static int do_open(int directory, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !resolve(directory, given, path))
        return (int)syscall(SYS_openat, directory, given, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat status;
    int existed = look(path, &status);
    int makes = !existed && (flags & O_CREAT), empties = existed && (flags & O_TRUNC) && status.st_size > 0;
    if (makes || empties) FAILS(ANOTHER_CALL);
    int fd = (int)syscall(SYS_openat, directory, given, flags, mode);
    if (fd >= 0 && makes) {
        struct record head = {.kind = CREATE, .inode = parent_of(path), .other = inode_behind(fd)};
        put(head, name_of(path), NULL, NULL, 0, 0);
    }
    if (fd >= 0 && empties) put((struct record){.kind = RESIZE, .inode = status.st_ino}, NULL, NULL, NULL, 0, 0);
    DONE(fd);
}

#define MODE(flags)                                             \
    mode_t mode = 0;                                            \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                      \
        va_list rest;                                           \
        va_start(rest, flags);                                  \
        mode = (mode_t)va_arg(rest, int);                       \
        va_end(rest);                                           \
    }

int openat64(int directory, const char *path, int flags, ...) {
    MODE(flags)
    return do_open(directory, path, flags, mode);
}
int openat(int directory, const char *path, int flags, ...) {
    MODE(flags)
    return do_open(directory, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return do_open(AT_FDCWD, path, flags, mode);
}
int open(const char *path, int flags, ...) {
    MODE(flags)
    return do_open(AT_FDCWD, path, flags, mode);
}

int mkdirat(int directory, const char *given, mode_t mode) {
    char path[PATH_MAX];
    if (!resolve(directory, given, path)) return (int)syscall(SYS_mkdirat, directory, given, mode);
    pthread_mutex_lock(&lock);
    FAILS(ANOTHER_CALL);
    int result = (int)syscall(SYS_mkdirat, directory, given, mode);
    if (result == 0) {
        struct record head = {.kind = CREATE, .flags = IS_DIRECTORY, .inode = parent_of(path), .other = inode_of(path)};
        put(head, name_of(path), NULL, NULL, 0, 0);
    }
    DONE(result);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char source[PATH_MAX], target[PATH_MAX];
    int inside = resolve(from, old, source);
    if (inside != resolve(to, new, target)) { /* a rename into or out of what is watched would be half seen */
        errno = EXDEV;
        return -1;
    }
    if (!inside || flags) return (int)syscall(SYS_renameat2, from, old, to, new, flags);
    pthread_mutex_lock(&lock);
    FAILS(ANOTHER_CALL);
    struct record head = {.kind = RENAME, .inode = parent_of(source), .other = parent_of(target)};
    int result = (int)syscall(SYS_renameat2, from, old, to, new, flags);
    if (result == 0) put(head, name_of(source), name_of(target), NULL, 0, 0);
    DONE(result);
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char source[PATH_MAX], target[PATH_MAX];
    int inside = resolve(from, old, source) & resolve(to, new, target);
    if (!inside) return (int)syscall(SYS_linkat, from, old, to, new, flags);
    pthread_mutex_lock(&lock);
    FAILS(ANOTHER_CALL);
    int result = (int)syscall(SYS_linkat, from, old, to, new, flags);
    if (result == 0) {
        struct record head = {.kind = LINK, .inode = parent_of(target), .other = inode_of(target)};
        put(head, name_of(target), NULL, NULL, 0, 0);
    }
    DONE(result);
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int directory, const char *given, int flags) {
    char path[PATH_MAX];
    if (!resolve(directory, given, path)) return (int)syscall(SYS_unlinkat, directory, given, flags);
    pthread_mutex_lock(&lock);
    FAILS(ANOTHER_CALL);
    uint64_t parent = parent_of(path);
    int result = (int)syscall(SYS_unlinkat, directory, given, flags);
    if (result == 0) put((struct record){.kind = UNLINK, .inode = parent}, name_of(path), NULL, NULL, 0, 0);
    DONE(result);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
