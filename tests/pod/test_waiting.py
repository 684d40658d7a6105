"""Why a job waits: one answer for claims, `status` and `--dry-run`."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import OutletOffer, Request
from dispatcher.outlets.local.offer import LocalOffer
from dispatcher.pod.offers import Offer
from dispatcher.pod.waiting import NO_POD, SLOT, Facts, Reason, Waiting, root_causes, summary
from dispatcher.run_state.facets.pauses import Pause
from dispatcher.run_state.states import Record, State

EARLY, NOW, LATE = "2026-06-17T22:00:00.000Z", "2026-06-17T23:00:00.000Z", "2026-06-18T00:00:00.000Z"


def local(gpus: int = 0, cpu_slots: int = 0, unusable: dict[int, str] | None = None) -> dict[str, OutletOffer]:
    """The outlets of a pod that has the local one alone."""
    return {"local": LocalOffer(tuple(range(gpus)), cpu_slots, unusable or {})}


ONE_GPU = Offer(pod="one", host="h1", outlets=local(1, 1))
FOUR_GPUS = Offer(pod="four", host="h2", outlets=local(4))


def entry(job: str, *needs: str, **rest: Any) -> Entry:
    return Entry(job_id=job, method=rest.pop("method", "fft"), needs=needs, **rest)


def why(*entries: Entry, job: str = "", records: dict[str, Record] | None = None, **facts: Any) -> Reason:
    """The reason of the last entry (or of `job`), when all are queued but for `records`."""
    known = {one.job_id: Record(state=State.QUEUED) for one in entries} | (records or {})
    offers = facts.pop("offers", (ONE_GPU,))
    return Waiting(
        Facts(
            records=known,
            entries={one.job_id: one for one in entries},
            now=NOW,
            request_of=lambda one: Request(one.gpus),
            offers=offers,
            **facts,
        )
    ).why(job or entries[-1].job_id)


def test_only_a_slot_is_missing() -> None:
    assert why(entry("a")) == Reason(SLOT)
    assert why(entry("a", gpus=1), offers=(FOUR_GPUS, ONE_GPU)).text == SLOT


def test_no_pod() -> None:
    assert why(entry("a"), offers=()).text == NO_POD


@pytest.mark.parametrize(
    ("asked", "offers", "text"),
    [
        ({"gpus": 16}, (ONE_GPU, FOUR_GPUS), "asks for 16 GPUs, no live pod has more than 4"),
        ({"gpus": 1}, (Offer(pod="c", outlets=local(cpu_slots=2)),), "asks for 1 GPU, no live pod has any"),
        ({"gpus": 0}, (FOUR_GPUS,), "asks for a CPU slot, no live pod has one (--slots)"),
        (
            {"outlet": ("slurm", "pbs")},
            (ONE_GPU, FOUR_GPUS),
            "asks for outlet slurm or pbs, which no live pod offers (offered: local)",
        ),
        (
            {},
            (Offer(pod="p", outlets=local(cpu_slots=1), methods=("lora",)),),
            "no live pod takes method fft (--methods)",
        ),
        (
            {"params": {"lang": "german"}},
            (Offer(pod="p", outlets=local(cpu_slots=1), where=Where.parse(["lang=sp*"])),),
            "--where lang=sp* does not match (pod p)",
        ),
        ({}, (Offer(pod="p", outlets=local(cpu_slots=1), is_draining=True),), "all pods are draining"),
        (
            {},
            (Offer(pod="p", outlets=local(cpu_slots=1), unusable_methods={"fft": "no template"}),),
            "unusable method fft: no template (pod p)",
        ),
        (
            {"gpus": 1},
            (Offer(pod="p", outlets=local(1), manifest="subset.json", lists=("b",)),),
            "not in its manifest subset.json (pod p)",
        ),
        (
            {"gpus": 4},
            (Offer(pod="p", outlets=local(4, unusable={2: "fell off the bus"})),),
            "asks for 4 GPUs, but 1 of 4 cannot be used now: GPU 2: fell off the bus (pod p)",
        ),
        (
            {},
            (Offer(pod="p", outlets=local(cpu_slots=1), stopped="a script claims"),),
            "no longer claims: a script claims (pod p)",
        ),
        (
            {},
            (Offer(pod="p", outlets=local(cpu_slots=1), blocked={"a": "1: made by pod q"}),),
            "cannot be claimed: 1: made by pod q (pod p)",
        ),
        ({}, (Offer(pod="p", outlets=local(cpu_slots=1), blocked={"b": "1: made by pod q"}),), SLOT),
        ({"gpus": 3}, (Offer(pod="p", outlets=local(4, unusable={2: "fell off the bus"})),), SLOT),
        ({}, (Offer(pod="p", outlets=local(1, 1, {0: "used by pid 4242"})),), SLOT),
        (
            {},
            (Offer(pod="p", outlets=local(1, unusable={0: "used by pid 4242"})),),
            "asks for 1 GPU, but 1 of 1 cannot be used now: GPU 0: used by pid 4242 (pod p)",
        ),
        (
            {"gpus": 2},
            (ONE_GPU, Offer(pod="drains", outlets=local(2), is_draining=True)),
            "no live pod takes it: one: asks for 2 GPUs, this pod has 1; drains: draining",
        ),
    ],
)
def test_what_no_live_pod_takes(asked: dict[str, Any], offers: tuple[Offer, ...], text: str) -> None:
    assert why(entry("a", **asked), offers=offers).text == text


def test_one_pod_that_takes_it_is_enough() -> None:
    assert why(entry("a", gpus=4), offers=(ONE_GPU, FOUR_GPUS)).text == SLOT


def test_a_pod_gives_its_own_reasons() -> None:
    big = entry("a", gpus=4)
    assert why(big, me="one").text == "asks for 4 GPUs, this pod has 1"
    assert why(big, me="one", offers=(ONE_GPU, FOUR_GPUS)).text == (
        "asks for 4 GPUs, this pod has 1 (pod four can take it)"
    )
    assert why(entry("a", gpus=16), me="one", offers=(ONE_GPU, FOUR_GPUS)).text == (
        "asks for 16 GPUs, no live pod has more than 4"
    )


def test_a_paused_host() -> None:
    paused = {"host:h1": Pause("host:h1", "4 attempts could not start", EARLY)}
    assert why(entry("a"), pauses=paused) == Reason(
        "host h1 is paused: 4 attempts could not start (pod one)", True, "a: host h1 is paused: 4 attempts could not "
        "start (pod one)", is_refused=True,
    )  # fmt: skip
    assert why(entry("a", gpus=1), pauses=paused, offers=(ONE_GPU, FOUR_GPUS)).text == SLOT


def test_a_paused_method_holds_up_what_needs_it() -> None:
    paused = {"lora": Pause("lora", "5 failed alike", EARLY)}
    reason = why(entry("a", method="lora"), entry("b", "a"), pauses=paused)
    assert reason.text == "needs a (queued); root cause: method lora is paused: 5 failed alike"
    assert reason.needs_person


def test_a_retry() -> None:
    assert why(entry("a"), records={"a": Record(state=State.QUEUED, retry_at=EARLY)}).text == SLOT
    reason = why(entry("a"), records={"a": Record(state=State.QUEUED, retry_at=LATE)})
    assert reason == Reason(f"waits for a retry until {LATE}", kind="waits for a retry", detail=f"until {LATE}")
    ended = Record(state=State.QUEUED, retry_at=LATE, reason="cannot start", error="h1: no more submissions")
    reason = why(entry("a"), records={"a": ended})
    error = "h1: no more submissions"
    assert reason.text == f"waits for a retry until {LATE} after cannot start: {error}"
    assert (reason.kind, reason.detail) == ("waits for a retry after cannot start", f"until {LATE}: {error}")


@pytest.mark.parametrize(
    ("record", "direct", "root", "final"),
    [
        (Record(state=State.FAILED, reason="exit 3"), "needs a (failed: exit 3)", "a failed: exit 3", True),
        (Record(state=State.ABANDONED), "needs a (abandoned)", "a was abandoned", True),
        (Record(state=State.HELD), "needs a (held)", "a is held", True),
        (Record(state=State.RUNNING), "needs a (running)", "", False),
        (Record(state=State.QUEUED), "needs a (queued)", "", False),
    ],
)
def test_the_root_cause_is_named_however_far_away(record: Record, direct: str, root: str, final: bool) -> None:
    chain = [entry("a"), *(entry(job, need) for need, job in zip("abc", "bcd", strict=True))]
    first = why(*chain[:2], records={"a": record})
    assert (first.text, first.needs_person) == (direct, final)
    last = why(*chain, records={"a": record})
    assert last.text == f"needs c (queued){f'; root cause: {root}' if root else ''}"
    assert last.needs_person is final


def test_a_need_that_no_pod_takes() -> None:
    reason = why(entry("big", gpus=16), entry("b", "big"), entry("c", "b"))
    assert reason == Reason(
        "needs b (queued); root cause: big: asks for 16 GPUs, no live pod has more than 1",
        root="big: asks for 16 GPUs, no live pod has more than 1",
        kind="needs a job that cannot run",
        detail="big: asks for 16 GPUs, no live pod has more than 1",
    )


def test_one_cause_of_many_jobs_is_said_once() -> None:
    entries = [entry("a"), entry("b"), entry("c", "a"), entry("d", "c"), entry("e", "gone")]
    records = {"gone": Record(state=State.FAILED, reason="exit 1")}
    reasons = [
        why(*entries, job=one.job_id, records=records, fault_of=lambda _: "there is no template") for one in entries[:2]
    ]
    reasons += [
        why(*entries, job=job, records=records, fault_of=lambda one: "" if one.needs else "there is no template")
        for job in "cde"
    ]
    reasons.append(Reason("waits for something"))
    assert summary(root_causes(reasons)) == (
        "cannot be started: there is no template (4); gone failed: exit 1; waits for something"
    )


def test_a_need_that_will_never_be_done_counts_before_one_that_runs() -> None:
    records = {"a": Record(state=State.RUNNING), "b": Record(state=State.FAILED, reason="exit 1")}
    assert why(entry("a"), entry("b"), entry("c", "a", "b"), records=records).text == "needs b (failed: exit 1)"


def test_needs_without_end() -> None:
    chain = [entry("0"), *(entry(str(n), str(n - 1)) for n in range(1, 30_000))]
    reason = why(*chain, records={"0": Record(state=State.FAILED, reason="exit 1")})
    assert reason.text == "needs 29998 (queued); root cause: 0 failed: exit 1"
    # Two manifests may need one another in a circle.
    assert why(entry("a", "b"), entry("b", "a")).text == "needs a (queued)"
    assert why(entry("a", "gone")).text == "needs gone (unknown job)"
