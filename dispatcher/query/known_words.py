"""The keys and values that jobs have, for shell completion: read from the files directly, and only what is asked for.

A snapshot of 100,000 jobs takes a second, too long after a key stroke; this takes some hundredths.
Files that cannot be read have no words: commands report what is wrong with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base import files
from dispatcher.base.users import name_of
from dispatcher.base.values import text_of
from dispatcher.config import Config
from dispatcher.matrix.entry import OWNER
from dispatcher.query import attempts
from dispatcher.run_state.states import State

# Beside the parameters, what people select jobs by.
_RECORD_KEYS: Final = ("state", "reason", "pod", "host", "outlet", OWNER)
# The keys of results are those of so many jobs: each has a file of its own.
_RESULTS_READ: Final = 100


def job_ids(config: Config) -> list[str]:
    """The ids of all jobs: those of the default manifest, of the run state, of other manifests."""
    found: dict[str, None] = {}
    for path in _files(config):
        content = _decoded(path, list[_Id] | dict[str, msgspec.Raw])
        found.update(dict.fromkeys(content if isinstance(content, dict) else (one.job_id for one in content)))
    return list(found)


def keys(config: Config) -> list[str]:
    """What `--where` and `--by` may name: the keys of all entries but job_id, then those of records."""
    found: dict[str, None] = {}
    for path in _manifests(config):
        for one in _members(path, dict[str, msgspec.Raw]):
            found.update(dict.fromkeys(one))
    found.pop("job_id", None)
    return list(dict.fromkeys([*found, *_RECORD_KEYS]))


def values(config: Config, key: str) -> list[str]:
    """The different values of `key` in entries and records, as text, in the order of text."""
    if key == "state":
        return [state.value for state in State]
    # Only this field is decoded.
    one: Any = msgspec.defstruct("One", [("value", Any, msgspec.field(name=key, default=None))], gc=False)
    found = (member.value for path in _files(config) for member in _members(path, one))
    return sorted({text_of(value) for value in found if value is not None})


def users(config: Config) -> list[str]:
    """The owners of jobs: those that entries and records name, and those of the manifests' files."""
    found = dict.fromkeys(values(config, OWNER))
    for path in _manifests(config):
        # The first user who submits owns the file with the jobs of all.
        if path != config.layout.submitted_manifest and path.exists():
            found[name_of(path.stat().st_uid)] = None
    return list(found)


def result_keys(config: Config) -> list[str]:
    """What `results --value` may name: the keys of results, as far as some of the jobs that are done have them."""
    done = (
        config.layout.attempt(job, one.attempt)
        for job, one in _decoded(config.layout.status_file, dict[str, _Ended]).items()
        if one.state == State.DONE
    )
    results = (
        attempts.parse_object(attempts.read_small(paths.result)) for paths in itertools.islice(done, _RESULTS_READ)
    )
    return list(dict.fromkeys(key for result in results for key in result or ()))


class _Id(msgspec.Struct, gc=False):
    job_id: str


class _Ended(msgspec.Struct, gc=False):
    state: str = ""
    attempt: int = 0


def _manifests(config: Config) -> Iterable[Path]:
    return dict.fromkeys([config.matrix, *config.layout.manifests(), config.layout.submitted_manifest])


def _files(config: Config) -> Iterator[Path]:
    first, *others = _manifests(config)
    return iter((first, config.layout.status_file, *others))


def _members(path: Path, kind: Any) -> Iterable[Any]:
    """The members of a list, or of an object keyed by job id."""
    content = _decoded(path, list[kind] | dict[str, kind])
    return content.values() if isinstance(content, dict) else content


def _decoded(path: Path, kind: Any) -> Any:
    try:
        data = files.read_plain(path)
        if path.suffix == ".jsonl":
            data = b"[%s]" % b",".join(data.split(b"\n")[:-1])
        return msgspec.json.decode(data, type=kind)
    except (OSError, ValueError, RecursionError):
        return {}
