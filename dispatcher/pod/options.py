"""The command-line options of a pod."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from dispatcher.config import Config
from dispatcher.matrix.condition import Where
from dispatcher.outlets.base import Request
from dispatcher.outlets.context import OutletOptions, PodContext
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.store import Store, Transaction

OnExit = Literal["drain", "stop", "leave"]


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """New jobs that a pod queues in the very transaction in which it claims them: no other pod can be first.

    append: queues them, in a transaction of the pod's store; what it raises ends the pod, and nothing was queued.
    added: is called once that has happened.
    requests: what attempts of them ask for; the pod waits until its outlets know what is free.
    code: the copy of the code that they run, which is extracted; empty for none.
    holds_rest: those that it cannot claim at once are held, so that no other pod runs them otherwise than was asked.
    """

    append: Callable[[Store, Transaction], None]
    added: Callable[[], None]
    requests: frozenset[Request]
    code: str = ""
    holds_rest: bool = False


class PodOptions(OutletOptions, frozen=True, kw_only=True):
    """Options of one pod.

    methods: empty for all.
    matrix, poll_interval_s: None for the setting of dispatcher.yaml.
    max_jobs: the pod ends after this many claims.
    max_fails: once so many jobs that it may claim have failed for good since it started, it drains.
    jobs: claim these and no others, and look after no others of dead dispatchers; None for all.
    request: what attempts ask for, whatever their entries say; None: what these say.
    addition: new jobs, the `jobs`, which do not exist yet.
    anyway: claim also while a lab's own script may claim the same jobs.
    once: end as soon as the outlets have accepted or refused what was claimed, and have told of attempts whose
        dispatcher is dead; attempts run on.
    """

    methods: tuple[str, ...] = ()
    matrix: Path | None = None
    where: Where = Where()
    poll_interval_s: float | None = None
    until_empty: bool = False
    max_jobs: int | None = None
    max_fails: int | None = None
    jobs: frozenset[str] | None = None
    request: Request | None = None
    addition: Addition | None = None
    anyway: bool = False
    once: bool = False
    on_exit: OnExit = "drain"


def outlet_context(config: Config, options: PodOptions, observer: Observer, log: Callable[[str], None]) -> PodContext:
    """What the outlets of a pod with these options are made from."""
    shared: dict[str, Any] = {name: getattr(options, name) for name in OutletOptions.__struct_fields__}
    return PodContext(
        **shared,
        config=config,
        observer=observer,
        log=log,
        poll_interval_s=options.poll_interval_s or config.poll_interval_s,
        needs_slots=not options.once,
        ends_when_empty=options.until_empty,
    )
