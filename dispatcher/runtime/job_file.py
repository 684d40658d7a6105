"""A job as a YAML file: its key, what hardware it asks for, and its configuration.

job: gpt/train/pretrain
request: {chip: h100, min_chips: 8}
training:
  lr: 0.0001
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files, yaml_text
from dispatcher.base.values import shown
from dispatcher.errors import ConfigError, nearest
from dispatcher.runtime.storing import storing
from dispatcher.runtime.value_types import MismatchError, convert

_REQUEST: Final[Mapping[str, type]] = {"chip": str, "min_chips": int, "tensor_shards": int}


@dataclass(frozen=True)
class Request:
    """The hardware that a job asks for; None: not said. `tensor_shards` is over how many devices weights are split."""

    chip: str | None = None
    min_chips: int | None = None
    tensor_shards: int | None = None


@dataclass(frozen=True)
class JobFile:
    """What such a file says; `config` is a nested document that nobody has checked yet."""

    job: str
    config: Mapping[str, Any]
    request: Request = field(default_factory=Request)


def read_job_file(path: Path) -> JobFile:
    """The job that `path` describes; ConfigError says what in the file is wrong."""
    try:
        document = yaml_text.load_mapping(path.read_bytes(), "keys and values such as job: gpt/train/pretrain")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    faults: list[str] = []
    key = document.pop("job", None)
    if not isinstance(key, str) or not key:
        faults.append(f"job = {shown(key)}: expected the key of a job, such as gpt/train/pretrain")
    request = _read_request(document.pop("request", None), faults)
    if faults:
        raise ConfigError.of(path, faults)
    return JobFile(job=str(key), config=document, request=request)


def write_job_file(path: Path, file: JobFile) -> None:
    """Publish `file` as `path`, in place of what was there."""
    said = {word: value for word in _REQUEST if (value := getattr(file.request, word)) is not None}
    document = {"job": file.job, **({"request": said} if said else {}), **file.config}
    with storing(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, yaml_text.dump(document).encode(), durable=False)


def _read_request(said: object, faults: list[str]) -> Request:
    if said is None:
        return Request()
    if not isinstance(said, dict):
        faults.append(f"request = {shown(said)}: expected keys such as chip: h100")
        return Request()
    words: dict[str, Any] = {}
    for word, value in said.items():
        if word not in _REQUEST:
            faults.append(f"request.{word} = {shown(value)}: unknown key{nearest(str(word), _REQUEST)}")
            continue
        try:
            words[word] = convert(_REQUEST[word], value)
        except MismatchError as error:
            faults.append(error.at(f"request.{word}"))
    return Request(**words)
