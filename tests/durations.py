"""How long tests took when it was last recorded, and the order that follows: what takes longest begins first.

tests/durations.tsv has seconds of worker time for every group, and for every test without a group that took
SHORTEST_S or more. `scripts/test --record-durations` writes it anew; do that on a calm machine, after a change that
matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import groups
import pytest

RECORD = Path(__file__).with_name("durations.tsv")
# Shorter ones have no line of their own: where they run makes no difference.
SHORTEST_S = 2.0
# What took that long is slow, and what is marked slow is thought to take that long before it is recorded.
SLOW_S = 10.0
KIND = "kind"
KINDS = ("beds", "JAX", "processes", "pure")
# Modules of tests that start processes import one of these.
_STARTERS = ("subprocess", "forks", "fleet", "Fleet")


@cache
def recorded() -> dict[str, float]:
    """Seconds by group or test."""
    if not RECORD.exists():
        return {}
    lines = (line.split("\t", 1) for line in RECORD.read_text(encoding="utf-8").splitlines())
    return {unit: float(seconds) for seconds, unit in lines}


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is too slow for the working loop: by what it is, or by the record."""
    return groups.is_of_slow_kind(item) or recorded().get(item.nodeid, 0.0) >= SLOW_S


def order(items: list[pytest.Item]) -> None:
    """Sort the tests: what took longest first, so that no worker has much left to do when the others are done."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[float, str]:
    unit = groups.group(item) or item.nodeid
    default_s = SLOW_S if item.get_closest_marker("slow") else 0.0
    # The tests of a group stay together.
    return -recorded().get(unit, default_s), groups.group(item) or ""


def kind(item: pytest.Item) -> str:
    """What a test spends its time on."""
    if groups.is_on_bed(item):
        return "beds"
    if groups.is_training(item):
        return "JAX"
    used = {*getattr(item, "fixturenames", ()), *vars(getattr(item, "module", None) or object)}
    return "processes" if used.intersection(_STARTERS) else "pure"


class Durations:
    """A plugin of the process that workers report to: adds up what takes how long. `is_kept`: the record is written."""

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._by_unit: defaultdict[str, float] = defaultdict(float)
        self._by_kind: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # xdist has added `@GROUP`.
        test = groups.without_group(report.nodeid)
        unit = report.nodeid.removeprefix(test).removeprefix("@") or test
        name = str(dict(report.user_properties).get(KIND, KINDS[-1]))
        self._by_unit[unit] += report.duration
        self._by_kind[name] += report.duration
        self._tests[name].add(test)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total_s = sum(self._by_kind.values()) or 1.0
        for name in filter(self._tests.get, KINDS):
            minutes = f"{self._by_kind[name] / 60:6.1f} min of workers' time"
            terminalreporter.write_line(
                f"{name:10} {len(self._tests[name]):5} tests {minutes} {self._by_kind[name] / total_s:5.0%}"
            )
        if self._is_kept:
            RECORD.write_text("".join(self._lines()), encoding="utf-8")

    def _lines(self) -> Iterator[str]:
        for unit, seconds in sorted(self._by_unit.items(), key=lambda one: (-round(one[1]), one[0])):
            if seconds >= SHORTEST_S or "::" not in unit:
                yield f"{seconds:.0f}\t{unit}\n"
