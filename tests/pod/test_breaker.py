"""The circuit breaker: what failures are blamed on, and what goes on meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until

from dispatcher.config import ConfigError, Method, load_config
from dispatcher.matrix.entry import Entry, read_entry
from dispatcher.pod.breaker import Breaker
from dispatcher.run_state.facets.pauses import Paused, Streak, begun
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

NAN = "FloatingPointError: loss is nan"


class Lab:
    """A grid of jobs of one method, one after the other: what is paused is not run."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], **settings: Any) -> None:
        self.entries: dict[str, Entry] = {}
        for number, row in enumerate(rows):
            entry, _ = read_entry({"job_id": f"j{number}", "method": "m", **row}, number)
            assert entry is not None
            self.entries[entry.job_id] = entry
        self.records = {job: Record(state=State.QUEUED) for job in self.entries}
        method = Method(name="m", template=Layout("/lab").training_template("m"), **settings)
        self.breaker = Breaker(lambda _: method, lambda: self.entries, self.records.get)
        self.failed: list[str] = []
        self.paused: list[Paused] = []
        self._clock = itertools.count()

    def end(self, job: str, reason: str = "exit 1", error: str = NAN, *, well: bool = False) -> None:
        state, at = State.DONE if well else State.FAILED, f"{next(self._clock):06d}"
        if well:
            self.records[job] = Record(state=state, finished_at=at)
            self.breaker.after_success(job)
            return
        self.records[job] = Record(state=state, reason=reason, error=error, finished_at=at)
        self.failed.append(job)
        streak = Streak(tuple(self.failed), ("m",) * len(self.failed), reason, error)
        paused = self.breaker.after_failure(job, self.entries[job], streak)
        if paused is not None:
            self.paused.append(paused)

    def run(self, diverges: Any = lambda entry: True) -> list[str]:
        """Run what is not paused; the scopes in the order in which they were paused."""
        for job, entry in self.entries.items():
            if not any(begun(paused, "").covers(entry) for paused in self.paused):
                self.end(job, well=not diverges(entry))
        return [paused.scope for paused in self.paused]

    def count(self, state: State) -> int:
        return sum(record.state is state for record in self.records.values())


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def test_a_corner_that_diverges_is_paused_and_nothing_else() -> None:
    lab = Lab(grid(lr=[1.0, 0.001], model=["gpt"], seed=range(8)))
    assert lab.run(lambda entry: entry.value("lr") == 1.0) == ["m:lr=1.0"]
    assert lab.count(State.FAILED) == 5 and lab.count(State.DONE) == 8
    [paused] = lab.paused
    assert paused.why == f"5 jobs failed alike: exit 1: {NAN} (j0, j1, j2, j3, j4)"
    assert paused.until_success


def test_a_corner_is_found_among_successes() -> None:
    lab = Lab(grid(seed=range(20), lr=[1.0, 0.1, 0.001], opt=["sgd", "adam"]))
    scopes = lab.run(lambda entry: (entry.value("lr"), entry.value("opt")) == (1.0, "sgd"))
    assert scopes == ["m:lr=1.0,opt=sgd"]
    assert lab.count(State.FAILED) == 5 and lab.count(State.DONE) == 100


def test_two_values_that_diverge_do_not_stop_a_third_one() -> None:
    lab = Lab(grid(lr=[1.0, 0.5, 0.001], seed=range(10)))
    assert lab.run(lambda entry: entry.value("lr") > 0.1) == ["m:lr=1.0", "m:lr=0.5"]
    assert lab.count(State.DONE) == 10 and lab.count(State.FAILED) == 10


