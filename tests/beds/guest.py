"""A user-mode Linux kernel of a test's own, without a network: for what needs another kernel than this machine's.

    status, log = run_in_guest(script)      # its exit status and what it printed

The script runs as the guest's root, with this Python. It sees this machine's files read-only; /run is its own. The
kernel boots in two seconds, and ends with the script.

With a disk of its own (`disk`, an image, which the guest has as /dev/ubda) its power can be cut: the kernel is killed,
and what it had not yet written to its disk is lost, as on a real machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .bed import HERE, plain_directory
from .uml import environment, kernel

MEMORY = "256M"
INIT = """\
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# What udev would add to the kernel's own /dev; bash needs it.
ln -s /proc/self/fd /dev/fd
hostname guest
mount -t tmpfs tmpfs /run
mkdir -p /dev/shm /run/out
mount -t tmpfs tmpfs /dev/shm
mount -t hostfs none /run/out -o {out}
cd /run
env -i PATH="$PATH" HOME=/run TMPDIR=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} \\
    {python} -P {script} >/run/out/log 2>&1
echo $? >/run/out/status
echo o >/proc/sysrq-trigger
# It takes a moment, and a first program that ends is a panic.
sleep 60
"""


class Finished(NamedTuple):
    status: int | None
    log: str


def run_in_guest(
    script: Path,
    *,
    limit_s: float = 60,
    preload: str | None = None,
    disk: Path | None = None,
    shared: Path | None = None,
    is_cut: Callable[[], bool] | None = None,
) -> Finished:
    """Run a Python script in a kernel with cgroup version 2; `status` None: it did not come to its end.

    `preload` is what the kernel's process preloads instead of what this machine needs. `shared` is a directory of this
    machine that the guest has as /run/out. As soon as `is_cut` is true, the power is cut.
    """
    with tempfile.TemporaryDirectory(prefix="guest-", dir=plain_directory()) as folder:
        out = shared or Path(folder, "out")
        out.mkdir(exist_ok=True)
        words = {"out": out, "path": os.path.dirname(HERE), "python": sys.executable, "script": script}
        init = Path(folder, "init")
        init.write_text(INIT.format(**{name: shlex.quote(os.fspath(word)) for name, word in words.items()}))
        init.chmod(0o755)
        own = {} if preload is None else {"LD_PRELOAD": preload}
        disks = [] if disk is None else [f"ubd0={disk}"]
        console = _run(
            kernel("guest", f"{folder}/init", folder, MEMORY, "cgroup_no_v1=all", *disks),
            {**environment(folder), **own},
            f"{folder}/console",
            limit_s,
            is_cut,
        )
        if disk is not None:
            _wait_until_free(disk)
        status, log = out / "status", out / "log"
        text = log.read_text(errors="replace") if log.exists() else console
        return Finished(int(status.read_text()) if status.exists() else None, text)


def _run(words: list[str], env: dict[str, str], console: str, limit_s: float, is_cut: Callable[[], bool] | None) -> str:
    with open(console, "wb") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        end_s = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < end_s and not (is_cut and is_cut()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Path(console).read_text(errors="replace")


def _wait_until_free(disk: Path) -> None:
    """The kernel locks its disk, and a thread of it that still writes keeps the lock."""
    with disk.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
