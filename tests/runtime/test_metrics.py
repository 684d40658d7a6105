"""Metrics: what is logged, and what is left of it when an attempt goes on from an earlier step."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wandb_files import history
from written_metrics import read_metrics

from dispatcher import contract
from dispatcher.errors import StorageError, UsageError
from dispatcher.runtime.execution import local
from dispatcher.runtime.metrics import MetricsLog
from dispatcher.runtime.wandb_log import WandbLog


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def without_time(path: Path) -> list[dict[str, float]]:
    return [{key: value for key, value in line.items() if key != "wall_s"} for line in read_metrics(path)]


def train(directory: Path, *, begin: int, end: int) -> None:
    """Log as a trainer does: the loss of every step, an evaluation of every third, before that step is saved."""
    with MetricsLog(directory, resumed_step=begin) as log:
        for step in range(begin + 1, end + 1):
            log.log(step, {"loss": 1 / step})
            if step % 3 == 0:
                log.log(step, {"held_out/loss": 2 / step})


def test_a_line_is_there_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, clock=Clock())
    log.log(1, {"loss": np.float32(0.5), "accuracy": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "wall_s": 1.0, "loss": 0.5, "accuracy": 1.0}\n'
    log.log(2, {"loss": math.nan, "norm": math.inf, "low": -math.inf})
    log.sync()
    assert json.loads(log.path.read_text().splitlines()[1])["loss"] == "NaN"
    last = read_metrics(log.path)[1]
    assert math.isnan(last["loss"]) and last["norm"] == math.inf and last["low"] == -math.inf
    with pytest.raises(ValueError, match="reserved names of metrics: step"):
        log.log(3, {"step": 1.0})


@given(kills=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=4), torn=st.booleans())
def test_the_last_attempt_has_the_metrics_of_an_undisturbed_run(
    tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[int, int]], torn: bool
) -> None:
    root = tmp_path_factory.mktemp("attempts")
    train(root / "undisturbed", begin=0, end=12)
    begin, attempt = 0, 1
    for more, lost in kills:
        end = min(12, begin + more)
        train(root / str(attempt), begin=begin, end=end)
        if torn:
            with open(root / str(attempt) / "metrics.jsonl", "a") as file:
                file.write('{"step": 13, "lo')
        begin, attempt = max(begin, end - lost), attempt + 1
        # The next attempt dies before it has measured anything.
        (root / str(attempt)).mkdir()
        attempt += 1
    train(root / str(attempt), begin=begin, end=12)
    assert without_time(root / str(attempt) / "metrics.jsonl") == without_time(root / "undisturbed" / "metrics.jsonl")


@pytest.mark.parametrize("wall_s", ['"NaN"', '"soon"', "null"])
def test_a_time_that_is_no_number_ends_no_training(tmp_path: Path, wall_s: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "wall_s": {wall_s}, "loss": 1}}\n')
    with MetricsLog(tmp_path, resumed_step=1, clock=Clock()) as log:
        log.log(2, {"loss": 1.0})
    assert json.loads(log.path.read_text().splitlines()[-1])["wall_s"] == 1.0


def test_time_goes_on_and_a_fresh_start_begins_anew(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "1", clock=Clock()) as log:
        for step in (1, 2, 3):
            log.log(step, {"loss": 1.0})
    with MetricsLog(tmp_path / "2", resumed_step=2, clock=Clock()) as log:
        log.log(3, {"loss": 1.0})
    assert [line["wall_s"] for line in read_metrics(tmp_path / "2" / "metrics.jsonl")] == [1, 2, 3]
    with MetricsLog(tmp_path / "2", resumed_step=0):
        pass
    assert read_metrics(tmp_path / "2" / "metrics.jsonl") == []
    with MetricsLog(tmp_path / "3", resumed_step=2) as log:
        assert read_metrics(log.path) == []


@pytest.mark.parametrize("damage", [b"\0" * 40, b"\xff{", b"{}", b"7", b'{"step": "x"}', b""])
def test_a_damaged_line_does_not_keep_a_training_from_going_on(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that lost its power may leave anything."""
    train(tmp_path / "1", begin=0, end=3)
    path = tmp_path / "1" / "metrics.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, damage + b"\n", *rest, damage + b"\n"]))
    train(tmp_path / "2", begin=3, end=6)
    train(tmp_path / "undisturbed", begin=0, end=6)
    assert without_time(tmp_path / "2" / "metrics.jsonl") == without_time(tmp_path / "undisturbed" / "metrics.jsonl")
    assert f"{path}: line 2 is damaged and is skipped" in caplog.text


