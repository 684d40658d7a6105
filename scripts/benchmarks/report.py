"""The table for people and the JSON file for everything else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.figures import Figure

_HEADERS = ("row", "what", "ours", "compared with", "ratio (min-max)", "target", "met?")
_MET = {None: "", True: "yes", False: "MISSED"}


def table(results: dict[str, list[Figure]]) -> str:
    """One line per figure."""
    lines = [_line(row if first else "", f) for row, figures in results.items() for first, f in _marked(figures)]
    return tabulate(lines, _HEADERS, tablefmt="simple", disable_numparse=True)


def write_json(path: Path, machine: dict[str, Any], size: str, results: dict[str, list[Figure]]) -> None:
    """Everything that was measured, with every sample."""
    document = {
        "machine": machine,
        "size": size,
        "rows": {row: [_document(figure) for figure in figures] for row, figures in results.items()},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _marked(figures: list[Figure]) -> list[tuple[bool, Figure]]:
    return [(number == 0, figure) for number, figure in enumerate(figures)]


def _line(row: str, figure: Figure) -> tuple[str, ...]:
    ours = f"{figure.ours}; {figure.note}" if figure.ours and figure.note else figure.ours or figure.note
    ratio, target = (str(value) if value is not None else "" for value in (figure.ratio, figure.target))
    return row, figure.what, ours, figure.against, ratio, target, _MET[figure.met]


def _document(figure: Figure) -> dict[str, Any]:
    return {**dataclasses.asdict(figure), "met": figure.met}
