"""`max_running`: how many attempts of which jobs are in flight at once, in all pods together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from claim_queues import NOW, RUNNING, change, entry, made, names, queue_of
from fleet import Fleet, shell, wait_until

from dispatcher.base.running_limits import RunningLimit
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Group, Limits
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.in_flight import AttemptEntries, InFlight
from dispatcher.run_state.states import IN_FLIGHT, Record, State

GATED = "echo on; until [ -e go ]; do sleep 0.05; done"
BERT = Group("bert", 2)


class Counted(InFlight):
    """Counts how often it is asked whether there is room."""

    asked = 0

    def full(self, groups: Iterable[Group]) -> Group | None:
        self.asked += 1
        return super().full(groups)


def limits(*limited: RunningLimit, **of_methods: int) -> Limits:
    return Limits(limited, of_methods)


def test_the_groups_of_an_entry() -> None:
    known = limits(RunningLimit(2, "lang"), RunningLimit(3, where=("lang=greek",)), bert=2)
    greek, none = Entry(job_id="a", method="bert", params={"lang": "greek"}), Entry(job_id="b", method="gpt")
    assert known.groups(greek) == (BERT, Group("lang=greek", 2), Group("lang=greek", 3))
    assert known.groups(none) == ()
    of_each = limits(RunningLimit(1, "seed", ("gpus=1", "lang!=hindi")))
    seeded = Entry(job_id="c", method="m", gpus=1, params={"seed": 7})
    assert of_each.groups(seeded) == (Group("seed=7 (gpus=1 and lang!=hindi)", 1),)
    assert of_each.groups(greek) == ()


def test_a_full_group_is_passed_over_and_its_order_stays() -> None:
    entries = made(*(entry(f"b{n}", n, method="bert") for n in range(4)), entry("other", 9))
    queue = queue_of(entries, LocalCapacity([], 9), InFlight(limits(bert=2)))
    assert names(queue.choose(NOW)) == ["b0", "b1", "other"]
    assert queue.waiting(NOW).why("b2").text == "max_running of bert: 2 of 2 run"
    assert not queue.has_ready(NOW)
    change(queue, "b0", RUNNING)
    queue.put_back("b1")
    assert names(queue.choose(NOW)) == ["b1"], "what could not be claimed keeps its place in the order"


def test_a_full_group_keeps_no_gpu_from_others() -> None:
    entries = made(entry("pair", 0, method="bert", gpus=2), entry("one", 1, gpus=1))
    in_flight = InFlight(limits(bert=1))
    in_flight.put("elsewhere", (Group("bert", 1),))
    queue = queue_of(entries, LocalCapacity([0, 1], 0), in_flight)
    assert names(queue.choose(NOW)) == ["one"]
    in_flight.drop("elsewhere")
    assert names(queue.choose(NOW)) == [], "now the pair waits for the GPU that is busy"


def test_those_of_a_pack_count_each() -> None:
    entries = made(*(entry(f"b{n}", n, method="bert") for n in range(5)))
    capacity = LocalCapacity([], 9)
    queue = queue_of(entries, Packing(capacity), InFlight(limits(bert=3)), lambda _: 8)
    assert names(queue.choose(NOW)) == ["b0", "b1", "b2"]


class Packing(LocalCapacity):
    """Room for packs."""

    packs = True

    def __init__(self, of: LocalCapacity) -> None:
        super().__init__(of.gpus, of.cpu_slots)


def test_jobs_of_full_groups_cost_nothing_however_many_there_are() -> None:
    asked = []
    for waiting in (100, 10_000):
        many = [entry(f"b{n:05}", n, method="bert", params={"lang": f"l{n % 5}"}) for n in range(waiting)]
        rest = [entry(f"z{n}", waiting + n) for n in range(3)]
        in_flight = Counted(limits(RunningLimit(10, "lang"), bert=2))
        in_flight.put("x", (BERT,))
        in_flight.put("y", (BERT,))
        queue = queue_of(made(*many, *rest), LocalCapacity([], 1), in_flight)
        assert names(queue.choose(NOW, 1)) == ["z0"]
        in_flight.drop("x")
        assert names(queue.choose(NOW)) == [], "the slot is taken"
        asked.append(in_flight.asked)
    assert asked[0] == asked[1] < 30, "looked at as many lanes as there are groups, not at jobs"


def test_an_attempt_of_which_nothing_is_known_counts_everywhere() -> None:
    in_flight, attempts = InFlight(limits(RunningLimit(2, "lang"), bert=1)), AttemptEntries()
    foreign = Record(state=State.RUNNING, attempt=1, ran_with="0123456789abcdef")
    attempts.note(in_flight, "foreign", foreign, None)
    greek = Entry(job_id="a", method="m", params={"lang": "greek"})
    assert in_flight.unknown == {"foreign"}
    assert in_flight.full(in_flight.groups(greek)) is None, "one of two at most"
    attempts.note(in_flight, "other", foreign, None)
    assert in_flight.text(in_flight.full(in_flight.groups(greek)) or BERT) == (
        "max_running of lang=greek: 0 of 2 run, and it is not known yet whether 2 more count (foreign, other)"
    )
    attempts.read["foreign"] = 1, Entry(job_id="foreign", method="bert")
    attempts.note(in_flight, "foreign", foreign, None)
    assert in_flight.drain_freed() is None and in_flight.full(in_flight.groups(greek)) is None
    attempts.note(in_flight, "foreign", Record(state=State.RUNNING, attempt=2, ran_with="0123456789abcdef"), None)
    assert "foreign" in in_flight.unknown, "what attempt 1 ran with tells nothing of attempt 2"


def test_what_runs_counts_as_it_was_claimed_and_not_by_the_manifest_of_today() -> None:
    in_flight, attempts = InFlight(limits(RunningLimit(1, "lang"))), AttemptEntries()
    then = Entry(job_id="a", method="m", params={"lang": "greek"})
    now = Entry(job_id="a", method="m", params={"lang": "hindi"})
    record = Record(state=State.RUNNING, attempt=1, ran_with=then.digest())
    attempts.note(in_flight, "a", record, then)
    assert in_flight.full(in_flight.groups(then)) and not in_flight.full(in_flight.groups(now))
    attempts.note(in_flight, "a", record, now)
    assert in_flight.unknown == {"a"}
    attempts.note(in_flight, "a", Record(state=State.DONE, attempt=1), now)
    assert not in_flight.unknown and not in_flight.full(in_flight.groups(then))


CONFIG = """\
methods:
  bert: {max_running: 3, gpus: 0}
