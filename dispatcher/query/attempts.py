"""The small files of an attempt's directory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import Line

# The numbers of the errors of a file that is not there.
MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
# Lines with what became of an attempt: its end, or a whole record where no older line is left.
_ENDS: Final = frozenset(
    {
        Event.DONE, Event.FAILED, Event.RETRIED, Event.AUTO_REQUEUED, Event.STOPPED, Event.PRUNED, Event.ADOPTED,
        Event.SNAPSHOT,
    }
)  # fmt: skip


def parse_object(data: bytes | None) -> dict[str, Any] | None:
    """A JSON object; None when there is no data or it is anything else."""
    if not data:
        return None
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_small(path: Path) -> bytes | None:
    """The content of a small file; None when it does not exist. On NFS it may be a few seconds old.

    What is there and cannot be read, such as a pipe or a file that is too long, has no content.
    """
    found = read_or_why(path)
    return b"" if isinstance(found, str) else found


def read_or_why(path: Path | str) -> bytes | str | None:
    """The content of a small file; why it cannot be read; None when it does not exist."""
    try:
        return files.read_at_once(path)
    except OSError as error:
        return None if error.errno in MISSING else (error.strerror or str(error))


def journalled(lines: Iterable[Line]) -> dict[int, dict[str, Any]]:
    """What the journal's lines of one job tell of each attempt by number.

    Keys: host and started_at; once it has ended event, finished_at, exit_code, reason and error. Only the journal has
    the reason: `exit.json` has what the wrapper knew.
    """
    found: dict[int, dict[str, Any]] = {}
    number = 0
    for line in lines:
        number = line.set.get("attempt") or number
        facts = found.setdefault(number, {})
        facts |= {key: line.set[key] for key in ("host", "started_at") if line.set.get(key) is not None}
        # Of one whose host died only the reason is known.
        if line.event in _ENDS and (line.set.get("finished_at") or line.event is Event.AUTO_REQUEUED):
            facts |= {key: line.set.get(key) for key in ("finished_at", "exit_code", "reason", "error")}
            facts["event"] = line.event.value
    return found


def run_facts(run: Mapping[str, Any], clock: Callable[[str | None], str]) -> dict[str, str]:
    """What `run.json` says, as lines for people: the run, the code that it runs, the heartbeat while it runs."""
    devices = run.get("devices")
    words = [str(run.get("run_id")), f"{run.get('status')} on {run.get('host')}"]
    if devices is not None:
        processes = run.get("processes")
        words.append(f"{devices} x {run.get('chip')}" + (f" in {processes} processes" if processes != 1 else ""))
    facts = {"run": ", ".join(words)}
    if run.get("commit"):
        facts["code"] = str(run["commit"])
    if run.get("status") == contract.RUN_RUNNING:
        facts["heartbeat"] = clock(str(run.get("heartbeat_at")))
    if run.get("error"):
        facts["run error"] = str(run["error"])
    return facts
