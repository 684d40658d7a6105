"""What a pod tells the outlets that it makes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dispatcher.config import Config
from dispatcher.run_state.observer import Observer


class PodContext(msgspec.Struct, frozen=True, kw_only=True):
    """What outlets are made from. `gpus` as typed (`0,1,2`, `0-7`, `all`; empty for none)."""

    pod: str
    config: Config
    observer: Observer
    log: Callable[[str], None]
    gpus: str = ""
    cpu_slots: int = 0
    jobs_per_gpu: int = 1
