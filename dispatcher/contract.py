"""What crosses into a job: environment names, exit codes and the files of an attempt's directory.

A job may use none of this and still work: exit status 0 is done, 75 means "preempted, put me back", all else failed.
This module imports nothing of the package, so that code inside a job pays for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

JOB_ID: Final = "DISPATCHER_JOB_ID"
ATTEMPT: Final = "DISPATCHER_ATTEMPT"
POD: Final = "DISPATCHER_POD"
ATTEMPT_DIR: Final = "DISPATCHER_ATTEMPT_DIR"
ROOT: Final = "DISPATCHER_ROOT"
# From TERM to KILL, in whole seconds.
KILL_GRACE: Final = "DISPATCHER_KILL_GRACE_S"

EXIT_DONE: Final = 0
EXIT_PREEMPTED: Final = 75

ENTRY_FILE: Final = "entry.json"
WRAPPER_FILE: Final = "job.sh"
SETUP_FILE: Final = "setup.sh"
LOG_FILE: Final = "output.log"
PROGRESS_FILE: Final = "progress.json"
# `{"step": 120}`: the last checkpoint that the attempt committed, from which the next attempt would go on.
CHECKPOINT_FILE: Final = "checkpoint.json"
RESULT_FILE: Final = "result.json"
EXIT_FILE: Final = "exit.json"
ALIVE_FILE: Final = "alive"
SUPERSEDED_FILE: Final = "superseded"
STOP_FILE: Final = "stop"

# The parameters of an entry with a `job` that say how its job is launched; those with a dot are parts of its `config`.
JOB_WORDS: Final = ("output_dir", "checkpoints", "project", "group", "restore", "tensor_shards")


def attempt_dir() -> Path | None:
    """The directory of the attempt that this process belongs to; None when it was started by hand."""
    value = os.environ.get(ATTEMPT_DIR)
    return Path(value) if value else None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` as JSON so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def report_progress(step: int, of: int, **metrics: float) -> None:
    """Show `step` of `of` and the metrics in `dispatcher status`; does nothing when run by hand."""
    directory = attempt_dir()
    if directory is not None:
        write_json(directory / PROGRESS_FILE, {"step": step, "of": of, "metrics": metrics})


def report_checkpoint(step: int) -> None:
    """Say that the checkpoint of `step` is on the disk, so that the next attempt goes on from there.

    An entry that reports checkpoints got further only by a newer one: that starts its backoff over. Call it once the
    checkpoint is complete. Does nothing when run by hand.
    """
    directory = attempt_dir()
    if directory is not None:
        write_json(directory / CHECKPOINT_FILE, {"step": step})


def report_result(**values: float | str) -> None:
    """Write the row of the results table: flat names to numbers and strings; printed when run by hand."""
    directory = attempt_dir()
    if directory is None:
        print(json.dumps(values, ensure_ascii=False))
    else:
        write_json(directory / RESULT_FILE, values)
