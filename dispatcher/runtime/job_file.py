"""A job as a YAML file: its key, the hardware that it requests, and its configuration.

job: gpt/train/pretrain
request: {chip: h100, min_chips: 8}
training:
  lr: 0.0001
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from dispatcher.base import files, yaml_text
from dispatcher.base.schema.faults import lines_of
from dispatcher.base.schema.reading import convert
from dispatcher.base.schema.types import Key, plain
from dispatcher.base.storing import storing
from dispatcher.base.values import BadValueError, shown
from dispatcher.errors import ConfigError


class ChipRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The hardware that a job requests; None: no preference."""

    EXAMPLE: ClassVar[str] = "chip: h100"

    chip: Annotated[str | None, Key("the kind of GPU or TPU")] = None
    min_chips: Annotated[int | None, Key("how many of them over all hosts")] = None
    tensor_shards: Annotated[int | None, Key("the number of shards of the weights")] = None


@dataclass(frozen=True)
class JobFile:
    """The contents of a job file; `config` is a nested document that is not checked yet."""

    job: str
    config: Mapping[str, Any]
    request: ChipRequest = field(default_factory=ChipRequest)


def read_job_file(path: Path) -> JobFile:
    """Read the job file `path`; ConfigError lists its faults."""
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
    request, found = ChipRequest(), document.pop("request", None)
    if found is not None:
        try:
            request = convert(ChipRequest, found)
        except BadValueError as error:
            faults += lines_of(error, found, "request")
    if faults:
        raise ConfigError.of(path, faults)
    return JobFile(job=str(key), config=document, request=request)


def write_job_file(path: Path, file: JobFile) -> None:
    """Write `file` to `path` atomically, replacing an older one."""
    request = plain(file.request)
    document = {"job": file.job, **({"request": request} if request else {}), **file.config}
    with storing(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, yaml_text.dump(document).encode(), durable=False)
