"""The interface between dispatcher and job: environment variables, exit codes and the files of an attempt.

Using it is optional: exit status 0 means done, 75 means "preempted, requeue me", everything else means failed.
This module imports nothing else of the package, so that it costs a job nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = [
    "ALIVE_FILE",
    "ATTEMPT",
    "ATTEMPT_DIR",
    "BATCH_SIZE",
    "BOOTSTRAP_FILE",
    "CGROUP",
    "CGROUP_FILE",
    "CHECKPOINT_FILE",
    "CLEANED_FILE",
    "CODE_COMMIT",
    "CODE_DIGEST",
    "CODE_FILE",
    "ENTRY_FILE",
    "EXIT_COMPLETE",
    "EXIT_DONE",
    "EXIT_FILE",
    "EXIT_PREEMPTED",
    "GPU_MEMORY",
    "GPU_USE_FILE",
    "JOB_ID",
    "JOB_WORDS",
    "KILL_GRACE",
    "LOG_FILE",
    "METRICS_FILE",
    "NODE_FILE",
    "OUTPUTS_FILE",
    "PASSWORD_FILE",
    "POD",
    "PROGRESS_FILE",
    "PROVENANCE_FILE",
    "PROVENANCE_HOST_FILE",
    "RESULT_FILE",
    "ROOT",
    "RUN_COMPLETED",
    "RUN_FAILED",
    "RUN_FILE",
    "RUN_PREEMPTED",
    "RUN_RUNNING",
    "SETUP_FILE",
    "SLOT_FILE",
    "SPEED",
    "STOP_FILE",
    "SUBMISSION_FILE",
    "SUPERSEDED_FILE",
    "TAKEN_FILE",
    "TOLD_FILE",
    "WRAPPER_FILE",
    "attempt_dir",
    "report_checkpoint",
    "report_progress",
    "report_result",
]

JOB_ID: Final = "DISPATCHER_JOB_ID"
ATTEMPT: Final = "DISPATCHER_ATTEMPT"
POD: Final = "DISPATCHER_POD"
ATTEMPT_DIR: Final = "DISPATCHER_ATTEMPT_DIR"
ROOT: Final = "DISPATCHER_ROOT"
# From TERM to KILL, in whole seconds.
KILL_GRACE: Final = "DISPATCHER_KILL_GRACE_S"
# The commit that an attempt runs, with `+dirty` if its files differ from it, and the SHA-256 of the archive: only where
# the code was shipped.
CODE_COMMIT: Final = "DISPATCHER_CODE_COMMIT"
CODE_DIGEST: Final = "DISPATCHER_CODE_DIGEST"
# Replaces training.per_device_batch_size of a job class: what fits depends on the host.
BATCH_SIZE: Final = "DISPATCHER_BATCH_SIZE"
# What an attempt takes of its GPU, which it may share with others, in MiB: only where it has asked for an amount.
GPU_MEMORY: Final = "DISPATCHER_GPU_MEMORY_MIB"
# The cgroup that the job is to enter, for the wrapper alone.
CGROUP: Final = "DISPATCHER_CGROUP"

EXIT_DONE: Final = 0
EXIT_PREEMPTED: Final = 75
# Complete, although the job was told to stop: after that, EXIT_DONE alone says only that it has left in good order.
EXIT_COMPLETE: Final = 79

ENTRY_FILE: Final = "entry.json"
WRAPPER_FILE: Final = "job.sh"
SETUP_FILE: Final = "setup.sh"
# What of the host and of its GPU was counted for the attempt, where it asks for some.
SLOT_FILE: Final = "slot.json"
CGROUP_FILE: Final = "cgroup"
LOG_FILE: Final = "output.log"
PROGRESS_FILE: Final = "progress.json"
# `{"step": 120, "wall_s": 34.5, "loss": 2.31}` a line: runtime/metrics.py writes it, query/metrics.py reads it.
METRICS_FILE: Final = "metrics.jsonl"
# Metrics with this prefix say how fast an attempt was: they differ whenever a step is trained again.
SPEED: Final = "speed/"
# `{"step": 120}`: the last checkpoint that the attempt committed, from which the next attempt will resume. Those of job
# classes say where it is as well (checkpoints/reported.py).
CHECKPOINT_FILE: Final = "checkpoint.json"
RESULT_FILE: Final = "result.json"
EXIT_FILE: Final = "exit.json"
# In which files of its own the script leaves its result and metrics (base/outputs.py); only where its method says so.
OUTPUTS_FILE: Final = "script-outputs.json"
# When `dispatcher clean` removed the log and everything else that is not a record of the attempt, and how much.
CLEANED_FILE: Final = "cleaned.json"
ALIVE_FILE: Final = "alive"
SUPERSEDED_FILE: Final = "superseded"
# The host and the pid of the wrapper that runs the attempt: any other wrapper of it is a twin and runs nothing.
TAKEN_FILE: Final = "taken"
STOP_FILE: Final = "stop"
# The signal with which a scheduler (or a person) has stopped the wrapper; a dispatcher writes `stop` instead.
TOLD_FILE: Final = "told"
# What runs around the command on each node of a host with a set-up; the shipped code that it extracts; a password that
# it needs, which only the owner may read.
NODE_FILE: Final = "node.sh"
CODE_FILE: Final = "code"
PASSWORD_FILE: Final = "node.password"
# The name under which the attempt's outlet submits it, and where it runs.
SUBMISSION_FILE: Final = "submission.json"
# What runs a job class on a host that does not see the workspace, and what that run says of itself.
BOOTSTRAP_FILE: Final = "bootstrap.py"
RUN_FILE: Final = "run.json"
# What the attempt ran from, by its pod: the commit and the rest. And what only the host knows where it ran, by itself.
PROVENANCE_FILE: Final = "provenance.json"
PROVENANCE_HOST_FILE: Final = "provenance-host.json"
# `{"samples": 7, "gpus": 2, "idle_s": 90}`: for how long all of its GPUs have been at 0 %, where it does not run on its
# pod's host: node.sh writes it with every sample that tells something.
GPU_USE_FILE: Final = "gpu-use.json"

# `status` in run.json.
RUN_RUNNING: Final = "running"
RUN_COMPLETED: Final = "completed"
RUN_FAILED: Final = "failed"
RUN_PREEMPTED: Final = "preempted"

# Parameters of a job with the key `job` that control its launch; parameters with a dot are parts of its `config`.
JOB_WORDS: Final = ("output_dir", "checkpoints", "project", "group", "restore", "accept_changes", "tensor_shards")

# When this process last reported into a file, by the monotonic clock, and the longest time before a report, in seconds.
_reports: dict[Path, tuple[float, float]] = {}
# Attempts whose progress could not be written.
_unreported: set[Path] = set()


def attempt_dir() -> Path | None:
    """The directory of the attempt that this process belongs to; None when run by hand."""
    value = os.environ.get(ATTEMPT_DIR)
    return Path(value) if value else None


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace the content of `path` atomically with `value` as JSON; when `durable`, it outlives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Some network filesystems cannot sync a directory: there its server does.
            with contextlib.suppress(OSError):
                os.fsync(fd)
        finally:
            os.close(fd)


def report_progress(step: int, of: int, **metrics: float) -> None:
    """Show progress (`step` of `of`) and metrics in `dispatcher status`; NaN and infinity are shown as null.

    Does nothing when run by hand. Where the file cannot be written (a full disk), the job goes on: stderr says so once.
    """
    directory = attempt_dir()
    if directory is None:
        return
    try:
        write_progress(directory, {"step": step, "of": of, "metrics": finite(metrics)})
    except OSError as error:
        if directory not in _unreported:
            _unreported.add(directory)
            print(f"dispatcher: warning: progress cannot be reported: {error}", file=sys.stderr, flush=True)


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """With null for NaN and infinity, which JSON lacks: a training that diverges must not end by its report."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def write_progress(directory: Path, progress: Mapping[str, Any]) -> None:
    """Replace `progress.json`, with the longest time that this process has let pass before a report.

    Longer silence than usual is how `dispatcher status` shows that a job is stalled.
    """
    path = directory / PROGRESS_FILE
    now_s = time.monotonic()
    last_s, longest_s = _reports.get(path) or (now_s - _seconds_since_start(directory), 0.0)
    longest_s = max(longest_s, now_s - last_s)
    _reports[path] = now_s, longest_s
    write_json(path, {**progress, "longest_gap_s": round(longest_s, 1)})


