"""Shell completion. Errors are swallowed: a message would appear in the middle of a command line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from dispatcher.errors import DispatcherError

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.config import Config

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

# More than a person reads; the shell asks before it shows so many.
_MOST: Final = 1000


def _completion(find: Callable[[Workspace, str], Iterable[str]]) -> Complete:
    """What `find` returns for the workspace and the incomplete word; nothing where that fails."""

    @functools.wraps(find)
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        from dispatcher.api import Workspace

        try:
            return list(find(Workspace(ctx.find_object(str)), incomplete))[:_MOST]
        except (DispatcherError, OSError):
            return []

    return complete


def _listed(words: Iterable[str], incomplete: str) -> list[str]:
    """Complete the last word of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(last)]


def _list_of(find: Callable[[Config], Iterable[str]]) -> Complete:
    return _completion(lambda workspace, incomplete: _listed(find(workspace.config), incomplete))


def complete_words(words: Sequence[str]) -> Complete:
    """Complete the last word of a comma-separated list."""
    return lambda _ctx, _param, incomplete: _listed(words, incomplete)


@_completion
def complete_jobs(workspace: Workspace, incomplete: str) -> Iterable[str]:
    from dispatcher.query.known_words import job_ids

    return (job for job in job_ids(workspace.config) if job.startswith(incomplete))


@_completion
def complete_where(workspace: Workspace, incomplete: str) -> Iterable[str]:
    """First the key, then the values of that key, also the second of `lang=greek,hindi`."""
    from dispatcher.matrix.condition import last_glob, literal
    from dispatcher.query.known_words import keys, values

    key, equals, pattern = incomplete.partition("=")
    if not equals:
        return (f"{known}=" for known in keys(workspace.config) if known.startswith(incomplete))
    last = last_glob(pattern)
    before = incomplete.removesuffix(last)
    patterns = map(literal, values(workspace.config, key.removesuffix("!").strip()))
    return (f"{before}{value}" for value in patterns if value.startswith(last))


@_list_of
def complete_keys(config: Config) -> Iterable[str]:
    from dispatcher.query.known_words import keys

    # States are the columns already.
    return (key for key in keys(config) if key != "state")


@_list_of
def complete_methods(config: Config) -> Iterable[str]:
    from dispatcher.query.known_words import values

    return values(config, "method")


@_list_of
def complete_users(config: Config) -> Iterable[str]:
    from dispatcher.query.known_words import users

    return users(config)


@_completion
def complete_result_key(workspace: Workspace, incomplete: str) -> Iterable[str]:
    from dispatcher.query.known_words import result_keys

    return _listed(result_keys(workspace.config), incomplete)


@_completion
def complete_sort_key(workspace: Workspace, incomplete: str) -> Iterable[str]:
    """Keys of entries and of results; after a `-` too."""
    from dispatcher.query.known_words import keys, result_keys

    config = workspace.config
    words = dict.fromkeys(["job_id", *keys(config), *result_keys(config)])
    return _listed([*words, *(f"-{word}" for word in words)] if "-" in incomplete else words, incomplete)


@_completion
def complete_pods(workspace: Workspace, incomplete: str) -> Iterable[str]:
    from dispatcher.run_state.liveness import pod_names

    return (pod for pod in pod_names(workspace.layout) if pod.startswith(incomplete))


@_completion
def complete_scopes(workspace: Workspace, incomplete: str) -> Iterable[str]:
    """Methods and hosts, which can be paused."""
    from dispatcher.query.known_words import values

    hosts = (f"host:{pod.info.host}" for pod in workspace.pods())
    scopes = dict.fromkeys([*values(workspace.config, "method"), *hosts])
    return (scope for scope in scopes if scope.startswith(incomplete))


@_completion
def complete_paused(workspace: Workspace, incomplete: str) -> Iterable[str]:
    return (scope for scope in workspace.snapshot().pauses if scope.startswith(incomplete))


@_completion
def complete_studies(workspace: Workspace, incomplete: str) -> Iterable[str]:
    workspace.store.refresh(to_the_end=True, for_display=True)
    return [name for name in workspace.store.fold.studies if name.startswith(incomplete)]
