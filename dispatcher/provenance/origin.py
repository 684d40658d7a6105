"""What a pod knows of an attempt when it starts it: the part of its provenance that needs no program."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatcher.provenance.record import GitState, HostFacts, Template


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt in `directory`, as it is started.

    `git` is the code where that is known already, such as that of a snapshot; None: what the workspace has now, or if
    not `runs_workspace`, what the host tells. `problems` say what is unknown of it. `host` None: the attempt's host
    tells for itself what it is, and which Python it runs. `path` is the PATH of the command in `cwd`; None: unknown,
    so only a program with a slash in its name is found. `hides_python`: the first word does not tell which Python
    runs, as in a container.
    """

    directory: str
    command: tuple[str, ...]
    template: Template | None = None
    script_sha256: str | None = None
    environment: Mapping[str, str] = {}
    env_names: tuple[str, ...] = ()
    git: GitState | None = None
    problems: tuple[str, ...] = ()
    runs_workspace: bool = True
    host: HostFacts | None = None
    path: str | None = None
    hides_python: bool = False
    cwd: str = ""
