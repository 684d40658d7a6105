"""Data: where rows come from, and batches of them on the devices.

A `Source` has a length and rows by index: a NumPy array, a memory-mapped file, a dataset of Hugging Face in memory, a
`grain.MapDataset`. Which rows a batch has is a function of the seed and of the number of rows before it (`order`), so
the position of a training is that number, and a training resumes on another number of processes with the same bits.
Each process reads only the rows of its own devices.

A `Streamed` is an iterator of rows whose state can be saved; each process has its own.

Rows and batches are pytrees of arrays; a batch has one more axis, its first. Training batches are always full. The last
batch of an evaluation is padded with copies of its last row, and comes with bool[rows], false for these.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from dispatcher.errors import ConfigError
from dispatcher.runtime.sharding import shape
from dispatcher.runtime.training.order import rows_at
from dispatcher.runtime.training.placement import batch_sharding

_BASE64: Final = "base64"


@runtime_checkable
class Source(Protocol):
    """Rows by index. `[index]` may be called by another thread; a row is a pytree of arrays and numbers.

    A source that has `__getitems__(indices)`, which returns a list of rows, is asked for all rows of a batch at once.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class RowIterator(Protocol):
    """An iterator of rows whose state can be saved: bytes, or plain data as in JSON. Grain's iterators are such."""

    def __next__(self) -> Any: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any, /) -> None: ...


@dataclass(frozen=True)
class Streamed:
    """A stream of rows. `rows` is the iterator of this process, which must be endless and give no row of another's."""

    rows: Any


class Arrays:
    """A source from a pytree of arrays that have the same first axis: `Arrays({"image": images, "label": labels})`."""

    def __init__(self, tree: Any) -> None:
        leaves = jax.tree.leaves(tree)
        lengths = sorted({len(leaf) for leaf in leaves})
        if len(lengths) != 1:
            raise ConfigError(f"Arrays: the first axes have the lengths {lengths}: expected one length")
        self._tree = tree
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return jax.tree.map(lambda array: array[index], self._tree)

    def __getbatch__(self, indices: NDArray[np.int64]) -> Any:
        """The rows `indices` as one batch."""
        return jax.tree.map(lambda array: np.asarray(array[indices]), self._tree)


def read_batch(source: Any, indices: NDArray[np.int64]) -> Any:
    """The rows `indices` of a source as one batch; ConfigError when they cannot be stacked."""
    if isinstance(source, Arrays):
        return source.__getbatch__(indices)
    many = getattr(source, "__getitems__", None)
    plain = indices.tolist()
    return stacked(many(plain) if many is not None else [source[index] for index in plain])


def stacked(rows: Sequence[Any]) -> Any:
    """Rows as one batch; ConfigError when they differ in structure or shape."""
    try:
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
    except ValueError as error:
        shapes = [jax.tree.map(lambda leaf: list(np.shape(leaf)), row) for row in rows]
        other = next((shape for shape in shapes if shape != shapes[0]), None)
        seen = f"{shapes[0]} and {other}" if other is not None else str(error)
        raise ConfigError(f"the rows of a batch have different shapes: {seen}: pad them to one shape") from None


class Loaded(NamedTuple):
    """A batch on the devices, the position after it, and how long it had to be waited for, in seconds."""

    batch: Any
    position: Any
    waited_s: float


class Loader:
    """Batches of a source for a training, read ahead by a thread; closed at the end.

    A batch has `blocks` x `rows` rows: arrays [rows, ...], or [blocks, rows, ...] when `take` is asked for several.
    """

    def __init__(self, reader: Reader, mesh: Mesh, *, ahead: int) -> None:
        self._reader = reader
        self._mesh = mesh
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._waiting: list[tuple[int, Future[tuple[Any, Any]]]] = []

    def take(self, steps: int, following: Sequence[int] = ()) -> Loaded:
        """The batches of the next `steps` steps; `following` are the numbers of steps of the calls after this one."""
        self._request([steps, *following[: self._ahead]])
        _, future = self._waiting.pop(0)
        began_s = time.monotonic()
        host, position = future.result()
        waited_s = time.monotonic() - began_s
        return Loaded(self._reader.on_devices(host, self._mesh, steps), position, waited_s)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _request(self, calls: Sequence[int]) -> None:
        for number, steps in enumerate(calls):
            if number < len(self._waiting):
                assert self._waiting[number][0] == steps, "calls come in the order in which they were announced"
                continue
            self._waiting.append((steps, self._pool.submit(self._reader.read, steps)))


