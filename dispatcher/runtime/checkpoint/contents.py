"""The small files of a checkpoint beside its arrays; all but `config.json` may be missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.values import shown
from dispatcher.errors import CheckpointError, DamagedCheckpointError
from dispatcher.runtime.checkpoint import rng
from dispatcher.runtime.checkpoint.rng import RandomState

_RNG: Final = "rng"
METADATA: Final = "config.json"
JOB: Final = "job.json"
CONFIG: Final = "config.yaml"
_POSITION: Final = "position.json"


@dataclass(frozen=True)
class Contents:
    """`metadata`, `job` and `position` (of the data iterator) are plain data, `config` is YAML.

    `random` and `position` belong to this process, the others to process 0.
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] | None = None
    config: str | None = None
    position: Any = None
    random: RandomState | None = None

    def of_this_process(self) -> dict[str, Any]:
        """The parts that differ between processes, as plain data."""
        return {
            "position": _plain(self.position, "the position of the data iterator"),
            "random": None if self.random is None else self.random.to_json(),
        }

    def write(self, directory: Path, processes: list[dict[str, Any]]) -> None:
        """Write the files into `directory`; `processes` has the result of `of_this_process` of each process."""
        written = {METADATA: _dump(self.metadata, "the metadata"), CONFIG: (self.config or "").encode()}
        if self.config is None:
            del written[CONFIG]
        if self.job is not None:
            written[JOB] = _dump(self.job, "the job's description")
        if any(each["position"] is not None for each in processes):
            written[_POSITION] = _dump({"processes": [each["position"] for each in processes]}, "the position")
        if all(each["random"] is not None for each in processes):
            written[_RNG] = rng.dump([each["random"] for each in processes])
        for name, data in written.items():
            files.create_file(directory / name, data)


def read(fetch: Callable[[str], bytes | None], where: str, process: int) -> Contents:
    """The small files of a checkpoint; `fetch` returns the content of one, None when it was not saved."""

    def parsed(name: str) -> Any:
        data = fetch(name)
        try:
            return None if data is None else json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DamagedCheckpointError(f"{where}/{name}: not JSON: {error}") from None

    def mapping(name: str) -> Any:
        value = parsed(name)
        if not isinstance(value, dict | None):
            raise DamagedCheckpointError(f"{where}/{name}: holds {shown(value)}: expected names and values")
        return value

    config, random = fetch(CONFIG), fetch(_RNG)
    return Contents(
        metadata=mapping(METADATA) or {},
        job=mapping(JOB),
        config=None if config is None else _text(config, f"{where}/{CONFIG}"),
        position=_position(parsed(_POSITION), process, f"{where}/{_POSITION}"),
        random=None if random is None else rng.load(random, process, f"{where}/{_RNG}"),
    )


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedCheckpointError(f"{where}: expected UTF-8: {error}") from None


def _position(saved: Any, process: int, where: str) -> Any:
    """The position of the data iterator of `process`; that of process 0 for one that did not exist at the save."""
    if saved is None:
        return None
    each = saved.get("processes") if isinstance(saved, dict) else None
    if not isinstance(each, list) or not each:
        raise DamagedCheckpointError(
            f'{where}: holds {shown(saved)}: expected {{"processes": [...]}}, a position for each process'
        )
    return each[process if process < len(each) else 0]


def _dump(value: Any, what: str) -> bytes:
    return json.dumps(_plain(value, what), ensure_ascii=False, indent=1).encode() + b"\n"


def _plain(value: Any, what: str) -> Any:
    """`value` after a round trip through JSON; CheckpointError when it is not plain data."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{what} cannot be saved: {error}; expected text, numbers, true, false, null, lists and mappings"
        ) from None
