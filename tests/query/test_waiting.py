"""Why jobs wait, by reason: jobs that are asked for together have the reason that each would have."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet import Fleet, shell

from dispatcher.config import Config, load_config
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest
from dispatcher.outlets.local.offer import LocalOffer
from dispatcher.pod.offers import Offer, request_of
from dispatcher.pod.waiting import Waiting
from dispatcher.query.pace import pace
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import reasons, waits
from dispatcher.run_state.facets.pauses import Pause
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import Record, State
from dispatcher.templates.readiness import Readiness
from dispatcher.workspace import Layout

EARLY, LATE = "2026-06-17T22:00:00.000Z", "2026-06-18T00:00:00.000Z"
NOW_S = 1_781_737_200.0  # 23:00
CONFIG = """\
methods:
  plain: {command: [/bin/true]}
  filled: {command: [run, "{lang}", "{lr}"]}
  shell: {command: "run {lang} > log"}
  script: {command: [python, "{script}"], template: templates/needs_lr.py}
  gone: {command: [python, "{script}"], template: templates/gone.py}
  large: {command: [/bin/true], gpus: 8, on_move: restart}
"""
METHODS = ("plain", "filled", "shell", "script", "gone", "large", "unheard")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    root = tmp_path_factory.mktemp("lab")
    (root / "dispatcher.yaml").write_text(CONFIG)
    (root / "templates").mkdir()
    (root / "templates" / "needs_lr.py").write_text("lr = {{ lr }}\nseed = {{ seed | default(1) }}\n")
    return load_config(Layout(root))


def some(rng: random.Random, *values: Any) -> Any:
    return rng.choice(values)


def document(rng: random.Random, job: str, jobs: list[str], methods: tuple[str, ...], keys: int) -> dict[str, Any]:
    """An entry with a few of the things on which a reason may depend, and some on which it may not.

    Entries of the same method mostly have the same keys, `keys` of them.
    """
    method = rng.choice(methods)
    found: dict[str, Any] = {"job_id": job, "method": method, "seed": rng.randrange(9)}
    optional: dict[str, Any] = {
        "lang": some(rng, "greek", "czech", None), "lr": some(rng, 0.1, 0.2, None), "gpus": some(rng, 0, 1, 2, 16),
        "command": some(rng, ["/bin/true"], ["x", "{lang}"], "x {lr}", "x | y"), "priority": rng.randrange(3),
        "outlet": some(rng, "local", "slurm", ["slurm", "local"]), "env": some(rng, {}, {"A": "1"}),
        "resources": some(rng, {}, {"min_chips": 4}, {"chip": "h100"}, {"memory": "64G", "cpus": 4}, {"nodes": 2}),
        "needs": [rng.choice(jobs)], "retries": rng.randrange(2), "time_limit": some(rng, "1h", "2h"),
        "container": some(rng, None, {"runtime": "apptainer", "image": "x.sif"}), "job": some(rng, None, "gpt/train"),
    }  # fmt: skip
    which = random.Random(f"{method} {keys} {rng.choice(methods) if rng.random() < 0.2 else ''}")
    for key in which.sample(sorted(optional), keys):
        found[key] = optional[key]
    if found.get("needs") and found["needs"][0] >= job:
        # No circles.
        del found["needs"]
    return found


def record(rng: random.Random, number: int) -> Record:
    other = {
        "retry_at": rng.choice((EARLY, LATE)), "checkpoint_at": rng.choice(("workspace", "far")), "attempt": 1,
        "reason": rng.choice(("preempted", "exit 1")), "priority": 7, "requeues": 2, "error": f"loss {number}",
        "extra": {"note": "x"}, "outlet": "local",
    }  # fmt: skip
    fields = {key: other[key] for key in rng.sample(sorted(other), rng.choice((0,) * 12 + (1, 2)))}
    state = rng.choice((State.QUEUED,) * 9 + (State.HELD, State.FAILED, State.DONE, State.ABANDONED, State.RUNNING))
    return Record(state=state, rev=number, external=state is State.RUNNING and rng.random() < 0.5, **fields)


def offer(rng: random.Random, pod: str, jobs: list[str]) -> Offer:
    every = {
        "methods": rng.sample(METHODS, 5), "is_draining": rng.random() < 0.3, "stopped": some(rng, "", "a script"),
        "blocked": dict.fromkeys(rng.sample(jobs, len(jobs) // 2), "made by another"),
        "unusable_methods": {rng.choice(METHODS): "no Python"},
        "where": Where.parse([some(rng, "lang=greek", "seed=3", "job_id=j1*")]), "manifest": "own.json",
        "lists": rng.sample(jobs, len(jobs) // 2), "outlets": {},
    }  # fmt: skip
    chosen = {key: every[key] for key in rng.sample(sorted(every), rng.choice((0, 0, 0, 1, 2)))}
    unusable = {0: "fell off the bus"} if rng.random() < 0.3 else {}
    local = LocalOffer(tuple(range(rng.choice((0, 1, 2, 8)))), rng.choice((0, 1)), unusable)
    return Offer(**{"pod": pod, "host": some(rng, "h1", "h2"), "outlets": {"local": local}, **chosen})


def workspace(rng: random.Random, config: Config) -> Snapshot:
    jobs = [f"j{number}" for number in range(rng.choice((1, 20, 60)))]
    methods = (*rng.sample(METHODS, 2), "plain", "large")
    keys = rng.choice((0, 1, 1, 2, 4))
    documents = [document(rng, job, jobs, methods, keys) for job in jobs if rng.random() < some(rng, 0.9, 1)]
    if rng.random() < 0.5:
        # As sweeps are: many of one kind, one after the other.
        documents.sort(key=lambda one: str(one["method"]))
    scopes = ("plain", "host:h1", "large", "gpu:h1:0")
    readiness = Readiness(config, on_pod=False)
    entries = parse_manifest(json.dumps(documents).encode(), "m.json", None)
    if rng.random() < 0.5:
        # As a reader makes them: in the order of the manifest, and some jobs have entries in another one.
        jobs.sort(key=lambda job: list(entries).index(job) if job in entries else len(jobs))
        others = [job for job in jobs if job not in entries and rng.random() < 0.5]
        entries = entries.with_others(Entry(job_id=job, method=rng.choice(METHODS)) for job in reversed(others))
    return Snapshot(
        records=Records.of({job: record(rng, number) for number, job in enumerate(jobs)}),
        entries=entries,
        now_s=NOW_S,
        offers=tuple(offer(rng, f"p{number}", jobs) for number in range(rng.choice((0, 1, 1, 2, 3)))),
        pauses={scope: Pause(scope, "five alike", EARLY) for scope in scopes if rng.random() < 0.15},
        request_of=lambda entry: request_of(config, entry),
        fault_of=readiness.fault,
        on_move=lambda entry: config.method(entry.method).on_move,
    )


class Counted(Waiting):
    asked = 0

    def why(self, job: str) -> Any:
        Counted.asked += 1
        return super().why(job)


def one_by_one(snapshot: Snapshot) -> list[tuple[bool, list[str]]]:
    """The jobs that wait, each asked for its own reason, as `waits` groups them."""
    waiting, found = reasons(snapshot), dict[tuple[str, bool], list[str]]()
    for job, one in snapshot.records.items():
        if one.state in (State.QUEUED, State.HELD):
            reason = waiting.why(job)
            key = reason.kind or reason.text, reason.needs_person or job not in snapshot.entries
            found.setdefault(key, []).append(job)
    return [(key[1], jobs) for key, jobs in sorted(found.items(), key=lambda item: (not item[0][1], -len(item[1])))]


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_jobs_asked_for_together_have_the_reasons_of_each(config: Config, start: int) -> None:
    for seed in range(start, start + 50):
        snapshot = workspace(random.Random(seed), config)
        assert isinstance(snapshot.entries, Entries)
        alone = msgspec.structs.replace(snapshot, entries=dict(snapshot.entries))
        found = waits(snapshot)
        assert found == waits(alone), f"seed {seed}"
        assert [(wait.needs_person, list(wait.jobs)) for wait in found] == one_by_one(snapshot), f"seed {seed}"
        for wait in found:
            # A text without a kind is that of every job.
            texts = {reason.text for job in wait.jobs if not (reason := reasons(snapshot).why(job)).kind}
            assert texts <= {wait.why}, f"seed {seed}"
        assert pace(snapshot, found) == pace(alone, found), f"seed {seed}"
        chosen = list(snapshot.records)[::2]
        part = {job: snapshot.records[job] for job in chosen}
        assert waits(snapshot.only(part), snapshot) == waits(alone.only(part), alone), f"seed {seed}"


def test_of_many_alike_one_is_asked(config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    documents = [{"job_id": f"j{n}", "method": ("plain", "large")[n % 2], "seed": n} for n in range(1_000)]
    entries = parse_manifest(json.dumps(documents).encode(), "m.json")
    records = {f"j{n}": Record(state=State.QUEUED, rev=n) for n in range(1_000)}
    snapshot = Snapshot(
        records=Records.of(records | {"j7": Record(state=State.QUEUED, attempt=1)}),
        entries=entries,
        now_s=NOW_S,
        request_of=lambda entry: request_of(config, entry),
    )
    monkeypatch.setattr("dispatcher.query.waiting.Waiting", Counted)
    Counted.asked = 0
    assert [len(wait.jobs) for wait in waits(snapshot)] == [1_000]
    # One of each kind, the one that was tried before, and the first of all for its text.
    assert Counted.asked == 4


def test_where_no_pod_runs_what_the_last_one_refused_is_said(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true", gpus=0, resources={"cpus": 4000})])
    fleet.run_all("--slots", "1")
    fleet.run("requeue", "a")
    waiting = {one["jobs"][0]: one["why"] for one in json.loads(fleet.run("status", "--json"))["waiting"]}
    assert waiting["a"] == "no pod is running"
    assert waiting["b"].startswith("no pod is running, and the last one (pod) could not take it: asks for 4000 CPUs")
