"""What an attempt ran from, as lines for people."""

from __future__ import annotations

import shlex
from typing import Any, Final

from dispatcher.base.messages import counted, first_names
from dispatcher.errors import StateError
from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.read import package_lines, read_provenance
from dispatcher.provenance.record import GitState, GpuName
from dispatcher.workspace import Layout

# Digits of a digest, enough to tell apart what one workspace has.
_DIGITS: Final = 12
_SHOWN_NAMES: Final = 5


def provenance_facts(layout: Layout, job: str, attempt: int) -> dict[str, Any]:
    """What an attempt ran from by name, each in one line; that it is not recorded, if so."""
    found = read_provenance(layout, job, attempt)
    if found is None:
        return {"recorded": "nothing"}
    packages = package_lines(layout, job, attempt)
    facts: dict[str, Any] = {**_code(found.git), "template": found.template and found.template.path}
    facts["command"] = shlex.join(found.command) or None
    if found.python is not None:
        facts["python"] = " ".join(filter(None, (found.python.version, found.python.executable)))
    if packages is not None:
        digest = f" ({found.packages[:_DIGITS]})" if found.packages else ""
        facts["packages"] = f"{len(packages)}{digest}"
    facts["host"] = found.host
    for number, gpu in enumerate(found.gpus):
        facts[f"gpu {number if gpu.index is None else gpu.index}"] = _gpu(gpu)
    facts["driver"] = found.driver
    if found.environment:
        facts["environment"] = " ".join(f"{name}={shlex.quote(value)}" for name, value in found.environment.items())
    if found.env_names:
        facts["env"] = " ".join(found.env_names)
    for number, problem in enumerate(found.problems):
        facts[f"unknown{f' {number + 1}' if number else ''}"] = problem
    return facts


def code_of(layout: Layout, job: str, attempt: int) -> bytes:
    """The uncommitted changes with which an attempt ran, as a patch; empty when there were none.

    Raises StateError when they are not recorded, and says why.
    """
    found = read_provenance(layout, job, attempt)
    where = f"{job}, attempt {attempt}"
    if found is None:
        raise StateError(f"{where}: it is not recorded what it ran from")
    if found.git is None or found.git.commit is None:
        why = f": {first_names(found.problems)}" if found.problems else ""
        raise StateError(f"{where}: its code is not known{why}")
    git = found.git
    if not git.is_dirty:
        return b""
    if git.diff is None:
        why = f": {first_names(found.problems)}" if found.problems else ""
        raise StateError(f"{where}: its uncommitted changes are not known{why}")
    if git.diff_omitted:
        raise StateError(f"{where}: its uncommitted changes were not kept: {git.diff_stat}, {_size(git.diff_bytes)}")
    data = Blobs(layout).diff(git.diff)
    if data is None:
        raise StateError(f"{layout.provenance_diff(git.diff)}: the file is gone or damaged")
    return data


def _code(git: GitState | None) -> dict[str, Any]:
    if git is None:
        return {}
    branch = f" on {git.branch}" if git.branch is not None else ""
    facts: dict[str, Any] = {"commit": f"{git.commit}{branch}" if git.commit else f"none yet{branch}"}
    if git.is_dirty:
        omitted = f"; not kept ({_size(git.diff_bytes)})" if git.diff_omitted else ""
        facts["changes"] = f"{git.diff_stat or 'unknown'}{omitted}"
    untracked = len(git.untracked) + git.untracked_more
    if untracked:
        names = first_names(list(git.untracked), _SHOWN_NAMES)
        facts["untracked"] = f"{counted(untracked, 'file')}: {names}"
    if git.unchecked:
        names = first_names(git.unchecked, _SHOWN_NAMES)
        facts["unchecked"] = f"{counted(len(git.unchecked), 'file')} that only a filter can compare: {names}"
    if git.submodules:
        facts["submodules"] = ", ".join(f"{path} {_of_submodule(commit)}" for path, commit in git.submodules.items())
    if git.shipped is not None:
        facts["archive"] = git.shipped[:_DIGITS]
    facts["remote"] = git.remote
    return facts


def _of_submodule(commit: str) -> str:
    commit, plus, _ = commit.partition("+")
    # `changes` is the difference of the repository around it.
    note = " with uncommitted changes, which are not recorded" if plus else ""
    return f"{commit[:_DIGITS] or 'unknown commit'}{note}"


def _gpu(gpu: GpuName) -> str:
    return ", ".join(filter(None, (gpu.name, gpu.uuid))) or "unknown"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
