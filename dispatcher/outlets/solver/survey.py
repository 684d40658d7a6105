"""Asking hosts what they have: all at the same time, each with its own time limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dispatcher.config import Config
from dispatcher.errors import OutletError
from dispatcher.hosts.types import AnyHost
from dispatcher.outlets.kinds import make_transport
from dispatcher.outlets.remote.asking import ask_all
from dispatcher.outlets.solver.query import questions, read_report
from dispatcher.outlets.solver.reports import HostReport, Unreachable

# See kinds.make_transport.
_OWNER: Final = "command"


def ask_hosts(hosts: Iterable[AnyHost], config: Config, timeout_s: float) -> dict[str, HostReport]:
    """What every host reports, by name; returns when all have answered or their time is over."""
    by_name = {host.name: host for host in hosts}
    reports: dict[str, HostReport] = {}
    asked = {}
    for name, host in by_name.items():
        try:
            asked[name] = make_transport(host, config, _OWNER), questions(host, timeout_s, config.layout.root)
        except OutletError as error:
            reports[name] = Unreachable(str(error))
    told = ask_all(asked, timeout_s)
    return {**reports, **{name: read_report(by_name[name], outcome) for name, outcome in told.items()}}
