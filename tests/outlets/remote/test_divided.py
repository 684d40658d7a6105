"""A host in two places: programs run here, files are elsewhere, and the order of operations holds across both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from outlets.remote.calls import ask, unreached

from dispatcher.errors import OutletError
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.divided import DividedTransport
from dispatcher.outlets.remote.exchange import Exchange, Talk, agent_words
from dispatcher.outlets.remote.operations import Confirm, Deliver, Failed, Hello, Operation, Run, RunThere, Tail
from dispatcher.outlets.remote.transport import LocalTransport


class Elsewhere(LocalTransport):
    """The agent in another place: only there `ELSEWHERE` is set, and a first program has to make the place."""

    def __init__(self) -> None:
        super().__init__("elsewhere")
        self.calls: list[Sequence[Operation]] = []
        self.why_not = ""

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        if self.why_not:
            raise OutletError(self.why_not)
        self.calls.append(operations)
        made = yield Exchange([], timeout_s).program(["true"], timeout_s)
        assert made.exit_code == 0
        exchange = Exchange(operations, timeout_s)
        self.sent_bytes += exchange.size
        finished = yield exchange.program(["env", "ELSEWHERE=1", *agent_words(sys.executable)], timeout_s)
        answers = exchange.answers(finished.out)
        assert answers is not None, finished.err
        return answers


@pytest.fixture
def place() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def host(place: Elsewhere) -> Iterator[Connection]:
    connection = Connection("cloud", DividedTransport("cloud", ["sh"], place))
    yield connection
    connection.close()


def test_programs_run_here_and_files_are_there(host: Connection, place: Elsewhere, tmp_path: Path) -> None:
    where = Run(words=["sh", "-c", "echo ${ELSEWHERE-here}"])
    expanded = Hello(directories={"base": f"{tmp_path}/$ELSEWHERE"})
    there = RunThere(words=where.words)
    greeting, told, told_there = ask(host, expanded, where, there)
    assert greeting.directories == {"base": f"{tmp_path}/1"}
    assert (told.out, told_there.out) == ("here\n", "1\n")
    assert host.transport.sent_bytes == place.sent_bytes > 0


def test_each_group_is_one_call_in_order(host: Connection, place: Elsewhere, tmp_path: Path) -> None:
    deliver = Deliver(directory=os.fspath(tmp_path / "a"), files={"f": b"text"})
    tail = Tail(path=os.fspath(tmp_path / "a/f"))
    changed = Run(words=["sh", "-c", f"printf more >> {tmp_path}/a/f"])
    _, before, _, after = ask(host, deliver, tail, changed, tail)
    assert (before.content, after.content) == (b"text", b"textmore")
    assert [len(call) for call in place.calls] == [2, 1]


def test_programs_are_looked_for_where_they_run(host: Connection) -> None:
    greeting = ask(host, Hello(programs=["sh", "env", "no-such-program"]))
    assert set(greeting.programs) == {"sh", "env"}


def test_what_follows_a_failure_is_not_done_in_either_place(host: Connection, tmp_path: Path) -> None:
    bad = Deliver(directory="/proc/nowhere", files={})
    run = Run(words=["sh", "-c", f"touch {tmp_path}/ran"], only_after=1)
    then = Deliver(directory=os.fspath(tmp_path / "late"), files={}, only_after=1)
    independent = Tail(path="/proc/nowhere")
    failed, not_run, not_delivered, other = ask(host, bad, run, then, independent)
    assert isinstance(failed, Failed)
    assert "before it has failed" in not_run.error
    assert "before it has failed" in not_delivered.error
    assert other.content is None
    assert list(tmp_path.iterdir()) == []


def test_what_follows_a_success_is_done_in_both_places(host: Connection, tmp_path: Path) -> None:
    first = Deliver(directory=os.fspath(tmp_path / "a"), files={})
    second = Deliver(directory=os.fspath(tmp_path / "b"), files={}, only_after=1)
    run = Run(words=["ls", os.fspath(tmp_path)], only_after=2)
    third = Deliver(directory=os.fspath(tmp_path / "c"), files={}, only_after=3)
    *_, told, _ = ask(host, first, second, run, third)
    assert told.out.split() == ["a", "b"]
    assert (tmp_path / "c").is_dir()


def test_a_place_that_cannot_be_reached_is_no_answer(host: Connection, place: Elsewhere) -> None:
    place.why_not = "no such claim"
    assert unreached(host, [Run(words=["true"]), Tail(path="/x")]) == "no such claim"


def test_programs_alone_do_not_need_the_other_place(host: Connection, place: Elsewhere) -> None:
    place.why_not = "no such claim"
    assert ask(host, Run(words=["echo", "yes"])).out == "yes\n"


def test_nothing_is_done_where_another_cluster_answers(host: Connection, place: Elsewhere, tmp_path: Path) -> None:
    """Neither here nor there, with either of them first."""
    host.confirm = Confirm(words=["sh", "-c", "echo alpha"], wanted="beta")
    host.explain = lambda found: f"it leads to {found} now"
    run = Run(words=["touch", os.fspath(tmp_path / "run")])
    files = Deliver(directory=os.fspath(tmp_path / "a"), files={"b": b""})
    for operations in ([run, files, run], [files, run]):
        assert unreached(host, operations) == "it leads to alpha now"
        host.start_over()
        host.confirm = Confirm(words=["sh", "-c", "echo alpha"], wanted="beta")
    assert list(tmp_path.iterdir()) == [] and place.calls == []


def test_files_come_home_while_the_cluster_does_not_answer(host: Connection, tmp_path: Path) -> None:
    host.confirm = Confirm(words=["sh", "-c", "echo no controller >&2; exit 3"], wanted="beta")
    run = Run(words=["touch", os.fspath(tmp_path / "run")])
    (tmp_path / "log").write_text("said")
    before, tail, after = ask(host, run, Tail(path=os.fspath(tmp_path / "log")), run)
    assert before == after == Failed(error="no controller (exit status 3)")
    assert tail.content == b"said"
    assert not (tmp_path / "run").exists()
    host.confirm = Confirm(words=["true"], wanted="beta")
    assert isinstance(ask(host, run), Failed)
    assert not host.has_moved


def test_every_call_is_carried_out_where_the_first_one_was(host: Connection, tmp_path: Path) -> None:
    host.confirm = Confirm(words=["cat", os.fspath(tmp_path / "name")], wanted="beta")
    (tmp_path / "name").write_text("beta\n")
    files = Deliver(directory=os.fspath(tmp_path / "a"), files={"b": b"content"})
    _, told = ask(host, files, Run(words=["cat", os.fspath(tmp_path / "a/b")]))
    assert told.out == "content"


@pytest.mark.parametrize(("knew", "knows"), [("uid a1", "- a1"), ("- a1", "uid a1"), ("uid a1", "uid a2")])
def test_a_cluster_by_another_of_its_names_is_the_same(host: Connection, tmp_path: Path, knew: str, knows: str) -> None:
    """Here and there, with either of them first."""
    host.confirm = Confirm(words=["echo", knows], wanted=knew)
    files = Deliver(directory=os.fspath(tmp_path / "a"), files={"b": b"content"})
    read = Run(words=["cat", os.fspath(tmp_path / "a/b")])
    assert ask(host, files, read)[1].out == ask(host, read, files)[0].out == "content"
