"""The beds that tests in any folder use; but for Kubernetes, each test has its own, which comes up in a moment.

    def test_that_submits(slurm): ...                       # with its defaults
    def test_that_purges(start_slurm):
        slurm = start_slurm(min_job_age_s=5)
    def test_that_logs_in(ssh): ...                         # hosts h1 and h2
    def test_on_a_login_node(start_slurm, start_ssh):
        slurm = start_slurm()
        ssh = start_ssh(["login"], shared=[slurm.directory], env=slurm.env)
    def test_on_a_tpu(tpu): ...                             # no VM yet; start_tpu(user=...)
    def test_on_pbs(pbs): ...                               # stand-ins; start_pbs(NODES, history=False)
    def test_on_kubernetes(k8s): ...                        # one cluster for all, a namespace for each
    def test_on_volcano(volcano): ...                       # the same, with Volcano 1.5
    def test_on_another(new_volcano): ...                   # a second one for all, with the release after that
    def test_of_two(start_k8s):
        k8s = start_k8s(nodes=1)                            # a cluster of its own: seconds

They mark their tests (`slurm`, `ssh`, `k8s`, `tpu`). Where a bed cannot work, they skip them; in CI they fail.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from .k8s import K8sBed, K8sSettings
from .needs import why_not
from .pbs import PbsBed
from .slurm import SlurmBed, SlurmSettings
from .sshd import HostSettings, SshBed
from .tpu import TpuBed, real_gcloud
from .volcano import VolcanoBed, VolcanoSettings
from .warm_gcloud import WarmGcloud

B = TypeVar("B", bound=K8sBed)
NUMBERS = itertools.count(1)
SLEEP_FACTOR = 0.1
# The shared clusters by the fixture that asks for them. One that is up costs a twentieth of a core.
SHARED: dict[str, Shared[Any]] = {}
LAST_USERS = pytest.StashKey[dict[str, pytest.Item]]()
MARKED_BY = {
    "start_slurm": "slurm",
    "start_ssh": "ssh",
    "start_k8s": "k8s",
    "k8s": "k8s",
    "volcano": "k8s",
    "new_volcano": "k8s",
    "start_tpu": "tpu",
}


def mark_beds(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in MARKED_BY.items():
            if fixture in fixture_names(item):
                item.add_marker(marker)
    # One cluster after the other: what uses the second begins when the first has no user any more.
    items.sort(key=lambda item: "new_volcano" in fixture_names(item))


def note_last_users(session: pytest.Session) -> None:
    """Remember which test is the last one that uses a shared cluster.

    A cluster that is asked for again comes up again.
    """
    last: dict[str, pytest.Item] = {}
    for item in session.items:
        if item.get_closest_marker("k8s"):
            last["new_volcano" if "new_volcano" in fixture_names(item) else "volcano"] = item
    session.stash[LAST_USERS] = last


def fixture_names(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def close_unused(item: pytest.Item) -> None:
    """Close the shared clusters that no test behind this one uses."""
    for name, last in item.session.stash[LAST_USERS].items():
        if last is item and name in SHARED:
            SHARED[name].close()


class Shared(Generic[B]):
    """A cluster that comes up when a test asks for it."""

    def __init__(self, make: Callable[[], B]) -> None:
        self._make = make
        self._stack = contextlib.ExitStack()
        self._bed: B | None = None

    def bed(self) -> B:
        if self._bed is None:
            self._bed = self._stack.enter_context(self._make())
        return self._bed

    def close(self) -> None:
        self._bed = None
        self._stack.close()


@contextlib.contextmanager
def _shared(name: str, make: Callable[[], B]) -> Iterator[Shared[B]]:
    skip_without("k8s")
    skip_without("volcano")
    SHARED[name] = Shared(make)
    try:
        yield SHARED[name]
    finally:
        SHARED.pop(name).close()


def skip_without(bed: str) -> None:
    """In CI every bed has to work."""
    if (reason := why_not(bed)) and os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture
def start_slurm() -> Iterator[Callable[..., SlurmBed]]:
    """Makes a cluster from the fields of `SlurmSettings`."""
    with contextlib.ExitStack() as beds:

        def start(**settings: Any) -> SlurmBed:
            skip_without("slurm-accounting" if settings.get("accounting") else "slurm")
            return beds.enter_context(SlurmBed(SlurmSettings(**settings)))

        yield start


@pytest.fixture
def slurm(start_slurm: Callable[..., SlurmBed]) -> SlurmBed:
    """A cluster of two nodes with four CPUs and four GPUs each."""
    return start_slurm()


@pytest.fixture
def start_ssh() -> Iterator[Callable[..., SshBed]]:
    """Makes hosts with these names from the fields of `HostSettings`."""
    with contextlib.ExitStack() as beds:

        def start(names: Sequence[str] = ("h1", "h2"), **settings: Any) -> SshBed:
            skip_without("sshd")
            return beds.enter_context(SshBed(names, HostSettings(**settings)))

        yield start


@pytest.fixture
def ssh(start_ssh: Callable[..., SshBed]) -> SshBed:
    """Hosts h1 and h2, which see nothing of the test's directories."""
    return start_ssh()


