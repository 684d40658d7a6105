"""The events of notices. Apart from the settings: every command that reads the journal loads this."""

from __future__ import annotations

import enum
from typing import Final


class Topic(enum.StrEnum):
    """What a notice is about."""

    JOB_FAILED = "job_failed"  # a job has failed for good: no retries are left
    METHOD_PAUSED = "method_paused"  # claiming of a method, on a GPU or on a host was paused, and not by a person
    POD_DEAD = "pod_dead"  # a pod is gone that did not end by itself
    JOB_STALLED = "job_stalled"  # a running job reports no progress any more
    GPU_IDLE = "gpu_idle"  # a running job leaves its GPUs at 0 %
    MATRIX_DONE = "matrix_done"  # no job is queued or running any more
    NOTHING_RUNNING = "nothing_running"  # jobs wait, and none runs


# Told of each job anew: that one job stalls says nothing about another one.
OF_ONE_JOB: Final = frozenset({Topic.JOB_STALLED, Topic.GPU_IDLE})
