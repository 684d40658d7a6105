"""The answers of several workers as those of one host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.outlets.remote.operations import (
    AttemptFiles,
    AttemptRead,
    Check,
    Checked,
    CheckResult,
    Failed,
    FileSizes,
    Greeting,
    Grown,
    Has,
    Hello,
    Launch,
    Launched,
    Operation,
    Read,
    ReadAnswer,
    Signal,
    Signalled,
    Stored,
    Tail,
    TailRead,
)
from dispatcher.outlets.tpu.merging import half_started, merged, to_be_stopped

LAUNCH = Launch(directory="/a", root="/")
READ = Read(looks=[AttemptRead(directory="/a")], names=["exit.json"])
CHECK = Check(directories=["/a"])


def one(operation: Operation, *answers: Any) -> Any:
    (answer,) = merged([operation], [[each] for each in answers])
    return answer


def exit_status(code: int | None, at: float, **more: str) -> bytes:
    return msgspec.json.encode({"exit_code": code, "ended_at": f"2026-01-01T00:00:{at:06.3f}Z", **more}) + b"\n"


def seen(*each: AttemptFiles) -> AttemptFiles:
    answer = one(READ, *(ReadAnswer(seen=[each_]) for each_ in each))
    assert isinstance(answer, ReadAnswer)
    return answer.seen[0]


def checked(*each: Checked) -> Checked:
    answer = one(CHECK, *(CheckResult(attempts=[each_]) for each_ in each))
    assert isinstance(answer, CheckResult)
    return answer.attempts[0]


def launched(outcome: Any, why: str = "") -> Launched:
    return Launched(outcome=outcome, host="w", pid=7, why=why)


def ran(**changes: Any) -> Checked:
    return msgspec.structs.replace(Checked(is_alive=True, was_launched=True, was_taken=True, host="w0"), **changes)


def test_a_host_is_the_first_worker_with_what_all_have() -> None:
    first = Greeting(host="w0", boot_id="b", user="u", python="3", programs={"bash": "/bin/bash", "uv": "/uv"})
    answer = one(Hello(), first, msgspec.structs.replace(first, host="w1", programs={"bash": "/usr/bin/bash"}))
    assert answer == msgspec.structs.replace(first, programs={"bash": "/bin/bash"})


def test_directories_must_be_the_same_on_all_workers() -> None:
    first = Greeting(host="w0", boot_id="b", user="u", python="3", directories={"base": "/home/u"}, probe="token")
    answer = one(Hello(), first, msgspec.structs.replace(first, directories={"base": "/root"}))
    assert isinstance(answer, Failed)
    assert "`base`" in answer.error and "/root on worker 1" in answer.error
    # One worker alone may be in the workspace; several need a directory each.
    assert one(Hello(), first).probe == "token"
    assert one(Hello(), first, first).probe is None


def test_a_failure_names_its_worker() -> None:
    assert one(Has(paths=["/x"]), FileSizes(sizes=[1]), Failed(error="no disk", errno=5)) == Failed(
        error="worker 1: no disk", errno=5
    )
    assert one(Has(paths=["/x"]), Failed(error="no disk")) == Failed(error="no disk")


def test_a_file_is_there_when_all_have_it() -> None:
    answer = one(Has(paths=["/1", "/2", "/3"]), FileSizes(sizes=[5, 5, None]), FileSizes(sizes=[5, 4, 5]))
    assert answer == FileSizes(sizes=[5, None, None])


def test_what_the_others_have_printed_stands_behind_their_number() -> None:
    tail = Tail(path="/launch.log")
    assert one(tail, TailRead(), TailRead()) == TailRead()
    assert one(tail, TailRead(content=b""), TailRead()) == TailRead(content=b"")
    assert one(tail, TailRead(content=b"a"), TailRead(content=b"b")) == TailRead(content=b"a\nworker 1: b")


def test_all_signals_count() -> None:
    assert one(Signal(directory="/a"), Signalled(count=2), Signalled(count=0), Signalled(count=1)).count == 3


def test_a_launch_is_that_of_the_first_worker() -> None:
    assert one(LAUNCH, launched("started"), launched("alive")) == launched("started")
    answers = [[launched("started")], [launched("no_room", "the attempt b runs there")]]
    assert merged([LAUNCH], answers) == [Failed(error="worker 1: the attempt b runs there")]
    assert half_started([LAUNCH], answers) == ["/a"]
    assert half_started([LAUNCH], [[launched("started")], [Failed(error="no disk")]]) == ["/a"]
    assert half_started([LAUNCH], [[Failed(error="no disk")], [Failed(error="no disk")]]) == []


def test_a_worker_with_a_full_disk_is_heard() -> None:
    assert (
        seen(AttemptFiles(is_alive=True), AttemptFiles(is_alive=True, unwritten="no space on w1")).unwritten
        == "no space on w1"
    )


def test_what_not_all_have_launched_is_not_known_yet() -> None:
    """So it is submitted again, although it lives on one."""
    missing = Checked(is_alive=False, was_launched=False, was_taken=False)
    found = checked(ran(), missing)
    assert (found.was_launched, found.was_taken, found.is_alive) == (False, False, False)
    # What cannot be told is no absence.
    found = checked(ran(), msgspec.structs.replace(missing, is_alive=None, error="no such device"))
    assert (found.is_alive, found.error) == (True, "worker 1: no such device")


def test_the_worker_that_is_gone_explains_the_end() -> None:
    gone = ran(is_alive=False, host="w1", was_rebooted=True)
    ended = ran(is_alive=False, has_exit=True)
    assert checked(ended, gone) == gone
    assert checked(ran(), gone).is_alive is True
    assert to_be_stopped([CHECK], [[CheckResult(attempts=[ran()])], [CheckResult(attempts=[gone])]]) == ["/a"]
    assert to_be_stopped([CHECK], [[CheckResult(attempts=[ended])], [CheckResult(attempts=[gone])]]) == []
    assert to_be_stopped([CHECK], [[CheckResult(attempts=[ran()])], [CheckResult(attempts=[ended])]]) == []


def test_it_ends_when_all_have_ended() -> None:
    stamps = {"exit.json": (1, 2)}
    ended = AttemptFiles(files={"exit.json": exit_status(0, 1), "taken": b"w 1\n"}, stamps=stamps, is_alive=False)
    alive = AttemptFiles(files={"taken": b"w 2\n"}, is_alive=True, log_end=None)
    both = seen(ended, alive)
    assert (set(both.files), both.stamps, both.is_alive) == ({"taken"}, {}, True)
    both = seen(ended, msgspec.structs.replace(ended, log_end=b"bye"))
    assert both.files == {**ended.files, "output.1.log": b"bye"}
    assert (both.stamps, both.is_alive) == (stamps, False)


def test_it_has_begun_when_all_have_begun() -> None:
    first = AttemptFiles(
        files={"taken": b"w 1\n", "progress.json": b"{}"}, stamps={"taken": (1, 1), "progress.json": (1, 1)}
    )
    both = seen(first, AttemptFiles())
    assert (both.files, both.stamps) == ({"progress.json": b"{}"}, {"progress.json": (1, 1)})


def test_the_first_failure_counts_and_names_its_worker() -> None:
    def merged_exit(*exits: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            seen(*(AttemptFiles(files={"exit.json": each}, is_alive=False) for each in exits)).files["exit.json"]
        )
        return found

    first = merged_exit(exit_status(1, 9), exit_status(3, 2), exit_status(4, 5))
    assert (first["exit_code"], first["worker"]) == (3, 1)
    # The one that was told to stop has not failed first, whatever its clock says.
    told = merged_exit(exit_status(143, 1, signal="TERM"), exit_status(0, 1), exit_status(5, 2))
    assert (told["exit_code"], told["worker"]) == (5, 2)
    # The other one ends with it.
    not_begun = exit_status(None, 1, reason="cannot start", error="output.log cannot be opened")
    assert merged_exit(not_begun, exit_status(143, 3)) == json.loads(not_begun)
    assert merged_exit(exit_status(143, 3), not_begun) == {**json.loads(not_begun), "worker": 1}
    assert merged_exit(exit_status(7, 1), exit_status(0, 1)) == json.loads(exit_status(7, 1))
    assert merged_exit(exit_status(0, 1), exit_status(0, 0)) == json.loads(exit_status(0, 1))


def test_an_exit_status_that_is_being_written_is_none() -> None:
    whole = AttemptFiles(files={"exit.json": exit_status(0, 1)}, is_alive=False)
    begun = AttemptFiles(files={"exit.json": b'{"exit_co'}, is_alive=True)
    assert "exit.json" not in seen(whole, begun).files
    # On a full disk, and killed.
    cut = seen(whole, msgspec.structs.replace(begun, is_alive=False))
    assert cut.files["exit.json"] == b'{"exit_co'


def test_those_that_go_on_without_one_that_failed_are_stopped() -> None:
    def stopped(*each: AttemptFiles) -> list[str]:
        return to_be_stopped([READ], [[ReadAnswer(seen=[each_])] for each_ in each])

    failed = AttemptFiles(files={"exit.json": exit_status(3, 1)}, is_alive=False)
    done = AttemptFiles(files={"exit.json": exit_status(0, 1)}, is_alive=False)
    assert stopped(AttemptFiles(is_alive=True), failed) == ["/a"]
    assert stopped(AttemptFiles(is_alive=True), done) == []
    assert stopped(done, failed) == []


def test_what_cannot_be_read_of_one_worker_is_not_told_of_the_others() -> None:
    both = seen(
        AttemptFiles(files={"exit.json": exit_status(0, 1)}, grown={"output.log": Grown(content=b"x", size=1)}),
        AttemptFiles(error="Input/output error"),
    )
    assert (both.files, both.grown, both.error) == ({}, {}, "worker 1: Input/output error")


STATUSES = st.lists(
    st.tuples(st.sampled_from([None, 0, 1, 3, 143]), st.floats(0, 59), st.booleans()), min_size=1, max_size=5
)


@given(STATUSES)
def test_the_merged_end_is_that_of_some_worker(each: Sequence[tuple[int | None, float, bool]]) -> None:
    """None while one has no status; 0 when all are 0; else one that is not 0, with the log of its worker."""
    told = seen(
        *(
            AttemptFiles(
                files={} if code is None else {"exit.json": exit_status(code, at)},
                is_alive=code is None,
                log_end=b"log %d" % index if index and code is not None else None,
            )
            for index, (code, at, _) in enumerate(each)
        )
    )
    codes = [code for code, _, _ in each]
    if None in codes:
        assert "exit.json" not in told.files
        return
    document = json.loads(told.files["exit.json"])
    worker = document.get("worker", 0)
    assert document["exit_code"] == codes[worker]
    assert (document["exit_code"] == 0) == (not any(codes))
    if document["exit_code"]:
        assert document["ended_at"] == min(f"2026-01-01T00:00:{at:06.3f}Z" for code, at, _ in each if code)
    assert [f"output.{index}.log" in told.files for index in range(1, len(each))] == [True] * (len(each) - 1)


CHECKS = st.lists(
    st.builds(
        Checked,
        is_alive=st.sampled_from([True, False, None]),
        was_launched=st.booleans(),
        was_taken=st.booleans(),
        has_exit=st.booleans(),
        was_rebooted=st.booleans(),
        error=st.just(""),
    ),
    min_size=1,
    max_size=4,
)


@given(CHECKS)
def test_an_attempt_is_not_gone_while_one_worker_has_it(each: Sequence[Checked]) -> None:
    told = checked(*each)
    assert told.was_launched == all(one_.was_launched for one_ in each)
    assert told.has_exit == all(one_.has_exit for one_ in each)
    if told.was_launched and any(one_.is_alive for one_ in each):
        assert told.is_alive is True
    if told.was_launched and told.is_alive is False:
        assert not any(one_.is_alive is not False for one_ in each)


@given(st.integers(1, 4), st.data())
def test_one_worker_alone_answers_for_itself(count: int, data: st.DataObject) -> None:
    answers = data.draw(
        st.lists(st.sampled_from([Stored(existed=True), Failed(error="x")]), min_size=count, max_size=count)
    )
    operations: list[Operation] = [Has(paths=["/x"])] * count
    found: list[Any] = [FileSizes(sizes=[1]) if isinstance(answer, Stored) else answer for answer in answers]
    assert merged(operations, [found]) == found