def test_a_script_that_never_works_pauses_its_method() -> None:
    lab = Lab(grid(lr=[1.0, 0.001], seed=range(8)))
    assert lab.run() == ["m:lr=1.0", "m"]
    assert lab.paused[1].why == f"6 jobs failed alike: exit 1: {NAN} (the last ones j1, j2, j3, j4, j8)"
    assert lab.count(State.FAILED) == 6
    by_seeds = Lab(grid(seed=range(20)))
    assert by_seeds.run() == ["m"]
    assert by_seeds.count(State.FAILED) == 5
    assert Lab([{}] * 8).run() == ["m"]


def test_many_random_draws_with_successes_among_them_pause_nothing() -> None:
    rows = [{"lr": 10.0 ** -(n * 7 % 60 / 10), "wd": n / 1000} for n in range(200)]
    lab = Lab(rows)
    assert lab.run(lambda entry: entry.value("lr") > 0.1) == []
    assert lab.count(State.DONE) == 200 - lab.count(State.FAILED) > 100


def test_what_worked_long_ago_speaks_for_nothing() -> None:
    """The script was broken after ten jobs."""
    lab = Lab(grid(seed=range(100)))
    assert lab.run(lambda entry: entry.value("seed") >= 10) == ["m"]
    assert (lab.count(State.DONE), lab.count(State.FAILED)) == (10, 20)


def test_jobs_with_another_key_are_something_else() -> None:
    rows = [*({"seed": n} for n in range(9)), *({"seed": n, "amp": True} for n in range(3))]
    lab = Lab(rows)
    assert lab.run(lambda entry: not entry.value("amp")) == ["m:amp="]
    assert lab.paused[0].values == {"amp": None}


def test_commands_of_their_own_are_values_too() -> None:
    rows = [*({"command": "bad"} for n in range(7)), *({"command": "good"} for n in range(3))]
    lab = Lab(rows)
    assert lab.run(lambda entry: entry.command == "bad") == ["m:command=bad"]


def test_different_failures_are_not_counted_together() -> None:
    lab = Lab(grid(seed=range(30)))
    for number, job in enumerate(lab.entries):
        lab.end(job, reason=f"exit {number % 8 + 1}" if number < 24 else "lost 3 times")
    assert lab.paused == []


@pytest.mark.parametrize("reason", ["lost", "preempted 21 times", "cancelled", "queue limit", "cannot start 21 times"])
def test_what_is_no_fault_of_a_job_does_not_count(reason: str) -> None:
    lab = Lab(grid(seed=range(30)))
    for job in list(lab.entries)[:20]:
        lab.end(job, reason=reason)
    assert lab.paused == []


def test_ids_numbers_and_paths_make_no_difference() -> None:
    lab = Lab(grid(seed=range(9)))
    for n, job in enumerate(list(lab.entries)[:5]):
        lab.end(job, error=f"RuntimeError: step {n} of /scratch/run{n}/{job} at 0x{n:x}f")
    assert [paused.scope for paused in lab.paused] == ["m"]
    assert "RuntimeError: step 4 of /scratch/run4/j4 at 0x4f" in lab.paused[0].why


def test_only_what_is_failed_now_counts() -> None:
    lab = Lab(grid(seed=range(9)))
    for job in ("j0", "j1", "j2", "j3"):
        lab.end(job)
    lab.records["j0"] = Record(state=State.QUEUED)
    lab.end("j4")
    assert lab.paused == []
    lab.end("j5")
    assert [paused.scope for paused in lab.paused] == ["m"]


def test_a_corner_of_which_nothing_is_left_is_not_paused() -> None:
    lab = Lab(grid(lr=[1.0, 0.001], seed=range(5)))
    assert lab.run(lambda entry: entry.value("lr") == 1.0) == []


@pytest.mark.parametrize(("settings", "failed"), [({"pause_after": 2}, 2), ({"pause_after": None}, 20), ({}, 5)])
def test_how_many_is_a_setting_of_the_method(settings: dict[str, Any], failed: int) -> None:
    lab = Lab(grid(seed=range(20)), **settings)
    lab.run()
    assert lab.count(State.FAILED) == failed


