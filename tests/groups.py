"""Which tests run together: the groups of `scripts/test`, which uses several workers, and what is left out.

The tests of a group run one after the other on one worker (pytest-xdist); a test without a group runs wherever a
worker is free.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from beds.needs import NEEDS

HERE = Path(__file__).parent
# Tests that measure how long something takes, or that keep all cores busy for it, would slow each other down.
QUIET = "quiet"
# A bed is booted once, and its tests share its hosts.
MARKERS = (*(name for name, needs in NEEDS.items() if needs.is_shared), QUIET)
# Folders whose tests share by file what takes long to make: trained models, compiled programs.
BY_FILE = ("runtime", "examples")

SLOW_FOLDERS = ("beds", "chaos", "runtime", "examples", "browser")
SLOW_MARKERS = (*MARKERS, "slurm", "ssh", "tpu", "demo", "slow")
# Repeats at length, or in variants that differ little, what a shorter test proves, or shows facts about other programs,
# which change with their releases only: `--long` runs it.
LONG = "long"
NOT_FAST = (
    f"the folders {', '.join(SLOW_FOLDERS)} of tests/, what is marked {', '.join(SLOW_MARKERS)}, and what took long"
)


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of xdist's processes that run tests for another."""
    return hasattr(config, "workerinput")


def group(item: pytest.Item) -> str | None:
    for marker in MARKERS:
        if item.get_closest_marker(marker):
            return marker
    return item.path.relative_to(HERE.parent).as_posix() if _folder(item.path) in BY_FILE else None


def _folder(path: Path) -> str | None:
    """Which folder of tests/ a path is in, or is."""
    return next(iter(path.relative_to(HERE).parts), None) if path.is_relative_to(HERE) else None


def assign(items: list[pytest.Item]) -> None:
    """Mark the tests with their groups, for xdist."""
    for item in items:
        if (name := group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(name))


def is_on_bed(item: pytest.Item) -> bool:
    """Whether a test runs on a real filesystem, cluster or host, or in a real browser."""
    return any(item.get_closest_marker(name) for name in (*NEEDS, "ssh"))


def is_training(item: pytest.Item) -> bool:
    """Whether a test runs jobs in JAX."""
    return _folder(item.path) in BY_FILE or item.get_closest_marker("demo") is not None


def is_of_slow_kind(item: pytest.Item) -> bool:
    """Whether a test is of a kind that is too slow for the working loop; see durations.is_slow."""
    return is_slow_folder(item.path) or any(item.get_closest_marker(name) for name in SLOW_MARKERS)


def without_group(node_id: str) -> str:
    """The id that pytest takes on its command line: xdist's workers add `@GROUP` to it."""
    at = node_id.rfind("@")
    return node_id[:at] if at > node_id.rfind("]") else node_id


def is_slow_folder(path: Path) -> bool:
    """Whether `--fast` does not even import what is there, which takes long, too."""
    return _folder(path) in SLOW_FOLDERS


def leave_out(config: pytest.Config, items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]) -> None:
    """Deselect some of the tests."""
    left = {item for item in items if is_left_out(item)}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
