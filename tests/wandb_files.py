"""What is in the files that `wandb sync` uploads."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a log of LevelDB's form with a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def history(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run's history."""
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {(one.key or one.nested_key[0]): json.loads(one.value_json) for one in items}
