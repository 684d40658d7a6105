"""Workspaces of a given size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.generations import encode_generation, publish
from dispatcher.run_state.journal import Header, Line
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_LANGUAGES = ("spanish", "czech", "greek", "hindi", "turkish", "vietnamese")
_PORTION = 5_000
_AT = "2026-06-17T22:48:00.123Z"


def job_ids(count: int) -> list[str]:
    """Names as long as a lab's."""
    languages = len(_LANGUAGES)
    return [f"fft_{_LANGUAGES[n % languages]}_cfgB_s{n // languages}_main" for n in range(count)]


def make_workspace(root: Path, count: int, command: Sequence[str] = ("/bin/true",)) -> Layout:
    """A workspace whose manifest has `count` entries; nothing is queued yet."""
    layout = Layout(root)
    layout.matrix_dir.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "job_id": job,
            "method": "fft",
            "lang": _LANGUAGES[number % len(_LANGUAGES)],
            "seed": number,
            "asr_ratio": 0.5,
            "output_dir": f"/checkpoints/matrix_runs/{job}",
            "run_kind": "main",
            "command": list(command),
        }
        for number, job in enumerate(job_ids(count))
    ]
    layout.default_matrix.write_text(json.dumps(entries))
    return layout


def queue_all(layout: Layout, count: int) -> None:
    """Queue all entries and write the status file, as a dispatcher does when it meets them."""
    store = Store(layout, by="bench")
    jobs = job_ids(count)
    for start in range(0, count, _PORTION):
        with store.transaction() as tx:
            for job in jobs[start : start + _PORTION]:
                tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    Projector(store).write()
    store.close()


def write_history(layout: Layout, count: int) -> None:
    """The journal of entries that were queued, claimed, started and done: four lines each; and the status file."""
    steps = [
        (Event.QUEUED, {"state": "queued"}),
        (Event.CLAIMED, {"state": "running", "pod": "bench", "started_at": _AT, "attempt": 1, "host": "node-17"}),
        (Event.STARTED, {"pid": 3328333}),
        (Event.DONE, {"state": "done", "finished_at": _AT, "exit_code": 0}),
    ]
    jobs = job_ids(count)
    changes = [(job, event, fields) for event, fields in steps for job in jobs]
    lines = [
        Line(seq=seq, at=_AT, by="bench", event=event, job=job, set=fields)
        for seq, (job, event, fields) in enumerate(changes, 1)
    ]
    store = Store(layout, by="bench")
    store.prepare()
    header = Header(format=journal.FORMAT, version=journal.VERSION, lock=store.lock_kind, at=_AT)
    publish(layout.journal(1), encode_generation(header, lines))
    Projector(store).write()
    store.close()
