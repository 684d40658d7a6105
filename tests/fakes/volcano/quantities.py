"""Amounts of resources as Kubernetes writes them ("500m", "32Gi"), and sums of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

Amounts = dict[str, Fraction]


def parse(text: object) -> Fraction:
    word = str(text).strip()
    if word[-2:] in BINARY:
        return Fraction(word[:-2]) * (1 << BINARY[word[-2:]])
    if word[-1:] in DECIMAL and not word[-1:].isdigit():
        return Fraction(word[:-1]) * Fraction(10) ** DECIMAL[word[-1:]]
    return Fraction(word)


def write(name: str, amount: Fraction) -> str:
    """As `kubectl` shows it; sizes in the largest binary unit that loses nothing."""
    if amount.denominator != 1:
        return f"{round(amount * 1000)}m"
    whole = int(amount)
    if whole and (name.startswith("hugepages-") or name.rpartition(".")[2] in ("memory", "ephemeral-storage")):
        for unit, bits in reversed(BINARY.items()):
            if whole % (1 << bits) == 0:
                return f"{whole >> bits}{unit}"
    return str(whole)


def amounts(resources: Mapping[str, Any] | None) -> Amounts:
    return {name: parse(value) for name, value in (resources or {}).items()}


def written(total: Amounts) -> dict[str, str]:
    return {name: write(name, amount) for name, amount in sorted(total.items())}


def total(parts: Iterable[Amounts]) -> Amounts:
    added: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            added[name] = added.get(name, Fraction(0)) + amount
    return added


def minus(left: Amounts, right: Amounts) -> Amounts:
    return {name: amount - right.get(name, Fraction(0)) for name, amount in left.items()}


def missing(request: Amounts, free: Amounts) -> list[str]:
    """The resources of which there is not enough; what `free` does not name is not there."""
    return sorted(name for name, amount in request.items() if amount > free.get(name, Fraction(0)))


def exceeds(request: Amounts, limits: Amounts) -> list[str]:
    """The resources over a limit; what `limits` does not name is unlimited."""
    return sorted(name for name, amount in request.items() if name in limits and amount > limits[name])
