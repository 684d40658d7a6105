"""The file that `matrix make` may replace: a manifest, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.errors import UsageError
from dispatcher.workspace import Layout


def refuse_other_files(target: Path, sweep: Path, where: Layout) -> None:
    """UsageError if a manifest written to `target` would replace something else, also through links."""
    real, run_state = Path(os.path.realpath(target)), Path(os.path.realpath(where.run_state))
    if _is_same(target, sweep):
        what = "is the sweep file itself"
    elif _is_same(target, where.status_file):
        what = "is the status file of this workspace"
    elif real.is_relative_to(run_state):
        what = f"is in {where.run_state.name}/, where only dispatchers write"
    elif real.exists() and not real.is_file():
        what = f"is {'a directory' if real.is_dir() else 'no regular file'}"
    else:
        why = _no_manifest(real)
        if not why:
            return
        raise UsageError(
            f"{target} exists and is no manifest ({why}), so it is not replaced. Name another file with -o FILE, "
            "or move this one away first"
        )
    raise UsageError(
        f"{target} {what}: the manifest cannot be written there. Name another file with -o FILE; without -o it is "
        "the workspace's manifest"
    )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        # One of the two does not exist yet.
        return os.path.realpath(one) == os.path.realpath(other)


def _no_manifest(path: Path) -> str:
    """Why the content of the file is no manifest; empty when it is one, faulty perhaps, or there is nothing to lose."""
    try:
        data = path.read_bytes()
        content: Any = msgspec.json.decode(data) if data.strip() else []
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    if isinstance(content, list):
        ids, entries = [""] * len(content), content
    elif isinstance(content, dict):
        ids, entries = list(content), list(content.values())
    else:
        return "it holds a single value"
    other = next((n for n, one in enumerate(entries) if not _is_entry(one)), None)
    if other is None:
        return ""
    return f"{ids[other] or f'member {other + 1}'} is no entry with a method"


def _is_entry(value: object) -> bool:
    """Whether it may be an entry, and not a line of a status file to which a person has added a method."""
    if not isinstance(value, dict) or "method" not in value:
        return False
    return "job_id" in value or not value.keys() >= {"state", "rev"}
