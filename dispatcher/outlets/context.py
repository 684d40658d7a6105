"""What a pod tells the outlets that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from dispatcher.config import CodeMode, Config
from dispatcher.run_state.observer import Observer


class BatchTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long the outlet of a configured host waits before it tries something again, or concludes something."""

    # The pause after a refusal, which doubles with each one that follows.
    refusal_pause_s: float = 30.0
    # Schedulers do not always name at once what they have accepted.
    absent_s: float = 30.0
    # After an attempt could not be stopped.
    stop_again_s: float = 10.0


class OutletOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a pod that its outlets are made from.

    gpus: as typed: `0,1,2`, `0-7`, `all`; empty for none.
    cpu_slots: number of slots for CPU jobs.
    cpus, memory_mib: what attempts that ask for them can have of this host; None for all that there is.
    submissions: number of attempts in flight on each configured host, the preferred one first.
    by_hardware: among those hosts, attempts go where the hardware that they ask for is free.
    code: which code hosts run, also those that see the workspace; None for the setting, which counts for the others.
    """

    pod: str
    gpus: str = ""
    cpu_slots: int = 0
    jobs_per_gpu: int = 1
    cpus: int | None = None
    memory_mib: int | None = None
    submissions: Mapping[str, int] = {}
    by_hardware: bool = False
    code: CodeMode | None = None


class PodContext(OutletOptions, frozen=True, kw_only=True):
    """What outlets are made from.

    poll_interval_s: how often a configured host is asked; `times` are its other times.
    needs_slots: without any, a pod is a mistake.
    ends_when_empty: nothing that the pod has made is wanted after its end.
    """

    config: Config
    observer: Observer
    log: Callable[[str], None]
    poll_interval_s: float = 30.0
    times: BatchTimes = BatchTimes()
    needs_slots: bool = True
    ends_when_empty: bool = False
