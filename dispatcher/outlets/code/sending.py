"""Files of the workspace, sent into the copies of it that hosts have which do not see it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.config import Config
from dispatcher.errors import CodeError
from dispatcher.hosts.types import AnyHost
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.batch.remote_host import greet, layout_there, sees_workspace
from dispatcher.outlets.code.ship import ship_files
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.kinds import ask_hosts
from dispatcher.outlets.remote.connection import NoAnswer
from dispatcher.outlets.remote.operations import Failed, Greeting, Operation, Ran, RunThere, Store
from dispatcher.workspace import Layout

_HELLO_S: Final = 60.0
_SECONDS_PER_MIB: Final = 8.0
_EXTRACT_S: Final = 600.0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the files on one host. `directory` is its copy of the workspace, empty where it sees this one.

    `error`: why they are not there; empty where they are.
    """

    host: str
    directory: str = ""
    error: str = ""


def files_below(layout: Layout, paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """These files, and those below these directories but for run_state/ and .git/, by their paths in the workspace.

    CodeError for what is not in the workspace, or in one of these two.
    """
    root = layout.root.resolve()
    found: dict[str, None] = {}
    for path in paths:
        # A link in the workspace is sent as a link.
        place = Path(os.path.abspath(path))
        place = place if place.is_relative_to(root) else place.parent.resolve() / place.name
        if not place.is_relative_to(root):
            raise CodeError(f"{path}: only files below the workspace {layout.root} can be shipped")
        if {root / "run_state", root / ".git"} & {place, *place.parents}:
            raise CodeError(f"{path}: run_state/ and .git/ of a host are its own and cannot be shipped")
        if not place.is_dir() or place.is_symlink():
            found[os.path.relpath(place, root)] = None
            continue
        for folder, folders, names in os.walk(place):
            folders[:] = [one for one in folders if Path(folder, one) != root / "run_state" and one != ".git"]
            links = [one for one in folders if Path(folder, one).is_symlink()]
            found |= dict.fromkeys(os.path.relpath(os.path.join(folder, name), root) for name in sorted(names + links))
    return list(found)


def send(config: Config, hosts: Sequence[AnyHost], names: Sequence[str]) -> Iterator[Sent]:
    """Send these files, by paths in the workspace, to all hosts at the same time. Raises CodeError, StorageError."""
    layout = config.layout
    # Makes the workspace's id, which tells whether a host sees this one.
    workspace_id(layout)
    hellos: dict[str, Sequence[Operation]] = {
        host.name: [greet(layout, host, config.hosts.cluster_of(host))] for host in hosts
    }
    archive = ship_files(layout, names)
    there: dict[str, str] = {}
    for name, answers in _ask(config, hellos, _HELLO_S).items():
        greeting = answers if isinstance(answers, str) else answers[0]
        if not isinstance(greeting, Greeting):
            yield Sent(host=name, error=greeting if isinstance(greeting, str) else greeting.error)
        elif sees_workspace(layout, greeting):
            yield Sent(host=name)
        else:
            there[name] = os.fspath(layout_there(layout, greeting).root)
    limit_s = _EXTRACT_S + archive.size / 2**20 * _SECONDS_PER_MIB
    asked = {name: _extraction(archive, directory) for name, directory in there.items()}
    for name, answers in _ask(config, asked, limit_s).items():
        yield Sent(host=name, directory=there[name], error=answers if isinstance(answers, str) else _fault(answers))


def _extraction(archive: CodeSnapshot, directory: str) -> Sequence[Operation]:
    path = posixpath.join(directory, "run_state", "shipped", f"{archive.digest}.tar")
    # Files that exist are replaced, so a job that has one open keeps what it has.
    script = 'tar --extract --no-same-owner --file "$1" --directory "$2"; status=$?; rm -f -- "$1"; exit $status'
    return [
        Store(path=path, source=archive.path, size=archive.size, sha256=archive.digest),
        RunThere(words=["sh", "-c", script, "sh", path, directory], timeout_s=_EXTRACT_S, only_after=1),
    ]


def _fault(answers: Sequence[Any]) -> str:
    stored, ran = answers
    if isinstance(stored, Failed):
        return stored.error
    if isinstance(ran, Ran) and ran.exit_code == 0:
        return ""
    return ran.err.strip() or f"tar ended with {ran.exit_code}" if isinstance(ran, Ran) else str(ran.error)


def _ask(
    config: Config, questions: Mapping[str, Sequence[Operation]], timeout_s: float
) -> dict[str, Sequence[Any] | str]:
    """What each host answers; text: why it does not."""
    outcomes = ask_hosts(config, questions, "ship", timeout_s)
    return {name: one.why if isinstance(one, NoAnswer) else one for name, one in outcomes.items()}
