"""What to ask a host of what it has, and how to read the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatcher.errors import OutletError
from dispatcher.hosts.types import AnyHost, PbsHost, PlainHost, SlurmHost, TpuHost, VolcanoHost
from dispatcher.outlets.remote.connection import NoAnswer
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.solver import pbs, plain, slurm, tpu, volcano
from dispatcher.outlets.solver.reports import HostReport, Unreachable


class _HostQuery(NamedTuple):
    """What to ask a host of a kind within a time for each question, and how to read the answers."""

    questions: Callable[[Any, float, Path], list[Operation]]
    report: Callable[[Sequence[Any]], HostReport]


_KINDS: Final[Mapping[str, _HostQuery]] = {
    PlainHost.type: _HostQuery(plain.questions, plain.report),
    SlurmHost.type: _HostQuery(slurm.questions, slurm.report),
    PbsHost.type: _HostQuery(pbs.questions, pbs.report),
    TpuHost.type: _HostQuery(tpu.questions, tpu.report),
    VolcanoHost.type: _HostQuery(volcano.questions, volcano.report),
}


def questions(host: AnyHost, timeout_s: float, root: Path) -> list[Operation]:
    """What to ask the host. `root` is the workspace's, to which files in the configuration are relative.

    One question may take a third of the time: when it hangs, there is time left for the host to say so.
    """
    return _KINDS[host.type].questions(host, timeout_s / 3, root)


def read_report(host: AnyHost, outcome: Sequence[Any] | NoAnswer) -> HostReport:
    """What the answers to `questions` tell."""
    if isinstance(outcome, NoAnswer):
        return Unreachable(outcome.why)
    try:
        return _KINDS[host.type].report(outcome)
    except OutletError as error:
        return Unreachable(str(error))
