"""How attempts end, what is recorded of it, and what is tried again."""

from __future__ import annotations

import os
import signal
import time

import pytest
from fleet import Fleet, shell, wait_until

from dispatcher.outlets.base import Ended
from dispatcher.pod.outcome import Policy, after, classify, is_retried
from dispatcher.run_state.states import Record, State

XLA = "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
TORCH = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)"
FRUIT = ["apple", "pear", "plum", "fig", "quince", "cherry", "grape"]
DRIVER = "E0000 cuda_driver.cc:1] failed call to cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory"


def test_reasons_in_a_real_run(fleet: Fleet) -> None:
    scripts = {
        "exit": "echo 'ValueError: no such file'; exit 4",
        "signal": "echo begun; kill -SEGV $$",
        "xla": f"echo '{XLA}' >&2; exit 1",
        "torch": f"echo '{TORCH}' >&2; exit 1",
        "preempted": "[ $DISPATCHER_ATTEMPT = 2 ] || exit 75",
        "absent": "exec /nonexistent/program",
    }
    limited = shell("limit", "echo begun; sleep 600", time_limit="1s")
    fleet.write_manifest([*(shell(job, script) for job, script in scripts.items()), limited])
    assert fleet.run_all("--slots", "2").end() == 1
    records = fleet.records()
    assert {job: record.reason for job, record in records.items()} == {
        "exit": "exit 4",
        "signal": "signal 11",
        "xla": "out of memory",
        "torch": "out of memory",
        "preempted": None,
        "absent": "exit 127",
        "limit": "time limit",
    }
    assert records["exit"].error == "ValueError: no such file"
    assert (records["preempted"].state, records["preempted"].attempt) == ("done", 2)
    shown = fleet.status()["signal"]
    assert (shown["state"], shown["exit_code"], shown["reason"]) == ("failed", 139, "signal 11")
    assert shown["finished_at"] >= shown["started_at"][:19]


@pytest.mark.parametrize(
    ("ended", "log", "expected"),
    [
        (Ended(0), "RESOURCE_EXHAUSTED", ""),
        # It was told to stop, and has left in good order: that is not the end of the work.
        (Ended(0, "time limit"), "", "time limit"),
        (Ended(0, told_by_signal="TERM"), "", "preempted"),
        (Ended(79), "", ""),
        (Ended(1), "", "exit 1"),
        (Ended(75), "", "preempted"),
        (Ended(143, "preempted"), "", "preempted"),
        (Ended(None), "", "lost"),
        (Ended(143, "superseded"), "", "lost"),
        (Ended(143, "time limit"), TORCH, "time limit"),
        # It would take all of its time again, as often as entries may come back.
        (Ended(75, "time limit"), "", "time limit"),
        (Ended(137), "", "signal 9"),
        (Ended(192), "", "signal 64"),
        (Ended(134), DRIVER, "out of memory"),
        (Ended(1), f"{XLA}\n" + "  at frame\n" * 10, "out of memory"),
        (Ended(1), f"{XLA}\n" + "\n" * 100, "out of memory"),
        (
            Ended(1),
            f"{XLA}\nsrun: error: n1: task 0: Exited with exit code 1\n" + "ended for it\n" * 100,
            "out of memory",
        ),
        (Ended(9), f"lost it\nsrun: error: n1: task 0: Exited with exit code 9\n{XLA}", "exit 9"),
        (Ended(1), f"{XLA}\n" + "went on well\n" * 100 + "KeyError: 'x'", "exit 1"),
        (Ended(1), "terminate called after throwing an instance of 'std::bad_alloc'", "out of memory"),
        (Ended(1), "MemoryErrors are rare", "exit 1"),
        (Ended(200), "", "exit 200"),
    ],
)
def test_reasons(ended: Ended, log: str, expected: str) -> None:
    assert classify(ended, log).exit_reason == expected