class Reader(Protocol):
    """Reads the rows of this process, one call after the other, in a thread of the loader."""

    def read(self, steps: int) -> tuple[Any, Any]:
        """The rows of this process of the next `steps` steps, on the host, and the position after them."""

    def on_devices(self, host: Any, mesh: Mesh, steps: int) -> Any:
        """What `read` returned, as global arrays."""


class SourceReader:
    """Reads a Source from the sample `position` on: the number of rows that were trained on before."""

    def __init__(self, source: Source, batch_size: int, mesh: Mesh, *, seed: int, position: Any = None) -> None:
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._length = _length(source)
        self._samples = self._checked(position)
        self._mine = local_rows(batch_size, mesh)

    def read(self, steps: int) -> tuple[Any, Any]:
        starts = self._samples + np.arange(steps, dtype=np.int64) * self._batch_size
        samples = (starts[:, None] + self._mine[None, :]).reshape(-1)
        host = read_batch(self._source, rows_at(samples, self._length, self._seed))
        self._samples += steps * self._batch_size
        return host, {"samples": self._samples, "rows": self._length}

    def on_devices(self, host: Any, mesh: Mesh, steps: int) -> Any:
        return _global_batch(host, mesh, self._batch_size, self._mine, steps)

    def _checked(self, position: Any) -> int:
        if position is None:
            return 0
        if not isinstance(position, Mapping) or "samples" not in position:
            raise ConfigError(
                "the training that is resumed read a Streamed, and data() returns a Source now: its position cannot be "
                "used; to start a new training from its model, load that model in start_from"
            )
        if position["rows"] != self._length:
            raise ConfigError(
                f"the data has {self._length} rows, but the training that is resumed had {position['rows']}: it used "
                "other data. To start a new training from its model, load that model in start_from"
            )
        return int(position["samples"])


class StreamReader:
    """Reads a Streamed, from the state in `position` on."""

    def __init__(self, stream: Streamed, batch_size: int, mesh: Mesh, *, position: Any = None) -> None:
        self._rows = stream.rows if hasattr(stream.rows, "__next__") else iter(stream.rows)
        self._batch_size = batch_size
        self._mine = local_rows(batch_size, mesh)
        if not isinstance(self._rows, RowIterator):
            raise ConfigError(
                f"Streamed({type(self._rows).__qualname__}): it has no get_state and set_state, so a training could "
                "not be resumed: return a Source, or an iterator that has them"
            )
        if position is not None:
            self._rows.set_state(self._checked(position))

    def read(self, steps: int) -> tuple[Any, Any]:
        try:
            host = stacked([next(self._rows) for _ in range(steps * len(self._mine))])
        except StopIteration:
            raise ConfigError("the stream of training rows has ended: it must be endless; repeat it") from None
        state = self._rows.get_state()
        if isinstance(state, bytes):
            state = {_BASE64: base64.b64encode(state).decode()}
        return host, {"state": state, "processes": jax.process_count()}

    def on_devices(self, host: Any, mesh: Mesh, steps: int) -> Any:
        return _global_batch(host, mesh, self._batch_size, self._mine, steps)

    def _checked(self, position: Any) -> Any:
        if not isinstance(position, Mapping) or "state" not in position:
            raise ConfigError(
                "the training that is resumed read a Source, and data() returns a Streamed now: its position cannot be "
                "used; to start a new training from its model, load that model in start_from"
            )
        if position["processes"] != jax.process_count():
            raise ConfigError(
                f"a stream of rows is resumed on as many processes as it was saved on: {position['processes']}, not "
                f"{jax.process_count()}. A Source can be resumed on any number"
            )
        state = position["state"]
        return base64.b64decode(state[_BASE64]) if isinstance(state, Mapping) and set(state) == {_BASE64} else state


