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


class PodContext(msgspec.Struct, frozen=True, kw_only=True):
    """What outlets are made from. `gpus` as typed (`0,1,2`, `0-7`, `all`; empty for none).

    `cpus` and `memory_mib` are what attempts that ask for them can have of this host; None: all that there is.
    `submissions` is how many attempts the pod may have in flight on each configured host that it uses, the preferred
    one first. `by_hardware`: among them, attempts go where the hardware that they ask for is free. `poll_interval_s` is
    how often such a host is asked; `times` are its other times. `code`: what they run, also those that see the
    workspace; None: as dispatcher.yaml says, and only those that do not see it. `needs_slots`: without any, a pod is a
    mistake. `ends_when_empty`: nothing that it has made is wanted after its end.
    """

    pod: str
    config: Config
    observer: Observer
    log: Callable[[str], None]
    gpus: str = ""
    cpu_slots: int = 0
    jobs_per_gpu: int = 1
    cpus: int | None = None
    memory_mib: int | None = None
    submissions: Mapping[str, int] = {}
    by_hardware: bool = False
    poll_interval_s: float = 30.0
    times: BatchTimes = BatchTimes()
    code: CodeMode | None = None
    needs_slots: bool = True
    ends_when_empty: bool = False