limits:
- {per: lang, max_running: 2}
"""


def most_at_once(fleet: Fleet, groups: dict[str, list[str]]) -> dict[str, int]:
    """How many attempts of each group were in flight at once, by the journal."""
    running, most = Counter[str](), Counter[str]()
    known: dict[str, str] = {}
    for line in fleet.history():
        state = line.set.get("state")
        if line.job is None or state is None:
            continue
        change_by = (state in IN_FLIGHT) - (known.get(line.job) in IN_FLIGHT)
        known[line.job] = state
        for group in groups[line.job]:
            running[group] += change_by
            most[group] = max(most[group], running[group])
    return dict(most)


def test_several_pods_never_exceed_a_limit_and_use_all_of_it(fleet: Fleet) -> None:
    fleet.write_config(CONFIG)
    langs = ("greek", "hindi", "")
    jobs: list[dict[str, Any]] = []
    for number in range(36):
        lang, method = langs[number % 3], "bert" if number % 4 else "gpt"
        params = {"lang": lang} if lang else {}
        jobs.append(shell(f"j{number:02}", "sleep 0.15", method=method, gpus=0, **params))
    fleet.write_manifest(jobs)
    pods = [fleet.start(f"pod{n}", "--slots", "3", "--until-empty", poll="1") for n in range(3)]
    assert [pod.end() for pod in pods] == [0, 0, 0]
    assert set(fleet.states().values()) == {"done"}
    assert sorted(fleet.claimed()) == sorted(job["job_id"] for job in jobs), "nothing ran twice"
    groups = {job["job_id"]: [job["method"], job.get("lang", "")] for job in jobs}
    most = most_at_once(fleet, groups)
    assert (most["bert"], most["greek"], most["hindi"]) == (3, 2, 2), most


def test_the_end_of_an_attempt_wakes_a_pod_that_waits_for_its_place(fleet: Fleet) -> None:
    fleet.write_config("methods: {bert: {max_running: 1}}\n")
    fleet.write_manifest([shell("a", GATED, method="bert"), shell("b", "true", method="bert")])
    first = fleet.start("first", "--slots", "1", poll="600").ready()
    fleet.wait_running("a")
    second = fleet.start("second", "--slots", "1", poll="600").ready()
    why = "max_running of bert: 1 of 1 run"
    wait_until(lambda: why in fleet.run("status"), "status says what b waits for")
    assert why in fleet.run("show", "b")
    assert why in fleet.run("--pod", "third", "--slots", "2", "--dry-run")
    (fleet.root / "go").touch()
    fleet.wait_for("b", "done")
    assert first.stop() == second.stop() == 0


def test_jobs_of_another_manifest_count(fleet: Fleet) -> None:
    fleet.write_config("limits: [{per: lang, max_running: 1}]\n")
    fleet.write_manifest([shell("mine", "true", lang="greek"), shell("free", "true", lang="hindi")])
    other = fleet.write_manifest([shell("theirs", GATED, lang="greek")], "other.json")
    second = fleet.start("second", "--slots", "1", "--matrix", str(other)).ready()
    fleet.wait_running("theirs")
    first = fleet.start("first", "--slots", "2")
    fleet.wait_for("free", "done")
    assert fleet.states() == {"mine": "queued", "free": "done", "theirs": "running"}
    wait_until(lambda: "max_running of lang=greek: 1 of 1 run" in fleet.run("status"), "status counts it too")
    (fleet.root / "go").touch()
    fleet.wait_for("mine", "done")
    assert first.stop() == second.stop() == 0


def test_an_attempt_without_its_entry_blocks_and_is_named(fleet: Fleet) -> None:
    """Its claimant died after the claim, before it could write what the attempt runs with."""
    fleet.write_config("limits: [{per: lang, max_running: 1}]\n")
    fleet.write_manifest([shell("mine", "true", lang="greek"), shell("free", "true")])
    other = fleet.write_manifest([shell("theirs", GATED, lang="hindi")], "other.json")
    second = fleet.start("second", "--slots", "1", "--matrix", str(other)).ready()
    fleet.wait_running("theirs")
    written = fleet.attempt("theirs").entry
    content = written.read_bytes()
    written.unlink()
    first = fleet.start("first", "--slots", "2")
    fleet.wait_for("free", "done")
    assert fleet.record("mine").state == "queued"
    written.write_bytes(content)
    fleet.wait_for("mine", "done")
    (fleet.root / "go").touch()
    assert first.stop() == second.stop() == 0


def test_each_user_has_a_limit_and_what_runs_stays_of_whom_it_was(fleet: Fleet) -> None:
    fleet.write_config("limits: [{per: user, max_running: 1}]\n")
    jobs = [shell("a1", GATED, user="ada"), shell("a2", "true", user="ada"), shell("b1", "true", user="bob")]
    fleet.write_manifest(jobs)
    pod = fleet.start("pod", "--slots", "3")
    fleet.wait_for("b1", "done")
    assert (fleet.record("a1").user, fleet.record("b1").user) == ("ada", "bob")
    assert "max_running of user=ada: 1 of 1 run" in fleet.run("show", "a2")
    # In today's manifest the job that runs is bob's, and yet it is ada who has one running.
    fleet.write_manifest([{**jobs[0], "user": "bob"}, jobs[1], shell("b2", "true", user="bob")])
    fleet.wait_for("b2", "done")
    assert fleet.states()["a2"] == "queued"
    assert "max_running of user=ada: 1 of 1 run" in fleet.run("show", "a2")
    (fleet.root / "go").touch()
    fleet.wait_for("a2", "done")
    assert pod.stop() == 0
    assert "ran with other" not in fleet.try_("status").stderr


def test_a_key_that_no_job_has_is_named(fleet: Fleet) -> None:
    fleet.write_config("limits: [{per: lnag, max_running: 1}, {per: usr, max_running: 1}]\n")
    fleet.write_manifest([shell("a", "true", lang="greek")])
    text = "limits of dispatcher.yaml: no job has a value for 'lnag' (did you mean 'lang'?)"
    checked = fleet.try_("matrix", "check").stderr
    assert text in checked and "no job has a value for 'usr' (did you mean 'user'?)" in checked
    assert text in fleet.run_all().said


def test_a_key_that_only_submitted_jobs_have_is_known(fleet: Fleet) -> None:
    fleet.write_config("limits: [{per: seed, max_running: 1}, {per: sed, max_running: 1}]\n")
    fleet.run("submit", "--param", "seed=1", "--", "true")
    text = "limits of dispatcher.yaml: no job has a value for 'sed' (did you mean 'seed'?)"
    for manifest in ([], [shell("a", "true", lang="greek")]):
        if manifest:
            fleet.write_manifest(manifest)
        said = fleet.try_("matrix", "check").stderr
        assert said.count("warning") == 1 and text in said, said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("limits: {per: lang}", "expected a list such as [{per: lang, max_running: 2}]"),
        ("limits: [{max_running: 2}]", "limits nothing: expected per: KEY or where: KEY=VALUE"),
        ("limits: [{per: lang}]", "limits[0].max_running: is missing"),
        ("limits: [{pre: lang, max_running: 1}]", "limits[0].pre: unknown key (did you mean 'per'?)"),
        ("limits: [{where: lang, max_running: 1}]", 'limits[0].where = "lang": expected key=value'),
        ("limits: [{where: [], max_running: 1}]", "limits[0].where = []: the list is empty"),
        ("limits: [{where: 'lang=[a', max_running: 1}]", "where lang=[a: [a begins with [ and lacks its ]"),
        (
            "limits: [{per: '', max_running: 0, pre: x}, {where: lang}]",
            "  limits[0].pre: unknown key (did you mean 'per'?)\n"
            '  limits[0].per = "": expected the key of entries whose values are limited, such as lang\n'
            "  limits[0].max_running = 0: expected a whole number, 1 or more; jobs that are not to run are held: "
            "`dispatcher hold`\n"
            "  limits[1].max_running: is missing\n"
            '  limits[1].where = "lang": expected key=value, such as lang=greek',
        ),
        ("methods: {m: {max_running: 0}}", "methods.m.max_running = 0: expected a whole number, 1 or more"),
    ],
)
def test_a_limit_that_cannot_be_used(fleet: Fleet, text: str, problem: str) -> None:
    fleet.write_config(text + "\n")
    fleet.write_manifest([shell("a", "true")])
    done = fleet.try_("matrix", "check")
    assert done.returncode == 1 and problem in done.stderr, json.dumps(done.stderr)
