"""Records as they are kept: nothing is lost, and what is told of them without unpacking one is so."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from dispatcher.run_state.records import Records
from dispatcher.run_state.states import BY_HAND, Record, State

DIGEST = "0a1b2c3d4e5f6071"
FIELDS: dict[str, Any] = {
    "pod": "p", "pid": 1, "gpu": (0, 1), "started_at": "2026", "attempt": 2, "host": "h", "finished_at": "x",
    "exit_code": 0, "reason": BY_HAND, "error": "", "outlet": "local", "handle": "1", "code": "c", "external": True,
    "priority": 0, "desired": State.HELD, "retries": 1, "requeues": 1, "retry_at": "", "ran_with": DIGEST,
    "inputs_at": 0, "redone": 0, "backoff": 1,
    "furthest_step": 0.0, "furthest_checkpoint": 1.5, "checkpoint_at": "",
    "ad_hoc": True, "time_limit": "8h", "extra": {"note": None},
}  # fmt: skip


@pytest.mark.parametrize("state", list(State))
def test_every_field_of_every_state_comes_back(state: State) -> None:
    records = Records()
    expected = {}
    for number, (field, value) in enumerate([("rev", 5), *FIELDS.items(), ("extra", {"seed": 2**70})]):
        job = f"{field}{number}"
        expected[job] = Record(state=state, **{"rev": number, field: value})
        records.put(job, expected[job], number)
        assert records.born(job) == number
    assert dict(records) == expected
    assert [str(record) for record in records.values()] == [str(record) for record in expected.values()]
    # Only a record in which nothing is set counts as such; where the entry comes from does not matter.
    flags, plain = records.by_state().unchanged([state]), {"rev0", f"ad_hoc{list(FIELDS).index('ad_hoc') + 1}"}
    assert list(flags) == [int(state is State.QUEUED and job in plain) for job in expected]
    assert (
        [job for job in expected if records.is_ad_hoc(job)] == records.by_state().ad_hoc() == sorted(plain - {"rev0"})
    )
    assert not records.is_ad_hoc("unknown")


def test_a_seq_of_more_than_32_bits_is_kept() -> None:
    records = Records()
    records.put("a", Record(state=State.QUEUED, rev=2**40), 2**33)
    records.put("b", Record(state=State.QUEUED, rev=7), 1)
    assert (records["a"].rev, records.born("a")) == (2**40, 2**33)
    assert records.by_state().latest(State.QUEUED, 2) == ["a", "b"]
    assert records.by_state().jobs([State.QUEUED]) == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_jobs_are_found_by_their_states(seed: int) -> None:
    rng = random.Random(seed)
    plain: dict[str, Record] = {}
    huge: set[str] = set()
    for number in range(200):
        fields = {name: FIELDS[name] for name in rng.sample(sorted(FIELDS), rng.choice((0, 0, 1, 2)))}
        if seed % 4 == 0 and rng.random() < 0.05:
            fields["extra"] = {"seed": 2**70}
            huge.add(f"j{number}")
        if "ran_with" in fields:
            fields["ran_with"] = rng.choice((DIGEST, DIGEST, "ab", "", DIGEST.upper(), f"{DIGEST}00"))
        plain[f"j{number}"] = Record(state=rng.choice(list(State)), **{**fields, "rev": rng.randrange(2**31)})
    records = Records.of(plain)
    assert records == plain
    found = records.by_state()
    assert list(records.states()) == [(job, record.state) for job, record in plain.items()]
    for states in ([State.QUEUED], [State.HELD, State.QUEUED], [State.DONE, State.FAILED, State.RUNNING], list(State)):
        jobs = [job for job, record in plain.items() if record.state in states]
        assert found.jobs(states) == jobs
        assert len(found.unchanged(states)) == len(jobs)
        told, digests = found.ran_with(states)
        assert told == [job for job in jobs if plain[job].ran_with is not None]
        for job, digest in zip(told, digests, strict=True):
            assert (digest == bytes.fromhex(DIGEST)) == (plain[job].ran_with == DIGEST and job not in huge)
    for state in State:
        jobs = found.jobs([state])
        assert found.count(state) == len(jobs)
        assert [job for job in jobs if records.is_ad_hoc(job)] == [job for job in jobs if plain[job].ad_hoc]
        assert [job for job in jobs if job in set(found.redone())] == [j for j in jobs if plain[j].redone is not None]
        assert found.by_hand(state) == sum(plain[job].reason == BY_HAND for job in jobs)
        assert found.latest(state, 5) == heapq.nlargest(5, jobs, key=lambda job: plain[job].rev)
