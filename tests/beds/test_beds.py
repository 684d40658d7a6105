"""The beds themselves: what is promised of them is what tests of the protocol take for granted."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from . import lockfs as lockfs_module
from .bed import wait_for
from .fixtures import skip_without
from .hosts import Host, Process

# Further words are pairs, a kind of lock and a file.
HOLD = """
import fcntl, os, signal, sys
for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):
    getattr(fcntl, kind)(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""
# Prints for each whether it got it, or the error that stayed until the time was over.
TRY = """
import errno, fcntl, os, sys, time
end = time.monotonic() + float(sys.argv[1])
for kind, path in zip(sys.argv[2::2], sys.argv[3::2]):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    while True:
        try:
            getattr(fcntl, kind)(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES) and time.monotonic() <= end:
                time.sleep(0.1)
                continue
            print(errno.errorcode[error.errno])
        else:
            print("got it")
        break
"""
KINDS = ("flock", "lockf")


def hold(host: Host, *kinds: str, name: str = "lock") -> Process:
    """A process that holds a lock of each kind, all of them where none is named."""
    holder = host.start_python(HOLD, *_files(host, kinds, name))
    holder.wait_for_output("held")
    return holder


def attempt(host: Host, *kinds: str, limit_s: float = 0, name: str = "lock") -> str:
    """What came of a try to get a lock of each kind: one answer if it was the same for all."""
    done = host.run_python(TRY, str(limit_s), *_files(host, kinds, name), timeout=limit_s + 60, check=True)
    return ", ".join(dict.fromkeys(done.stdout.splitlines()))


def _files(host: Host, kinds: tuple[str, ...], name: str) -> list[str]:
    """A file for each: on NFS the kinds exclude each other."""
    return [word for kind in kinds or KINDS for word in (kind, host.path(f"{name}.{kind}" if not kinds else name))]


class TestNfs:
    @pytest.mark.parametrize("mount", ["v4.2", "v4.0", "v3"])
    def test_locks_exclude_the_other_host_until_the_holder_dies(self, nfs, mount):
        a, b = nfs.hosts(mount)
        holder = hold(a)
        assert attempt(b) == "EAGAIN"
        holder.kill()
        assert attempt(b, limit_s=10) == "got it"

    def test_nolock_keeps_locks_on_each_host(self, nfs):
        a, b = nfs.hosts("v3-nolock")
        hold(a)
        assert attempt(a) == "EAGAIN"
        assert attempt(b) == "got it"

    def test_each_host_is_a_machine_of_its_own(self, nfs):
        a, b = nfs.hosts()
        identity = ["sh", "-c", "hostname; cat /proc/sys/kernel/random/boot_id"]
        name_a, boot_a = a.run(identity, check=True).stdout.split()
        name_b, boot_b = b.run(identity, check=True).stdout.split()
        assert (name_a, name_b) == ("host-a", "host-b") == (a.name, b.name)
        assert boot_a != boot_b

    def test_only_the_shared_directory_and_memory_are_writable(self, nfs):
        a, b = nfs.hosts()
        mine = f"{sys.prefix}/written-by-a-guest"
        assert "Read-only" in a.run(["touch", mine]).stderr
        a.run(["sh", "-c", "touch /tmp/x /dev/shm/x $HOME/x $TMPDIR/x"], check=True)
        a.write_text("from-a", "über")
        assert b.read_text("from-a") == "über" == nfs.on_server(a).read_text("from-a")

    def test_the_package_and_its_libraries_are_there(self, nfs):
        a, _ = nfs.hosts()
        a.run_python("import dispatcher, click, filelock, msgspec, portalocker, psutil", check=True)

    def test_mount_options_can_be_added(self, nfs):
        a, _ = nfs.hosts("v3", options="lookupcache=none")
        options = a.run(["findmnt", "-n", "-o", "OPTIONS", "-T", a.root], check=True).stdout
        assert "vers=3," in options
        assert "lookupcache=none" in options

    @pytest.mark.slow
    def test_a_host_that_is_cut_off_loses_its_lock_after_the_lease_and_comes_back(self, nfs):
        a, b = nfs.hosts("v4.2")
        a.write_text("file", "old")
        hold(a, "flock")
        a.cut()
        with pytest.raises(subprocess.TimeoutExpired):
            a.run(["ls", a.root], timeout=1)
        assert a.run(["echo", "still", "there"]).stdout == "still there\n"
        since = time.monotonic()
        assert attempt(b, "flock", limit_s=nfs.lease_s * 4) == "got it"
        assert time.monotonic() - since < nfs.lease_s * 2.5
        b.write_text("file", "new")
        a.restore()
        assert a.run(["cat", "file"], cwd=a.root, timeout=60).stdout == "new"

    @pytest.mark.slow
    @pytest.mark.parametrize("mount", ["v4.2", "v3"])
    def test_a_host_that_lost_power_boots_again(self, nfs, mount):
        a, b = nfs.hosts(mount)
        a.write_text("file", "kept")
        boot_id = a.read_text("/proc/sys/kernel/random/boot_id")
        hold(a, "flock")
        # Once while the other host lives: later even to open the file can take until its lease is over.
        assert attempt(b, "flock") == "EAGAIN"
        a.power_cut()
        assert attempt(b, "flock") == "EAGAIN"
        with pytest.raises(ConnectionError):
            a.run(["true"])
        a.boot()
        assert a.read_text("/proc/sys/kernel/random/boot_id") != boot_id
        assert a.read_text("file") == "kept"
        # The server learns from the restarted host that the old one's locks are void; for NFSv4 the lease ends first.
        assert attempt(b, "flock", limit_s=nfs.lease_s * 4) == "got it"

    @pytest.mark.slow
    @pytest.mark.parametrize("mount", ["v4.2", "v3"])
    def test_the_file_server_reboots_and_files_and_locks_survive(self, nfs, mount):
        a, b = nfs.hosts(mount)
        a.run(["sh", "-c", "echo kept >file && sync file"], cwd=a.root, check=True)
        hold(a, "flock")
        nfs.reboot_server()
        assert b.run(["cat", "file"], cwd=b.root, timeout=120).stdout == "kept\n"
        # A try hangs or fails until the grace period is over.
        assert attempt(b, "flock", name="another") == "got it"
        assert attempt(b, "flock") == "EAGAIN"

    @pytest.mark.slow
    def test_healing_brings_back_what_is_stuck(self, nfs):
        a, b = nfs.hosts()
        a.start(["sleep", "1000"])
        a.cut()
        b.power_cut()
        with pytest.raises(subprocess.TimeoutExpired):
            a.run(["touch", "file"], cwd=a.root, timeout=1)
        nfs.heal()
        a, b = nfs.hosts()
        a.write_text("file", "again")
        assert b.read_text("file") == "again"
        assert "sleep" not in a.run(["ps", "ax"]).stdout


class TestSshfs:
    def test_both_hosts_see_the_directory(self, sshfs):
        a, b = sshfs.hosts()
        a.write_text("file", "from a")
        assert b.read_text("file") == "from a"
        assert os.listdir(sshfs.below(a)) == ["file"]
        assert " fuse.sshfs " in a.read_text("/proc/mounts")

    def test_locks_stay_on_each_host(self, sshfs):
        a, b = sshfs.hosts()
        hold(a)
        assert attempt(a) == "EAGAIN"
        assert attempt(b) == "got it"

    def test_options_make_another_pair_of_mounts(self, sshfs):
        a, b = sshfs.hosts("dir_cache=no")
        a.write_text("file", "x")
        assert b.run(["ls", b.root], check=True).stdout == "file\n"


# One of everything that a program does to files; runs in an empty directory and prints what must come out the same on
# any filesystem.
EVERYTHING = r"""
import ctypes, errno, os, stat, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def error(call, *args):
    try: call(*args)
    except OSError as e: return errno.errorcode[e.errno]

def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), old)

def as_user(act):
    sys.stdout.flush()
    if os.fork() == 0:
        os.umask(0o027); os.setgroups([]); os.setgid(6); os.setuid(5)
        act(); sys.stdout.flush(); os._exit(0)
    os.wait()

os.mkdir("d")
print("mkdir", error(os.mkdir, "d"))
fd = os.open("d/f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
print("excl", error(os.open, "d/f", os.O_RDWR | os.O_CREAT | os.O_EXCL))
os.write(fd, b"0123456789"); os.pwrite(fd, b"ab", 2)
print("pread", os.pread(fd, 4, 1), os.pread(fd, 9, 50))
os.ftruncate(fd, 8); os.fsync(fd); os.fdatasync(fd)
print("size", os.fstat(fd).st_size)
other = os.open("d/f", os.O_WRONLY | os.O_APPEND)
os.write(other, b"X"); os.write(fd, b"Y"); os.write(other, b"Z")
print("append", os.pread(fd, 99, 0))
os.truncate("d/f", 3)
print("truncate", os.stat("d/f").st_size)
os.utime("d/f", ns=(10**18, 2 * 10**18 + 7))
print("utime", os.stat("d/f").st_atime_ns, os.stat("d/f").st_mtime_ns)
os.chmod("d/f", 0o604); os.chown("d/f", 5, 6); s = os.stat("d/f")
print("mode", oct(s.st_mode), s.st_uid, s.st_gid)
os.link("d/f", "d/g")
print("link", os.stat("d/g").st_nlink, os.path.samefile("d/f", "d/g"), error(os.link, "d/f", "d/g"))
os.symlink("f", "d/s")
print("symlink", os.readlink("d/s"), os.stat("d/s").st_size, stat.S_ISLNK(os.lstat("d/s").st_mode))
os.chown("d/s", 7, 8, follow_symlinks=False)
print("lchown", os.lstat("d/s").st_uid, os.stat("d/f").st_uid)
os.link("d/s", "d/t", follow_symlinks=False)
print("link of a symlink", os.readlink("d/t"))
os.mkfifo("d/p")
print("fifo", stat.S_ISFIFO(os.stat("d/p").st_mode))
open("d/h", "w").write("h"); inode = os.stat("d/h").st_ino; os.rename("d/h", "d/g")
print("rename", os.stat("d/g").st_ino == inode)
print("noreplace", error(renameat2, "d/g", "d/f", 1))
renameat2("d/g", "d/f", 2)
print("exchange", os.stat("d/f").st_size)
os.pwrite(fd, b"still open", 0); os.unlink("d/g")
print("unlinked", os.fstat(fd).st_nlink, os.pread(fd, 5, 0), os.fstat(fd).st_size)
print("list", sorted(os.listdir("d")), error(os.rmdir, "d"), error(os.stat, "d/nothing"))
with os.scandir("d") as found:
    print("inodes", all(entry.inode() == entry.stat(follow_symlinks=False).st_ino for entry in found))
folder = os.open("d", os.O_RDONLY | os.O_DIRECTORY); os.fsync(folder)
print("relative", os.stat("f", dir_fd=folder).st_size)
for i in range(3000):
    os.close(os.open(f"d/{i:04}" + "n" * 50, os.O_CREAT | os.O_WRONLY))
print("many", len(os.listdir("d")))
v = os.statvfs("d")
print("statfs", v.f_bsize > 0, v.f_bavail > 0)
os.posix_fallocate(fd, 0, 5000)
print("fallocate", os.fstat(fd).st_size)
as_user(lambda: print("denied", error(open, "d/new", "w")))
os.chown("d", 0, 99); os.chmod("d", 0o2777)
as_user(lambda: os.mkdir("d/new"))
s = os.stat("d/new")
print("of a user", oct(s.st_mode), s.st_uid, s.st_gid)
"""


class TestLockfs:
    @pytest.mark.parametrize("mode", lockfs_module.ERRORS)
    def test_error_modes_fail_every_lock(self, lockfs, mode):
        a, b = lockfs.hosts(mode)
        name = errno.errorcode[getattr(errno, mode)]
        assert attempt(a) == name == attempt(b)

    def test_pass_excludes_until_the_holder_dies(self, lockfs):
        a, b = lockfs.hosts("pass")
        holder = hold(a)
        assert attempt(b) == "EAGAIN" == attempt(a)
        holder.kill()
        assert attempt(b, limit_s=5) == "got it"

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_blocking_lock_is_granted_and_a_waiter_can_be_killed(self, lockfs, kind):
        a, b = lockfs.hosts("pass")
        holder = hold(a, kind)
        doomed = b.start_python(HOLD, kind, b.path("lock"))
        waiter = b.start_python(HOLD, kind, b.path("lock"))
        doomed.kill()
        assert doomed.wait(5) == -signal.SIGKILL
        assert waiter.poll() is None
        holder.kill()
        waiter.wait_for_output("held", 5)

    def test_local_keeps_locks_on_each_host(self, lockfs):
        a, b = lockfs.hosts("local")
        hold(a)
        assert attempt(a) == "EAGAIN"
        assert attempt(b) == "got it"

    def test_nop_grants_everything(self, lockfs):
        a, b = lockfs.hosts("nop")
        hold(a)
        assert attempt(a) == "got it" == attempt(b)

    def test_flock_and_lockf_can_differ(self, lockfs):
        a, _ = lockfs.hosts("ENOLCK:pass")
        assert attempt(a) == "ENOLCK, got it"

    def test_a_lock_inherited_by_a_child_is_kept(self, lockfs):
        a, b = lockfs.hosts("pass")
        leave_to_child = HOLD.replace("signal.pause()", "os.fork() and os._exit(0); signal.pause()")
        a.start_python(leave_to_child, "flock", a.path("lock")).wait(10)
        assert attempt(b, "flock") == "EAGAIN"

    def test_everything_else_passes_through(self, lockfs):
        a, _ = lockfs.hosts("nop")
        a.run(["mkdir", a.path("shown"), a.path("plain")], check=True)
        shown = a.run_python(EVERYTHING, a.path("shown"), check=True).stdout
        plain = subprocess.run(
            [sys.executable, "-c", EVERYTHING, f"{lockfs.below(a)}/plain"], capture_output=True, text=True, check=True
        ).stdout
        assert shown.splitlines() == plain.splitlines()
        assert plain.splitlines()[-1] == "of a user 0o42750 5 99"

    def test_changes_are_seen_at_once(self, lockfs):
        a, b = lockfs.hosts("nop")
        for text in ("first", "again"):
            a.write_text("file", text)
            assert b.read_text("file") == text
        inode = f"{os.stat(lockfs.below(a) + '/file').st_ino}\n"
        for host in (a, b):
            assert host.run(["stat", "-c", "%i", host.path("file")]).stdout == inode
        # Also through a descriptor that was open, and had been read, before the change.
        follow = "import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nold = b''\n"
        follow += "while True:\n    new = os.pread(fd, 99, 0)\n    new != old and print(new, flush=True)\n    old = new"
        follower = b.start_python(follow, b.path("file"))
        follower.wait_for_output("again")
        a.write_text("file", "longer than before")
        follower.wait_for_output("longer than before", 5)
        os.truncate(lockfs.below(a) + "/file", 2)
        follower.wait_for_output("b'lo'", 5)

    def test_hosts_have_names_boot_ids_and_processes_of_their_own(self, lockfs):
        a, b = lockfs.hosts("nop")
        assert a.root == b.root
        assert a.run(["hostname"]).stdout == "host-a\n"
        boot_ids = {host.read_text("/proc/sys/kernel/random/boot_id") for host in (a, b)}
        sleeper = a.start(["sleep", "1000"])
        assert b.run(["ps", "-o", "comm=", "-p", str(sleeper.pid)]).stdout != "sleep\n"
        a.power_cut()
        with pytest.raises(ConnectionError):
            sleeper.poll()
        a.boot()
        boot_ids.add(a.read_text("/proc/sys/kernel/random/boot_id"))
        assert len(boot_ids) == 3

    def test_run_and_start_tell_what_happened(self, lockfs):
        a, _ = lockfs.hosts("nop")
        done = a.run(["sh", "-c", 'cat; echo "$X" >&2; pwd; exit 3'], cwd=a.root, env={"X": "$(y) 'z'"}, input="in\n")
        assert (done.returncode, done.stdout, done.stderr) == (3, f"in\n{a.root}\n", "$(y) 'z'\n")
        assert a.run(["no-such-program"]).returncode == 127
        with pytest.raises(subprocess.TimeoutExpired) as late:
            a.run(["sh", "-c", "echo before; sleep 1000"], timeout=0.2)
        assert late.value.output == "before\n"
        with pytest.raises(FileNotFoundError):
            a.read_text("nothing")
        sleeper = a.start(["sh", "-c", "echo ready; sleep 1000; :"])
        sleeper.wait_for_output("ready")
        assert sleeper.poll() is None
        sleeper.terminate()
        assert sleeper.wait(5) == -signal.SIGTERM
        with pytest.raises(AssertionError, match="without 'never'"):
            sleeper.wait_for_output("never")


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import importlib
module = importlib.import_module("beds." + sys.argv[2].lower().removesuffix("bed"))
bed = getattr(module, sys.argv[2])()
a, b = bed.hosts(*sys.argv[3:])
a.start(["sleep", "1000"])
print(bed.directory, os.readlink(f"/proc/{bed.keeper_pid}/ns/net"), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("kind", "arguments", "end"),
    [
        pytest.param("NfsBed", ["v4.2"], signal.SIGKILL, marks=[pytest.mark.nfs, pytest.mark.long]),
        pytest.param("SshfsBed", [], signal.SIGKILL, marks=pytest.mark.sshfs),
        pytest.param("LockfsBed", ["pass"], signal.SIGKILL, marks=pytest.mark.lockfs),
        pytest.param("LockfsBed", ["pass"], signal.SIGINT, marks=pytest.mark.lockfs),
        pytest.param("LockfsBed", ["pass"], None, marks=pytest.mark.lockfs),
    ],
)
def test_nothing_is_left_however_the_tests_end(kind, arguments, end):
    skip_without(kind.lower().removesuffix("bed"))
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, above, kind, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as user:
        directory, network = user.stdout.readline().split()
        assert processes_in(network)
        if end is None:
            user.stdin.close()
        else:
            user.send_signal(end)
    wait_for(lambda: not processes_in(network), f"processes of the bed {directory} are left: {processes_in(network)}")
    wait_for(lambda: not os.path.exists(directory), f"{directory} is left")
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        assert directory not in mounts.read()


def processes_in(network: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/net") == network:
                found.append(pid)
        except OSError:
            continue
    return found
