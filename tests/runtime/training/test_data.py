"""Batches from sources and streams: which rows, in what order, from where a training goes on."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from fleet import wait_until

from dispatcher.errors import ConfigError
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.training.data import (
    Arrays,
    Source,
    Streamed,
    evaluation_batches,
    make_reader,
    read_batch,
)
from dispatcher.runtime.training.loader import LoadedBatch, Loader
from dispatcher.runtime.training.placement import make_mesh

pytestmark = pytest.mark.demo

ROWS = 10


def source() -> Arrays:
    return Arrays({"x": np.arange(ROWS * 2).reshape(ROWS, 2), "y": np.arange(ROWS)})


@pytest.fixture(scope="module")
def mesh() -> Any:
    return make_mesh(Topology((jax.devices()[0],)), {})


def taken(data: Any, mesh: Any, calls: list[int], *, position: Any = None, ahead: int = 2) -> tuple[list[int], Any]:
    """The labels of the batches of 4 rows that so many steps at a time give, and the position after them."""
    loader = Loader(make_reader(data, 4, mesh, seed=1, position=position), mesh, ahead=ahead)
    found: list[int] = []
    try:
        for number, steps in enumerate(calls):
            loaded = loader.take(steps, calls[number + 1 :])
            found += np.asarray(loaded.batch["y"]).reshape(-1).tolist()
            position = loaded.position
    finally:
        loader.close()
    return found, position


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_cover_every_epoch_and_go_on_where_a_training_stood(mesh: Any, ahead: int) -> None:
    whole, end = taken(source(), mesh, [1] * 5, ahead=ahead)
    assert sorted(whole[:10]) == sorted(whole[10:20]) == list(range(10))
    assert end == {"samples": 20}
    first, position = taken(source(), mesh, [1, 1], ahead=ahead)
    rest, _ = taken(source(), mesh, [1, 1, 1], position=position, ahead=ahead)
    assert first + rest == whole


def test_several_steps_at_a_time_have_the_same_rows(mesh: Any) -> None:
    assert taken(source(), mesh, [3, 2]) == taken(source(), mesh, [1] * 5)
    loader = Loader(make_reader(source(), 4, mesh, seed=1), mesh, ahead=0)
    assert {name: array.shape for name, array in loader.take(3).batch.items()} == {"x": (3, 4, 2), "y": (3, 4)}
    loader.close()


def test_what_is_a_source() -> None:
    assert isinstance(np.zeros((3, 2)), Source)
    assert isinstance([1, 2], Source)
    assert read_batch([{"a": 1}, {"a": 2}], np.array([1, 0]))["a"].tolist() == [2, 1]

    class Many(list[Any]):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [{"at": index} for index in indices]

    assert read_batch(Many(["a"] * 9), np.array([7, 8]))["at"].tolist() == [7, 8]
    # A list is an array, as Hugging Face has it, and not a batch for each of its places.
    tokens = read_batch([{"tokens": [1, 2]}, {"tokens": [3, 4]}], np.array([0, 1]))["tokens"]
    assert tokens.tolist() == [[1, 2], [3, 4]]


def test_a_memory_mapped_file_is_a_source(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(12).reshape(6, 2))
    batch = read_batch(np.load(tmp_path / "rows.npy", mmap_mode="r"), np.array([5, 0]))
    assert type(batch) is np.ndarray
    assert batch.tolist() == [[10, 11], [0, 1]]


class Short(list[Any]):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [{"y": 1}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "y": 1}, {"text": "b", "y": 2}], "text is <U1 in the data: expected numbers; leave it out"),
        ([{"y": 1}, None], "a row of the data is None, as those are that a filter leaves out"),
        ([{"y": [1]}, {"y": [1, 2]}], r"different shapes: \{'y': \[1\]\} and \{'y': \[2\]\}: pad them"),
        ([{}, {}], "a row of the data has no arrays in it: {}"),
        (Short(), r"Short.__getitems__: 1 rows for 2 indices"),
        ([{"y": 1}, {"z": 1}], r"different shapes: \{'y': \[\]\} and \{'z': \[\]\}"),
    ],
)
def test_rows_that_make_no_batch_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_batch(rows, np.array([0, 1]))


class Meeting(Arrays):
    """Whose rows are read only where two threads read at the same time."""

    def __init__(self, tree: Any) -> None:
        super().__init__(tree)
        self.both = threading.Barrier(2, timeout=60)

    def __getbatch__(self, indices: Any) -> Any:
        self.both.wait()
        return super().__getbatch__(indices)


def test_threads_read_ahead_at_the_same_time_and_batches_stay_in_order(mesh: Any) -> None:
    met, position = taken(Meeting({"y": np.arange(ROWS)}), mesh, [1] * 4)
    assert met == taken(source(), mesh, [1] * 4)[0]
    assert position == {"samples": 16}


def test_waiting_for_data_is_measured_and_told(mesh: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Arrays):
        def __getbatch__(self, indices: Any) -> Any:
            time.sleep(0.25)
            return super().__getbatch__(indices)

    def take(**times: float) -> LoadedBatch:
        loader = Loader(make_reader(Slow({"y": np.arange(ROWS)}), 4, mesh, seed=1), mesh, ahead=0, **times)
        try:
            return loader.take(1)
        finally:
            loader.close()

    assert take().waited_s >= 0.2
    assert "no batch for" not in caplog.text
    take(tell_every_s=0.1)
    assert "no batch for 0 s: the data is read slowly, or its reader hangs" in caplog.text


def test_datasets_of_grain(mesh: Any) -> None:
    """The map datasets are sources, and their iterators streams."""
    grain = pytest.importorskip("grain")

    def labels() -> Any:
        return grain.MapDataset.range(ROWS).map(lambda number: {"y": np.int64(number)})

    assert taken(labels(), mesh, [1] * 5) == taken(source(), mesh, [1] * 5)

    def stream() -> Streamed:
        return Streamed(iter(labels().seed(3).shuffle().repeat().to_iter_dataset()))

    whole, _ = taken(stream(), mesh, [1] * 5)
    assert sorted(whole[:10]) == list(range(10))
    first, position = taken(stream(), mesh, [1, 1])
    # It is saved as JSON.
    rest, _ = taken(stream(), mesh, [1, 1, 1], position=json.loads(json.dumps(position)))
    assert first + rest == whole
    # An iterator is made of what is none yet.
    assert taken(Streamed(labels().to_iter_dataset()), mesh, [1, 1])[0] == list(range(8))


def test_the_row_that_cannot_be_read_is_named() -> None:
    with pytest.raises(IndexError) as caught:
        read_batch([{"y": 1}], np.array([0, 7]))
    assert caught.value.__notes__ == ["while row 7 of list was read"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"x": [1.0, 2.0]}, "Arrays: float in it: expected arrays; wrap a list"),
        ({"x": np.ones(2), "name": np.array(["a", "b"])}, "name is <U1 in the data: expected numbers"),
        ({"x": np.ones(2), "y": np.ones(3)}, r"the first axes have the lengths \[2, 3\]"),
    ],
)
def test_what_makes_no_arrays_is_refused(tree: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Arrays(tree)


def test_rows_of_different_shapes_are_refused() -> None:
    rows = [{"text": np.zeros(3)}, {"text": np.zeros(4)}]
    with pytest.raises(ConfigError, match=r"different shapes: \{'text': \[3\]\} and \{'text': \[4\]\}: pad them"):
        read_batch(rows, np.array([0, 1]))


def test_the_last_batch_of_an_evaluation_is_padded(mesh: Any) -> None:
    batches = list(evaluation_batches(source(), 4, mesh))
    labels = [np.asarray(batch["y"]).tolist() for batch, _ in batches]
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9]]
    assert [np.asarray(real).tolist() for _, real in batches] == [[True] * 4, [True] * 4, [True, True, False, False]]


def test_what_is_no_data_is_refused(mesh: Any) -> None:
    with pytest.raises(ConfigError, match=r"data\(\) has no rows: list of length 0"):
        taken([], mesh, [1])
    for wrong in ({"x": np.zeros(3)}, object()):
        with pytest.raises(ConfigError, match=r"data\(\) is (dict|object): expected a Source, which has len"):
            make_reader(wrong, 4, mesh, seed=0)


class Counting:
    """An endless stream whose state is the number of rows given: in bytes, or in a mapping that it changes."""

    def __init__(self, *, as_bytes: bool = False) -> None:
        self._state = {"given": 0}
        self._as_bytes = as_bytes

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> dict[str, Any]:
        self._state["given"] += 1
        return {"y": np.int64(self._state["given"] - 1)}

    def get_state(self) -> Any:
        return str(self._state["given"]).encode() if self._as_bytes else self._state

    def set_state(self, state: Any) -> None:
        self._state = {"given": int(state)} if self._as_bytes else state


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_stream_goes_on_from_its_state_not_from_what_was_read_ahead(mesh: Any, as_bytes: bool) -> None:
    whole, _ = taken(Streamed(Counting(as_bytes=as_bytes)), mesh, [1] * 5)
    assert whole == list(range(20))
    stream = Counting(as_bytes=as_bytes)
    loader = Loader(make_reader(Streamed(stream), 4, mesh, seed=0), mesh, ahead=3)
    position = loader.take(1, [1, 1, 1]).position
    wait_until(lambda: stream._state["given"] == 16, "what is read ahead")
    loader.close()
    rest, _ = taken(Streamed(Counting(as_bytes=as_bytes)), mesh, [1, 1], position=position)
    assert rest == list(range(4, 12))


def test_workers_of_a_stream_find_the_flags_of_abseil_parsed(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = pytest.importorskip("absl.flags")
    fresh = flags.FlagValues()
    flags.DEFINE_bool("worker", True, "of a worker", flag_values=fresh)
    monkeypatch.setattr(flags, "FLAGS", fresh)

    class Flagged(Counting):
        def __next__(self) -> dict[str, Any]:
            assert fresh.worker
            return super().__next__()

    assert taken(Streamed(Flagged()), mesh, [1])[0] == [0, 1, 2, 3]


def test_a_state_that_cannot_be_saved_is_told_with_the_first_batch(mesh: Any) -> None:
    class Odd(Counting):
        def get_state(self) -> Any:
            return {"given": np.int64(1)}

    with pytest.raises(ConfigError, match=r"Odd\.get_state: .*int64.*expected bytes, or plain data as in JSON"):
        taken(Streamed(Odd()), mesh, [1])


def test_a_stream_is_resumed_on_as_many_processes(mesh: Any) -> None:
    _, position = taken(Streamed(Counting()), mesh, [1])
    with pytest.raises(ConfigError, match="resumed on as many processes as it was saved on: 2, not 1"):
        taken(Streamed(Counting()), mesh, [1], position={**position, "processes": 2})
    with pytest.raises(ConfigError, match="has no get_state and set_state"):
        taken(Streamed(iter([1, 2])), mesh, [1])


def test_a_reader_that_hangs_is_not_waited_for_at_the_end(mesh: Any) -> None:
    go_on = threading.Event()

    class Hangs(Counting):
        def __next__(self) -> dict[str, Any]:
            if self._state["given"] >= 4:
                go_on.wait(60)
            return super().__next__()

    stream = Hangs()
    loader = Loader(make_reader(Streamed(stream), 4, mesh, seed=0), mesh, ahead=3, close_timeout_s=0.1)
    loader.take(1, [1, 1, 1])
    try:
        loader.close()
        reading = [thread for thread in threading.enumerate() if thread.name == "data-0"]
        assert all(thread.daemon for thread in reading) and reading
    finally:
        go_on.set()
    for thread in reading:
        thread.join(60)
    assert not any(thread.is_alive() for thread in reading)
    # What was announced and not begun is not read any more.
    assert stream._state["given"] == 8


def test_an_error_of_the_data_arrives_where_its_batch_is_taken(mesh: Any) -> None:
    class Broken(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            raise OSError("the disk is gone")

    loader = Loader(make_reader(Broken([1, 2, 3, 4]), 4, mesh, seed=0), mesh, ahead=1)
    with pytest.raises(OSError, match="the disk is gone"):
        loader.take(1)
    loader.close()
