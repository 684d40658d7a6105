"""Whether the Python that runs a method's jobs has this package, asked before a job fails by it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dispatcher.base.libraries import PACKAGES, install_command
from dispatcher.config import Method, interpreter, python_environment

# Not from the current directory, which is not on the path of a script. Prints whether it is there, then the path.
_PROGRAM = """
import importlib.util, sys
sys.path = [place for place in sys.path if place]
print(importlib.util.find_spec("dispatcher") is not None, *sys.path, sep="\\n")
"""
# The pod's loop waits for the answer. Of a Python that is slower (from a cold network disk) it is not known.
_LONGEST_S: Final = 5.0
# An installation changes directories many times.
_PAUSE_S: Final = 5.0

_Places = tuple[tuple[str, int], ...]


class _Answer(NamedTuple):
    """Whether an interpreter lacks the package, and the places that a change of this would touch."""

    lacks_package: bool
    places: _Places
    next_look_s: float


# By interpreter and PYTHONPATH.
_known: dict[tuple[str, str], _Answer] = {}


def package_fault(method: Method, reader: str, extra: str = "") -> str:
    """Why the method's jobs cannot import this package, as `reader` does, and what to install; empty when they can.

    Cheap for an interpreter that was asked before: it is asked again when what it imports from has changed.
    """
    if method.python is None and not _is_checkout():
        return ""
    python = os.fspath(interpreter(method.python))
    if not _lacks_package(python, python_environment(method)):
        return ""
    named = f"python = {method.python}" if method.python is not None else python
    # Scripts need dispatcher.contract alone, which imports nothing else.
    cure = install_command(extra, python) if extra else install_command(python=python, flags=("--no-deps",))
    return f"{named}: has no package dispatcher, which {reader}; install it: {cure}"


def _is_checkout() -> bool:
    """Whether this process imports the package from the directory of its script, which jobs do not."""
    return os.path.abspath(sys.path[0]) == PACKAGES


def _lacks_package(python: str, env: Mapping[str, str]) -> bool:
    key = python, env.get("PYTHONPATH", "")
    known = _known.get(key)
    if known is None or time.monotonic() >= known.next_look_s:
        if known is None or known.places != _times(place for place, _ in known.places):
            lacks_package, places = _ask(python, env)
        else:
            lacks_package, places, _ = known
        known = _known[key] = _Answer(lacks_package, places, time.monotonic() + _PAUSE_S)
    return known.lacks_package


def _ask(python: str, env: Mapping[str, str]) -> tuple[bool, _Places]:
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM], env=env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=_LONGEST_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        # Whatever is wrong with it, it is not known to lack the package.
        return False, _times([python])
    has_package, *path = done.stdout.splitlines() or ["True"]
    return has_package == "False", _times([python, *path])


def _times(places: Iterable[str]) -> _Places:
    """When each was changed last; installing something changes the directory."""
    return tuple((place, os.stat(place).st_mtime_ns if os.path.exists(place) else 0) for place in places)
