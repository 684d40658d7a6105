"""Which data a training used: an identity that is saved with each checkpoint and compared when the training resumes.

A source says itself what it is, by a method `identity()`, or its identity is taken: the number of rows, digests of
sampled rows as they arrive on the devices, and path, size and time of the files that it has memory-mapped. The digests
decide. A file that was moved, copied or written again with the same rows is the same data, which the log says; rows
that have changed or stand in another order are other data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from dispatcher.base.values import shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.training.data import Arrays, Source, Streamed, read_batch

# Of a source that runs code for each row so many are read.
_SAMPLED: Final = 32
# Of arrays, which run none, more: all of them up to this size.
_ARRAYS_BYTES: Final = 64 * 2**20
_AT_ONCE: Final = 4096

# The words that name what the hook `data` returned.
DATA: Final = "data()"
STREAMED: Final = Streamed.__name__
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
    found: dict[str, Any] = {"kind": STREAMED if isinstance(data, Streamed) else SOURCE}
    own = getattr(source, "identity", None)
    if callable(own):
        found["identity"] = _plain(source, own())
    if isinstance(data, Streamed):
        return found
    found["rows"] = len(source)
    if "identity" not in found:
        found["digests"] = _digests(source)
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
        if not identity.get("digests") and "identity" not in identity:
            why = "it is a stream" if identity["kind"] == STREAMED else "its rows differ each time they are read"
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
    common = sorted(set(then.get("digests") or {}) & set(now.get("digests") or {}), key=int)
    if not common:
        found.unknown.append(name)
    elif any(then["digests"][count] != now["digests"][count] for count in common):
        found.different[name] = f"{name}: other values, or another order, in the same number of rows ({now['rows']:,})"
    else:
        same = f"the {int(common[-1]):,} of {now['rows']:,} rows that are compared are the same"
        found.told += [f"{name}: {line}; {same}" for line in _changed_files(then.get("files"), now.get("files"))]


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


def _digests(source: Any) -> dict[str, str]:
    """Digests of sampled rows, by how many; none for a source whose rows differ each time they are read."""
    length = len(source)
    counts = {min(length, _SAMPLED)}
    if isinstance(source, (Arrays, np.ndarray)):
        row = sum(array.nbytes for array in jax.tree.leaves(read_batch(source, np.zeros(1, np.int64))))
        counts.add(min(length, max(_SAMPLED, _ARRAYS_BYTES // max(1, row))))
    elif _digest(source, _spread(length, 1)) != _digest(source, _spread(length, 1)):
        return {}
    return {str(count): _digest(source, _spread(length, count)) for count in sorted(counts)}


def _spread(length: int, count: int) -> list[int]:
    """The places of `count` of so many rows, spread evenly, the first and the last among them."""
    return [place * (length - 1) // max(1, count - 1) for place in range(count)]


def _digest(source: Any, places: Sequence[int]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, len(places), _AT_ONCE):
        batch = read_batch(source, np.array(places[start : start + _AT_ONCE], np.int64))
        for path, array in jax.tree_util.tree_leaves_with_path(batch):
            found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
            found.update(_bytes(array))
    return found.hexdigest()


def _bytes(array: NDArray[Any]) -> Any:
    # Not every type of a device has a buffer.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


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
