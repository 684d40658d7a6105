"""`--outlet`: which hosts a pod submits to, and how many attempts it has in flight on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dispatcher.errors import UsageError
from dispatcher.hosts.types import Hosts

# Slots, or attempts in flight on a host: each one counts whenever a job is claimed.
MOST_AT_ONCE: Final = 10_000
_LOCAL: Final = "local"
_AUTO: Final = "auto"


class Outlets(NamedTuple):
    """The CPU slots here, and the attempts in flight by host. `by_hardware`: the free hardware decides among hosts."""

    cpu_slots: int
    submissions: Mapping[str, int]
    by_hardware: bool = False


def read_outlets(outlets: Sequence[str], slots: int, hosts: Hosts) -> Outlets:
    """What `--outlet HOST[:N] ... --slots N` asks for.

    UsageError for a number that is none, and for a host without one when there is no `--slots` either.
    """
    if not outlets:
        return Outlets(slots, {})
    cpu_slots = 0
    by_hardware = False
    numbers: dict[str, int] = {}
    for typed in outlets:
        name, number = _read(typed, slots)
        if name == _LOCAL:
            cpu_slots = number
        elif name == _AUTO:
            by_hardware = True
            if not hosts.hosts:
                raise UsageError(f"--outlet {typed}: no hosts are configured")
            numbers.update({host.name: number for host in hosts.in_order() if host.name not in numbers})
        else:
            numbers[name] = number
    return Outlets(cpu_slots, numbers, by_hardware)


def _read(typed: str, slots: int) -> tuple[str, int]:
    name, colon, number = typed.partition(":")
    if not colon:
        if not slots:
            raise UsageError(f"--outlet {typed}: how many attempts at once? Add --slots N, or write --outlet {typed}:N")
        return name, slots
    # Digits are counted first: Python refuses to read thousands of them.
    digits = number.lstrip("0")
    if not (number.isascii() and number.isdigit() and digits):
        raise UsageError(f"--outlet {typed}: {number!r} is no number of attempts; write --outlet {name}:32")
    if len(digits) > len(str(MOST_AT_ONCE)) or int(digits) > MOST_AT_ONCE:
        raise UsageError(f"--outlet {typed[:80]}: more attempts at once than the most, {MOST_AT_ONCE}")
    return name, int(digits)