@pytest.fixture(scope="session")
def warm_gcloud() -> Iterator[WarmGcloud]:
    """Only for `start_tpu`."""
    skip_without("tpu")
    with WarmGcloud(real_gcloud()) as warm:
        yield warm


@pytest.fixture
def start_tpu(warm_gcloud: WarmGcloud) -> Iterator[Callable[..., TpuBed]]:
    """Makes clouds of TPU VMs whose workers have these fields of `HostSettings`.

    Their gcloud has started already and waits for a tenth of the time, unless `is_warm` is false.
    """
    with contextlib.ExitStack() as beds:

        def start(*, has_key: bool = True, is_warm: bool = True, **settings: Any) -> TpuBed:
            gcloud = {"warm": warm_gcloud, "sleep_factor": SLEEP_FACTOR} if is_warm else {}
            return beds.enter_context(TpuBed(HostSettings(**settings), has_key=has_key, **gcloud))

        yield start


@pytest.fixture
def tpu(start_tpu: Callable[..., TpuBed]) -> TpuBed:
    """A cloud without any VM yet; `tpu.env` makes programs use it."""
    return start_tpu()


@pytest.fixture
def start_pbs() -> Iterator[Callable[..., PbsBed]]:
    """Makes servers of PBS from the arguments of `PbsBed`."""
    with contextlib.ExitStack() as beds:
        yield lambda *words, **settings: beds.enter_context(PbsBed(*words, **settings))


@pytest.fixture
def pbs(start_pbs: Callable[..., PbsBed]) -> PbsBed:
    """A server with two nodes of four CPUs and four GPUs each."""
    return start_pbs()


@pytest.fixture(scope="session")
def shared_volcano() -> Iterator[Shared[VolcanoBed]]:
    """Only for `volcano` and `k8s`."""
    with _shared("volcano", VolcanoBed) as shared:
        yield shared


@pytest.fixture
def kubectl_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kubectl keeps of a cluster does not stay in the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home of kubectl"))


@pytest.fixture
def volcano(shared_volcano: Shared[VolcanoBed], kubectl_home: None) -> Iterator[VolcanoBed]:
    """A cluster of two nodes with 16 CPUs and eight GPUs each, and an empty namespace, `volcano.namespace`.

    It has Volcano 1.5.1 as it is when installed.
    """
    with _one_test(shared_volcano) as bed:
        yield bed


@pytest.fixture
def k8s(volcano: VolcanoBed) -> K8sBed:
    """The same, for tests that make no use of Volcano."""
    return volcano


@pytest.fixture(scope="session")
def shared_new_volcano() -> Iterator[Shared[VolcanoBed]]:
    """Only for `new_volcano`."""
    with _shared("new_volcano", lambda: VolcanoBed(VolcanoSettings(release="master", nodes=1))) as shared:
        yield shared


@pytest.fixture
def new_volcano(shared_new_volcano: Shared[VolcanoBed], kubectl_home: None) -> Iterator[VolcanoBed]:
    """As `volcano`, of the release after 1.5, with one node."""
    with _one_test(shared_new_volcano) as bed:
        yield bed


@contextlib.contextmanager
def _one_test(shared: Shared[VolcanoBed]) -> Iterator[VolcanoBed]:
    bed = shared.bed()
    bed.enter_namespace(f"test-{next(NUMBERS)}")
    yield bed
    bed.heal()


@pytest.fixture
def start_k8s(kubectl_home: None) -> Iterator[Callable[..., K8sBed]]:
    """Makes clusters from the fields of `K8sSettings`."""
    with contextlib.ExitStack() as beds:

        def start(**settings: Any) -> K8sBed:
            skip_without("k8s")
            return beds.enter_context(K8sBed(K8sSettings(**settings)))

        yield start
