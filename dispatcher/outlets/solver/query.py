"""Asking hosts what they have: all at the same time, each with its own time limit."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.errors import OutletError
from dispatcher.hosts.types import ConnectedHost, PbsHost, PlainHost, SlurmHost
from dispatcher.outlets.remote.connection import Call, Connection, Unreached
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


def ask_hosts(hosts: Iterable[ConnectedHost], timeout_s: float) -> dict[str, HostReport]:
    """What every host reports, by name; returns when all have answered or their time is over."""
    reports: dict[str, HostReport] = {}
    calls: dict[str, tuple[ConnectedHost, Call]] = {}
    with contextlib.ExitStack() as stack:
        for host in hosts:
            try:
                connection = Connection(host.name, host.ssh)
            except OutletError as error:
                reports[host.name] = Unreachable(str(error))
                continue
            stack.callback(connection.close, 0.0)
            calls[host.name] = host, connection.call(questions(host, timeout_s), timeout_s=timeout_s)
        while calls:
            for name, (host, call) in list(calls.items()):
                outcome = call.outcome()
                if outcome is not None:
                    reports[name] = read_report(host, outcome)
                    del calls[name]
            _wait([call for _, call in calls.values()])
    return reports


def _wait(calls: Sequence[Call]) -> None:
    """Until one of them has something to do."""
    if not calls:
        return
    poll = select.poll()
    for fd in {fd for call in calls for fd in call.wait_fds()}:
        poll.register(fd, select.POLLIN)
    dues_s = [due_s for due_s in (call.due_in_s() for call in calls) if due_s is not None]
    poll.poll(min(dues_s) * 1000 if dues_s else None)
