"""A matrix of 100,000 jobs: most are done, thousands have failed of few causes, 200 run, the others wait."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from dispatcher.matrix.entry import read_entry
from dispatcher.run_state import journal
from dispatcher.run_state.events import Event
from dispatcher.run_state.generations import encode_generation, publish
from dispatcher.run_state.journal import Header, Line, now_text
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

METHODS = ("fft", "lora", "distill", "probe")
LANGUAGES = ("spanish", "czech", "greek", "hindi", "turkish", "vietnamese")
RATES = (1e-3, 3e-4, 1e-4)
RUNNING = 200
# So many of those that are done have a result: each is a file.
RESULTS = 500
_REASONS = ("exit 1", "out of memory", "time limit")
_WRONG = ("rank", "loss", "shape")


def entries(count: int) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for number in range(count):
        method, language = METHODS[number % 4], LANGUAGES[number // 4 % 6]
        rate, seed = RATES[number // 24 % 3], number // 72
        job = f"{method}_{language}_lr{rate:g}_s{seed}_main"
        made.append(
            {"job_id": job, "method": method, "lang": language, "lr": rate, "seed": seed, "command": ["/bin/true"]}
        )
    return made


def make(root: Path, count: int = 100_000) -> Layout:
    """The workspace, its journal as pods have left it."""
    layout = Layout(root)
    layout.matrix_dir.mkdir(parents=True)
    listed = entries(count)
    layout.default_matrix.write_text(json.dumps(listed))
    layout.config_file.write_text("")
    lines: list[Line] = []
    now_s, chance = time.time(), random.Random(1)

    def add(at_s: float, event: Event, job: object, **fields: object) -> None:
        lines.append(Line(seq=len(lines) + 1, at=now_text(at_s), by="pod", event=event, job=str(job), set={**fields}))

    for entry in listed:
        add(now_s - 7e5, Event.QUEUED, entry["job_id"], state="queued")
    done, failed = count * 6 // 10, count // 20
    for number, entry in enumerate(listed[: done + failed + RUNNING]):
        job, (known, _) = entry["job_id"], read_entry(dict(entry), 0)
        assert known is not None
        runs = number >= done + failed
        end_s = now_s - 6e5 + 5.9e5 * number / (done + failed)
        start_s = (now_s if runs else end_s) - 1000 - 600 * chance.random()
        place = {"pod": f"gpu-{number % 4}", "host": f"node-{number % 4}", "gpu": number % 8, "outlet": "local"}
        begun = {"state": "running", "attempt": 1, "started_at": now_text(start_s), "ran_with": known.digest()}
        add(start_s, Event.CLAIMED, job, **begun, **place)
        if number < done:
            add(end_s, Event.DONE, job, state="done", finished_at=now_text(end_s), exit_code=0)
        elif not runs:
            error = f"ValueError: bad {_WRONG[number % 3]} {number} in {job}"
            ended = {"state": "failed", "finished_at": now_text(end_s), "exit_code": 1}
            add(end_s, Event.FAILED, job, **ended, reason=_REASONS[number % 3], error=error)
        paths = layout.attempt(str(job), 1)
        if runs:
            paths.directory.mkdir(parents=True)
            progress = {"step": int(5000 * chance.random()), "of": 5000, "metrics": {"loss": 2.1}}
            paths.progress.write_text(json.dumps(progress))
        elif number < RESULTS:
            paths.directory.mkdir(parents=True)
            paths.result.write_text(json.dumps({"test_bpc": round(1 + chance.random(), 4)}))
    store = Store(layout, by="pod")
    store.prepare()
    header = Header(format=journal.FORMAT, version=journal.VERSION, lock=store.lock_kind, at=now_text(now_s))
    publish(layout.journal(1), encode_generation(header, lines))
    store.close()
    return layout
