"""What a dispatcher is told on its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dispatcher.matrix.condition import Where

OnExit = Literal["drain", "stop", "leave"]


class PodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one pod. `gpus` as typed (`0,1,2`, `0-7`, `all`; empty for none); `cpu_slots` take CPU entries.

    `methods` empty means all. None for `poll_interval_s` or `matrix`: as dispatcher.yaml says. `max_jobs` ends the pod
    after that many claims.
    """

    pod: str
    gpus: str = ""
    cpu_slots: int = 0
    jobs_per_gpu: int = 1
    methods: tuple[str, ...] = ()
    matrix: Path | None = None
    where: Where = Where()
    poll_interval_s: float | None = None
    until_empty: bool = False
    max_jobs: int | None = None
    on_exit: OnExit = "drain"
