"""`dispatcher pods | drain | undrain | pause | unpause`: pods, and what stops them from claiming."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.common import interval_option, json_option, open_workspace
from dispatcher.cli.complete import complete_paused, complete_pods, complete_scopes
from dispatcher.cli.printing import print_json, print_rows

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.report.snapshot import PodStatus, Snapshot

_CLEAR: Final = "\x1b[H\x1b[2J"


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C; also shows how long heartbeats have not changed.")
@interval_option
@json_option
def pods(watch: bool, interval: float, as_json: bool) -> None:
    """List the pods, their slots, and the jobs on them."""
    workspace = open_workspace()
    _show(workspace, as_json)
    if not watch:
        return
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(interval)
            if sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            _show(workspace, as_json)


def _show(workspace: Workspace, as_json: bool) -> None:
    from dispatcher.report.pods import pod_row, slot_rows

    snapshot = workspace.snapshot()
    rows = [pod_row(pod, snapshot.now_s) for pod in snapshot.pods]
    if as_json:
        print_json([{**row, "slots": slot_rows(pod, snapshot)} for row, pod in zip(rows, snapshot.pods, strict=True)])
        return
    print_rows([_shown_pod(row) for row in rows], "plain", none="no pod has run here")
    slots = [
        _shown_slot(row, names_outlet=len(pod.info.outlets) > 1)
        for pod in snapshot.pods
        if pod.is_alive
        for row in slot_rows(pod, snapshot)
    ]
    if slots:
        click.echo()
        used = [name for name in slots[0] if any(row[name] for row in slots)]
        print_rows(slots, "plain", used)
    _print_notes(snapshot)


def _shown_pod(row: dict[str, Any]) -> dict[str, Any]:
    from dispatcher.base.times import duration_text

    unchanged_s = row["heartbeat_unchanged_s"]
    heartbeat = f"{row['heartbeat']}" if unchanged_s is None else f"unchanged for {duration_text(unchanged_s)}"
    return {
        "pod": row["pod"],
        "state": row["state"],
        "host": row["host"],
        "pid": row["pid"],
        "user": row["user"],
        "slots": f"{row['busy']}/{row['size']} busy" if row["size"] else "",
        "up": duration_text(row["up_s"]) if row["alive"] else "",
        "heartbeat": heartbeat if row["alive"] else "",
        "methods": ",".join(row["methods"]) or "all",
    }


def _shown_slot(row: dict[str, Any], *, names_outlet: bool) -> dict[str, Any]:
    from dispatcher.base.times import duration_text

    used, total = row["memory_used_mib"], row["memory_total_mib"]
    return {
        "pod": row["pod"],
        "outlet": row["outlet"] if names_outlet else "",
        "slot": row["slot"],
        "job": row["job"] or "free",
        "elapsed": duration_text(row["elapsed_s"]) if row["job"] else "",
        "gpu": row["gpu_name"],
        "memory": f"{used if used is not None else '?'}/{total} MiB" if total is not None else "",
        "note": row["note"],
    }


def _print_notes(snapshot: Snapshot) -> None:
    for pod in snapshot.pods:
        for line in pod.info.notes if _is_worth_reading(pod) else ():
            click.echo(f"{pod.info.pod}: {line}")


def _is_worth_reading(pod: PodStatus) -> bool:
    return pod.state != "ended"


@click.command()
@click.argument("pod", shell_complete=complete_pods)
def drain(pod: str) -> None:
    """Let POD finish its jobs, claim no more and end."""
    workspace = open_workspace()
    status = next((status for status in workspace.pods() if status.info.pod == pod), None)
    if status is not None and not status.is_alive:
        # The request would end the pod when it is started again.
        click.echo(f"{pod} is not running: there is nothing to drain")
        return
    workspace.drain(pod)
    click.echo(f"{pod} on {status.info.host if status else '?'} will finish its jobs and claim no more")


@click.command()
@click.argument("pod", shell_complete=complete_pods)
def undrain(pod: str) -> None:
    """Let POD claim again after `drain`."""
    workspace = open_workspace()
    was_asked = workspace.layout.pod_drain(pod).exists()
    workspace.undrain(pod)
    click.echo(f"{pod} may claim again" if was_asked else f"{pod} was not asked to drain: there is nothing to undo")


@click.command()
@click.argument("scope", shell_complete=complete_scopes)
@click.option("--why", default="", metavar="TEXT", help="The reason, shown by status.")
def pause(scope: str, why: str) -> None:
    """Stop claiming a method, a GPU or on a host.

    SCOPE is a method, gpu:HOST:N, or host:HOST. Running jobs are not affected.
    """
    open_workspace().pause(scope, why)
    click.echo(f"{scope} paused")


@click.command()
@click.argument("scope", shell_complete=complete_paused)
def unpause(scope: str) -> None:
    """Continue claiming within a paused SCOPE.

    SCOPE is a method, gpu:HOST:N, or host:HOST; `dispatcher status` lists the paused ones.
    """
    open_workspace().unpause(scope)
    click.echo(f"{scope} unpaused")
