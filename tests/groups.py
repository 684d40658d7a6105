"""Which tests run together: the groups of `scripts/test`, which uses several workers, and what is left out.

The tests of a group run one after the other on one worker (pytest-xdist); a test without a group runs wherever a
worker is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from beds.needs import NEEDS

HERE = Path(__file__).parent
# Tests that measure how long something takes, or that keep all cores busy for it, would slow each other down.
QUIET = "quiet"
# A bed is booted once, and its tests share its hosts. The groups that take longest begin first.
MARKERS = ("nfs", *sorted(name for name, needs in NEEDS.items() if needs.is_shared and name != "nfs"), QUIET)
# Folders whose tests share by file what takes long to make: trained models, compiled programs.
BY_FILE = ("runtime", "examples")

SLOW_FOLDERS = ("beds", "chaos", "runtime", "examples", "browser")
SLOW_MARKERS = (*MARKERS, "slurm", "ssh", "tpu", "demo", "slow")
# Repeats at length, or in variants that differ little, what a shorter test proves: only `--long` runs it.
LONG = "long"
NOT_FAST = f"the folders {', '.join(SLOW_FOLDERS)} of tests/ and what is marked {', '.join(SLOW_MARKERS)}"


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of xdist's processes that run tests for another."""
    return hasattr(config, "workerinput")


def group(item: pytest.Item) -> str | None:
    for marker in MARKERS:
        if item.get_closest_marker(marker):
            return marker
    return str(item.path) if _folder(item.path) in BY_FILE else None


def _folder(path: Path) -> str | None:
    """Which folder of tests/ a path is in, or is."""
    return next(iter(path.relative_to(HERE).parts), None) if path.is_relative_to(HERE) else None


def assign(items: list[pytest.Item]) -> None:
    """Mark the tests with their groups, for xdist."""
    for item in items:
        if (name := group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(name))


def order(items: list[pytest.Item]) -> None:
    """Long groups first and single tests last: then no worker has much left to do when the others are done."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    name = group(item)
    if name in MARKERS:
        return MARKERS.index(name)
    if name is not None:
        return len(MARKERS)
    return len(MARKERS) + (1 if item.get_closest_marker("slow") else 2)


def without_group(node_id: str) -> str:
    """The id that pytest takes on its command line: xdist's workers add `@GROUP` to it."""
    at = node_id.rfind("@")
    return node_id[:at] if at > node_id.rfind("]") else node_id


def is_slow_folder(path: Path) -> bool:
    """Whether `--fast` does not even import what is there: JAX may not be installed."""
    return _folder(path) in SLOW_FOLDERS


def leave_out(config: pytest.Config, items: list[pytest.Item], markers: Iterable[str]) -> None:
    """Deselect what has one of the markers."""
    names = tuple(markers)
    marked = {item for item in items if any(item.get_closest_marker(name) for name in names)}
    if marked:
        config.hook.pytest_deselected(items=[item for item in items if item in marked])
        items[:] = [item for item in items if item not in marked]
