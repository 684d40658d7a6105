"""What lies in a checkpoint beside the arrays: small files, each of which may be missing but `config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.errors import CheckpointError, DamagedCheckpointError
from dispatcher.runtime.checkpoint import rng
from dispatcher.runtime.checkpoint.rng import RandomState

RNG: Final = "rng"
METADATA: Final = "config.json"
JOB: Final = "job.json"
CONFIG: Final = "config.yaml"
POSITION: Final = "position.json"


@dataclass(frozen=True)
class Contents:
    """`metadata`, `job` and `position` (where the data iterator stands) are plain data, `config` is YAML.

    `random` and `position` belong to this process, the others are the first process's.
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] | None = None
    config: str | None = None
    position: Any = None
    random: RandomState | None = None

    def of_this_process(self) -> dict[str, Any]:
        """What differs between processes, as plain data."""
        return {
            "position": _plain(self.position, "the position of the data iterator"),
            "random": None if self.random is None else self.random.to_json(),
        }

    def write(self, directory: Path, processes: list[dict[str, Any]]) -> None:
        """Write the files into `directory`; `processes` is what each of them said of itself."""
        written = {METADATA: _dump(self.metadata, "the metadata"), CONFIG: (self.config or "").encode()}
        if self.config is None:
            del written[CONFIG]
        if self.job is not None:
            written[JOB] = _dump(self.job, "the job's description")
        if any(each["position"] is not None for each in processes):
            written[POSITION] = _dump({"processes": [each["position"] for each in processes]}, "the position")
        if all(each["random"] is not None for each in processes):
            written[RNG] = rng.dump([each["random"] for each in processes])
        for name, data in written.items():
            files.create_file(directory / name, data)


def read(fetch: Callable[[str], bytes | None], where: str, process: int) -> Contents:
    """The small files of a checkpoint; `fetch` gives the content of one, or None when it was not saved."""

    def parsed(name: str) -> Any:
        data = fetch(name)
        try:
            return None if data is None else json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DamagedCheckpointError(f"{where}/{name}: not JSON: {error}") from None

    def mapping(name: str) -> Any:
        value = parsed(name)
        if not isinstance(value, dict | None):
            raise DamagedCheckpointError(f"{where}/{name}: holds {json.dumps(value)[:80]}: expected names and values")
        return value

    config, random = fetch(CONFIG), fetch(RNG)
    return Contents(
        metadata=mapping(METADATA) or {},
        job=mapping(JOB),
        config=None if config is None else _text(config, f"{where}/{CONFIG}"),
        position=_position(parsed(POSITION), process, f"{where}/{POSITION}"),
        random=None if random is None else rng.load(random, process, f"{where}/{RNG}"),
    )


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedCheckpointError(f"{where}: expected UTF-8: {error}") from None


def _position(said: Any, process: int, where: str) -> Any:
    """Where the data iterator of `process` stood; one that was not there at the save goes on where the first did."""
    if said is None:
        return None
    each = said.get("processes") if isinstance(said, dict) else None
    if not isinstance(each, list) or not each:
        raise DamagedCheckpointError(
            f'{where}: holds {json.dumps(said)[:80]}: expected {{"processes": [...]}}, a position for each process'
        )
    return each[process if process < len(each) else 0]


def _dump(value: Any, what: str) -> bytes:
    return json.dumps(_plain(value, what), ensure_ascii=False, indent=1).encode() + b"\n"


def _plain(value: Any, what: str) -> Any:
    """`value` as JSON gives it back; CheckpointError when it is no plain data."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{what} cannot be saved: {error}; expected text, numbers, true, false, null, lists and mappings"
        ) from None
