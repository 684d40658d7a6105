"""What to ask a host of what it has, and how to read the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.errors import OutletError
from dispatcher.hosts.types import ConnectedHost, PbsHost, PlainHost, SlurmHost
from dispatcher.outlets.remote.connection import Unreached
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.solver import pbs, plain, slurm
from dispatcher.outlets.solver.reports import HostReport, Unreachable


class _Kind(NamedTuple):
    """What to ask a host of a kind within a time for each question, and how to read the answers."""

    questions: Callable[[Any, float], list[Operation]]
    report: Callable[[Sequence[Any]], HostReport]


_KINDS: Final[Mapping[str, _Kind]] = {
    PlainHost.type: _Kind(plain.questions, plain.report),
    SlurmHost.type: _Kind(slurm.questions, slurm.report),
    PbsHost.type: _Kind(pbs.questions, pbs.report),
}


def questions(host: ConnectedHost, timeout_s: float) -> list[Operation]:
    """What to ask the host.

    One question may take a third of the time: when it hangs, there is time left for the host to say so.
    """
    return _KINDS[host.type].questions(host, timeout_s / 3)


def read_report(host: ConnectedHost, outcome: Sequence[Any] | Unreached) -> HostReport:
    """What the answers to `questions` tell."""
    if isinstance(outcome, Unreached):
        return Unreachable(outcome.why)
    try:
        return _KINDS[host.type].report(outcome)
    except OutletError as error:
        return Unreachable(str(error))
