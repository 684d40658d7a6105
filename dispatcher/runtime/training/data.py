"""Data: where rows come from, and batches of them on the devices.

A `Source` has a length and rows by index: a NumPy array, a memory-mapped file, a dataset of Hugging Face in memory, a
`grain.MapDataset`. Which rows a batch has is a function of the seed and of the number of rows before it (`order`), so
the position of a training is that number, and a training resumes on another number of processes with the same bits.
Each process reads only the rows of its own devices.

A `Streamed` is an iterator of rows whose state can be saved; each process has its own.

Rows and batches are pytrees of arrays; a batch has one more axis, its first. Those of a training are always full. The
last one of an evaluation is padded with copies of its last row, and comes with bool[rows], false for these.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from dispatcher.errors import ConfigError
from dispatcher.runtime.device_types import check_types, for_devices
from dispatcher.runtime.sharding import shape
from dispatcher.runtime.training.order import rows_at
from dispatcher.runtime.training.placement import batch_sharding, batch_shards

_BASE64: Final = "base64"
_ADVICE: Final = "To start a new training from its model, load that model in start_from"


@runtime_checkable
class Source(Protocol):
    """Rows by index. A row is a pytree of arrays and numbers; lists in it are arrays, as Hugging Face has them.

    `[index]` is called by several threads at once, unless `training.prefetch` is 0 or 1. A source that has
    `__getitems__(indices)`, which returns a list of rows, is asked for all rows of a batch at once. One that has
    `identity()` says by plain data, such as a version, which data it is (`identity`).
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
        flat = sorted({type(leaf).__qualname__ for leaf in leaves if not np.ndim(leaf)})
        if flat:
            raise ConfigError(f"Arrays: {', '.join(flat)} in it: expected arrays; wrap a list: np.array(...)")
        check_types(tree)
        lengths = sorted({len(leaf) for leaf in leaves})
        if len(lengths) != 1:
            raise ConfigError(f"Arrays: the first axes have the lengths {lengths}: expected one length")
        self.tree = tree
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return jax.tree.map(lambda array: array[index], self.tree)

    def __getbatch__(self, indices: NDArray[np.int64]) -> Any:
        """The rows `indices` as one batch."""
        return jax.tree.map(lambda array: _host_array(array[indices]), self.tree)


def read_batch(source: Any, indices: NDArray[np.int64]) -> Any:
    """The rows `indices` of a source as one batch in the types of devices; ConfigError when there is no such batch."""
    return for_devices(_read(source, indices))


def _read(source: Any, indices: NDArray[np.int64]) -> Any:
    if isinstance(source, Arrays):
        return source.__getbatch__(indices)
    if isinstance(source, np.ndarray):
        # A memory-mapped file gives a copy of these rows.
        return np.array(source[indices], subok=isinstance(source, np.ma.MaskedArray))
    many = getattr(source, "__getitems__", None)
    plain = indices.tolist()
    if many is None:
        return stacked([_row(source, index) for index in plain])
    rows = many(plain)
    if len(rows) != len(plain):
        raise ConfigError(f"{type(source).__qualname__}.__getitems__: {len(rows)} rows for {len(plain)} indices")
    return stacked(rows)


def _row(source: Any, index: int) -> Any:
    try:
        return source[index]
    except Exception as error:
        error.add_note(f"while row {index} of {type(source).__qualname__} was read")
        raise


def stacked(rows: Sequence[Any]) -> Any:
    """Rows as one batch; ConfigError when they differ in structure or shape."""
    if any(row is None for row in rows):
        raise ConfigError("a row of the data is None, as those are that a filter leaves out: stream them (Streamed)")
    try:
        batch = jax.tree.map(_stacked, *rows, is_leaf=_is_list)
    except ValueError as error:
        shapes = [jax.tree.map(_shape_of, row, is_leaf=_is_list) for row in rows]
        other = next((shape for shape in shapes if shape != shapes[0]), None)
        seen = f"{shapes[0]} and {other}" if other is not None else str(error)
        raise ConfigError(f"the rows of a batch have different shapes: {seen}: pad them to one shape") from None
    if not jax.tree.leaves(batch):
        raise ConfigError(f"a row of the data has no arrays in it: {rows[0]!r:.80}")
    return batch


