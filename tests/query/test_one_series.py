"""One truth about metrics: whatever jobs have written, all who read it have the same values."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Lab
from dispatcher.query.plots.mean_curves import mean_curves
from dispatcher.web.columns import Filter

from dispatcher.query.export.runs import runs_of
from dispatcher.query.export.wandb import _history
from dispatcher.query.results.reading import read_results
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.tuning.rungs import RungValues
from dispatcher.web.board import Board
from dispatcher.web.comparing import choose, compare
from dispatcher.web.curves import STEP, MetricFiles

JOB = "a"
NAMES = ("loss", "$x_1$", "_hidden", "loss, total", "损失", "a/b", "")
STEPS = 40


def lines(chance: random.Random, begin: int) -> list[str]:
    """Lines as a training writes them that goes on, is rewound, skips steps, diverges, and is killed."""
    found, step = [], begin
    for _ in range(chance.randrange(30)):
        step = max(0, step + chance.choice((1, 1, 1, 2, 5, 0, -7)))
        value = chance.choice((chance.random(), chance.randrange(9), "NaN", "Infinity", None, 1e300))
        names = chance.sample(NAMES, chance.randrange(1, len(NAMES)))
        found.append(json.dumps({"step": step, "wall_s": step / 2, **dict.fromkeys(names, value)}) + "\n")
        found += chance.choices(("", "{torn\n", '{"loss": 1}\n'), (9, 1, 1))
    if found:
        found.append(found[0][: chance.randrange(len(found[0]))])
    return found


@pytest.fixture(params=range(12))
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    """A job of one to four attempts; each goes on at a step of its own, with a copy of the lines before or without."""
    chance = random.Random(request.param)
    (tmp_path / "lab" / "templates").mkdir(parents=True)
    lab = Lab(tmp_path / "lab", None)
    lab.write_manifest([{"job_id": JOB, "method": "fft"}])
    before: list[str] = []
    with lab.workspace.transaction() as tx:
        tx.change(JOB, Event.QUEUED, Change(state=State.QUEUED))
        for number in range(1, chance.randrange(1, 5) + 1):
            if number > 1:
                tx.change(JOB, Event.REQUEUED, Change(state=State.QUEUED))
            tx.change(JOB, Event.CLAIMED, Change(state=State.RUNNING, attempt=number, pod="gpu-a"))
            begin = chance.randrange(20)
            kept = [line for line in before if line.startswith('{"step"') and line.endswith("\n")]
            copied = [line for line in kept if json.loads(line)["step"] <= begin] if chance.random() < 0.5 else []
            before = copied + lines(chance, begin)
            lab.attempt(JOB, number).joinpath("metrics.jsonl").write_text("".join(before))
        tx.change(JOB, Event.DONE, Change(state=State.DONE, exit_code=0))
    return lab


def test_all_readers_have_the_same_values(lab: Lab) -> None:
    counted = {one.metric: one for one in lab.workspace.metrics()}
    of_api = {name: list(zip(one.steps, map(repr, one.values), strict=True)) for name, one in counted.items()}
    assert all(list(one.steps) == sorted(set(one.steps)) for one in counted.values())
    snapshot = lab.workspace.snapshot()
    assert exported(lab, snapshot) == of_api
    board = Board(lab.root, {})
    board.look()
    last = snapshot.records[JOB].attempt
    for name, one in counted.items():
        finite = [(step, value) for step, value in zip(one.steps, one.values, strict=True) if math.isfinite(value)]
        (curve,) = mean_curves({JOB: ()}, [one])
        drawn = zip(curve.steps, curve.means, strict=True)
        assert [point for point in drawn if point[0] not in curve.nan_steps] == finite
        read = MetricFiles().read(lab.layout.attempt(JOB, last).directory, math.inf)
        assert read is not None and (series := read.series(name)) is not None
        assert list(zip(series.x, series.y, strict=True)) == finite
        if name:
            compared = compare(MetricFiles(), choose(board, (), Filter(), ()), name, STEP, 1000, time.monotonic() + 60)
            found = [(group["x"], group["mean"]) for group in compared["groups"]]
            assert found == ([([s for s, _ in finite], [float(f"{v:.7g}") for _, v in finite])])
        reached = RungValues(lab.layout, name, range(STEPS)).reached(JOB, last)
        ends = {rung: place for rung in range(STEPS) for place in [first_at(one.steps, rung)] if place is not None}
        values = {rung: one.values[place] for rung, place in ends.items()}
        expected = {rung: value if math.isfinite(value) else None for rung, value in values.items()}
        assert {one.rung: one.value for one in reached} == expected


def first_at(steps: Any, rung: int) -> int | None:
    return next((place for place, step in enumerate(steps) if step >= rung), None)


def exported(lab: Lab, snapshot: Any) -> dict[str, list[tuple[int, str]]]:
    """The values that W&B is given, by metric and step."""
    runs = runs_of(lab.layout, snapshot.records, read_results(lab.layout, snapshot, every_job=True))
    found: dict[str, list[tuple[int, str]]] = {}
    for run in runs:
        for step, row in _history(run):
            for name in row.keys() - {"step", "_timestamp", "wall_s"}:
                found.setdefault(name, []).append((step, repr(row[name])))
    return found
