"""Code on its way to a host: sent once, complete or not at all, and nothing is claimed while it cannot be sent."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from beds.sshd import SshBed
from fleet import PATIENCE_S, wait_until
from repositories import Repository, unpacked

from dispatcher.config import CodeMode
from dispatcher.outlets.batch.shipping import Shipping
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.remote.connection import Connection, Pace
from dispatcher.outlets.remote.transport import transport_to
from dispatcher.workspace import Layout

SHARE = "a'; echo share"


class Ship:
    """The shipping of one dispatcher to one host, and what it has told."""

    def __init__(
        self,
        root: Path,
        share: str,
        ssh_target: str | None = None,
        mode: CodeMode = CodeMode.SHIP,
        try_again_s: float = 30.0,
    ) -> None:
        self.connection = Connection(
            "h1", transport_to("h1", ssh_target), Pace(calls_per_minute=600, first_pause_s=0.1)
        )
        self.shipped: dict[str, tuple[CodeSnapshot, str]] = {}
        self.failed: dict[str, str] = {}
        self.shipping = Shipping(Layout(root), self.connection, self._shipped, self._failed, try_again_s)
        self.shipping.begin(mode, share)

    def _shipped(self, names: Sequence[str], snapshot: CodeSnapshot, archive: str) -> None:
        self.shipped.update(dict.fromkeys(names, (snapshot, archive)))

    def _failed(self, names: Sequence[str], why: str) -> None:
        self.failed.update(dict.fromkeys(names, why))

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Work as the loop does, woken by the descriptors alone."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            self.shipping.work(())
            if condition():
                return
            assert time.monotonic() < end_s, f"{what}: {self.shipping.problem}"
            due_s = self.shipping.due_in_s()
            assert due_s is not None or self.shipping.wait_fds(), "nothing would wake the loop"
            select.select(self.shipping.wait_fds(), [], [], PATIENCE_S if due_s is None else due_s)

    def ready(self) -> Ship:
        self.until(lambda: not self.shipping.problem, "code can be shipped")
        return self

    def ship(self, name: str) -> tuple[CodeSnapshot, str]:
        self.shipping.want(name)
        self.until(lambda: name in self.shipped, f"the code of {name} is there")
        return self.shipped[name]

    def close(self) -> None:
        self.shipping.close()
        self.connection.close(0.0)


@pytest.fixture
def ships() -> Iterator[Callable[..., Ship]]:
    made: list[Ship] = []

    def make(*words: object, **options: object) -> Ship:
        made.append(Ship(*words, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_archive_is_there_and_an_unchanged_tree_sends_nothing_again(
    repository: Repository, tmp_path: Path, ships: Callable[..., Ship]
) -> None:
    repository.write("data.bin", os.urandom(300_000))
    repository.commit()
    ship = ships(repository.root, os.fspath(tmp_path / SHARE)).ready()
    snapshot, archive = ship.ship("one")
    assert archive == os.fspath(tmp_path / SHARE / "code" / f"{snapshot.digest}.tar")
    assert Path(archive).read_bytes() == Path(snapshot.path).read_bytes()
    first = ship.connection.transport.sent_bytes
    assert first > snapshot.size
    calls = ship.connection.calls
    ship.ship("two")
    assert (ship.connection.transport.sent_bytes, ship.connection.calls) == (first, calls), (
        "the host has it, and was asked just now"
    )
    # Nor does another dispatcher, or one on a clone.
    again = ships(repository.root, os.fspath(tmp_path / SHARE)).ready()
    again.ship("three")
    assert again.connection.transport.sent_bytes < 50_000
    repository.write("train.py", "changed\n")
    repository.commit()
    other, _ = ship.ship("four")
    assert other.digest != snapshot.digest
    assert sorted(os.listdir(tmp_path / SHARE / "code")) == sorted([f"{one.digest}.tar" for one in (snapshot, other)])


def test_each_submission_gets_the_code_of_its_moment(
    repository: Repository, tmp_path: Path, ships: Callable[..., Ship]
) -> None:
    ship = ships(repository.root, os.fspath(tmp_path / SHARE), mode=CodeMode.DIRTY).ready()
    repository.write("train.py", "first\n")
    _, first = ship.ship("one")
    repository.write("train.py", "second\n")
    _, second = ship.ship("two")
    assert unpacked(first, tmp_path / "first")["train.py"] == "first\n"
    assert unpacked(second, tmp_path / "second")["train.py"] == "second\n"


def test_an_archive_that_is_not_complete_on_the_host_is_sent_again(
    repository: Repository, tmp_path: Path, ships: Callable[..., Ship]
) -> None:
    snapshot, archive = ships(repository.root, os.fspath(tmp_path / SHARE)).ready().ship("one")
    Path(archive).write_bytes(Path(archive).read_bytes()[:1000])
    ships(repository.root, os.fspath(tmp_path / SHARE)).ready().ship("two")
    assert Path(archive).stat().st_size == snapshot.size


def test_archives_that_nobody_asks_for_are_removed_when_another_one_arrives(
    repository: Repository, tmp_path: Path, ships: Callable[..., Ship]
) -> None:
    code = tmp_path / SHARE / "code"
    code.mkdir(parents=True)
    for name in ("old.tar", "other.txt"):
        (code / name).touch()
        os.utime(code / name, (1, 1))
    repository.root.chmod(0o775)
    used = ships(repository.root, os.fspath(tmp_path / SHARE)).ready().ship("one")[1]
    assert sorted(os.listdir(code)) == sorted([Path(used).name, "other.txt"])
    assert os.stat(used).st_mode & 0o777 == 0o664
    os.utime(used, (1, 1))
    # Asking for it is using it.
    ships(repository.root, os.fspath(tmp_path / SHARE)).ready().ship("two")
    repository.write("train.py", "changed\n")
    repository.commit()
    new = ships(repository.root, os.fspath(tmp_path / SHARE)).ready().ship("three")[1]
    assert sorted(os.listdir(code)) == sorted([Path(used).name, Path(new).name, "other.txt"])


def test_two_dispatchers_that_send_the_same_at_once(
    repository: Repository, tmp_path: Path, ships: Callable[..., Ship]
) -> None:
    repository.write("data.bin", os.urandom(20 << 20))
    repository.commit()
    both = [ships(repository.root, os.fspath(tmp_path / SHARE)).ready() for _ in range(2)]
    for ship in both:
        ship.shipping.want("one")

    def done() -> bool:
        for ship in both:
            ship.shipping.work(())
        return all(ship.shipped for ship in both)

    wait_until(done, "both have sent it")
    (archive,) = {ship.shipped["one"][1] for ship in both}
    assert Path(archive).read_bytes() == Path(both[0].shipped["one"][0].path).read_bytes()
    assert os.listdir(tmp_path / SHARE / "code") == [Path(archive).name]


def test_nothing_is_claimed_until_the_code_can_be_archived(tmp_path: Path, ships: Callable[..., Ship]) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    ship = ships(root, os.fspath(tmp_path / SHARE), try_again_s=0.2)
    ship.until(lambda: "not in a git repository" in ship.shipping.problem, "the problem is shown")
    ship.shipping.want("claimed before")
    ship.until(lambda: ship.failed, "what was claimed before ends")
    assert "not in a git repository" in ship.failed["claimed before"]
    repository = Repository(root)
    repository.write("train.py")
    repository.commit()
    ship.ready()
    ship.ship("one")


def test_a_full_disk_there_is_tried_three_times(
    repository: Repository, small_disk: Path, ships: Callable[..., Ship]
) -> None:
    repository.write("data.bin", os.urandom(3 << 20))
    repository.commit()
    ship = ships(repository.root, os.fspath(small_disk), try_again_s=0.05).ready()
    ship.shipping.want("one")
    ship.until(lambda: ship.failed, "it is given up")
    assert "No space left on device" in ship.failed["one"]
    assert not os.listdir(small_disk / "code")


def test_an_upload_over_ssh_that_breaks_off_goes_on_when_the_host_is_back(
    repository: Repository, ssh: SshBed, ships: Callable[..., Ship], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(ssh.config))
    repository.write("data.bin", os.urandom(64 << 20))
    repository.commit()
    host = ssh["h1"]
    ship = ships(repository.root, f"/tmp/{SHARE}", "h1").ready()
    ship.shipping.want("one")
    parts = host.path(f"/tmp/{SHARE}/code")

    def is_being_sent() -> bool:
        ship.shipping.work(())
        return parts.is_dir() and any(one.stat().st_size for one in parts.glob("*.part"))

    wait_until(is_being_sent, "it is being sent")
    with host.away():
        ship.until(lambda: ship.shipping.problem, "the host is away")
        assert not list(parts.glob("*.tar"))
    ship.until(lambda: ship.shipped, "it is there")
    snapshot, archive = ship.shipped["one"]
    assert host.path(archive).read_bytes() == Path(snapshot.path).read_bytes()
