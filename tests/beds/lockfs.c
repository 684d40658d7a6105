/* A FUSE filesystem that shows another directory as it is, except for its locks, which answer as told.
 *
 *     lockfs LOWER MOUNT FLOCK POSIX
 *
 * FLOCK is for flock(2), POSIX for fcntl(2) and lockf(3):
 *     pass                            real locks of the lower directory: they exclude across mounts
 *     local                           the kernel grants them to each mount by itself, as NFS does with `nolock`
 *     nop                             always granted, to everybody
 *     ENOSYS ENOLCK EOPNOTSUPP EIO    that error, always
 *
 * Two mounts over one lower directory are two hosts. So nothing but the lower directory may hold state: the kernel is
 * told to keep no names, no attributes and no file contents, and an inode is an O_PATH descriptor of the lower file,
 * which stays right when the other mount renames or removes the name.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

struct inode {
	struct inode *next;
	ino_t ino;
	dev_t dev;
	int fd;
	uint64_t lookups;
};

struct handle {
	int fd;
	/* Who holds POSIX locks through this handle: they go when that owner closes any descriptor of the file. */
	uint64_t lock_owner;
};

enum { BUCKETS = 4096 };
static struct inode *table[BUCKETS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct inode root;
static int flock_answer, posix_answer;

enum { PASS = 1, LOCAL = 2 };

static int answer_of(const char *word)
{
	static const struct { const char *word; int answer; } words[] = {
		{ "pass", PASS }, { "local", LOCAL }, { "nop", 0 }, { "ENOSYS", -ENOSYS },
		{ "ENOLCK", -ENOLCK }, { "EOPNOTSUPP", -EOPNOTSUPP }, { "EIO", -EIO },
	};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(word, words[i].word))
			return words[i].answer;
	fprintf(stderr, "lockfs: %s is no lock mode\n", word);
	exit(2);
}

static struct inode *inode_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? &root : (struct inode *)(uintptr_t)ino;
}

static int fd_of(fuse_ino_t ino)
{
	return inode_of(ino)->fd;
}

/* An O_PATH descriptor cannot be read, truncated or changed in mode; its name under /proc can. */
struct name { char path[32]; };

static struct name name_of(fuse_ino_t ino)
{
	struct name name;
	snprintf(name.path, sizeof name.path, "/proc/self/fd/%d", fd_of(ino));
	return name;
}

static struct handle *handle_of(struct fuse_file_info *file)
{
	return (struct handle *)(uintptr_t)file->fh;
}

static void reply(fuse_req_t req, int failed)
{
	fuse_reply_err(req, failed ? errno : 0);
}

static int enter(int parent, const char *name, struct fuse_entry_param *entry)
{
	memset(entry, 0, sizeof *entry);
	int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH) < 0) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	pthread_mutex_lock(&table_lock);
	struct inode **bucket = &table[entry->attr.st_ino % BUCKETS], *inode = *bucket;
	while (inode && (inode->ino != entry->attr.st_ino || inode->dev != entry->attr.st_dev))
		inode = inode->next;
	if (inode) {
		close(fd);
	} else {
		inode = calloc(1, sizeof *inode);
		*inode = (struct inode){ *bucket, entry->attr.st_ino, entry->attr.st_dev, fd, 0 };
		*bucket = inode;
	}
	inode->lookups++;
	pthread_mutex_unlock(&table_lock);
	entry->ino = (uintptr_t)inode;
	return 0;
}