def _stacked(*leaves: Any) -> NDArray[Any]:
    arrays = [_host_array(leaf) for leaf in leaves]
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        return np.ma.stack(arrays)
    batch = np.stack(arrays)
    if batch.dtype.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
        # int64 and uint64 have no integer type in common, and NumPy rounds both to float64.
        largest = max(int(array.max(initial=0)) for array in arrays)
        raise ConfigError(f"a row of the data has {largest}, another one int64: give all rows one type")
    return batch


def _is_list(node: Any) -> bool:
    return isinstance(node, list)


def _shape_of(leaf: Any) -> Any:
    try:
        return list(np.shape(leaf))
    except ValueError:
        return "lists of different lengths"


class Read(NamedTuple):
    """The rows of this process on the host, and the position in the data after them."""

    host: Any
    position: Any


class Reader(Protocol):
    """The rows of this process, one call of a training after the other."""

    @property
    def parallel(self) -> bool:
        """Whether what `following` returns may be called by several threads at once."""

    def following(self, steps: int) -> Callable[[], Read]:
        """What reads the rows of the next `steps` steps when it is called."""

    def on_devices(self, host: Any, mesh: Mesh, steps: int) -> Any:
        """The rows of so many steps as global arrays."""


class _SourceReader:
    """Reads a Source from the sample `position` on: the number of rows that were trained on before."""

    parallel = True

    def __init__(
        self, source: Source, batch_size: int, mesh: Mesh, *, microbatches: int, seed: int, position: Any = None
    ) -> None:
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._length = len(source)
        self._samples = self._checked(position)
        self._mine = local_rows(batch_size, mesh)
        self._rows = placed_rows(batch_size, mesh, microbatches)[self._mine]

    def following(self, steps: int) -> Callable[[], Read]:
        first, self._samples = self._samples, self._samples + steps * self._batch_size
        return partial(self._read, first, steps)

    def _read(self, first: int, steps: int) -> Read:
        starts = first + np.arange(steps, dtype=np.int64) * self._batch_size
        samples = (starts[:, None] + self._rows[None, :]).reshape(-1)
        host = read_batch(self._source, rows_at(samples, self._length, self._seed))
        return Read(host, {"samples": first + steps * self._batch_size})

    def on_devices(self, host: Any, mesh: Mesh, steps: int) -> Any:
        return _global_batch(host, mesh, self._batch_size, self._mine, steps)

    def _checked(self, position: Any) -> int:
        if position is None:
            return 0
        return int(position["samples"])


def _row_iterator(stream: Streamed) -> RowIterator:
    """The iterator of a stream; ConfigError when its state cannot be saved."""
    _mark_flags_parsed()
    rows = stream.rows if hasattr(stream.rows, "__next__") else iter(stream.rows)
    if not isinstance(rows, RowIterator):
        raise ConfigError(
            f"Streamed({type(stream.rows).__qualname__}): it has no get_state and set_state, so a training could "
            "not be resumed: return a Source, or an iterator that has them"
        )
    return rows


