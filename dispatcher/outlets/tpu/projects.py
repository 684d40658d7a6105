"""The projects of Google Cloud in which this workspace has TPU VMs: `run_state/tpu_projects`, `PROJECT HOST` a line.

A VM is found by its label in whatever zone it is, but only in a project that is asked. The configuration and gcloud's
own setting may name another project by now. A host that names no `project` keeps the one in which it was used last:
gcloud's own counts only as long as there is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import UsageError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu.gcloud import own_project
from dispatcher.workspace import Layout

# What Google takes as the id of a project, with the domain that old ones have, and what it takes as the name of a VM.
_LINE: Final = re.compile(r"((?:[a-z0-9.-]+:)?[a-z0-9-]+)(?: ([a-z0-9-]+))?")


def known_projects(layout: Layout) -> list[str]:
    """In the order in which they were first used; raises StorageError."""
    return list(dict.fromkeys(project for project, _ in _lines(layout)))


def remember_project(layout: Layout, host: str, project: str) -> None:
    """Note that a host of this name is there; raises StorageError."""
    if not _LINE.fullmatch(f"{project} {host}") or _last_project(layout, host) == project:
        return
    with files.storing("noting the project in", layout.tpu_projects), files.shared_umask(layout.root):
        layout.run_state.mkdir(parents=True, exist_ok=True)
        # One short write at the end: lines of two dispatchers never mix.
        file = os.open(layout.tpu_projects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, f"{project} {host}\n".encode())
        finally:
            os.close(file)


def with_project(host: TpuHost, layout: Layout) -> TpuHost:
    """The host with the project in which it was used last, if it names none; raises StorageError."""
    project = host.project or _last_project(layout, host.name)
    return host if project == host.project else msgspec.structs.replace(host, project=project)


def settled(host: TpuHost, layout: Layout) -> TpuHost:
    """As `with_project`, and with gcloud's own project where it was not used; UsageError where gcloud has none."""
    known = with_project(host, layout)
    return known if known.project else msgspec.structs.replace(known, project=own_project(host))


def other_projects(hosts: Sequence[TpuHost], layout: Layout) -> list[str]:
    """A line for each of these configured hosts that names no project and is in another one than gcloud's own."""
    used = {host.name: with_project(host, layout).project for host in hosts if not host.project}
    used = {name: project for name, project in used.items() if project}
    if not used:
        return []
    try:
        own = own_project(next(host for host in hosts if host.name in used))
    except UsageError:
        return []
    return [
        f"hosts.{name} names no project: {project} counts, where this workspace has used it, and not gcloud's own, "
        f"{own}; `project: {own}` of the host would change that"
        for name, project in used.items()
        if project != own
    ]


def _last_project(layout: Layout, host: str) -> str | None:
    return next((project for project, name in reversed(_lines(layout)) if name == host), None)


def _lines(layout: Layout) -> list[tuple[str, str]]:
    with files.storing("reading", layout.tpu_projects):
        text = (files.read_fresh_small(layout.tpu_projects) or b"").decode(errors="replace")
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return [(match[1], match[2] or "") for match in found if match]
