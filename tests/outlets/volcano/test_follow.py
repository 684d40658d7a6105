"""`logs -f` of an attempt whose log is on a volume of Kubernetes: nothing is lost or doubled when the way breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import wait_until
from outlets.volcano.helpers import MOUNT, Site

from dispatcher.cli.remote_log import RemoteLog, follow_elsewhere

pytestmark = pytest.mark.slow

LINES = [f"line {number:04}\n".encode() for number in range(600)]


class Following:
    """`follow_elsewhere` in a thread, which prints into a file."""

    def __init__(self, site: Site, printed: Path, name: str = "output.log") -> None:
        self._printed = printed
        self._name = name
        printed.touch()
        self._site = site
        self.has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        where = RemoteLog(self._site.host.name, self._site.transport("logs"), f"{MOUNT}/a", self._name)
        with open(self._printed, "wb") as out:
            follow_elsewhere(where, out, 0, self.has_ended.is_set)

    def waits_for(self, line: bytes) -> None:
        wait_until(lambda: self._printed.read_bytes().endswith(line), f"{line!r} was printed")

    def join(self) -> bytes:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "it follows for ever"
        return self._printed.read_bytes()


@pytest.fixture
def following(site: Site, tmp_path: Path) -> Iterator[Following]:
    (site.volume / "a").mkdir()
    following = Following(site, tmp_path / "printed")
    yield following
    following.has_ended.set()
    following.join()


def write(site: Site, *lines: bytes) -> None:
    with open(site.volume / "a/output.log", "ab") as log:
        log.writelines(lines)


def test_a_cut_stream_is_continued(site: Site, following: Following) -> None:
    write(site, *LINES[:200])
    following.waits_for(LINES[199])
    end_execs(site)
    write(site, *LINES[200:400])
    following.waits_for(LINES[399])
    site.k8s.kubectl("delete", "pod", *site.pods(), "--grace-period=0", "--force")
    write(site, *LINES[400:])
    (site.volume / "a/exit.json").write_text('{"exit_code": 0}')
    assert following.join() == b"".join(LINES)
    assert site.jobs() == []


def test_it_ends_when_the_workspace_knows_the_end(site: Site, following: Following) -> None:
    write(site, *LINES[:10])
    following.waits_for(LINES[9])
    write(site, *LINES[10:20])
    following.has_ended.set()
    assert following.join() == b"".join(LINES[:20])


def test_the_log_of_another_rank(site: Site, tmp_path: Path) -> None:
    (site.volume / "a").mkdir()
    (site.volume / "a/output.1.log").write_bytes(b"of rank 1\n")
    write(site, b"of rank 0\n")
    (site.volume / "a/exit.json").write_text('{"exit_code": 0}')
    assert Following(site, tmp_path / "printed", "output.1.log").join() == b"of rank 1\n"


def end_execs(site: Site) -> None:
    """What a broken connection does to every `kubectl exec` of the test."""
    table = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    for line in table.splitlines():
        pid, _, words = line.strip().partition(" ")
        if words.startswith("kubectl ") and site.k8s.namespace in words and " exec " in words:
            os.kill(int(pid), signal.SIGKILL)
