"""What a pause applies to: a method, a GPU of a host, or a host."""

from __future__ import annotations

from dispatcher.config import Config
from dispatcher.errors import UsageError, nearest
from dispatcher.report.snapshot import Snapshot

_FORMS = "a method, gpu:HOST:N or host:HOST"


def check_scope(scope: str, snapshot: Snapshot, config: Config) -> None:
    """Raise UsageError unless `scope` names a known method, a GPU of a known host, or a known host."""
    kind, colon, rest = scope.partition(":")
    if not colon:
        methods = dict.fromkeys([*(entry.method for entry in snapshot.entries.values()), *config.methods])
        _check_known("method", scope, list(methods))
    elif kind == "host":
        _check_known("host", rest, _hosts(snapshot))
    elif kind == "gpu":
        host, _, index = rest.rpartition(":")
        if not (host and index.isascii() and index.isdigit()):
            node = "node1" if not rest or rest.isdigit() else host or rest
            raise UsageError(f"{scope}: a GPU is named gpu:HOST:N, for example gpu:{node}:0")
        _check_known("host", host, _hosts(snapshot))
    else:
        raise UsageError(f"{scope}: expected {_FORMS}")


def _hosts(snapshot: Snapshot) -> list[str]:
    return list(dict.fromkeys(pod.info.host for pod in snapshot.pods))


def _check_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise UsageError(f"unknown {what} {name!r}" + (nearest(name, known) if known else f": no {what} is known here"))
