"""What attempts report on a host that does not see the workspace is brought home."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from outlets.remote.calls import ask
from syncs import noted_syncs

from dispatcher.base.outputs import MetricsTable, Outputs, ResultFile, collect_result, encode, read_outputs
from dispatcher.outlets.batch.mirror import NAMES, Mirror
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.operations import AttemptFiles, Read
from dispatcher.outlets.remote.transport import LocalTransport
from dispatcher.workspace import AttemptPaths


def collect(directory: Path) -> str:
    return collect_result(directory, read_outputs(directory))


@pytest.fixture
def here() -> Iterator[Connection]:
    connection = Connection("here", LocalTransport("here"))
    yield connection
    connection.close()


class Attempt:
    """An attempt on a host, which is this machine, and its mirror."""

    def __init__(self, root: Path, connection: Connection) -> None:
        self.there = AttemptPaths(root / "there")
        self.home = AttemptPaths(root / "home")
        for paths in (self.there, self.home):
            paths.directory.mkdir()
        self.connection = connection
        self.mirror = Mirror(self.home, str(self.there.directory))

    def fetch(self, most_bytes: int = 1 << 20) -> bool:
        answer = ask(self.connection, Read(looks=[self.mirror.look()], names=NAMES, most_bytes=most_bytes))
        return self.mirror.take_in(answer.seen[0])


@pytest.fixture
def attempt(tmp_path: Path, here: Connection) -> Attempt:
    return Attempt(tmp_path, here)


def test_the_log_grows_and_the_exit_status_comes_last(attempt: Attempt) -> None:
    attempt.there.log.write_text("0123456789")
    attempt.there.progress.write_text("{}")
    assert not attempt.fetch()
    assert attempt.home.log.read_text() == "0123456789"
    assert attempt.home.progress.read_text() == "{}"
    attempt.there.log.write_text("0123456789abcdef")
    attempt.there.exit.write_text("ended")
    assert attempt.fetch(most_bytes=2), "there is more"
    assert attempt.home.log.read_text() == "0123456789ab"
    assert attempt.mirror.is_waiting
    assert not attempt.home.exit.exists()
    assert not attempt.fetch()
    assert attempt.home.log.read_text() == "0123456789abcdef"
    assert attempt.home.exit.read_text() == "ended"
    assert not attempt.mirror.is_waiting


def test_what_an_end_tells_of_is_on_the_disk_before_its_exit_status(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt.there.log.write_text("the log")
    attempt.there.result.write_text("{}")
    attempt.there.exit.write_text("ended")
    syncs = noted_syncs(monkeypatch)
    attempt.fetch()
    *before, _status, names = syncs
    assert {name for name, _ in before} >= {attempt.home.log.name, attempt.home.result.name}
    assert attempt.home.exit.name in names[1]


def test_what_the_script_leaves_comes_with_the_exit_status_and_is_on_the_disk_before(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Outputs(ResultFile("out/eval/summary.json"), MetricsTable("log.csv"), is_elsewhere=True)
    (attempt.home.directory / "script-outputs.json").write_bytes(encode(left))
    attempt.fetch()
    place = attempt.there.directory / "out" / "eval"
    place.mkdir(parents=True)
    (place / "summary.json").write_text('{"loss": 1}')
    (attempt.there.directory / "log.csv").write_text("loss\n2\n")
    attempt.there.exit.write_text("ended")
    syncs = noted_syncs(monkeypatch)
    attempt.fetch()
    names = [name for name, _ in syncs]
    assert names.index("summary.json") < names.index("log.csv") < len(names) - 2
    assert collect(attempt.home.directory) == ""
    assert attempt.home.result.read_text() == '{"loss": 1}\n'
    assert (attempt.home.directory / "log.csv").read_text() == "loss\n2\n"


@pytest.mark.parametrize("there", ["nothing", "a file for a directory", "too long"])
def test_what_the_script_did_not_leave_holds_nothing_back(attempt: Attempt, there: str) -> None:
    (attempt.home.directory / "script-outputs.json").write_bytes(
        encode(Outputs(ResultFile("out/log.csv"), is_elsewhere=True))
    )
    place = attempt.there.directory / "out"
    if there == "a file for a directory":
        place.write_text("")
    elif there == "too long":
        place.mkdir()
        (place / "log.csv").write_bytes(b"loss\n" + b"1\n" * (1 << 19))
    attempt.there.exit.write_text("ended")
    assert not attempt.fetch()
    assert attempt.home.exit.exists()
    assert collect(attempt.home.directory) == "out/log.csv: not on its host, or longer than 1.0 MiB"


def test_a_result_that_has_become_too_long_is_not_what_it_was_before(attempt: Attempt) -> None:
    (attempt.home.directory / "script-outputs.json").write_bytes(
        encode(Outputs(ResultFile("log.csv"), is_elsewhere=True))
    )
    (attempt.there.directory / "log.csv").write_text("loss\n5\n")
    attempt.fetch()
    assert (attempt.home.directory / "log.csv").exists()
    with open(attempt.there.directory / "log.csv", "ab") as log:
        log.write(b"1\n" * (1 << 19))
    attempt.there.exit.write_text("ended")
    attempt.fetch()
    assert collect(attempt.home.directory) == "log.csv: not on its host, or longer than 1.0 MiB"


def test_a_log_that_the_job_begins_anew(attempt: Attempt) -> None:
    attempt.there.log.write_text("0123456789")
    attempt.fetch()
    attempt.there.log.write_text("abc")
    attempt.fetch()
    assert attempt.home.log.read_text() == "abc"


def test_one_that_has_printed_nothing_has_a_log(attempt: Attempt) -> None:
    attempt.there.exit.write_text("ended")
    attempt.fetch()
    assert attempt.home.log.read_bytes() == b""


def test_an_exit_status_that_is_being_written(attempt: Attempt) -> None:
    """On a full disk the wrapper has created the file, and waits for room."""
    with open(attempt.there.alive, "w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        attempt.there.exit.touch()
        attempt.fetch()
        assert not attempt.home.exit.exists()
        attempt.there.exit.write_text('{"exit_code": 0}\n')
        attempt.fetch()
        assert attempt.home.exit.read_text() == '{"exit_code": 0}\n'


def test_a_wrapper_that_was_killed_while_it_wrote(attempt: Attempt) -> None:
    with open(attempt.there.alive, "w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        attempt.there.exit.write_text('{"exit')
        attempt.fetch()
    assert not attempt.home.exit.exists()
    attempt.fetch()
    assert attempt.home.exit.read_text() == '{"exit'


@pytest.mark.parametrize("gone", ["the log", "the directory"])
def test_what_is_gone_on_the_host_stays_at_home(attempt: Attempt, gone: str) -> None:
    attempt.there.log.write_text("0123456789")
    attempt.fetch()
    attempt.there.log.unlink()
    if gone == "the directory":
        attempt.there.directory.rmdir()
    assert not attempt.fetch()
    assert attempt.home.log.read_text() == "0123456789"


def test_what_the_host_cannot_read_is_not_the_end(attempt: Attempt) -> None:
    attempt.there.log.write_text("0123456789")
    attempt.fetch()
    assert not attempt.mirror.take_in(AttemptFiles(error="output.log: Input/output error"))
    assert attempt.mirror.is_waiting
    assert attempt.home.log.read_text() == "0123456789"
    attempt.there.exit.write_text("ended")
    attempt.fetch()
    assert not attempt.mirror.is_waiting
    assert attempt.home.exit.exists()


def test_an_older_answer_does_not_shorten_the_log(attempt: Attempt) -> None:
    """Two dispatchers may look after the attempt of a dead one, and the slower one must not undo the copy."""
    other = Mirror(attempt.home, str(attempt.there.directory))
    attempt.there.log.write_text("0123")
    look = other.look()
    (late,) = ask(attempt.connection, Read(looks=[look], names=NAMES)).seen
    attempt.there.log.write_text("0123456789")
    attempt.there.exit.write_text("ended\n")
    assert not attempt.fetch()
    other.take_in(late)
    assert attempt.home.log.read_text() == "0123456789"


def test_a_directory_that_was_removed_here_is_the_problem_of_its_attempt(attempt: Attempt) -> None:
    attempt.there.taken.write_text("n1 1\n")
    attempt.home.directory.rmdir()
    assert not attempt.fetch()
    assert str(attempt.home.directory) in attempt.mirror.problem
    assert attempt.mirror.is_waiting, "nothing can be said of its end"
    attempt.home.directory.mkdir()
    assert not attempt.fetch()
    assert (attempt.mirror.problem, attempt.home.taken.read_text()) == ("", "n1 1\n")


def lines(first: int, last: int) -> str:
    return "".join(f'{{"step": {step}, "loss": 1.5}}\n' for step in range(first, last + 1))


def test_metrics_come_home_as_they_grow(attempt: Attempt) -> None:
    """New bytes only, some at a time, and all of them before the exit status."""
    attempt.there.metrics.write_text(lines(1, 3))
    assert not attempt.fetch()
    assert attempt.home.metrics.read_text() == lines(1, 3)
    with attempt.there.metrics.open("a") as file:
        file.write(lines(4, 9))
    answer = ask(attempt.connection, Read(looks=[attempt.mirror.look()], names=NAMES)).seen[0]
    assert answer.grown["metrics.jsonl"].content == lines(4, 9).encode()
    assert not attempt.mirror.take_in(answer)
    with attempt.there.metrics.open("a") as file:
        file.write(lines(10, 20))
    attempt.there.exit.write_text("ended\n")
    assert attempt.fetch(most_bytes=40), "there is more"
    assert not attempt.home.exit.exists()
    # Another dispatcher goes on where the copy ends.
    attempt.mirror = Mirror(attempt.home, str(attempt.there.directory))
    while attempt.fetch(most_bytes=40):
        pass
    assert attempt.home.metrics.read_text() == lines(1, 20)
    assert attempt.home.exit.exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "output.log", "out/log.csv"])
@pytest.mark.parametrize(
    "how", ["truncated", "emptied", "replaced by a longer one", "replaced by one as long", "cut and continued"]
)
def test_a_growing_file_that_becomes_another_one(attempt: Attempt, name: str, how: str) -> None:
    left = Outputs(None, MetricsTable("out/log.csv"), is_elsewhere=True)
    (attempt.home.directory / "script-outputs.json").write_bytes(encode(left))
    there, home = attempt.there.directory / name, attempt.home.directory / name
    there.parent.mkdir(exist_ok=True)
    there.write_text(lines(1, 300))
    attempt.fetch()
    assert home.read_text() == lines(1, 300)
    if how.startswith("replaced"):
        other = there.with_suffix(".new")
        other.write_text(lines(1001, 1400 if "longer" in how else 1000).ljust(len(lines(1, 300)), "x"))
        other.replace(there)
    elif how == "cut and continued":
        # As a training that goes back to an older step.
        there.write_text(lines(1, 100) + lines(90, 500))
    else:
        there.write_text(lines(1, 7) if how == "truncated" else "")
    while attempt.fetch(most_bytes=1000):
        pass
    assert home.read_text() == there.read_text()
    assert not attempt.fetch()
    sent = ask(attempt.connection, Read(looks=[attempt.mirror.look()], names=NAMES)).seen[0]
    assert sent.grown[name].content == b"", "nothing is sent twice"


def test_metrics_that_are_no_file_hold_nothing_back(attempt: Attempt) -> None:
    attempt.there.metrics.mkdir()
    attempt.there.exit.write_text("ended\n")
    assert not attempt.fetch()
    assert attempt.home.exit.exists()
