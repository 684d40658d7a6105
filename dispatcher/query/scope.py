"""What a pause applies to; run_state/facets/pauses.py has the forms."""

from __future__ import annotations

from dispatcher.config import Config
from dispatcher.errors import UsageError, nearest
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.facets.pauses import parse_values, values_of

_FORMS = "a method, METHOD:KEY=VALUE, gpu:HOST:N, host:HOST or host:HOST:METHOD"


def check_scope(scope: str, snapshot: Snapshot, config: Config) -> dict[str, str | None]:
    """The values of a scope such as `fft:lr=1.0`, none for others.

    Raises UsageError unless the scope names a known method, a GPU of a known host, or a known host.
    """
    kind, colon, rest = scope.partition(":")
    values = parse_values(scope) if "=" in rest else {}
    if values or not colon:
        _check_known("method", kind, _methods(snapshot, config))
        known = {key for entry in snapshot.entries.values() if entry.method == kind for key in values_of(entry)}
        for key in values:
            _check_known(f"key of {kind}", key, sorted(known))
    elif kind == "host":
        host, _, method = rest.partition(":")
        _check_known("host", host, _hosts(snapshot))
        if method:
            _check_known("method", method, _methods(snapshot, config))
    elif kind == "gpu":
        host, _, index = rest.rpartition(":")
        if not (host and index.isascii() and index.isdigit()):
            node = "node1" if not rest or rest.isdigit() else host or rest
            raise UsageError(f"{scope}: a GPU is named gpu:HOST:N, for example gpu:{node}:0")
        _check_known("host", host, _hosts(snapshot))
    else:
        raise UsageError(f"{scope}: expected {_FORMS}")
    return values


def _methods(snapshot: Snapshot, config: Config) -> list[str]:
    return list(dict.fromkeys([*(entry.method for entry in snapshot.entries.values()), *config.methods]))


def _hosts(snapshot: Snapshot) -> list[str]:
    return list(dict.fromkeys(pod.info.host for pod in snapshot.pods))


def _check_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise UsageError(f"unknown {what} {name!r}" + (nearest(name, known) if known else f": no {what} is known here"))
