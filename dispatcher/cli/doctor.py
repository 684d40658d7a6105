"""`dispatcher doctor`: what keeps dispatchers from working here, and whether locks and views hold between two hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.common import json_option, layout
from dispatcher.cli.printing import note, print_json, print_rows

if TYPE_CHECKING:
    from dispatcher.doctor.checks import Finding
    from dispatcher.workspace import Layout

# sshfs and other FUSE filesystems may show old names for so long.
_FUSE_WAIT_S: Final = 30.0
_WAIT_S: Final = 10.0


@click.command()
@click.option("--repair", is_flag=True, help="First go on from a damaged or cut journal; the old one is kept.")
@click.option(
    "--peer-wait", type=click.FloatRange(0), metavar="SECONDS",
    help="How long to wait for a doctor on another host.  [default: 10; 30 on FUSE; 0 where no other host can come]",
)  # fmt: skip
@json_option
def doctor(repair: bool, peer_wait: float | None, as_json: bool) -> int:
    """Check this host and the workspace, and how files and locks behave here.

    Started on two hosts at about the same time, the two find each other and prove that locks exclude and that each
    sees what the other writes. Without --repair nothing of the run state is changed. The exit code is 1 when something
    is wrong.
    """
    from dispatcher.doctor.checks import WRONG

    where = layout()
    done = _repair(where) if repair else []
    if not as_json:
        for line in done:
            click.echo(line)
    findings = _examine(where, peer_wait, quiet=as_json)
    if as_json:
        print_json({"repaired": done, "findings": findings})
    else:
        _print(findings)
    return int(any(finding.verdict == WRONG for finding in findings))


def _examine(where: Layout, peer_wait: float | None, *, quiet: bool) -> list[Finding]:
    from dispatcher.base.mounts import mount_of
    from dispatcher.config import load_config
    from dispatcher.doctor.checks import WRONG, Finding, check_host, check_locks
    from dispatcher.doctor.meeting import meet, meeting_place
    from dispatcher.doctor.two_hosts import not_proved, prove_together
    from dispatcher.errors import DispatcherError
    from dispatcher.run_state.lock_choice import AUTO

    try:
        config, wanted = load_config(where), AUTO
        where, wanted = config.layout, config.lock
        findings = check_host(where, config)
    except DispatcherError as error:
        wanted = AUTO
        findings = check_host(where, error)
    mount = mount_of(where.root)
    if peer_wait is None:
        peer_wait = 0.0 if not mount.is_network else _FUSE_WAIT_S if "fuse" in mount.fstype else _WAIT_S
    try:
        with meeting_place(where) as place:
            findings += check_locks(where, place, wanted)
            met = meet(place, peer_wait, (lambda _: None) if quiet else note)
            findings += prove_together(met, where, wanted) if met is not None else not_proved(where, peer_wait)
    except DispatcherError as error:
        findings.append(Finding("locks", WRONG, str(error)))
    return findings


def _repair(where: Layout) -> list[str]:
    from dispatcher.api import Workspace
    from dispatcher.run_state.repair import repair

    return repair(Workspace(where.root).store) or ["the journal is undamaged: nothing to repair"]


def _print(findings: list[Finding]) -> None:
    print_rows(
        [{"check": finding.check, "verdict": finding.verdict, "what": finding.what} for finding in findings], "plain"
    )
    cures = [finding for finding in findings if finding.cure]
    if cures:
        click.echo()
    for finding in cures:
        click.echo(f"{finding.check}: {finding.cure}")
