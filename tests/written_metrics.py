"""The lines of a metrics file as a job has written them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The complete lines, with NaN and infinities as numbers."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
    return [
        {key: float(value) if value in _NOT_FINITE else value for key, value in json.loads(line).items()}
        for line in lines
    ]
