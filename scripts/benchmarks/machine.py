"""What this was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from dispatcher.base.mounts import mount_of


def facts(directory: Path) -> dict[str, Any]:
    """Machine, software and date; the filesystem is that of `directory`."""
    mount = mount_of(directory)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": f"{mount.fstype} ({mount.options})",
        "python": platform.python_version(),
        "dispatcher": version("dispatcher"),
        "revision": _revision(),
        "load_average": os.getloadavg()[0],
    }


def summary(known: dict[str, Any]) -> str:
    """One line for people."""
    return (
        f"{known['cores']} cores ({known['processor']}), load {known['load_average']:.1f}, Linux {known['kernel']}, "
        f"{known['filesystem'].split()[0]}, Python {known['python']}, {known['date']}"
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _revision() -> str:
    here = Path(__file__).parent
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"
