"""What all tests may use."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import durations
import groups
import kept_programs
import leftovers
import pytest
from beds.fixtures import (  # noqa: F401 - fixtures of all tests
    close_unused,
    k8s,
    kubectl_home,
    mark_beds,
    new_volcano,
    note_last_users,
    pbs,
    shared_new_volcano,
    shared_volcano,
    slurm,
    ssh,
    start_k8s,
    start_pbs,
    start_slurm,
    start_ssh,
    start_tpu,
    tpu,
    volcano,
    warm_gcloud,
)
from changed import ChangedError, Selection, describe, select
from dependents import is_test
from fleet import Fleet, fleet_at
from hypothesis import settings
from import_graph import CHECKOUT
from small_disks import small_disk_at

SELECTION = pytest.StashKey[Selection]()
NOTES = leftovers.Notes()
# Busy machines take their time; how long an example takes says nothing here.
settings.register_profile("dispatcher", deadline=None)
settings.load_profile("dispatcher")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-seconds", type=float, default=None, help="how long the chaos test goes on (default 15; an hour: 3600)"
    )
    parser.addoption("--fast", action="store_true", help=f"without {groups.NOT_FAST}")
    parser.addoption(
        "--long",
        action="store_true",
        help="also repetitions, and facts about other programs",
    )
    parser.addoption("--chaos-seed", type=int, default=None, help="repeat a chaos test's choices")
    parser.addoption(
        "--changed", nargs="?", const="HEAD", metavar="REV",
        help="only what depends on what has changed since this revision, committed or not (default: HEAD)",
    )  # fmt: skip
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.tsv anew")


def pytest_configure(config: pytest.Config) -> None:
    if groups.is_worker(config):
        # Readline, which pytest imports, leaves them to the workers: the tests have terminals of their own.
        for name in ("LINES", "COLUMNS"):
            os.environ.pop(name, None)
        # pytest gives the directory in it the rights 700, also for a run that a test starts as another user.
        os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)
    else:
        # Not of those alone that failed and are tried again.
        is_kept = config.getoption("--record-durations") and not config.getoption("--last-failed")
        config.pluginmanager.register(durations.Durations(is_kept))
    if config.getoption("--changed"):
        config.stash[SELECTION] = selection_for(config)


def selection_for(config: pytest.Config) -> Selection:
    if groups.is_worker(config):
        return Selection(**config.workerinput["selection"])  # type: ignore[attr-defined]
    try:
        return select(config.getoption("--changed"))
    except ChangedError as error:
        raise pytest.UsageError(f"--changed: {error}") from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if selection := node.config.stash.get(SELECTION, None):
        node.workerinput["selection"] = dataclasses.asdict(selection)


def pytest_report_header(config: pytest.Config) -> list[str]:
    selection = config.stash.get(SELECTION, None)
    return [] if selection is None or groups.is_worker(config) else list(describe(selection))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_beds(items)
    if config.getoption("--fast"):
        groups.leave_out(config, items, durations.is_slow)
    if not config.getoption("--long"):
        groups.leave_out(config, items, lambda item: item.get_closest_marker(groups.LONG) is not None)
    if selection := config.stash.get(SELECTION, None):
        groups.leave_out(config, items, lambda item: durations.is_slow(item) and not concerns(selection, item))
    groups.assign(items)
    durations.order(items)
    for item in items:
        item.user_properties.append((durations.KIND, durations.kind(item)))


def concerns(selection: Selection, item: pytest.Item) -> bool:
    """Whether a slow test is about what has changed."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return selection.is_about(path_in_checkout(item.path)) or selection.is_about_one_of(parameters)


def path_in_checkout(path: Path) -> str:
    return path.relative_to(CHECKOUT).as_posix()


def pytest_collection_finish(session: pytest.Session) -> None:
    note_last_users(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        yield
    finally:
        close_unused(item)
        NOTES.end_of(item.nodeid)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    selection = config.stash.get(SELECTION, None)
    is_unchanged = selection and is_test(path := path_in_checkout(collection_path)) and not selection.has(path)
    # None leaves it to pytest.
    return bool(is_unchanged or (config.getoption("--fast") and groups.is_slow_folder(collection_path))) or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # Reports name tests as the command line and --last-failed of a run without workers do.
    if getattr(report, "node", None) is not None:
        report.nodeid = groups.without_group(report.nodeid)


# A run that was started in the background ignores some signals, and so would every program that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def _refused() -> int:
    pytest.fail(
        "os.fork in the process that runs the tests: it may have JAX's threads, and a forked child has the locks that "
        "these held and nobody to release them. Use commands.Popen (tests/commands.py), forks.run (tests/forks.py) or "
        "subprocess"
    )


# Whatever was imported by then: modules with JAX are imported when the tests are collected, or not, as it happens.
os.fork = os.forkpty = _refused  # type: ignore[assignment]


@pytest.fixture(scope="session")
def jax_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """JAX's compilation cache, for the processes of all tests on all workers, with the programs of earlier runs."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if groups.is_worker(request.config) else base) / "jax_cache"
    with kept_programs.kept(directory, kept_programs.kept_here()):
        yield directory


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A workspace whose name shells and careless code choke on, and dispatchers in it."""
    with fleet_at(tmp_path / "a'; echo foo") as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own with room for very little."""
    with small_disk_at(tmp_path / "small disk", "size=1m,nr_inodes=4k") as disk:
        yield disk


@pytest.fixture
def without_dev_fd(tmp_path: Path) -> list[str]:
    """The words before a command that runs it as on a host where /dev/fd is missing."""
    dev = tmp_path / "dev"
    dev.mkdir()
    script = (
        'for node in null zero full random urandom; do touch "$0/$node"; mount --bind /dev/$node "$0/$node"; done;'
        'mkdir -p "$0/shm"; mount --bind /dev/shm "$0/shm"; mount --rbind "$0" /dev; [ ! -e /dev/fd ] && exec "$@"'
    )
    words = ["unshare", "--mount", "sh", "-c", script, os.fspath(dev)]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here: that needs root")
    return words
