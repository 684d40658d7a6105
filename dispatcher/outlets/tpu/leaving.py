"""What a dispatcher that ends does about its TPU VM, and waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dispatcher.base.times import duration_text
from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.asking import ask_all
from dispatcher.outlets.remote.connection import Outcome
from dispatcher.outlets.remote.operations import Operation, Ran, Written
from dispatcher.outlets.remote.programs import Program, ran
from dispatcher.outlets.tpu import gcloud, timer, usage
from dispatcher.outlets.tpu.workers import WorkersTransport

# How long gcloud has for a request, and the workers have for their answer.
_REQUEST_S: Final = 15.0
_ANSWER_S: Final = 60.0


def finish(words: Sequence[str]) -> None:
    """Run a command of gcloud that asks for a deletion, without waiting for that; raises OutletError."""
    gcloud.check(_run([*words, "--async"]))


def is_of(host: TpuHost, workspace: str) -> bool:
    """Whether there is a VM of this name now, and it was created for this workspace."""
    try:
        vm = gcloud.read_vm(_run(gcloud.describe(host)))
    except OutletError:
        return False
    return vm is not None and vm.is_of(workspace)


def is_unused(host: TpuHost) -> bool:
    """Whether no attempt, of whichever workspace, is on the VM, by its workers' own word."""
    answers = _ask(host, usage.questions())
    return isinstance(answers, Sequence) and not usage.is_used(answers)


def hand_over(host: TpuHost, limit_s: float, log: Callable[[str], None]) -> bool:
    """Leave it to the VM to delete itself after so long; False when it has not heard of that."""
    answers = _ask(host, timer.renewal(limit_s, is_last=True))
    written = answers[0] if isinstance(answers, Sequence) else None
    # One that was there is not taken in: another dispatcher's, or the timer has ended.
    if not isinstance(written, Written) or written.existed:
        return False
    log(f"{host.name} deletes itself in {duration_text(limit_s)}, unless a dispatcher comes before")
    return True


def _ask(host: TpuHost, operations: Sequence[Operation]) -> Outcome:
    return ask_all({host.name: (WorkersTransport(host), operations)}, _ANSWER_S)[host.name]


def _run(words: Sequence[str]) -> Ran:
    program = Program(words, limit_s=_REQUEST_S)
    program.close(_REQUEST_S)
    finished = program.poll()
    return Ran(exit_code=None) if finished is None else ran(finished)