def test_one_that_was_superseded_keeps_what_is_known_of_the_cause() -> None:
    assert classify(Ended(143, "superseded"), "").error == "superseded"
    assert classify(Ended(143, "superseded", error="n1 is lost"), "").error == "superseded: n1 is lost"


def test_a_failed_setup_is_told_with_what_it_ran_into() -> None:
    failed = "dispatcher: error: setup, line 2, exit status 1: source venv/bin/activate"
    cause = "setup.sh: line 2: venv/bin/activate: No such file or directory"
    log = f"dispatcher: note: job 7 of SLURM, on n1\nloading\n{cause}\n{failed}\n"
    assert classify(Ended(1, "setup"), log).error == f"{failed}: {cause}"
    assert classify(Ended(1, "setup"), f"{failed}\n").error == failed


def test_a_kill_while_the_kernel_killed_for_memory() -> None:
    assert classify(Ended(137, oom_killed=True), "").exit_reason == "out of memory"
    assert classify(Ended(1, oom_killed=True), "").exit_reason == "exit 1"


@pytest.mark.parametrize(
    ("reason", "retry_on", "expected"),
    [
        ("exit 1", (), True),
        ("exit 1", ("exit",), True),
        ("exit 1", ("exit 1",), True),
        ("exit 2", ("exit 1",), False),
        ("signal 9", ("exit",), False),
        ("signal 9", ("signal", "out of memory"), True),
        ("out of memory", ("out of memory",), True),
        ("time limit", ("signal",), False),
    ],
)
def test_what_is_retried(reason: str, retry_on: tuple[str, ...], expected: bool) -> None:
    assert is_retried(reason, Policy(retries=1, retry_on=retry_on), used=0) is expected
    assert not is_retried(reason, Policy(retries=1, retry_on=retry_on), used=1)


@pytest.mark.parametrize("desired", [State.ABANDONED, State.HELD, State.QUEUED])
def test_a_desired_state_wins_over_policy(desired: State) -> None:
    record = Record(state=State.RUNNING, desired=desired)
    for ending in (Ended(143, exit_reason="signal 15"), Ended(None, exit_reason="lost")):
        event, change = after(ending, record, Policy(retries=5), 0.0)
        assert (event, change.state, change.desired) == ("stopped", desired, None)


@pytest.mark.parametrize(
    "ending",
    [
        Ended(143, exit_reason="signal 15"),
        Ended(75, exit_reason="preempted", pod_stopped=True),
        Ended(None, exit_reason="lost"),
        Ended(1, exit_reason="exit 1", error="Killed"),
    ],
)
def test_one_that_an_adaptive_sweep_has_stopped_is_done_and_pruned(ending: Ended) -> None:
    record = Record(state=State.RUNNING, desired=State.DONE, attempt=3, requeues=2)
    event, change = after(ending, record, Policy(retries=5), 0.0)
    assert (event, change.state, change.reason, change.desired) == ("pruned", "done", "pruned", None)
    assert (change.exit_code, change.error) == (ending.exit_code, None)


def test_one_that_was_done_before_it_could_be_stopped_is_done() -> None:
    done = Ended(0)
    event, change = after(done, Record(state=State.RUNNING, desired=State.DONE), Policy(), 0.0)
    assert (event, change.state, change.reason) == ("done", "done", None)
    assert after(done, Record(state=State.RUNNING, desired=State.ABANDONED), Policy(), 0.0)[1].state == "done"
    # Whoever wants it once more gets it once more.
    assert after(done, Record(state=State.RUNNING, desired=State.QUEUED), Policy(), 0.0)[1].state == "queued"


