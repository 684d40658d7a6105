"""The small files of an attempt's directory, and rows of results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dispatcher import contract
from dispatcher.matrix.entry import Entry


def parse_object(data: bytes | None) -> dict[str, Any] | None:
    """A JSON object; None when there is no data or it is anything else."""
    if not data:
        return None
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_small(path: Path) -> bytes | None:
    """The content of a small file; None when it does not exist. On NFS it may be a few seconds old."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def has_succeeded(exit_file: bytes | None) -> bool:
    """Whether an attempt's `exit.json` has exit code 0."""
    status = parse_object(exit_file)
    return status is not None and status.get("exit_code") == 0


def run_facts(run: Mapping[str, Any]) -> dict[str, str]:
    """What `run.json` says, as lines for people: the run, the code that it runs, the heartbeat while it runs."""
    devices = run.get("devices")
    words = [str(run.get("run_id")), f"{run.get('status')} on {run.get('host')}"]
    if devices is not None:
        processes = run.get("processes")
        words.append(f"{devices} x {run.get('chip')}" + (f" in {processes} processes" if processes != 1 else ""))
    facts = {"run": ", ".join(words)}
    if run.get("commit"):
        facts["code"] = str(run["commit"])
    if run.get("status") == contract.RUN_RUNNING:
        facts["heartbeat"] = str(run.get("heartbeat_at"))
    if run.get("error"):
        facts["run error"] = str(run["error"])
    return facts


def result_row(job: str, entry: Entry | None, attempt: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """job_id, method, the entry's parameters, the attempt's number, and the result. The result wins on equal names."""
    row: dict[str, Any] = {"job_id": job}
    if entry is not None:
        row["method"] = entry.method
        row.update(entry.params)
    row["attempt"] = attempt
    row.update(result)
    return row
