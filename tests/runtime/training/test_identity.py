"""A training that resumes compares its data and its settings with those of its checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_trainings import CLASSES, FEATURES, Classification, made, samples, trained

from dispatcher.errors import CheckpointMismatchError, ConfigError, UsageError
from dispatcher.runtime.command_line import main
from dispatcher.runtime.language.tokens import TokenWindows
from dispatcher.runtime.launching import accept_changes, entry_job
from dispatcher.runtime.training.data import Arrays, Streamed
from dispatcher.runtime.training.identity import Origin, _Same, _same_rows, _sample, identity_of
from dispatcher.runtime.training.trainer import Trainer

pytestmark = pytest.mark.demo

OTHER_VALUES = r"data\(\): other values, or another order, in the same number of rows \(64\)"


class Small(Classification):
    """Trained on ROWS, and evaluated on HELD_OUT."""

    BEST = ("held_out/loss", "min")
    ROWS: ClassVar[Any] = samples(64, seed=1)
    HELD_OUT: ClassVar[Any] = samples(16, seed=2)

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def data(self) -> Any:
        return Arrays(self.ROWS)

    def evaluations(self) -> Any:
        return {"held_out": Arrays(self.HELD_OUT)}

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["label"])


def of(data: Any, evaluations: Any = None) -> type[Small]:
    """A training of this data."""

    class Made(Small):
        def data(self) -> Any:
            return data() if callable(data) else data

        def evaluations(self) -> Any:
            return {} if evaluations is None else evaluations

    Made.__qualname__ = Small.__qualname__
    return Made


def reordered(rows: dict[str, Any]) -> dict[str, Any]:
    return {name: array[::-1] for name, array in rows.items()}


@pytest.mark.parametrize(
    ("rows", "held_out", "message"),
    [
        (samples(64, seed=9), Small.HELD_OUT, OTHER_VALUES),
        (reordered(Small.ROWS), Small.HELD_OUT, OTHER_VALUES),
        (
            {**Small.ROWS, "label": Small.ROWS["label"] ^ np.eye(1, 64, 40, dtype=np.int32)[0]},
            Small.HELD_OUT,
            OTHER_VALUES,
        ),
        (samples(50, seed=1), Small.HELD_OUT, r"data\(\): 64 rows then, 50 rows now"),
        (Small.ROWS, samples(16, seed=9), r"evaluations\(\)\['held_out'\]: other values, .* \(16\)"),
    ],
    ids=["values", "order", "one-row", "length", "evaluation"],
)
def test_other_data_end_a_resume_unless_they_are_accepted(
    tmp_path: Path, rows: Any, held_out: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Other(Small):
        ROWS = rows
        HELD_OUT = held_out

    trained(tmp_path, cls=Small, steps=2)
    with pytest.raises(ConfigError, match=rf"the training that is resumed used other data:\n  {message}\nRestore the"):
        trained(tmp_path, cls=Other, steps=4)
    job = made(tmp_path, cls=Other, steps=4)
    job.accept_changes = True
    job()
    assert "the training goes on with other data: " in caplog.text
    # The position is a number of rows; a best value of other rows is none.
    assert (job.steps_done, job.position) == (4, {"samples": 32})
    assert job.best[0] == 4 or held_out is Small.HELD_OUT
    caplog.clear()
    trained(tmp_path, cls=Other, steps=6)
    assert "other data" not in caplog.text


def test_equal_data_are_no_difference_whatever_holds_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{name: array[place] for name, array in Small.ROWS.items()} for place in range(64)]
    wide = {"x": Small.ROWS["x"].astype(np.float64), "label": Small.ROWS["label"].astype(np.int64)}
    trained(tmp_path, cls=of(Arrays(Small.ROWS)), steps=2)
    for steps, data in ((3, rows), (4, Arrays(wide))):
        trained(tmp_path, cls=of(data), steps=steps)
    assert [record.getMessage() for record in caplog.records if "data()" in record.getMessage()] == []


def test_the_rows_decide_not_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, copy = tmp_path / "rows.npy", tmp_path / "copy.npy"
    rows = np.random.default_rng(0).normal(size=(64, FEATURES)).astype(np.float32)

    def mapped(path: Path) -> type[Small]:
        def data() -> Any:
            return Arrays({"x": np.load(path, mmap_mode="r"), "label": np.zeros(64, np.int32)})

        return of(data)

    np.save(file, rows)
    trained(tmp_path, cls=mapped(file), steps=2)
    os.utime(file, (1_000_000_000, 1_000_000_000))
    trained(tmp_path, cls=mapped(file), steps=3)
    size = f"{file.stat().st_size:,}"
    assert f"data(): {file} was written since ({size} bytes of 20" in caplog.text
    assert (
        f"then, {size} bytes of 2001-09-09T01:46:40.000Z now); 64 of 64 rows were compared and are the same"
        in caplog.text
    )
    np.save(copy, rows)
    trained(tmp_path, cls=mapped(copy), steps=4)
    assert (
        f"data(): read from {file} then, from {copy} now; 64 of 64 rows were compared and are the same" in caplog.text
    )
    np.save(copy, rows + 1)
    with pytest.raises(ConfigError, match=OTHER_VALUES):
        trained(tmp_path, cls=mapped(copy), steps=5)


def test_rounding_is_told_and_no_other_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Data that a program computes have other last digits on another kind of processor."""
    x = Small.ROWS["x"]
    given = np.where(np.arange(x.size).reshape(x.shape) % 7 == 0, np.inf, x).astype(np.float32)
    rounded = np.nextafter(given, np.float32(0), where=np.isfinite(given), out=given.copy())
    trained(tmp_path, cls=of(Arrays({**Small.ROWS, "spare": given})), steps=2)
    trained(tmp_path, cls=of(Arrays({**Small.ROWS, "spare": rounded})), steps=3)
    assert (
        "data(): values differ in their last digits, as another processor computes them; 64 of 64 rows" in caplog.text
    )
    for other in (given * 1.001, np.where(np.isfinite(given), given, np.nan), np.roll(given, 1, axis=1), given[::-1]):
        with pytest.raises(ConfigError, match=OTHER_VALUES):
            trained(tmp_path, cls=of(Arrays({**Small.ROWS, "spare": other.astype(np.float32)})), steps=4)
    numbers = np.ones((64, 2), np.complex64)
    assert _same_rows(_sample(numbers, 8, 3), _sample(numbers * (1 + 1e-7), 8, 3)) is _Same.ROUNDED
    assert _same_rows(_sample(numbers, 8, 3), _sample(numbers * (1 + 1e-3j), 8, 3)) is _Same.NOT