static void reply_entered(fuse_req_t req, int parent, const char *name)
{
	struct fuse_entry_param entry;
	if (enter(parent, name, &entry) < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_entry(req, &entry);
}

static void forget_one(fuse_ino_t ino, uint64_t count)
{
	struct inode *inode = inode_of(ino);
	if (inode == &root)
		return;
	pthread_mutex_lock(&table_lock);
	inode->lookups -= count;
	if (inode->lookups == 0) {
		struct inode **link = &table[inode->ino % BUCKETS];
		while (*link != inode)
			link = &(*link)->next;
		*link = inode->next;
		close(inode->fd);
		free(inode);
	}
	pthread_mutex_unlock(&table_lock);
}

/* This program is root; what a user makes is to be that user's, in the group of a set-gid folder. */
static void give_to_caller(fuse_req_t req, int parent, const char *name)
{
	const struct fuse_ctx *caller = fuse_req_ctx(req);
	struct stat folder;
	if (caller->uid == 0 && caller->gid == 0)
		return;
	if (fstatat(parent, "", &folder, AT_EMPTY_PATH) == 0 &&
	    fchownat(parent, name, caller->uid, folder.st_mode & S_ISGID ? (gid_t)-1 : caller->gid, AT_SYMLINK_NOFOLLOW) < 0)
		fprintf(stderr, "lockfs: %s keeps its owner: %s\n", name, strerror(errno));
}

static void do_init(void *data, struct fuse_conn_info *connection)
{
	(void)data;
	/* Without these the kernel answers lock calls by itself. */
	connection->want &= ~(FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_POSIX_LOCKS | FUSE_CAP_WRITEBACK_CACHE);
	if (flock_answer != LOCAL)
		connection->want |= connection->capable & FUSE_CAP_FLOCK_LOCKS;
	if (posix_answer != LOCAL)
		connection->want |= connection->capable & FUSE_CAP_POSIX_LOCKS;
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply_entered(req, fd_of(parent), name);
}

static void do_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	forget_one(ino, count);
	fuse_reply_none(req);
}

static void do_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget_one(forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
	struct stat attr;
	(void)file;
	if (fstatat(fd_of(ino), "", &attr, AT_EMPTY_PATH) < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_attr(req, &attr, 0);
}

static struct timespec time_to_set(int to_set, int now, int given, struct timespec value)
{
	if (to_set & now)
		value.tv_nsec = UTIME_NOW;
	else if (!(to_set & given))
		value.tv_nsec = UTIME_OMIT;
	return value;
}

static int set_attributes(fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *file)
{
	struct name name = name_of(ino);
	if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
		uid_t uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1;
		gid_t gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1;
		if (fchownat(fd_of(ino), "", uid, gid, AT_EMPTY_PATH) < 0)
			return -1;
	}
	/* After the owner, because a change of owner takes set-uid and set-gid bits away. */
	if (to_set & FUSE_SET_ATTR_MODE && chmod(name.path, attr->st_mode) < 0)
		return -1;
	if (to_set & FUSE_SET_ATTR_SIZE &&
	    (file ? ftruncate(handle_of(file)->fd, attr->st_size) : truncate(name.path, attr->st_size)) < 0)
		return -1;
	if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)) {
		struct timespec times[2] = {
			time_to_set(to_set, FUSE_SET_ATTR_ATIME_NOW, FUSE_SET_ATTR_ATIME, attr->st_atim),
			time_to_set(to_set, FUSE_SET_ATTR_MTIME_NOW, FUSE_SET_ATTR_MTIME, attr->st_mtim),
		};
		if (utimensat(fd_of(ino), "", times, AT_EMPTY_PATH) < 0)
			return -1;
	}
	return 0;
}

static void do_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *file)
{
	if (set_attributes(ino, attr, to_set, file) < 0)
		fuse_reply_err(req, errno);
	else
		do_getattr(req, ino, file);
}

static void do_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[4097];
	ssize_t length = readlinkat(fd_of(ino), "", target, sizeof target - 1);
	if (length < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	target[length] = 0;
	fuse_reply_readlink(req, target);
}

static void reply_made(fuse_req_t req, fuse_ino_t parent, const char *name, int failed)
{
	if (failed) {
		fuse_reply_err(req, errno);
		return;
	}
	give_to_caller(req, fd_of(parent), name);
	reply_entered(req, fd_of(parent), name);
}

static void do_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
	reply_made(req, parent, name, mknodat(fd_of(parent), name, mode, device) < 0);
}

static void do_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	reply_made(req, parent, name, mkdirat(fd_of(parent), name, mode) < 0);
}

static void do_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	reply_made(req, parent, name, symlinkat(target, fd_of(parent), name) < 0);
}