def test_retries_with_backoff_in_a_real_run(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {retries: 3, retry_on: [exit 9], backoff: 0.2s}}\n")
    flaky = shell("flaky", "echo try $DISPATCHER_ATTEMPT; [ $DISPATCHER_ATTEMPT = 3 ] || exit 9")
    fleet.write_manifest([flaky, shell("other", "exit 8"), shell("never", "exit 9", retries=0)])
    begun = time.monotonic()
    assert fleet.run_all().end() == 1
    assert time.monotonic() - begun > 0.2 + 0.4
    assert fleet.record("flaky").attempt == 3
    assert fleet.states() == {"flaky": "done", "other": "failed", "never": "failed"}
    assert fleet.record("other").attempt == fleet.record("never").attempt == 1
    assert [fleet.output("flaky", n) for n in (1, 2, 3)] == ["try 1\n", "try 2\n", "try 3\n"]


def test_nothing_is_retried_by_default(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "exit 1"), shell("b", "kill -9 $$")])
    fleet.run_all()
    assert {job: (record.state, record.attempt) for job, record in fleet.records().items()} == {
        "a": ("failed", 1),
        "b": ("failed", 1),
    }


def test_an_attempt_that_cannot_be_made_says_why_and_holds_nobody_up(fleet: Fleet) -> None:
    fleet.write_manifest([{"job_id": "a", "command": "echo {x}", "x": "no\0argument"}, shell("c", "true")])
    fleet.run_all()
    records = fleet.records()
    assert {job: record.state for job, record in records.items()} == {"a": "failed", "c": "done"}
    assert records["a"].reason == "cannot start"
    assert "NUL character" in (records["a"].error or "")


def test_a_job_that_puts_a_directory_in_the_place_of_its_exit_status_holds_no_slot(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {on_lost: fail}}\n")
    spoil = 'mkdir "$DISPATCHER_ATTEMPT_DIR/exit.json"; '
    fleet.write_manifest([shell("a", spoil + "exit 6"), shell("b", spoil + "kill -9 $PPID"), shell("c", "true")])
    assert fleet.run_all().end() == 1
    records = fleet.records()
    assert {job: record.reason for job, record in records.items()} == {"a": "exit 6", "b": "lost", "c": None}
    assert "exit.json is no file: the job has put something else in its place" in (records["b"].error or "")


# The circuit breaker.


def test_a_job_that_puts_pipes_in_the_place_of_its_files_holds_nobody_up(fleet: Fleet) -> None:
    """Opening a pipe waits for a writer."""
    names = "progress.json checkpoint.json output.log entry.json"
    script = f'cd "$DISPATCHER_ATTEMPT_DIR"; rm -f {names}; mkfifo {names}; exit 3'
    fleet.write_manifest([shell("a", script), shell("b", "true", needs=["c"]), shell("c", "true")])
    assert fleet.run_all().process.returncode == 1
    assert fleet.states() == {"a": "failed", "b": "done", "c": "done"}
    assert fleet.record("a").reason == "exit 3"
    assert "exit 3" in fleet.run("show", "a")


def test_the_same_failure_of_five_entries_pauses_their_method(fleet: Fleet) -> None:
    broken = 'echo "FileNotFoundError: /data/run$RANDOM/text_$RANDOM.txt line $RANDOM"; [ -e repaired ]'
    bad = [shell(f"bad_{n}", broken, method="bad") for n in range(8)]
    fleet.write_manifest([*bad, *(shell(f"good_{n}", "true", method="good") for n in range(3))])
    pod = fleet.start("pod", poll="600")
    fleet.wait_for("good_2", "done")
    assert "paused bad" in pod.said
    states = fleet.states()
    assert [states[f"bad_{n}"] for n in range(8)] == ["failed"] * 5 + ["queued"] * 3
    said = fleet.try_("status")
    example = fleet.record("bad_4").error or ""
    assert example.startswith("FileNotFoundError: /data/run")
    assert example in said.stdout + said.stderr, "no example is shown word for word"
    assert "unpause bad" in said.stdout + said.stderr
    (fleet.root / "repaired").touch()
    fleet.run("unpause", "bad")
    for n in (5, 6, 7):
        fleet.wait_for(f"bad_{n}", "done")
    assert "unpause" not in fleet.run("status")