def test_a_very_large_manifest_is_sampled() -> None:
    lab = Lab(grid(lr=[1.0, 0.001], seed=range(25_000)))
    for job in ("j0", "j1", "j2", "j3", "j4"):
        lab.end(job)
    assert [paused.scope for paused in lab.paused] == ["m:lr=1.0"]


def on_host(*jobs: str) -> str | None:
    """The scope that is paused after jobs of these methods in a row."""
    streak = Streak(tuple(f"j{n}" for n in range(len(jobs))), jobs, "lost", "no exit status")
    paused = Breaker(lambda _: Method(name="m", template=Layout("/").root), dict, lambda _: None).on_host("h", streak)
    return None if paused is None else paused.scope


def test_a_host_is_paused_when_different_methods_cannot_run_there() -> None:
    assert on_host(*"aaaa") is None and on_host(*"abab") is None
    assert on_host(*"aaaaa") == "host:h:a"
    # One of another method may have been killed by chance.
    assert on_host(*"baaaa") is None and on_host(*"baaaaa") == "host:h:a"
    assert on_host(*"aaabb") == "host:h"


def on_gpu(methods: str, *well: tuple[str, int]) -> bool:
    """Whether a GPU is paused on which jobs of these methods fail, when such jobs succeed on other GPUs."""
    entries, records = {}, {}
    for number, (method, gpu) in enumerate(well):
        entries[f"w{number}"] = Entry(job_id=f"w{number}", method=method)
        records[f"w{number}"] = Record(state=State.DONE, host="h", gpu=gpu)
    breaker = Breaker(lambda _: Method(name="m", template=Layout("/").root), lambda: entries, records.get)
    streak = Streak(tuple(f"j{n}" for n in range(len(methods))), tuple(methods), "exit 1", None)
    return breaker.on_gpu("gpu:h:1", "h", 1, streak) is not None


def test_a_gpu_is_paused_when_methods_fail_there_that_succeed_elsewhere() -> None:
    assert on_gpu("aabab", ("a", 0), ("b", 2))
    assert not on_gpu("aabab", ("a", 0))
    assert not on_gpu("aabab", ("a", 1), ("b", 1))
    assert not on_gpu("aaaaa", ("a", 0), ("b", 0)) and not on_gpu("abab", ("a", 0), ("b", 0))


# In real pods.

DIVERGING = f"[ $1 = 0.001 ] || [ -e repaired ] || {{ echo {NAN}; exit 1; }}"


def write_grid(fleet: Fleet, **keys: Any) -> None:
    command = ["bash", "-c", DIVERGING, "x", "{lr}"]
    rows = grid(lr=[1.0, 0.001], seed=range(8))
    fleet.write_manifest(
        [shell(f"lr{row['lr']}_s{row['seed']}", "") | row | {"command": command} | keys for row in rows]
    )


def test_all_good_jobs_of_a_sweep_run_and_the_pod_ends(fleet: Fleet) -> None:
    write_grid(fleet)
    pod = fleet.start("pod", "--slots", "1", "--until-empty")
    assert pod.end() == 1
    states = fleet.states()
    assert {state for job, state in states.items() if job.startswith("lr0.001")} == {"done"}
    assert sorted(state for job, state in states.items() if job.startswith("lr1.0")) == ["failed"] * 5 + ["queued"] * 3
    assert "ended with 3 jobs left that cannot run now: m:lr=1.0 is paused: 5 jobs failed alike" in pod.said
    assert "m:lr=1.0 is paused: 5 jobs failed alike" in fleet.run("show", "lr1.0_s7")
    status = fleet.try_("status")
    assert "dispatcher unpause m:lr=1.0" in status.stdout + status.stderr
    dry = fleet.run("--pod", "x", "--slots", "1", "--dry-run")
    assert dry.count("m:lr=1.0 is paused") == 3