def test_files_of_tokens(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(1000) % 250)
    windows = TokenWindows.from_file(tmp_path / "tokens.npy", 9)
    found = identity_of(windows)
    assert found["rows"] == 111
    assert list(found["files"]) == [str(tmp_path / "tokens.npy")]
    assert list(found["samples"]) == ["32"]
    other = identity_of(TokenWindows((np.arange(1000) + 1) % 250, 9))
    assert other["samples"] != found["samples"]
    assert other["files"] == {}


class Versioned(list[Any]):
    """Rows with a version of their own."""

    def __init__(self, rows: Any, version: Any) -> None:
        super().__init__(rows)
        self.version = version

    def identity(self) -> Any:
        return self.version


def row(value: float) -> dict[str, Any]:
    return {"x": np.full(FEATURES, value, np.float32), "label": 0}


def test_a_source_says_itself_what_it_is(tmp_path: Path) -> None:
    trained(tmp_path, cls=of(Versioned([row(1)] * 8, {"version": 3})), steps=2)
    # It knows what is equal: the rows are not compared.
    trained(tmp_path, cls=of(Versioned([row(2)] * 8, {"version": 3})), steps=3)
    with pytest.raises(ConfigError, match=r'data\(\): its identity\(\) was {"version": 3} then, is {"version": 4} now'):
        trained(tmp_path, cls=of(Versioned([row(1)] * 8, {"version": 4})), steps=4)
    with pytest.raises(ConfigError, match=r"Versioned\.identity\(\): .* expected plain data as in JSON"):
        trained(tmp_path, cls=of(Versioned([row(1)] * 8, object())), steps=4)