class _StreamReader:
    """Reads a Streamed, from the state in `position` on."""

    parallel = False

    def __init__(
        self, stream: Streamed, batch_size: int, mesh: Mesh, *, microbatches: int, position: Any = None
    ) -> None:
        self._rows = _row_iterator(stream)
        self._batch_size = batch_size
        self._mine = local_rows(batch_size, mesh)
        rows = placed_rows(batch_size, mesh, microbatches)[self._mine]
        # Of the rows of this process, in the order in which they come.
        self._order = np.argsort(np.argsort(rows))
        if position is not None:
            self._rows.set_state(self._checked(position))

    def following(self, steps: int) -> Callable[[], Read]:
        return partial(self._read, steps)

    def _read(self, steps: int) -> Read:
        try:
            batches = [[next(self._rows) for _ in self._mine] for _ in range(steps)]
        except StopIteration:
            raise ConfigError("the stream of training rows has ended: it must be endless; repeat it") from None
        host = for_devices(stacked([batch[place] for batch in batches for place in self._order]))
        return Read(host, {"state": self._state(), "processes": jax.process_count()})

    def _state(self) -> Any:
        """The state after what was read, as it is saved."""
        state = self._rows.get_state()
        if isinstance(state, bytes):
            return {_BASE64: base64.b64encode(state).decode()}
        try:
            # A copy: an iterator may return what it changes, and the next rows are read before this position is saved.
            return json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{type(self._rows).__qualname__}.get_state: {error}: expected bytes, or plain data as in JSON: the "
                "training could not be resumed"
            ) from None

    def on_devices(self, host: Any, mesh: Mesh, steps: int) -> Any:
        return _global_batch(host, mesh, self._batch_size, self._mine, steps)

    def _checked(self, position: Any) -> Any:
        if position["processes"] != jax.process_count():
            raise ConfigError(
                f"a stream of rows is resumed on as many processes as it was saved on: {position['processes']}, not "
                f"{jax.process_count()}. A Source can be resumed on any number"
            )
        state = position["state"]
        return base64.b64decode(state[_BASE64]) if isinstance(state, Mapping) and set(state) == {_BASE64} else state


def position_fits(position: Any, data: Any) -> bool:
    """Whether `position` is one in data of the kind of `data`."""
    key = "state" if isinstance(data, Streamed) else "samples"
    return isinstance(position, Mapping) and key in position


def _mark_flags_parsed() -> None:
    """Grain's worker processes read flags of Abseil, which parses them only where its own `app.run` is the program."""
    flags = sys.modules.get("absl.flags")
    if flags is not None and not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def make_reader(
    data: Any, batch_size: int, mesh: Mesh, *, seed: int, microbatches: int = 1, position: Any = None
) -> Reader:
    """The reader for what `Trainer.data` returned, which continues at `position`; None: at the beginning."""
    check_data(data)
    if isinstance(data, Streamed):
        return _StreamReader(data, batch_size, mesh, microbatches=microbatches, position=position)
    return _SourceReader(data, batch_size, mesh, microbatches=microbatches, seed=seed, position=position)


def check_data(data: Any) -> None:
    """ConfigError unless `data` is what `Trainer.data` may return."""
    if not isinstance(data, Streamed):
        check_source(data, "data()")


def check_source(data: Any, where: str) -> None:
    """ConfigError unless `data` is a Source; a mapping is none, although it has a length and an index."""
    if isinstance(data, Mapping) or not isinstance(data, Source):
        raise ConfigError(
            f"{where} is {type(data).__qualname__}: expected a Source, which has len() and [index]; arrays with one "
            "row for each index are wrapped: Arrays({...}); an endless iterator of rows is a Streamed(...)"
        )
    if len(data) < 1:
        raise ConfigError(f"{where} has no rows: {type(data).__qualname__} of length 0")


class EvaluationBatch(NamedTuple):
    """A batch of an evaluation on the devices, and bool[rows]: false for padding; None: the source needs none."""

    batch: Any
    real: jax.Array | None


def evaluation_batches(source: Any, rows: int, mesh: Mesh) -> Iterator[EvaluationBatch]:
    """All rows of a source in their own order, in batches of `rows` rows; the last one is padded."""
    length, mine = len(source), local_rows(rows, mesh)
    for start in range(0, length, rows):
        samples = start + mine
        host = read_batch(source, np.minimum(samples, length - 1))
        # Either all batches of a source have a mask or none, so that one function is compiled.
        real = samples < length if length % rows else None
        yield EvaluationBatch(*_global_batch((host, real), mesh, rows, mine, 1))


