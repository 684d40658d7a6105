"""Changes from the page: the same as the commands, recorded in the journal under the name of the server's user.

With a store of its own on a thread of its own, because a transaction may wait for the lock, and the page must not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.api import Workspace
from dispatcher.base.file_identity import identity_at
from dispatcher.errors import UsageError
from dispatcher.workspace import Layout

MOST_JOBS: Final = 10_000


class ChangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a change: the jobs by id, or the scope that is paused. Never a glob: what is changed was seen."""

    jobs: list[str] = []
    scope: str = ""
    why: str = ""


_decode: Final = msgspec.json.Decoder(ChangeRequest)
_OF_JOBS: Final[Mapping[str, Callable[..., Any]]] = {
    "requeue": Workspace.requeue,
    "hold": Workspace.hold,
    "cancel": Workspace.cancel,
}
NAMES: Final = (*_OF_JOBS, "pause", "unpause")


def parse(body: bytes) -> ChangeRequest:
    """The body of a request. Raises UsageError."""
    try:
        return _decode.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f'the body is not understood: {error}. Expected {{"jobs": [ID, ...]}} or {{"scope": NAME}}'
        ) from None


class Changer:
    """Makes the changes. For one thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._workspace: Workspace | None = None
        self._settings: tuple[int, int, int] | None = None

    def change(self, name: str, request: ChangeRequest) -> dict[str, Any]:
        """Do what was asked; what became of each job. Raises DispatcherError; nothing was changed then."""
        workspace = self._opened()
        if name in _OF_JOBS:
            return self._change_jobs(workspace, name, request)
        if not request.scope or request.jobs:
            raise UsageError(
                f'{name} needs a scope: {{"scope": "fft"}}, a method, METHOD:KEY=VALUE, gpu:HOST:N or host:HOST'
            )
        if name == "pause":
            workspace.pause(request.scope, request.why[:1000])
        else:
            workspace.unpause(request.scope)
        return {"scope": request.scope, "done": f"{name}d"}

    def _opened(self) -> Workspace:
        """The workspace with the settings of now; as long as they stay, what was read of the journal is kept."""
        settings = identity_at(Layout(self._root).config_file)
        if self._workspace is None or settings != self._settings:
            self._workspace, self._settings = Workspace(self._root), settings
        return self._workspace

    def _change_jobs(self, workspace: Workspace, name: str, request: ChangeRequest) -> dict[str, Any]:
        if not request.jobs or request.scope:
            raise UsageError(f'{name} needs jobs by their ids: {{"jobs": ["fft_s1"]}}')
        if len(request.jobs) > MOST_JOBS:
            raise UsageError(f"{len(request.jobs)} jobs at once: at most {MOST_JOBS}; use `dispatcher {name} --where`")
        records = workspace.records()
        unknown = [job for job in request.jobs if job not in records]
        if unknown:
            raise UsageError(f"unknown job {unknown[0]!r}: it may have been deleted; nothing was changed")
        outcome = _OF_JOBS[name](workspace, *request.jobs)
        return {
            "changed": outcome.changed,
            "unchanged": outcome.unchanged,
            "refused": outcome.refused,
            "left_alone": list(outcome.left_alone),
        }
