"""What came of the first boot of each bed on this machine; `scripts/install-beds` boots them, and all tests go by it.

An outcome counts until the kernel, the processor, the rights, the bed's programs or the beds themselves are others.
Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable

HERE = os.path.dirname(os.path.abspath(__file__))
# Of a user, for all checkouts. Its real path: a run of tests has a home of its own with a link to it.
CACHE = os.path.realpath(
    os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dispatcher-beds")
)
SOURCES = (HERE, os.path.join(os.path.dirname(HERE), "fakes", "volcano"))


class Outcome:
    """Of a bed with these programs. `why_not` is None also where it has never been tried: see `is_known`."""

    def __init__(self, bed: str, programs: Iterable[str]) -> None:
        self._path = os.path.join(CACHE, f"{bed}.outcome")
        self._machine = _digest([_machine(), _sources(), *map(_identity, sorted(programs))])
        self.is_known, self.why_not = False, None
        with contextlib.suppress(OSError, ValueError), open(self._path, encoding="utf-8") as file:
            noted = json.load(file)
            if noted["machine"] == self._machine:
                self.is_known, self.why_not = True, noted["why_not"]

    def note(self, why_not: str | None) -> None:
        self.is_known, self.why_not = True, why_not
        # Without a home directory the bed is tried again each time.
        with contextlib.suppress(OSError):
            os.makedirs(CACHE, exist_ok=True)
            written = f"{self._path}.{os.getpid()}"
            with open(written, "w", encoding="utf-8") as file:
                json.dump({"machine": self._machine, "why_not": why_not}, file)
            os.replace(written, self._path)

    def forget(self) -> None:
        self.is_known, self.why_not = False, None
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _machine() -> str:
    """Kernel, processor and rights."""
    facts = [platform.release(), platform.version(), str(os.geteuid())]
    for path, field in (("/proc/cpuinfo", r"^flags\s.*$"), ("/proc/self/status", r"^CapEff:.*$")):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            facts += re.findall(field, file.read(), re.MULTILINE)[:1]
    return "\n".join(facts)


@functools.cache
def _sources() -> str:
    """The beds as they are in this checkout, without their tests."""
    found = []
    for top in SOURCES:
        for folder, _, names in os.walk(top):
            found += [
                os.path.join(folder, name)
                for name in names
                if not name.startswith("test_") and name.endswith((".py", ".c", ".sh", ".json"))
            ]
    texts = []
    for path in sorted(found):
        with open(path, encoding="utf-8") as file:
            texts.append(f"{os.path.relpath(path, HERE)}\n{file.read()}")
    return _digest(texts)


def _identity(program: str) -> str:
    """Another version of its package brings another file."""
    try:
        found = os.stat(program)
    except OSError:
        return program
    return f"{program} {found.st_size} {found.st_mtime_ns}"


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
