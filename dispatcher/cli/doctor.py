"""`dispatcher doctor`: what keeps dispatchers from working here, and whether locks and views hold between two hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dispatcher.cli.common import SecondsRange, given_root, json_option, layout
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.printing import note, print_json, print_rows

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.doctor.findings import Finding
    from dispatcher.workspace import Layout


@click.command()
@click.option("--repair", is_flag=True, help="First repair a damaged or truncated journal; the old one is kept.")
@click.option(
    "--peer-wait", type=SecondsRange(0), metavar="SECONDS",
    help="How long to wait for a doctor on another host.  [default: 10; 30 on FUSE; 0 on a local disk]",
)  # fmt: skip
@hosts_option
@json_option
def doctor(repair: bool, peer_wait: float | None, hosts_file: Path | None, as_json: bool) -> int:
    """Check this host, the workspace, files and locks.

    Started on two hosts at about the same time, the two find each other and test that locks exclude and that each sees
    what the other writes. Without --repair the run state is not changed. The exit status is 1 if something is wrong.
    With --root, DIR may be any directory, such as one in which a workspace is to be made.
    """
    from dispatcher.doctor.checks import examine
    from dispatcher.doctor.findings import WRONG
    from dispatcher.workspace import usable_layout

    root = given_root()
    where = layout() if root is None or repair else usable_layout(root, "--root: ")
    done = _repair(where) if repair else []
    if not as_json:
        for line in done:
            click.echo(line)
    findings = examine(where, peer_wait, (lambda _: None) if as_json else note, hosts_file)
    if as_json:
        print_json({"repaired": done, "findings": findings})
    else:
        _print(findings)
    return int(any(finding.verdict == WRONG for finding in findings))


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