def local_rows(rows: int, mesh: Mesh) -> NDArray[np.int64]:
    """The rows of a batch that the devices of this process have, ascending."""
    sharding = batch_sharding(mesh)
    slices = sharding.addressable_devices_indices_map((rows,)).values()
    found = {row for index in slices if index is not None for row in range(*index[0].indices(rows))}
    return np.array(sorted(found), np.int64)


def placed_rows(rows: int, mesh: Mesh, microbatches: int) -> NDArray[np.int64]:
    """Which row of a batch stands where on the devices: int64[rows].

    Each device has its rows of all microbatches, so that no row moves when a step splits the batch (`Updater`), and a
    microbatch has the same rows on every mesh: with BatchNorm their statistics would differ.
    """
    return np.arange(rows, dtype=np.int64).reshape(microbatches, batch_shards(mesh), -1).swapaxes(0, 1).reshape(-1)


def on_mesh(batch: Any, mesh: Mesh, *, microbatches: int) -> Any:
    """A full batch that every process has, as global arrays; ConfigError when it cannot be split."""
    multiple = microbatches * batch_shards(mesh)
    lengths = sorted({np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)})
    if len(lengths) != 1 or not lengths[0] or not lengths[0][0] or lengths[0][0] % multiple:
        rows = ", ".join(str(length[0]) if length else "no axis" for length in lengths) or "no arrays"
        raise ConfigError(
            f"a batch whose arrays have {rows} rows: expected one number, a multiple of {multiple}, which is the "
            "number of devices that share a batch times that of accumulation steps"
        )
    sharding, order = batch_sharding(mesh), placed_rows(lengths[0][0], mesh, microbatches)

    def put(array: Any) -> jax.Array:
        array = array[order]
        placed: jax.Array = jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
        return placed

    return jax.tree.map(put, for_devices(jax.tree.map(_host_array, batch)))


def _host_array(array: Any) -> NDArray[Any]:
    return array if isinstance(array, np.ndarray) else np.asarray(array)


def row_shape(data: Any) -> dict[str, str]:
    """Type and shape of each array of a row, by name; a stream is left where it was."""
    check_data(data)
    if isinstance(data, Streamed):
        rows = _row_iterator(data)
        state = rows.get_state()
        batch = for_devices(stacked([next(rows)]))
        rows.set_state(state)
    else:
        batch = read_batch(data, np.zeros(1, np.int64))
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    return {jax.tree_util.keystr(path): f"{array.dtype}{list(array.shape[1:])}" for path, array in leaves}


def shapes_of_rows(batch: Any, rows: int) -> Any:
    """The shapes and types of a batch of so many such rows, [rows, ...] each."""
    return jax.tree.map(lambda array: shape((rows, *array.shape[1:]), array.dtype), batch)


def _global_batch(host: Any, mesh: Mesh, rows: int, mine: NDArray[np.int64], steps: int) -> Any:
    """Global arrays [rows, ...], or [steps, rows, ...] for several steps, from the rows of this process."""
    several = steps > 1
    sharding = batch_sharding(mesh, axis=1 if several else 0)

    def put(array: NDArray[Any]) -> jax.Array:
        local = array.reshape(steps, len(mine), *array.shape[1:])
        if sharding.is_fully_addressable:
            placed: jax.Array = jax.device_put(local if several else local[0], sharding)
            return placed
        place = {int(row): number for number, row in enumerate(mine)}

        def part(index: Any) -> NDArray[Any]:
            start, stop, _ = index[1 if several else 0].indices(rows)
            block = local[:, place[start] : place[start] + stop - start]
            return block if several else block[0]

        shape = (rows, *array.shape[1:])
        return jax.make_array_from_callback((steps, *shape) if several else shape, sharding, part)

    return jax.tree.map(put, host)