def _seconds_since_start(directory: Path) -> float:
    """How long ago the attempt's wrapper began, or an earlier process of the attempt reported; 0 if unknown."""
    times = []
    for name in (TAKEN_FILE, PROGRESS_FILE):
        with contextlib.suppress(OSError):
            times.append(os.stat(directory / name).st_mtime)
    return max(0.0, time.time() - max(times)) if times else 0.0


def report_checkpoint(step: int) -> None:
    """Report that the checkpoint of `step` is complete, so that the next attempt will resume from it.

    For a job that reports checkpoints only a newer one counts as progress, which resets its backoff. Does nothing when
    run by hand. On return the report outlives a power cut; that the checkpoint does is the job's affair, which syncs it
    before it reports it.
    """
    directory = attempt_dir()
    if directory is not None:
        write_json(directory / CHECKPOINT_FILE, {"step": step}, durable=True)


def report_result(**values: float | str | None) -> None:
    """Write the job's row of the results table: names with numbers or strings; NaN and infinity become null.

    Printed when run by hand. Raises OSError where it cannot be written: a job without its result is not done. On return
    the row outlives a power cut. After it a job that is told to stop and leaves with 0 is done: report the last row
    when the work is complete.
    """
    directory = attempt_dir()
    if directory is None:
        print(json.dumps(values, ensure_ascii=False))
    else:
        write_json(directory / RESULT_FILE, finite(values), durable=True)