def test_lines_survive_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dispatcher.runtime.metrics import MetricsLog\n"
        "log = MetricsLog(Path(sys.argv[1])); step = 0\n"
        "while True:\n    step += 1; log.log(step, {'loss': 1.0}); print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 50:
        pass
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    steps = [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= max(map(int, said or ["50"]))


def test_progress_shows_the_latest_numbers(tmp_path: Path) -> None:
    clock = Clock()
    log = MetricsLog(tmp_path, clock=clock)
    log.log(1, {"loss": 2.0, "norm": math.nan})
    log.progress(1, 10)
    log.log(2, {"loss": 1.0})
    clock.now_s -= 1.5
    log.progress(2, 10)
    path = tmp_path / contract.PROGRESS_FILE
    assert json.loads(path.read_text()).items() >= {"step": 1, "of": 10, "metrics": {"loss": 2.0, "norm": None}}.items()
    clock.now_s -= 1.5
    log.progress(10, 10)
    assert (
        json.loads(path.read_text()).items() >= {"step": 10, "of": 10, "metrics": {"loss": 1.0, "norm": None}}.items()
    )


def test_a_full_disk_leaves_no_part_of_a_line(small_disk: Path) -> None:
    log = MetricsLog(small_disk)
    filler = small_disk / "filler"
    with pytest.raises(StorageError, match=r"metrics\.jsonl: cannot be written: No space left"):
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        for step in range(1, 2000):
            log.log(step, {"a metric with a long name, so that the page is full soon": 1.0})
    kept = read_metrics(log.path)
    assert log.path.read_text().endswith("\n") or not kept
    filler.unlink()
    log.log(9999, {"loss": 1.0})
    assert [line["step"] for line in read_metrics(log.path)] == [*(line["step"] for line in kept), 9999]


def test_the_place_is_the_attempt_or_beside_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = local(tmp_path / "out", "run")
    assert MetricsLog.of(spec).path == spec.result_path("metrics.jsonl")
    monkeypatch.setenv(contract.ATTEMPT_DIR, str(tmp_path / "1"))
    assert MetricsLog.of(spec).path == tmp_path / "1" / "metrics.jsonl"


FAKE_WANDB = """
import json, os
class Run:
    def __init__(self, **options):
        self.say(options)
    def say(self, what):
        with open(os.environ["FAKE_WANDB_LOG"], "a") as file:
            file.write(json.dumps(what) + "\\n")
    def log(self, metrics, step):
        self.say([step, metrics])
    def finish(self):
        self.say("finished")
def init(**options):
    return Run(**options)
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Any]]]:
    """A stand-in of W&B's package, and what it was told."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "wandb.py").write_text(FAKE_WANDB)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("FAKE_WANDB_LOG", str(tmp_path / "said"))
    # Another test of this process may have imported the real one.
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield lambda: [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    sys.modules.pop("wandb", None)


def test_weights_and_biases_goes_on_in_the_same_run(tmp_path: Path, said: Callable[[], list[Any]]) -> None:
    """Whose first step may be 0."""
    spec = local(tmp_path, "run", "project")
    for attempt in (0, 1):
        sink = WandbLog(spec)
        with MetricsLog(tmp_path / str(attempt), sinks=(sink,)) as log:
            log.log(attempt, {"loss": 0.5})
        sink.close()
    first, *logged, finished, second, again, _ = said()
    assert (logged, finished, again) == ([[0, {"loss": 0.5}]], "finished", [1, {"loss": 0.5}])
    assert first == second
    assert (first["project"], first["name"], first["resume"]) == ("project", "run", "allow") and first["id"]


def test_weights_and_biases_gets_a_new_run_where_a_training_was_rewound(
    tmp_path: Path, said: Callable[[], list[Any]]
) -> None:
    """Not where an attempt resumes and trains the same steps again at another speed, a NaN among them."""
    spec = local(tmp_path, "run", "project")
    values = {1: 0.5, 2: math.nan, 3: 0.25}
    for attempt, (resumed, changed) in enumerate(((0, {}), (1, {}), (1, {3: 9.0, 4: 8.0})), 1):
        sink = WandbLog(spec)
        with MetricsLog(tmp_path / "1", resumed_step=resumed, sinks=(sink,)) as log:
            for step, value in (values | changed).items():
                if step > resumed:
                    log.log(step, {"loss": value, "speed/step_s": attempt})
        sink.close()
    first, *one, _, second, _, third, _, fourth, two, three, four, five, _ = said()
    assert [step for step, _ in one] == [1, 2, 3], "the second attempt sends nothing that the run has"
    assert first["id"] == second["id"] == third["id"] != fourth["id"]
    sent = [(step, metrics["loss"], metrics["speed/step_s"]) for step, metrics in (two, four, five)]
    assert sent == [(1, 0.5, 1), (3, 9.0, 3), (4, 8.0, 3)]
    assert three[0] == 2 and math.isnan(three[1]["loss"])
    assert spec.result_path("wandb_id").read_text() == fourth["id"]


@pytest.mark.slow
def test_the_files_of_weights_and_biases_have_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of W&B's own package, without a network: one run for what is resumed, another for what is rewound."""
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("CONSOLE", "off")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    spec = local(tmp_path, "run", "project")
    attempts = ((0, {1: 0.5, 2: math.nan, 3: 0.25}), (1, {2: math.nan, 3: 0.25, 4: 0.125}), (2, {3: 9.0, 4: 8.0}))
    ids = []
    for resumed, values in attempts:
        sink = WandbLog(spec)
        with MetricsLog(tmp_path / "1", resumed_step=resumed, sinks=(sink,)) as log:
            for step, value in values.items():
                log.log(step, {"loss": value})
        sink.close()
        ids.append(spec.result_path("wandb_id").read_text())
    assert ids[0] == ids[1] != ids[2]
    files = {id: sorted(tmp_path.rglob(f"offline-run-*/run-{id}.wandb")) for id in ids}
    rows = {id: [(row["_step"], float(row["loss"])) for path in files[id] for row in history(path)] for id in ids}
    assert str(sorted(rows[ids[0]])) == "[(1, 0.5), (2, nan), (3, 0.25), (4, 0.125)]"
    assert str(rows[ids[2]]) == "[(1, 0.5), (2, nan), (3, 9.0), (4, 8.0)]"


@pytest.mark.parametrize("left", ['[2, {"los', "\0\0\0\n", '[2, {"\xc3'])
def test_weights_and_biases_goes_on_after_a_line_that_a_crash_has_damaged(
    tmp_path: Path, said: Callable[[], list[Any]], left: str
) -> None:
    spec = local(tmp_path, "run", "project")
    for number, values in enumerate(({1: 0.5}, {2: 0.25}, {2: 0.25, 3: 0.125})):
        sink = WandbLog(spec)
        for step, value in values.items():
            sink(step, {"loss": value})
        sink.close()
        if not number:
            with spec.result_path("wandb_sent.jsonl").open("ab") as file:
                file.write(left.encode("latin-1"))
    assert [each for each in said() if isinstance(each, list)] == [
        [1, {"loss": 0.5}],
        [2, {"loss": 0.25}],
        [3, {"loss": 0.125}],
    ]


@pytest.mark.skipif("wandb" in sys.modules, reason="wandb is imported already")
def test_without_wandb_nothing_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="pip install wandb"):
        WandbLog(local(tmp_path, "run"))
