"""Adoption: a lab's own script has kept a status file, and no dispatcher has run here yet.

Such scripts put `matrix_status.json` beside the manifest or into the workspace's root. Without its records all jobs
would be queued and finished work would run again. So nothing that changes the run state starts before they are adopted,
or before dispatcher.yaml says that the file stays where it is.

After that, dispatchers do not read the script's file and the script does not read theirs, so both would run the same
jobs. So no pod claims while the script goes on: its file is no longer what was adopted, a copy of which is kept, or a
process of this host that has started a job of that file still lives.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.times import parse_time
from dispatcher.errors import StateError, StorageError
from dispatcher.run_state import journal
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.adopting import adopt
from dispatcher.run_state.edits.changes import Changes
from dispatcher.run_state.external import Presence, presence
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.workspace import STATUS_FILE, Layout

# The clock of the host that began the run state and that of the file server may differ.
_CLOCK_SLACK_S: Final = 5.0


def _has_run_state(layout: Layout) -> bool:
    """Whether there is a run state: a journal, or the status file that begins one."""
    return os.path.lexists(layout.status_file) or bool(journal.generations(layout))


def find_unadopted(layout: Layout, manifests: Iterable[Path] = ()) -> Path | None:
    """The status file of a lab's own script that was not adopted; None without one, or when there is a run state."""
    return None if _has_run_state(layout) else next(_lab_files(layout, manifests), None)


def _lab_files(layout: Layout, manifests: Iterable[Path]) -> Iterator[Path]:
    places = (layout.matrix_dir, *(path.parent for path in manifests), layout.root)
    found = (place / STATUS_FILE for place in dict.fromkeys(places))
    return (path for path in found if path != layout.status_file and path.is_file())


def keep_adopted(layout: Layout, path: Path, data: bytes) -> None:
    """Keep a copy of a status file that is being adopted, with its times: any other content was written later."""
    files.replace_file(layout.adopted_file, data)
    found = os.stat(path)
    # The script may have written it meanwhile.
    if files.read_fresh(path) == data:
        os.utime(layout.adopted_file, ns=(found.st_atime_ns, found.st_mtime_ns))


def ignored_file_text(layout: Layout, manifests: Iterable[Path] = ()) -> str:
    """What is wrong when a script still writes a status file that no dispatcher reads; empty when none does."""
    found = list(_lab_files(layout, manifests))
    began_s = _began_s(layout) if found else None
    written = next((path for path in found if began_s is not None and _is_written_since(layout, path, began_s)), None)
    if written is None:
        return ""
    return (
        f"{written} was written after dispatchers began here, which do not read it: "
        f"its script may claim the same jobs. {_script_cure(layout, written)}"
    )


def _script_cure(layout: Layout, path: Path) -> str:
    return (
        f"Stop the script, record with `dispatcher mark` how its jobs have ended, and move the file away "
        f"(mv {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}); or let the script write {layout.status_file}; "
        "or start the pod with --anyway"
    )


def _is_written_since(layout: Layout, path: Path, began_s: float) -> bool:
    with files.storing("reading", path):
        found, adopted = files.stat(path), files.stat(layout.adopted_file)
        if found is None:
            return False
        if adopted is None:
            return found.st_mtime > began_s + _CLOCK_SLACK_S
        if (found.st_size, found.st_mtime_ns) == (adopted.st_size, adopted.st_mtime_ns):
            return False
        return found.st_size != adopted.st_size or files.read_plain(path) != files.read_plain(layout.adopted_file)


def refuse_old_script(layout: Layout, manifests: Iterable[Path] = ()) -> None:
    """Raise StateError while a lab's own script may claim jobs in a status file that no dispatcher reads."""
    manifests = list(manifests)
    text = ignored_file_text(layout, manifests)
    if not text and _has_run_state(layout):
        living = (_living_script(layout, path) for path in _lab_files(layout, manifests))
        text = next(filter(None, living), "")
    if text:
        raise StateError(f"no job is claimed here: {text}. Nothing was changed")


def _living_script(layout: Layout, path: Path) -> str:
    """Which process of this host has started a job that the file shows as running, and may start another; or ""."""
    import psutil

    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for job, record in _running(layout, path):
        if record.pid is None or presence(record) is not Presence.HERE:
            continue
        try:
            script = psutil.Process(record.pid).parent()
            # What has started this pod as well is a shell or a service, and init takes in what a script has left.
            if script is None or script.pid in own or script.pid == 1:
                continue
            words = shlex.join(script.cmdline()) or script.name()
        except psutil.Error:
            continue
        return (
            f"{words} (pid {script.pid}) has started {job} (pid {record.pid}), which {path} shows as running, and may "
            f"claim more jobs there. {_script_cure(layout, path)}"
        )
    return ""


def _running(layout: Layout, path: Path) -> Iterator[tuple[str, Record]]:
    for edit in read_lab_file(layout, path).edits:
        fields = edit.change.fields()
        if edit.change.state in IN_FLIGHT:
            pid, host, started_at = (fields.get(name) for name in ("pid", "host", "started_at"))
            yield edit.job, Record(state=State.RUNNING, pid=pid, host=host, started_at=started_at)


def _began_s(layout: Layout) -> float | None:
    """When the run state began, by the clock of the host that began it."""
    numbers = journal.generations(layout)
    header = journal.read_header(layout, numbers[0]) if numbers else None
    return None if header is None else parse_time(header.at)


def refuse_unadopted(layout: Layout, manifests: Iterable[Path] = ()) -> None:
    """Raise StateError when a status file waits to be adopted."""
    path = find_unadopted(layout, manifests)
    if path is not None:
        raise StateError(f"{adopt_hint(layout, path)}. Nothing was changed")


def adopt_hint(layout: Layout, path: Path) -> str:
    """What to do about a status file that was not adopted."""
    named = os.path.relpath(path, layout.root)
    return (
        f"{path} has records that no dispatcher has adopted: all its jobs would be queued again. "
        f"Run `dispatcher init --adopt {shlex.quote(named)}` (in {layout.root}) to adopt them, or write "
        f"`status_file: {named}` into {layout.config_file.name} to keep the file where it is"
    )


def read_lab_file(layout: Layout, path: Path) -> Changes:
    """What adopting the status file at `path` would do, line by line. Raises StatusFileError when it is broken."""
    with files.storing("reading", path):
        data = files.read_fresh(path)
    if data is None:
        raise StorageError(f"{path}: no such file; name the status file of your own script")
    found = status_file.parse_first(data, str(path), is_foreign=path != layout.status_file)
    return adopt(found.jobs, found.others)
