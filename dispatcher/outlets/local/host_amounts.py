"""How many CPUs and how much memory this process can use: those of the host, less what its cgroups leave out."""

from __future__ import annotations

import os
from pathlib import Path

from dispatcher.outlets.local.budget import Amounts
from dispatcher.outlets.local.cgroup_files import UNIFIED, with_parents, words_of

_MIB = 1 << 20


def host_amounts(proc: Path = Path("/proc")) -> Amounts:
    """CPUs by the affinity of this process and the quotas of its cgroups, rounded down; memory by their limits."""
    cpus = [float(len(os.sched_getaffinity(0))), *_quotas(proc / "self")]
    return Amounts(cpus=max(1, int(min(cpus))), memory_mib=min([*_memory(proc), *_memory_limits(proc / "self")]))


def _quotas(proc: Path) -> list[float]:
    """The CPUs that quotas leave: of version 2 `cpu.max`, `max 100000` for none."""
    pairs = [words_of(directory / "cpu.max") for directory in with_parents(UNIFIED, proc)]
    for directory in with_parents("cpu", proc):
        pairs.append(words_of(directory / "cpu.cfs_quota_us") + words_of(directory / "cpu.cfs_period_us"))
    return [int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()]


def _memory_limits(proc: Path) -> list[int]:
    files = [directory / "memory.max" for directory in with_parents(UNIFIED, proc)]
    files += [directory / "memory.limit_in_bytes" for directory in with_parents("memory", proc)]
    words = [word for file in files for word in words_of(file)]
    return [int(word) // _MIB for word in words if word.isdigit()]


def _memory(proc: Path) -> list[int]:
    words = words_of(proc / "meminfo")
    return [int(words[words.index("MemTotal:") + 1]) // 1024]