def test_different_failures_pause_nothing(fleet: Fleet) -> None:
    fleet.write_manifest([shell(fruit, f"echo 'Error: no {fruit.upper()}'; exit 1") for fruit in FRUIT])
    fleet.run_all()
    assert set(fleet.states().values()) == {"failed"}


def test_failures_with_different_reasons_pause_nothing(fleet: Fleet) -> None:
    """The last line of their logs is alike: progress, which is no error."""
    ends = ["exit 3", "kill -9 $$", "exit 1", "kill -SEGV $$", "exit 2", "exit 4"]
    fleet.write_manifest([shell(f"job_{n}", f"echo 'step 12{n}/1000 loss 2.3'; {end}") for n, end in enumerate(ends)])
    fleet.run_all()
    records = fleet.records().values()
    assert {record.state for record in records} == {"failed"}
    assert {record.error for record in records} == {None}


def test_one_entry_that_fails_again_and_again_pauses_nothing(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {retries: 7, backoff: 0.01s}}\n")
    fleet.write_manifest([shell("a", "exit 1"), shell("b", "true")])
    fleet.run_all()
    assert fleet.states() == {"a": "failed", "b": "done"}
    assert fleet.record("a").attempt == 8


def test_a_gpu_on_which_different_methods_fail_is_paused(fleet: Fleet) -> None:
    """The other GPU goes on, and this one does when somebody says so."""
    script = 'echo "Error: ${DISPATCHER_JOB_ID^^}"; [ "$CUDA_VISIBLE_DEVICES" = 1 ] || [ -e repaired ]'
    # The methods take turns in another rhythm than the GPUs.
    jobs = [f"{'xyz'[n % 3]}_{fruit}" for n, fruit in enumerate([*FRUIT, *(fruit[::-1] for fruit in FRUIT)])]
    fleet.write_manifest([shell(job, script, method=job[0], gpus=1) for job in jobs])
    pod = fleet.start("pod", "--gpus", "0,1", poll="600")
    pod.says("paused gpu:")
    scope = next(word for word in pod.said.split() if word.startswith("gpu:")).rstrip(":")
    assert scope.endswith(":0")
    wait_until(lambda: "queued" not in fleet.states().values(), "the other GPU goes on")
    states = fleet.states()
    failed = [job for job in jobs if states[job] == "failed"]
    assert 5 <= len(failed) < len(jobs)
    wait_until(lambda: "failed here in a row" in fleet.run("pods"), "`pods` says why")
    (fleet.root / "repaired").touch()
    fleet.run("unpause", scope)
    fleet.run("requeue", *failed)
    for job in failed:
        fleet.wait_for(job, "done")
    assert 0 in {fleet.record(job).gpu for job in failed}


def test_a_signal_from_outside_reaches_the_job(fleet: Fleet) -> None:
    """`kill -TERM` of the pid that the status file shows stops the tree."""
    fleet.write_manifest([shell("a", "trap 'echo saving; exit 6' TERM; echo begun; while :; do sleep 0.02; done")])
    pod = fleet.start("pod", "--until-empty")
    pid = fleet.wait_running("a")
    os.kill(pid, signal.SIGTERM)
    assert pod.end() == 1
    assert fleet.record("a").reason == "exit 6"


def test_a_job_that_removes_its_attempts_directory(fleet: Fleet) -> None:
    fleet.write_config("max_requeues: 0\n")
    fleet.write_manifest([shell("a", 'until rm -rf "$DISPATCHER_ATTEMPT_DIR"; do :; done')])
    fleet.run_all("--slots", "1")
    record = fleet.record("a")
    assert (record.state, record.reason) == ("failed", "lost 1 times")
    gone = fleet.attempt("a").directory
    assert record.error == f"the attempt's directory {gone} was removed or emptied, by the job or by another process"
