"""Whether a TPU VM is in use without an attempt of this dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.outlets.remote.operations import AttemptRead, Operation, Read, ReadAnswer
from dispatcher.outlets.tpu.workers import EXCLUSIVE
from dispatcher.run_state.liveness import SlotInfo, read_pods
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import Layout


def questions() -> Sequence[Operation]:
    """What the workers are asked: whether an attempt, of whichever workspace, has the chips."""
    return [Read(looks=[AttemptRead(directory=EXCLUSIVE)], names=())]


def is_used(answers: Sequence[Any]) -> bool:
    """Whether an attempt has the chips; also where that could not be told."""
    (answer,) = answers
    if not isinstance(answer, ReadAnswer) or len(answer.seen) != 1:
        return True
    (seen,) = answer.seen
    return bool(seen.error) or (seen.exists and seen.is_alive is not False)


def other_pods(layout: Layout, observer: Observer, pod: str, outlet: str) -> list[str]:
    """The other live dispatchers of the workspace that have attempts on it, such as those that use no chips.

    Attempts of dead ones are recovered by the live, so they count as this dispatcher's.
    """
    return _others(layout, observer, pod, lambda slot: slot.outlet == outlet and bool(slot.jobs))


def other_owners(layout: Layout, observer: Observer, pod: str, outlet: str) -> list[str]:
    """The other live dispatchers of the workspace that may submit to it."""
    return _others(layout, observer, pod, lambda slot: slot.outlet == outlet and slot.room > 0)


def _others(layout: Layout, observer: Observer, pod: str, has_it: Callable[[SlotInfo], bool]) -> list[str]:
    return [
        info.pod
        for info in read_pods(layout)
        if info.pod != pod and any(map(has_it, info.slots)) and observer.pod_is_alive(info.pod)
    ]
