"""Which data a training used: an identity that is saved with each checkpoint and compared when the training resumes.

A source says itself what it is, by a method `identity()`, or its identity is taken: the number of rows, a sample of
them as they arrive on the devices, and path, size and time of the files that it has memory-mapped. The rows decide. A
file that was moved, copied or written again with the same rows is the same data, which the log says; so are numbers
that differ by rounding, because data that a program computes have other last digits on another kind of processor. Rows
that have changed or stand in another order are other data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dispatcher.base.values import shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.training.data import Arrays, Source, Streamed, read_batch

# Of a source that runs code for each row so many are read.
_SAMPLED: Final = 32
# Of arrays, which run none, more: all of them up to this size.
_ARRAYS_BYTES: Final = 64 * 2**20
_MOST_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = 16 * 2**20
# By so much of their norm arrays differ that were computed on two kinds of processors, and other arrays by more.
_ROUNDING: Final = 1e-5

# The words that name what the hook `data` returned.
DATA: Final = "data()"
_STREAMED: Final = Streamed.__name__
SOURCE: Final = Source.__name__

_log = logging.getLogger(__name__)

Identity = Mapping[str, Any]


def identities(data: Any, evaluations: Mapping[str, Any]) -> dict[str, Identity]:
    """The identities of what `data` and `evaluations` of a trainer returned, by the words that name them."""
    found = {DATA: identity_of(data)}
    return found | {f"evaluations()[{name!r}]": identity_of(source) for name, source in evaluations.items()}


def identity_of(data: Any) -> Identity:
    """The identity of a Source or a Streamed, as plain data."""
    source = data.rows if isinstance(data, Streamed) else data
    found: dict[str, Any] = {"kind": _STREAMED if isinstance(data, Streamed) else SOURCE}
    own = getattr(source, "identity", None)
    if callable(own):
        found["identity"] = _plain(source, own())
    if isinstance(data, Streamed):
        return found
    found["rows"] = len(source)
    if "identity" not in found:
        found["samples"] = _samples(source)
        found["files"] = _stamps(source)
    return found


@dataclass
class Comparison:
    """What differs, by the words that name the data; what else the log tells; what cannot be compared."""

    different: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Origin:
    """The checkpoint from which a training goes on, and its data; `is_own`: of the same run, which resumes."""

    url: str
    data: Mapping[str, Identity]
    is_own: bool

    def compared(self, now: Mapping[str, Identity]) -> Comparison:
        """Compare the data with those of today."""
        found = Comparison()
        for name in now:
            if name in self.data:
                _compare(name, self.data[name], now[name], found)
            elif self.data:
                found.told.append(f"{name} is new")
            else:
                found.unknown.append(name)
        found.told += [f"{name} is gone" for name in self.data if name not in now]
        return found

    def tell(self, found: Comparison) -> None:
        """Log everything that is no error."""
        if found.told:
            _log.warning("%s: %s", self.url, "; ".join(found.told))
        if found.unknown:
            _log.warning(
                "%s: whether %s has the rows of this checkpoint is not known: give it an identity()",
                *(self.url, " and ".join(found.unknown)),
            )
        if found.different:
            goes_on = "the training goes on with other data" if self.is_own else "a training of other data begins"
            _log.warning("%s: %s: %s", self.url, goes_on, "; ".join(found.different.values()))

    def refusal(self, found: Comparison) -> str:
        """The message for a training that resumes with other data."""
        lines = "".join(f"\n  {line}" for line in found.different.values())
        return (
            f"{self.url}: the training that is resumed used other data:{lines}\nRestore the data; or accept the change "
            "(dispatcher job run --accept-changes, or accept_changes: true in the entry), and the training goes on "
            "with them; or begin one under another name, which loads this model in start_from"
        )


def tell_unknown(now: Mapping[str, Identity]) -> None:
    """Log which data a resume will not be able to compare."""
    for name, identity in now.items():
        if not identity.get("samples") and "identity" not in identity:
            why = "it is a stream" if identity["kind"] == _STREAMED else "its rows differ each time they are read"
            _log.info("%s has no identity(), and %s: a resume cannot tell whether it is the same data", name, why)


def _compare(name: str, then: Identity, now: Identity, found: Comparison) -> None:
    for key, word in (("kind", "a {}"), ("rows", "{:,} rows")):
        if then.get(key) != now.get(key):
            found.different[name] = f"{name}: {word.format(then.get(key))} then, {word.format(now.get(key))} now"
            return
    if "identity" in then and "identity" in now:
        if then["identity"] != now["identity"]:
            before, after = shown(then["identity"]), shown(now["identity"])
            found.different[name] = f"{name}: its identity() was {before} then, is {after} now"
        return
    common = sorted(set(then.get("samples") or {}) & set(now.get("samples") or {}), key=int)
    if not common:
        found.unknown.append(name)
        return
    verdicts = {_same_rows(then["samples"][count], now["samples"][count]) for count in common}
    compared = f"{int(common[-1]):,} of {now['rows']:,} rows were compared"
    if _Same.NOT in verdicts:
        found.different[name] = f"{name}: other values, or another order, in the same number of rows ({now['rows']:,})"
        return
    if _Same.ROUNDED in verdicts:
        found.told.append(f"{name}: values differ in their last digits, as another processor computes them; {compared}")
    found.told += [
        f"{name}: {line}; {compared} and are the same" for line in _changed_files(then.get("files"), now.get("files"))
    ]


def _changed_files(then: Any, now: Any) -> Iterator[str]:
    then, now = then or {}, now or {}
    for path, stamp in now.items():
        if path in then and then[path] != stamp:
            yield f"{path} was written since ({_size_and_time(then[path])} then, {_size_and_time(stamp)} now)"
    gone, new = sorted(set(then) - set(now)), sorted(set(now) - set(then))
    if gone or new:
        yield f"read from {', '.join(gone) or 'no file'} then, from {', '.join(new) or 'no file'} now"


def _size_and_time(stamp: Any) -> str:
    return f"{stamp['bytes']:,} bytes of {stamp['modified']}"


def _samples(source: Any) -> dict[str, Any]:
    """Samples of the rows, by how many they are of; none for a source whose rows differ each time they are read."""
    length = len(source)
    row = sum(array.nbytes for array in jax.tree.leaves(read_batch(source, np.zeros(1, np.int64))))
    at_once = max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1, row)))
    counts = {min(length, _SAMPLED)}
    if isinstance(source, (Arrays, np.ndarray)):
        counts.add(min(length, max(_SAMPLED, _ARRAYS_BYTES // max(1, row))))
    elif _sample(source, 1, at_once) != _sample(source, 1, at_once):
        return {}
    return {str(count): _sample(source, count, at_once) for count in sorted(counts)}


def _sample(source: Any, count: int, at_once: int) -> dict[str, Any]:
    """What tells `count` rows from others, spread evenly, the first and the last among them.

    `exact` is a digest of all; `whole` one of what cannot be rounded: names, types and shapes of arrays, whole numbers,
    and where numbers are not finite. `sums` has for each other array its norm, and a sum with weights by position.
    """
    places = _spread(count, len(source))
    exact, whole = (hashlib.blake2b(digest_size=16) for _ in range(2))
    sums: dict[str, list[float]] = {}
    for number, start in enumerate(range(0, count, at_once), start=1):
        batch = read_batch(source, places[start : start + at_once])
        for path, array in jax.tree_util.tree_leaves_with_path(batch):
            name = jax.tree_util.keystr(path)
            heading = f"{name} {array.dtype} {array.shape}\n".encode()
            exact.update(heading + _bytes(array))
            if not jnp.issubdtype(array.dtype, jnp.inexact):
                whole.update(heading + _bytes(array))
                continue
            parts = np.stack([array.real, array.imag]) if np.iscomplexobj(array) else array
            finite = np.isfinite(parts)
            # Of NaNs there are many.
            others = np.nan_to_num(parts[~finite].astype(np.float32), nan=2, posinf=1, neginf=-1)
            whole.update(heading + _bytes(finite) + _bytes(others))
            squares, weighted = _sums(np.where(finite, parts, 0))
            before = sums.get(name, [0.0, 0.0])
            sums[name] = [before[0] + squares, before[1] + weighted * math.cos(number)]
    norms = {name: [math.sqrt(squares), weighted] for name, (squares, weighted) in sums.items()}
    return {"exact": exact.hexdigest(), "whole": whole.hexdigest(), "sums": norms}


def _spread(count: int, length: int) -> NDArray[np.int64]:
    """So many of the places from 0 to `length` - 1, evenly, the first and the last among them."""
    # In two parts, whose products do not overflow. There may be millions: no list of them.
    each, rest = divmod(length - 1, max(1, count - 1))
    places = np.arange(count, dtype=np.int64)
    return places * each + places * rest // max(1, count - 1)


def _sums(array: NDArray[Any]) -> tuple[float, float]:
    """The sum of squares, and a sum in which each place has a weight of its own."""
    flat = array.astype(np.float64).reshape(-1)
    return float(flat @ flat), float(flat @ np.cos(np.arange(1, len(flat) + 1) * 2.0))


class _Same(Enum):
    """Whether two samples are of equal rows."""

    EXACTLY = 1
    ROUNDED = 2
    NOT = 3


def _same_rows(then: Mapping[str, Any], now: Mapping[str, Any]) -> _Same:
    if then["exact"] == now["exact"]:
        return _Same.EXACTLY
    if then["whole"] != now["whole"] or then["sums"].keys() != now["sums"].keys():
        return _Same.NOT
    for name, (norm, weighted) in then["sums"].items():
        other_norm, other_weighted = now["sums"][name]
        if max(abs(norm - other_norm), abs(weighted - other_weighted)) > _ROUNDING * max(norm, other_norm):
            return _Same.NOT
    return _Same.ROUNDED


def _bytes(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _mapped_files(source: Any) -> list[str]:
    """The files of the memory-mapped arrays that a source is, or has in its attributes."""
    if isinstance(source, Arrays):
        held = jax.tree.leaves(source.tree)
    else:
        held = [source, *getattr(source, "__dict__", {}).values()]
    return sorted({os.fspath(each.filename) for each in held if isinstance(each, np.memmap) and each.filename})


def _stamps(source: Any) -> dict[str, Any]:
    found = {}
    for path in _mapped_files(source):
        # A file that was removed can still be read.
        with contextlib.suppress(FileNotFoundError):
            found[path] = _stamp(path)
    return found


def _stamp(path: str) -> dict[str, Any]:
    state = os.stat(path)
    modified = datetime.fromtimestamp(state.st_mtime, UTC).isoformat(timespec="milliseconds")
    return {"bytes": state.st_size, "modified": modified.replace("+00:00", "Z")}


def _plain(source: Any, value: Any) -> Any:
    """What `identity` returned, as a checkpoint keeps it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{type(source).__qualname__}.identity(): {error}: expected plain data as in JSON, such as a version"
        ) from None
