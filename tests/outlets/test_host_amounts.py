"""The CPUs and the memory that a process can use, by files as kernels of both versions of cgroups show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.outlets.local.budget import Amounts
from dispatcher.outlets.local.host_amounts import host_amounts

ALL = len(os.sched_getaffinity(0))
GIB = 1 << 30


def host(root: Path, cgroup: str, mounts: list[str], **files: str) -> Path:
    """A /proc whose process is in these cgroups, with 64 GiB of memory; `files` below the mount by their path."""
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemFree: 1 kB\nMemTotal:       67108864 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    lines = [f"30 1 0:1 {line}\n" for line in ["/ / rw - ext4 /dev/sda rw", *mounts]]
    (proc / "self" / "mountinfo").write_text("".join(lines))
    for name, text in files.items():
        path = root / "mount with a blank" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return proc


def at(root: Path, inner: str, rest: str) -> str:
    return f"{inner} {root}/mount\\040with\\040a\\040blank rw - {rest}"


def test_without_limits_it_is_all_of_the_host(tmp_path: Path) -> None:
    proc = host(
        tmp_path,
        "0::/a\n",
        [at(tmp_path, "/", "cgroup2 none rw")],
        **{"a/cpu.max": "max 100000", "a/memory.max": "max"},
    )
    assert host_amounts(proc) == Amounts(cpus=ALL, memory_mib=65536)


def test_limits_of_parents_count_too(tmp_path: Path) -> None:
    files = {"a/memory.max": str(8 * GIB), "a/b/memory.max": str(16 * GIB), "a/b/cpu.max": "150000 100000"}
    proc = host(tmp_path, "0::/a/b\n", [at(tmp_path, "/", "cgroup2 none rw")], **files)
    assert host_amounts(proc) == Amounts(cpus=1, memory_mib=8192)


def test_version_1_in_a_container_that_sees_its_own_cgroup_as_the_root(tmp_path: Path) -> None:
    files = {"memory.limit_in_bytes": str(4 * GIB)}
    mounts = [at(tmp_path, "/docker/x", "cgroup none rw,memory")]
    proc = host(tmp_path, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n", mounts, **files)
    assert host_amounts(proc) == Amounts(cpus=ALL, memory_mib=4096)


@pytest.mark.parametrize("cgroup", ["", "0::/../outside\n", "0::/gone\n"])
def test_what_cannot_be_seen_limits_nothing(tmp_path: Path, cgroup: str) -> None:
    proc = host(tmp_path, cgroup, [at(tmp_path, "/", "cgroup2 none rw")])
    assert host_amounts(proc) == Amounts(cpus=ALL, memory_mib=65536)