class Ones:
    """A stream of equal rows."""

    def __next__(self) -> dict[str, Any]:
        return row(1)

    def __iter__(self) -> Ones:
        return self

    def get_state(self) -> Any:
        return {"given": 1}

    def set_state(self, state: Any) -> None:
        del state


class Named(Ones):
    def __init__(self, name: str) -> None:
        self.identity = lambda: name


def test_a_stream_without_an_identity_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trained(tmp_path, cls=of(Streamed(Ones())), steps=2)
    assert (
        "data() has no identity(), and it is a stream: a resume cannot tell whether it is the same data" in caplog.text
    )
    trained(tmp_path, cls=of(Streamed(Ones())), steps=3)
    assert "step-00000002: whether data() has the rows of this checkpoint is not known" in caplog.text
    trained(tmp_path, "named", of(Streamed(Named("v1"))), steps=2)
    with pytest.raises(ConfigError, match=r'data\(\): its identity\(\) was "v1" then, is "v2" now'):
        trained(tmp_path, "named", of(Streamed(Named("v2"))), steps=3)


def test_rows_that_differ_each_time_cannot_be_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Random(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return row(np.random.default_rng().normal())

    caplog.set_level(logging.INFO)
    trained(tmp_path, cls=of(Random([0] * 8)), steps=2)
    assert "data() has no identity(), and its rows differ each time they are read" in caplog.text
    trained(tmp_path, cls=of(Random([0] * 8)), steps=3)
    assert "whether data() has the rows of this checkpoint is not known: give it an identity()" in caplog.text


def test_a_position_in_a_stream_is_none_in_a_source(tmp_path: Path) -> None:
    trained(tmp_path, cls=of(Streamed(Ones())), steps=2)
    with pytest.raises(ConfigError, match=r"data\(\): a Streamed then, a Source now"):
        trained(tmp_path, cls=of(Arrays(Small.ROWS)), steps=4)
    job = made(tmp_path, cls=of(Arrays(Small.ROWS)), steps=4)
    job.accept_changes = True
    job()
    # It began with the first row.
    assert (job.steps_done, job.position) == (4, {"samples": 16})


def test_a_start_from_another_runs_checkpoint_is_no_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, "base", Small, steps=2)

    class Other(Small):
        ROWS = samples(40, seed=9)

    for name, cls, position in (("same", Small, 32), ("other", Other, 16)):
        job = made(tmp_path, name, cls, steps=4, seed=5)
        job.restore_from_path("default/default/base/step-00000002")
        job()
        assert (job.steps_done, job.position) == (4, {"samples": position})
    assert "base/step-00000002: a training of other data begins: data(): 64 rows then, 40 rows now" in caplog.text
    assert "resumed with other settings" not in caplog.text
    # An attempt after it resumes.
    with pytest.raises(ConfigError, match="40 rows then, 64 rows now"):
        trained(tmp_path, "other", Small, steps=6, seed=5)


def test_settings_that_differ_are_told_with_both_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Configured(Small):
        optimizer = Trainer.optimizer

    trained(tmp_path, cls=Configured, steps=2, optimization={"lr": 1e-3})
    assert "other settings" not in caplog.text
    words: dict[str, Any] = {"steps": 4, "batch_size": 4, "seed": 3, "axis_rules": {"embed": "data"}}
    trained(tmp_path, cls=Configured, optimization={"lr": 0.01}, **words)
    told = next(record.getMessage() for record in caplog.records if "other settings" in record.getMessage())
    assert told.endswith(
        "step-00000002: resumed with other settings: optimization.lr 0.001 then, 0.01 now; "
        'training.axis_rules.embed not set then, "data" now; training.batch_size 8 then, 4 now; '
        "training.seed 0 then, 3 now; training.steps 2 then, 4 now"
    )
    assert "not bit for bit as before: lr 0.0" in caplog.text


def test_settings_are_told_where_they_keep_a_training_from_being_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Configured(Small):
        optimizer = Trainer.optimizer

    trained(tmp_path, cls=Configured, steps=2)
    with pytest.raises(CheckpointMismatchError):
        trained(tmp_path, cls=Configured, steps=4, ema=0.5, optimization={"optimizer": "muon"})
    assert 'other settings: optimization.optimizer "adamw" then, "muon" now; training.ema null then' in caplog.text


