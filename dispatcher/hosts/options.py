"""What methods and entries say for one kind of scheduler (`slurm`, `pbs`), and where a job's project comes from.

`job_project_source` of a host names the source of SLURM's wckey, or of PBS's project: `workspace`, the name of its
directory; `user`, the owner of the job; `label:KEY`, what the entry has under KEY; `label`, under `label`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from dispatcher.hosts.fields import LABEL, OF_WORKSPACE
from dispatcher.hosts.types import PbsHost, PbsOptions, SlurmHost, SlurmOptions

# What both SLURM and PBS take in such a name.
_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_Options = TypeVar("_Options", SlurmOptions, PbsOptions)


def merged(of_method: _Options | None, of_entry: _Options | None) -> _Options | None:
    """Those of a method with those of an entry: what the entry sets counts, and arguments of both are given."""
    if of_method is None or of_entry is None:
        return of_entry or of_method
    both: dict[str, Any] = {}
    for name in of_entry.__struct_fields__:
        before: Any = getattr(of_method, name)
        value: Any = getattr(of_entry, name)
        both[name] = (*before, *value) if isinstance(value, tuple) else before if value is None else value
    return msgspec.structs.replace(of_entry, **both)


def label_key(source: str) -> str:
    """The key of entries that `label` or `label:KEY` means; empty for another source."""
    word, _, key = source.partition(":")
    return (key or LABEL) if word == LABEL else ""


def project_of(host: SlurmHost | PbsHost, workspace: str, projects: Mapping[str, str]) -> str | None:
    """The wckey or the project of a job; `projects` are the values of the job's own sources."""
    named = host.wckey if isinstance(host, SlurmHost) else host.project
    if host.job_project_source is None:
        return named
    found = workspace if host.job_project_source == OF_WORKSPACE else projects.get(host.job_project_source, "")
    return _UNUSABLE.sub("_", found) or named