static void do_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	if (linkat(fd_of(ino), "", fd_of(parent), name, AT_EMPTY_PATH) < 0)
		fuse_reply_err(req, errno);
	else
		reply_entered(req, fd_of(parent), name);
}

static void do_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply(req, unlinkat(fd_of(parent), name, 0) < 0);
}

static void do_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply(req, unlinkat(fd_of(parent), name, AT_REMOVEDIR) < 0);
}

static void do_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to, const char *new_name,
		      unsigned int flags)
{
	reply(req, renameat2(fd_of(parent), name, fd_of(to), new_name, flags) < 0);
}

static int handle_for(int fd, struct fuse_file_info *file)
{
	if (fd < 0)
		return -1;
	struct handle *handle = calloc(1, sizeof *handle);
	handle->fd = fd;
	file->fh = (uintptr_t)handle;
	/* Past the page cache: what the other mount writes is seen by the next read. */
	file->direct_io = 1;
	return 0;
}

static void do_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file)
{
	struct fuse_entry_param entry;
	int fd = openat(fd_of(parent), name, (file->flags | O_CREAT | O_CLOEXEC) & ~(O_NOFOLLOW | O_DIRECT), mode);
	if (fd < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	give_to_caller(req, fd_of(parent), name);
	if (enter(fd_of(parent), name, &entry) < 0) {
		fuse_reply_err(req, errno);
		close(fd);
		return;
	}
	handle_for(fd, file);
	fuse_reply_create(req, &entry, file);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
	/* O_APPEND stays on the lower descriptor, which makes appends from both mounts atomic, as on a local disk. */
	int flags = (file->flags | O_CLOEXEC) & ~(O_CREAT | O_EXCL | O_NOFOLLOW | O_DIRECT);
	if (handle_for(open(name_of(ino).path, flags), file) < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_open(req, file);
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *file)
{
	char *data = malloc(size);
	ssize_t length = pread(handle_of(file)->fd, data, size, offset);
	(void)ino;
	if (length < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, data, length);
	free(data);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
		     struct fuse_file_info *file)
{
	ssize_t length = pwrite(handle_of(file)->fd, data, size, offset);
	(void)ino;
	if (length < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_write(req, length);
}

static void do_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
	struct handle *handle = handle_of(file);
	(void)ino;
	if (handle->lock_owner && handle->lock_owner == file->lock_owner) {
		struct flock all = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
		fcntl(handle->fd, F_OFD_SETLK, &all);
		handle->lock_owner = 0;
	}
	fuse_reply_err(req, 0);
}

static void do_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
	struct handle *handle = handle_of(file);
	(void)ino;
	close(handle->fd);
	free(handle);
	fuse_reply_err(req, 0);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *file)
{
	int fd = handle_of(file)->fd;
	(void)ino;
	reply(req, (data_only ? fdatasync(fd) : fsync(fd)) < 0);
}

static void do_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
			 struct fuse_file_info *file)
{
	(void)ino;
	reply(req, fallocate(handle_of(file)->fd, mode, offset, length) < 0);
}

static DIR *folder_of(struct fuse_file_info *file)
{
	return (DIR *)(uintptr_t)file->fh;
}

static void do_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
	int fd = openat(fd_of(ino), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *folder = fd < 0 ? NULL : fdopendir(fd);
	if (!folder) {
		fuse_reply_err(req, errno);
		return;
	}
	file->fh = (uintptr_t)folder;
	fuse_reply_open(req, file);
}

static void do_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *file)
{
	DIR *folder = folder_of(file);
	char *data = malloc(size);
	size_t used = 0;
	struct dirent *found;
	(void)ino;
	seekdir(folder, offset);
	errno = 0;
	while ((found = readdir(folder))) {
		struct stat attr = { .st_ino = found->d_ino, .st_mode = (mode_t)found->d_type << 12 };
		size_t length = fuse_add_direntry(req, data + used, size - used, found->d_name, &attr, found->d_off);
		if (length > size - used)
			break;
		used += length;
		errno = 0;
	}
	if (!found && errno && !used)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, data, used);
	free(data);
}

static void do_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
	(void)ino;
	closedir(folder_of(file));
	fuse_reply_err(req, 0);
}