def make_reader(data: Any, batch_size: int, mesh: Mesh, *, seed: int, position: Any = None) -> Reader:
    """The reader for what `Trainer.data` returned, which continues at `position`; None: at the beginning."""
    if isinstance(data, Streamed):
        return StreamReader(data, batch_size, mesh, position=position)
    check_source(data, "data()")
    return SourceReader(data, batch_size, mesh, seed=seed, position=position)


def check_source(data: Any, where: str) -> None:
    """ConfigError unless `data` is a Source; a mapping is none, although it has a length and an index."""
    if isinstance(data, Mapping) or not isinstance(data, Source):
        raise ConfigError(
            f"{where} is {type(data).__qualname__}: expected a Source, which has len() and [index]; arrays with one "
            "row for each index are wrapped: Arrays({...})"
        )


class Evaluated(NamedTuple):
    """A batch of an evaluation on the devices, and bool[rows]: false for padding."""

    batch: Any
    real: jax.Array


def evaluation_batches(source: Any, rows: int, mesh: Mesh) -> Iterator[Evaluated]:
    """All rows of a source in their own order, in batches of `rows` rows; the last one is padded."""
    length, mine = _length(source), local_rows(rows, mesh)
    for start in range(0, length, rows):
        samples = start + mine
        host = read_batch(source, np.minimum(samples, length - 1))
        batch, real = _global_batch((host, samples < length), mesh, rows, mine, 1)
        yield Evaluated(batch, real)


def local_rows(rows: int, mesh: Mesh) -> NDArray[np.int64]:
    """The rows of a batch that the devices of this process have, ascending."""
    sharding = batch_sharding(mesh)
    slices = sharding.addressable_devices_indices_map((rows,)).values()
    found = {row for index in slices if index is not None for row in range(*index[0].indices(rows))}
    return np.array(sorted(found), np.int64)


def on_mesh(batch: Any, mesh: Mesh) -> Any:
    """A full batch that every process has, as global arrays."""
    sharding = batch_sharding(mesh)

    def put(array: Any) -> jax.Array:
        array = np.asarray(array)
        placed: jax.Array = jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
        return placed

    return jax.device_put(batch, sharding) if sharding.is_fully_addressable else jax.tree.map(put, batch)


def row_shapes(batch: Any) -> Any:
    """The shapes and types of a batch, [rows, ...] each."""
    return jax.tree.map(lambda array: shape(array.shape, array.dtype), batch)


def _global_batch(host: Any, mesh: Mesh, rows: int, mine: NDArray[np.int64], steps: int) -> Any:
    """Global arrays [rows, ...], or [steps, rows, ...] for several steps, from the rows of this process."""
    several = steps > 1
    sharding = batch_sharding(mesh, axis=1 if several else 0)

    def put(array: NDArray[Any]) -> jax.Array:
        local = array.reshape(steps, len(mine), *array.shape[1:])
        if sharding.is_fully_addressable:
            return jax.device_put(local if several else local[0], sharding)
        place = {int(row): number for number, row in enumerate(mine)}

        def part(index: Any) -> NDArray[Any]:
            start, stop, _ = index[1 if several else 0].indices(rows)
            block = local[:, place[start] : place[start] + stop - start]
            return block if several else block[0]

        shape = (rows, *array.shape[1:])
        return jax.make_array_from_callback((steps, *shape) if several else shape, sharding, part)

    return jax.tree.map(put, host)


def _length(source: Any) -> int:
    length = len(source)
    if length < 1:
        raise ConfigError(f"the data has no rows: {type(source).__qualname__} of length 0")
    return length
