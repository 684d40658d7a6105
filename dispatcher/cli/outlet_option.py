"""`--outlet`: which hosts a pod submits to, and how many attempts it has in flight on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.errors import UsageError
from dispatcher.hosts.types import Hosts

_LOCAL: Final = "local"
_AUTO: Final = "auto"


def read_outlets(outlets: Sequence[str], slots: int, hosts: Hosts) -> tuple[int, dict[str, int]]:
    """The CPU slots here, and the attempts in flight by host, for `--outlet HOST[:N] ... --slots N`.

    UsageError for a number that is none, and for a host without one when there is no `--slots` either.
    """
    if not outlets:
        return slots, {}
    cpu_slots = 0
    numbers: dict[str, int] = {}
    for typed in outlets:
        name, number = _read(typed, slots)
        if name == _LOCAL:
            cpu_slots = number
        elif name == _AUTO:
            numbers.update({host.name: number for host in hosts.in_order() if host.name not in numbers})
        else:
            numbers[name] = number
    return cpu_slots, numbers


def _read(typed: str, slots: int) -> tuple[str, int]:
    name, colon, number = typed.partition(":")
    if not colon:
        if not slots:
            raise UsageError(f"--outlet {typed}: how many attempts at once? Add --slots N, or write --outlet {typed}:N")
        return name, slots
    if not (number.isascii() and number.isdigit() and int(number)):
        raise UsageError(f"--outlet {typed}: {number!r} is no number of attempts; write --outlet {name}:32")
    return name, int(number)
