"""A user-mode Linux kernel of a test's own, without a network: for what needs another kernel than this machine's.

    done = run_in_guest(script, tmp_path)      # its exit status and what it printed

The script runs as the guest's root, with this Python. It sees this machine's files read-only; /run is its own. The
kernel boots in two seconds, and ends with the script.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

from .needs import HERE, SEARCH_PATH

MEMORY = "640M"
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


def run_in_guest(script: Path, directory: Path, *, python: str, limit_s: float) -> Finished:
    """Run a Python script in a kernel with cgroup version 2; `status` None: it did not come to its end."""
    out = directory / "guest"
    out.mkdir()
    words = {"out": out, "path": os.path.dirname(os.path.dirname(HERE)), "python": python, "script": script}
    init = directory / "init"
    init.write_text(INIT.format(**{name: shlex.quote(os.fspath(word)) for name, word in words.items()}))
    init.chmod(0o755)
    kernel = [
        "linux.uml",
        f"mem={MEMORY}",
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "cgroup_no_v1=all"),
        *("con=null", "con0=null,fd:1", "ssl=null"),
        f"init={init}",
        f"uml_dir={directory}/uml",
        "umid=guest",
    ]
    with open(directory / "console", "wb") as console:
        process = subprocess.Popen(
            kernel,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            # The kernel's memory is a file there.
            env={"PATH": SEARCH_PATH, "TMPDIR": os.fspath(directory)},
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    status, log = out / "status", out / "log"
    text = log.read_text(errors="replace") if log.exists() else (directory / "console").read_text(errors="replace")
    return Finished(int(status.read_text()) if status.exists() else None, text)