def test_jobs_that_failed_before_do_not_pause_again(fleet: Fleet) -> None:
    write_grid(fleet)
    fleet.start("pod", "--slots", "1", "--until-empty").end()
    fleet.run("unpause", "m:lr=1.0")
    again = fleet.start("pod", "--slots", "1", "--until-empty")
    assert again.end() == 1
    assert "queued" not in fleet.states().values() and "paused" not in again.said
    fleet.run("requeue", "--state", "failed")
    third = fleet.start("pod", "--slots", "1", "--until-empty")
    assert third.end() == 1
    assert "paused m:lr=1.0: 5 jobs failed alike" in third.said, "they have failed anew"


def test_attempts_that_are_retried_do_not_count(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {retries: 1, backoff: 0.01s}}\n")
    command = "[ $DISPATCHER_ATTEMPT = 2 ] || exit 1"
    fleet.write_manifest([shell(f"a{n}", command) for n in range(12)])
    pod = fleet.start("pod", "--slots", "3", "--until-empty", poll="0.2")
    assert pod.end() == 0
    assert set(fleet.states().values()) == {"done"} and "paused" not in pod.said


def test_one_success_ends_the_pause(fleet: Fleet) -> None:
    command = "[ $DISPATCHER_JOB_ID != slow ] || until [ -e repaired ]; do sleep 0.02; done; [ -e repaired ]"
    fleet.write_manifest([shell("slow", command), *(shell(f"a{n}", command) for n in range(8))])
    pod = fleet.start("pod", "--slots", "2", "--until-empty", poll="600")
    pod.says("paused m: 5 jobs failed alike")
    (fleet.root / "repaired").touch()
    assert pod.end() == 1
    assert "unpaused m: slow has succeeded" in pod.said
    states = fleet.states()
    assert [states[f"a{n}"] for n in range(8)] == ["failed"] * 5 + ["done"] * 3
    assert "unpaused" in fleet.run("history", "--event", "unpaused")


def test_a_pause_by_a_person_lasts_until_a_person_ends_it(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "until [ -e go ]; do sleep 0.02; done", lr=1.0), shell("b", "true", lr=1.0)])
    pod = fleet.start("pod", "--slots", "1")
    fleet.wait_for("a", "running")
    assert fleet.run("pause", "m:lr=1.0", "--why", "data") == "m:lr=1.0 paused\n"
    (fleet.root / "go").touch()
    fleet.wait_for("a", "done")
    wait_until(lambda: "m:lr=1.0 is paused: data" in fleet.run("show", "b"), "`show` says why it waits")
    assert fleet.states()["b"] == "queued"
    assert "unknown key of m 'lt' (known: command, lr" in fleet.try_("pause", "m:lt=1.0").stderr
    fleet.run("unpause", "m:lr=1.0")
    fleet.wait_for("b", "done")
    assert pod.stop() == 0


@pytest.mark.parametrize("text", ["1", "0", "yes", "true", "500"])
def test_the_setting_is_a_number_or_false(fleet: Fleet, text: str) -> None:
    fleet.write_config(f"methods: {{m: {{pause_after: {text}}}}}\n")
    with pytest.raises(ConfigError, match=r"methods\.m\.pause_after = .*: expected false, or a whole number from 2"):
        load_config(fleet.layout)
    fleet.write_config("methods: {m: {pause_after: false}, n: {pause_after: 7}, o: {}}\n")
    config = load_config(fleet.layout)
    assert [config.method(name).pause_after for name in "mnop"] == [None, 7, 5, 5]


@pytest.mark.parametrize("value", ["0", "1001", "true", "1.5"])
def test_max_fails_that_cannot_be_counted_is_refused(fleet: Fleet, value: str) -> None:
    fleet.write_config(f"methods: {{m: {{max_fails: {value}}}}}\n")
    with pytest.raises(ConfigError, match=r"methods\.m\.max_fails = .*: expected a whole number from 1 to 1000"):
        load_config(fleet.layout)
