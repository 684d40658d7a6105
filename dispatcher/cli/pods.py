"""`dispatcher pods | drain | undrain | pause | unpause`: pods, and what stops them from claiming."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.messages import counted
from dispatcher.base.times import ago, duration_text, parse_time
from dispatcher.cli.common import interval_option, json_option, open_workspace
from dispatcher.cli.complete import complete_paused, complete_pods, complete_scopes
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import print_json, table_text, terminal_width
from dispatcher.cli.time_limit import timeout_option

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.query.snapshot import PodStatus, Snapshot

_GPU_SIZE: Final = re.compile(r"[ -]\d+ ?GB.*")
_POD_NARROWING: Final = Narrowing(shrink=("user", "host", "methods", "pod"), drop=("user", "pid", "up"), keep=("pod",))
_SLOT_NARROWING: Final = Narrowing(
    shrink=("gpu", "note", "pod", "job"), drop=("gpu", "use", "memory", "elapsed"), keep=("slot", "job")
)


@click.command()
@click.option("--all", "shows_all", is_flag=True, help="Show the pods that have ended, too.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C or q; scroll with the arrows, j and k.")
@interval_option
@timeout_option
@json_option
def pods(shows_all: bool, watch: bool, interval: float, as_json: bool) -> None:
    """List the pods, their slots, and the jobs on them."""
    workspace = open_workspace()
    if watch:
        _watch(workspace, interval, shows_all=shows_all, as_json=as_json)
    else:
        click.echo(_text(workspace, shows_all=shows_all, as_json=as_json))


def _watch(workspace: Workspace, interval_s: float, *, shows_all: bool, as_json: bool) -> None:
    from dispatcher.cli.watch import Frame, repeat, watch

    if as_json or terminal_width() is None:
        repeat(lambda: _text(workspace, shows_all=shows_all, as_json=as_json), interval_s)
    else:
        watch(lambda: Frame(*_lines(workspace, workspace.snapshot(), shows_all=shows_all)), interval_s)


def _text(workspace: Workspace, *, shows_all: bool, as_json: bool) -> str:
    from dispatcher.cli.tables import json_text
    from dispatcher.query.pods import pod_row

    snapshot = workspace.snapshot()
    if as_json:
        shown = _shown(snapshot, shows_all=shows_all)
        rows = [{**pod_row(pod, snapshot.now_s), "slots": _slots(workspace, pod, snapshot)} for pod in shown]
        return json_text(rows)
    pods, slots = _lines(workspace, snapshot, shows_all=shows_all)
    return "\n".join([*pods, *slots])


def _slots(workspace: Workspace, pod: PodStatus, snapshot: Snapshot) -> list[dict[str, Any]]:
    from dispatcher.query.pods import gpu_hours, slot_rows

    return slot_rows(pod, snapshot, gpu_hours(workspace.layout, pod, snapshot.now_s))


def _shown(snapshot: Snapshot, *, shows_all: bool) -> list[PodStatus]:
    return [pod for pod in snapshot.pods if shows_all or pod.state != "ended"]


def _lines(workspace: Workspace, snapshot: Snapshot, *, shows_all: bool) -> tuple[list[str], list[str]]:
    """The pods; their slots and what they note."""
    from dispatcher.query.pods import pod_row

    shown = _shown(snapshot, shows_all=shows_all)
    rows = [_shown_pod(pod_row(pod, snapshot.now_s), snapshot.now_s) for pod in shown]
    none = "no pod is running" if snapshot.pods else "no pod has run here"
    lines = table_text(rows, "plain", narrowing=_POD_NARROWING).splitlines() if rows else [none]
    ended = len(snapshot.pods) - len(shown)
    if ended:
        lines.append(f"({counted(ended, 'pod has', 'pods have')} ended: --all)")
    slots = [
        _shown_slot(row, names_outlet=len(pod.info.outlets) > 1)
        for pod in shown
        if pod.is_alive
        for row in _slots(workspace, pod, snapshot)
    ]
    body = []
    if slots:
        used = [name for name in slots[0] if any(row[name] for row in slots)]
        body = ["", *table_text(slots, "plain", used, narrowing=_SLOT_NARROWING).splitlines()]
    return lines, [*body, *_notes(shown)]


def _shown_pod(row: dict[str, Any], now_s: float) -> dict[str, Any]:
    beat_at_s = parse_time(row["heartbeat_at"])
    return {
        "pod": row["pod"],
        "state": row["state"] if row["silent_s"] is None else f"no sign of life for {duration_text(row['silent_s'])}",
        "slots": f"{row['busy']}/{row['size']} busy" if row["size"] else "",
        "heartbeat": "" if beat_at_s is None else ago(now_s - beat_at_s),
        "up": duration_text(row["up_s"]) if row["alive"] else "",
        "methods": ",".join(row["methods"]) or "all",
        "host": row["host"],
        "pid": row["pid"],
        "user": row["user"],
    }


def _shown_slot(row: dict[str, Any], *, names_outlet: bool) -> dict[str, Any]:
    used, total = row["memory_used_mib"], row["memory_total_mib"]
    return {
        "pod": row["pod"],
        "outlet": row["outlet"] if names_outlet else "",
        "slot": row["slot"],
        "job": row["job"] or "free",
        "elapsed": duration_text(row["elapsed_s"]) if row["elapsed_s"] is not None else "",
        "gpu": _gpu(row["gpu_name"]),
        "memory": f"{'?' if used is None else _gib(used)}/{_gib(total)} GiB" if total is not None else "",
        "use": _use(row),
        "note": ", ".join(filter(None, (_idle(row["gpu_idle_s"]), row["note"] or _others(row)))),
    }


def _use(row: dict[str, Any]) -> str:
    """`98% (1h 73%)`: the utilisation of a GPU in the last minute, and its mean in the last hour."""
    if not row["gpu_name"]:
        return ""
    now, hour = row["gpu_percent"], row["gpu_percent_hour"]
    shown = "?" if now is None else f"{now}%"
    return shown if hour is None else f"{shown} (1h {hour}%)"


def _others(row: dict[str, Any]) -> str:
    """Who else uses the GPU: `bob 4.2 GiB (python, pid 4242)`."""
    texts = []
    for one in row["others"] or ():
        size = "? GiB" if one.used_mib is None else f"{_gib(one.used_mib)} GiB"
        program = ", ".join(filter(None, (one.program, f"pid {one.pid}")))
        texts.append(f"{one.user or 'unknown user'} {size} ({program})")
    return ", ".join(texts)


def _idle(seconds: float | None) -> str:
    return "" if seconds is None else f"idle {duration_text(seconds)}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.0f}" if mib >= 10 * 1024 else f"{mib / 1024:.1f}"


def _gpu(name: str) -> str:
    """`H100` of `NVIDIA H100 80GB HBM3`: the memory has a column of its own."""
    return _GPU_SIZE.sub("", name.removeprefix("NVIDIA "))


def _notes(shown: Sequence[PodStatus]) -> list[str]:
    from dispatcher.base.terminal import indented, one_line

    notes = [one_line(f"{pod.info.pod}: {line}") for pod in shown if pod.state != "ended" for line in pod.info.notes]
    return indented(notes, terminal_width(), rest="  ")


@click.command()
@click.argument("pod", shell_complete=complete_pods)
@json_option
def drain(pod: str, as_json: bool) -> None:
    """Let POD finish its jobs, claim no more and end."""
    workspace = open_workspace()
    status = next((status for status in workspace.pods() if status.info.pod == pod), None)
    # The request would end a pod that does not run when it is started again.
    drains = status is None or status.is_alive
    if drains:
        workspace.drain(pod)
    if as_json:
        print_json({"pod": pod, "host": status and status.info.host, "draining": drains})
    elif drains:
        click.echo(f"{pod} on {status.info.host if status else '?'} will finish its jobs and claim no more")
    else:
        click.echo(f"{pod} is not running: there is nothing to drain")


@click.command()
@click.argument("pod", shell_complete=complete_pods)
@json_option
def undrain(pod: str, as_json: bool) -> None:
    """Let POD claim again after `drain`."""
    workspace = open_workspace()
    was_asked = workspace.layout.pod_drain(pod).exists()
    workspace.undrain(pod)
    if as_json:
        print_json({"pod": pod, "draining": False, "was_draining": was_asked})
        return
    click.echo(f"{pod} may claim again" if was_asked else f"{pod} was not asked to drain: there is nothing to undo")


@click.command()
@click.argument("scope", shell_complete=complete_scopes)
@click.option("--why", default="", metavar="TEXT", help="The reason, shown by status.")
@json_option
def pause(scope: str, why: str, as_json: bool) -> None:
    """Stop claiming a method or some of its values, a GPU or on a host.

    SCOPE is a method, METHOD:KEY=VALUE (several with commas), gpu:HOST:N, host:HOST, or host:HOST:METHOD. Running jobs
    are not affected.
    """
    open_workspace().pause(scope, why)
    _print_pause(scope, as_json=as_json, paused=True)


@click.command()
@click.argument("scope", shell_complete=complete_paused)
@json_option
def unpause(scope: str, as_json: bool) -> None:
    """Continue claiming within a paused SCOPE.

    `dispatcher status` lists the paused scopes: a method, METHOD:KEY=VALUE, gpu:HOST:N, host:HOST, host:HOST:METHOD.
    Jobs that have failed before do not pause it again.
    """
    open_workspace().unpause(scope)
    _print_pause(scope, as_json=as_json, paused=False)


def _print_pause(scope: str, *, as_json: bool, paused: bool) -> None:
    if as_json:
        print_json({"scope": scope, "paused": paused})
    else:
        click.echo(f"{scope} {'paused' if paused else 'unpaused'}")
