"""Shell completion. Errors are swallowed: a message would appear in the middle of a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.api import Workspace

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_words(words: Sequence[str]) -> Complete:
    """Complete the last word of a comma-separated list."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last)]

    return complete


def _completing(ctx: click.Context) -> Workspace:
    from dispatcher.api import Workspace

    return Workspace(ctx.find_object(str))


def complete_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from dispatcher.errors import DispatcherError

    try:
        return [job for job in _completing(ctx).records() if job.startswith(incomplete)]
    except DispatcherError:
        return []


def complete_pods(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from dispatcher.run_state.liveness import pod_names

    return [pod for pod in pod_names(Layout(_completing(ctx).root)) if pod.startswith(incomplete)]


def complete_scopes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Methods and hosts, which can be paused."""
    from dispatcher.errors import DispatcherError

    try:
        snapshot = _completing(ctx).snapshot()
    except DispatcherError:
        return []
    methods = [entry.method for entry in snapshot.entries.values()]
    scopes = dict.fromkeys([*methods, *(f"host:{pod.info.host}" for pod in snapshot.pods)])
    return [scope for scope in scopes if scope.startswith(incomplete)]


def complete_paused(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from dispatcher.errors import DispatcherError

    try:
        return [scope for scope in _completing(ctx).snapshot().pauses if scope.startswith(incomplete)]
    except DispatcherError:
        return []