def test_comparing_draws_nothing_of_the_training(tmp_path: Path) -> None:
    class Drawing(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return row(np.random.normal())  # the global state is what is meant

    class Seen(Small):
        def data(self) -> Any:
            self.before = np.random.get_state()[1].tolist()
            return Drawing([0] * 8)

        def _reader(self, data: Any) -> Any:
            assert np.random.get_state()[1].tolist() == self.before
            self.before = []
            return super()._reader(data)

    assert trained(tmp_path, cls=Seen, steps=1).before == []


def test_a_schedule_in_code_is_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def scheduled(rate: float) -> type[Small]:
        class Scheduled(Small):
            optimizer = Trainer.optimizer

            def schedule(self) -> Any:
                return optax.constant_schedule(rate)

        return Scheduled

    trained(tmp_path, cls=scheduled(0.5), steps=2)
    trained(tmp_path, cls=scheduled(0.25), steps=4)
    assert "not bit for bit as before: lr 0.5 then, 0.25 now" in caplog.text


def test_what_is_compared_of_large_data() -> None:
    rows = np.zeros((100_000, 2), np.int64)
    assert list(identity_of(Arrays({"x": rows}))["samples"]) == ["32", "100000"]
    wide = np.broadcast_to(np.zeros(2**20, np.int8), (100, 2**20))
    assert list(identity_of(Arrays({"x": wide}))["samples"]) == ["32", "64"]
    assert list(identity_of([{"y": number} for number in range(100)])["samples"]) == ["32"]
    assert list(identity_of([{"y": 1}])["samples"]) == ["1"]
    kinds = {"half": np.ones((3, 2), jnp.bfloat16), "small": np.ones(3, jnp.int4), "yes": np.ones(3, bool)}
    assert list(identity_of(Arrays(kinds))["samples"]) == ["3"]


def test_evaluations_that_come_and_go_are_told() -> None:
    one = identity_of(Arrays({"x": np.zeros(3)}))
    found = Origin("run/step-1", {"data()": one, "old": one}, is_own=True).compared({"data()": one, "new": one})
    assert (found.different, found.told, found.unknown) == ({}, ["new is new", "old is gone"], [])
    assert dataclasses.asdict(Origin("run/step-1", {}, is_own=True).compared({"data()": one}))["unknown"] == ["data()"]
    assert jax.process_count() == 1


LINES = """
from dispatcher.runtime import job
from small_trainings import Classification, samples
from dispatcher.runtime.training.data import Arrays
from pathlib import Path

@job("tests/lines")
class Lines(Classification):
    BEST = None

    def data(self):
        return Arrays(samples(64, seed=int((Path(__file__).parent / "seed").read_text())))

    def evaluations(self):
        return {}
"""


def test_changes_are_accepted_by_an_entry_and_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "lines.py").write_text(LINES)
    (tmp_path / "lines.yaml").write_text("job: tests/lines\n")
    seed = tmp_path / "jobs" / "seed"
    monkeypatch.chdir(tmp_path)

    def attempt(steps: int, **words: Any) -> None:
        entry = {"job_id": "a", "job": "tests/lines", "config": {"training": {"steps": steps}}, **words}
        entry_job(entry, tmp_path, {"root": tmp_path}, where="a")()

    seed.write_text("1")
    attempt(2)
    seed.write_text("2")
    with pytest.raises(ConfigError, match=OTHER_VALUES):
        attempt(3)
    with pytest.raises(ConfigError, match='a: accept_changes = "yes": expected true or false'):
        attempt(3, accept_changes="yes")
    attempt(3, accept_changes=True)
    seed.write_text("3")
    run = ["run", "a", "lines.yaml", "runs", "training.steps=4"]
    assert main(run) == ConfigError.exit_code
    assert main([*run, "--accept-changes"]) == 0
    with pytest.raises(UsageError, match="object cannot accept changes: it is not a CheckpointedJob"):
        accept_changes(object())  # type: ignore[arg-type]