static void do_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *file)
{
	(void)ino, (void)data_only;
	reply(req, fsync(dirfd(folder_of(file))) < 0);
}

static void do_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs stat;
	if (fstatvfs(fd_of(ino), &stat) < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_statfs(req, &stat);
}

/* Waiting is done by trying, so that a signal to the waiting process ends it and a thread is never lost to a lock. */
static int wait_for_lock(fuse_req_t req)
{
	static const struct timespec pause = { .tv_nsec = 2000000 };
	if (fuse_req_interrupted(req)) {
		errno = EINTR;
		return -1;
	}
	nanosleep(&pause, NULL);
	return 0;
}

static void do_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file, int operation)
{
	(void)ino;
	if (flock_answer <= 0) {
		fuse_reply_err(req, -flock_answer);
		return;
	}
	int failed;
	while ((failed = flock(handle_of(file)->fd, operation | LOCK_NB)) < 0 && errno == EWOULDBLOCK &&
	       !(operation & LOCK_NB))
		if (wait_for_lock(req) < 0)
			break;
	reply(req, failed);
}

static void do_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file, struct flock *lock, int wait)
{
	struct handle *handle = handle_of(file);
	(void)ino;
	if (posix_answer <= 0) {
		fuse_reply_err(req, -posix_answer);
		return;
	}
	int failed;
	/* Locks of the open file below stand for those of the process above. */
	lock->l_pid = 0;
	while ((failed = fcntl(handle->fd, F_OFD_SETLK, lock)) < 0 && (errno == EAGAIN || errno == EACCES) && wait)
		if (wait_for_lock(req) < 0)
			break;
	if (!failed && lock->l_type != F_UNLCK)
		handle->lock_owner = file->lock_owner;
	reply(req, failed);
}

static void do_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file, struct flock *lock)
{
	(void)ino;
	if (posix_answer < 0) {
		fuse_reply_err(req, -posix_answer);
		return;
	}
	lock->l_pid = 0;
	if (posix_answer == 0)
		lock->l_type = F_UNLCK;
	else if (fcntl(handle_of(file)->fd, F_OFD_GETLK, lock) < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	fuse_reply_lock(req, lock);
}

static const struct fuse_lowlevel_ops operations = {
	.init = do_init,
	.lookup = do_lookup,
	.forget = do_forget,
	.forget_multi = do_forget_multi,
	.getattr = do_getattr,
	.setattr = do_setattr,
	.readlink = do_readlink,
	.mknod = do_mknod,
	.mkdir = do_mkdir,
	.symlink = do_symlink,
	.link = do_link,
	.unlink = do_unlink,
	.rmdir = do_rmdir,
	.rename = do_rename,
	.create = do_create,
	.open = do_open,
	.read = do_read,
	.write = do_write,
	.flush = do_flush,
	.release = do_release,
	.fsync = do_fsync,
	.fallocate = do_fallocate,
	.opendir = do_opendir,
	.readdir = do_readdir,
	.releasedir = do_releasedir,
	.fsyncdir = do_fsyncdir,
	.statfs = do_statfs,
	.flock = do_flock,
	.setlk = do_setlk,
	.getlk = do_getlk,
};

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: lockfs LOWER MOUNT FLOCK POSIX\n");
		return 2;
	}
	flock_answer = answer_of(argv[3]);
	posix_answer = answer_of(argv[4]);
	root.fd = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root.fd < 0) {
		perror(argv[1]);
		return 1;
	}
	umask(0);
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	fuse_opt_add_arg(&args, argv[0]);
	fuse_opt_add_arg(&args, "-oallow_other,default_permissions,fsname=lockfs,subtype=lockfs");
	struct fuse_session *session = fuse_session_new(&args, &operations, sizeof operations, NULL);
	if (!session || fuse_session_mount(session, argv[2]) < 0)
		return 1;
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	/* Every process that waits for a lock keeps one thread. */
	fuse_loop_cfg_set_max_threads(config, 200);
	fuse_loop_cfg_set_idle_threads(config, 4);
	return fuse_session_loop_mt(session, config) != 0;
}
