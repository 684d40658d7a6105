"""A stand-in for NVIDIA's driver library, whose answers a test decides: see pod/fake_nvml.c."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def built_in(folder: Path) -> Path:
    """The folder with the library, for LD_LIBRARY_PATH."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (gcc or cc) to build the stand-in for NVIDIA's library")
    source = Path(__file__).parent / "pod" / "fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


class Driver:
    """What the stand-in answers from now on."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "nvml.txt"
        self.log = folder / "nvml.log"

    def say(self, *lines: str) -> None:
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.file)

    @property
    def started(self) -> list[int]:
        """The PIDs of the processes that have called nvmlInit."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []
