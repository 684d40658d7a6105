"""A notifier with a clock that is passed in, a real journal and real servers: storms, and quiet time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from told_servers import Hook, hook

from dispatcher.config import Config, load_config
from dispatcher.notify.conditions import Conditions
from dispatcher.notify.notifier import Notifier, sender, sender_is_gone
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.notices import NoticeClaimed
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

BERLIN = ZoneInfo("Europe/Berlin")
EVENING_S = datetime(2026, 6, 15, 21, tzinfo=BERLIN).timestamp()


class Lab:
    """A workspace with two notifiers, as of two pods, and one clock for all."""

    def __init__(self, layout: Layout, server: Hook, **settings: Any) -> None:
        self.now_s = EVENING_S
        self.server = server
        target = {"webhook": {"url": server.url}, "events": ["job_failed", "matrix_done"]}
        notify = {"timezone": "Europe/Berlin", "targets": {"web": target}, **settings}
        layout.config_file.write_text(f"notify: {json.dumps(notify)}\n")
        self.config: Config = load_config(layout)
        self.stores = [Store(layout, by=f"pod-{number}", wall_clock=lambda: self.now_s) for number in range(2)]
        self.notifiers = [self.notifier(store) for store in self.stores]
        for notifier in self.notifiers:
            notifier.begin()

    def notifier(self, store: Store) -> Notifier:
        conditions = Conditions(600.0, list, lambda _: False)
        return Notifier(store, self.config, conditions, lambda _: None, lambda: self.now_s)

    def fail(self, jobs: list[str], reason: str = "exit 1") -> None:
        with self.stores[0].transaction() as tx:
            for job in jobs:
                tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
                tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1, pod="pod-0"))
                tx.change(job, Event.FAILED, Change(state=State.FAILED, reason=reason, finished_at=tx.at))

    def step(self) -> None:
        """One step of each pod, and the end of what they send."""
        for store, notifier in zip(self.stores, self.notifiers, strict=True):
            store.refresh()
            notifier.step(poll_is_due=True)
        for notifier in self.notifiers:
            while notifier.is_busy():
                notifier.wait(60.0)
                notifier.step(poll_is_due=False)

    def told(self) -> list[tuple[str, int]]:
        return [(one["event"], one["count"]) for notice in self.server.got for one in notice["events"]]


@pytest.fixture
def server() -> Iterator[Hook]:
    with hook(200) as made:
        yield made


def test_a_storm_of_2500_failures_makes_a_notice_now_and_one_an_hour_later(layout: Layout, server: Hook) -> None:
    lab = Lab(layout, server)
    for minute in range(25):
        lab.fail([f"job-{minute}-{number}" for number in range(100)])
        lab.now_s += 60
        lab.step()
    assert lab.told()[0] == ("job_failed", 100) and len(server.got) == 1
    for _ in range(120):
        lab.now_s += 60
        lab.step()
    assert sum(count for event, count in lab.told() if event == "job_failed") == 2500
    assert len(server.got) == 2 and server.got[1]["subject"].endswith(": 2400 jobs failed")
    assert len(json.dumps(server.got[1])) < 3_000


def test_what_happens_at_night_is_told_in_the_morning(layout: Layout, server: Hook) -> None:
    lab = Lab(layout, server, quiet="22:00-07:00")
    lab.now_s += 2 * 3600
    for number in range(40):
        lab.fail([f"a{number}"], f"exit {number % 4}")
        lab.now_s += 600
        lab.step()
    assert server.got == []
    lab.now_s = EVENING_S + 10 * 3600 + 1
    lab.step()
    assert len(server.got) == 1 and sum(count for event, count in lab.told() if event == "job_failed") == 40


def test_what_is_over_before_it_was_told_is_not_told(layout: Layout, server: Hook) -> None:
    """An adaptive sweep leaves nothing to run for a moment after each trial."""
    lab = Lab(layout, server)
    lab.fail(["a"])
    lab.step()
    with lab.stores[0].transaction() as tx:
        tx.change("b", Event.QUEUED, Change(state=State.QUEUED))
    lab.step()
    lab.now_s += 120
    lab.step()
    assert lab.told() == [("job_failed", 1)]
    with lab.stores[0].transaction() as tx:
        tx.delete("b")
    for _ in range(2):
        lab.step()
        lab.now_s += 120
    assert lab.told() == [("job_failed", 1), ("matrix_done", 1)]


def test_a_claim_that_this_process_does_not_send_is_doubtful(layout: Layout, server: Hook) -> None:
    """The transaction failed at its end, so the claim is in the journal although nobody was told of it."""
    lab = Lab(layout, server)
    lab.fail(["a"])
    with lab.stores[0].transaction() as tx:
        tx.note(NoticeClaimed(target="web", sender=sender(), limit_s=30.0))
    lab.step()
    [notice] = lab.stores[0].fold.notices.sent
    assert notice.state == "doubtful" and server.got == []


def test_a_sender_of_another_host_is_given_up_after_its_time(layout: Layout, server: Hook) -> None:
    lab = Lab(layout, server)
    lab.fail(["a"])
    with lab.stores[0].transaction() as tx:
        tx.note(NoticeClaimed(target="web", sender="elsewhere 00-00 1 2 3", limit_s=30.0))
    lab.fail(["b"], "exit 2")
    lab.now_s += 80
    lab.step()
    assert lab.stores[0].fold.notices.sent[0].state == "sending" and server.got == []
    assert not sender_is_gone(lab.stores[0].fold.notices.sent[0], lab.now_s)
    lab.now_s += 11
    lab.step()
    assert [one.state for one in lab.stores[0].fold.notices.sent] == ["doubtful", "sent"]
    assert lab.told()[0] == ("job_failed", 1)


def test_a_generation_begun_by_an_older_dispatcher_is_registered_anew(layout: Layout, server: Hook) -> None:
    lab = Lab(layout, server)
    lab.stores[0].fold.notices = type(lab.stores[0].fold.notices)()
    assert lab.stores[0].rotate()
    lab.fail(["a"])
    lab.step()
    assert lab.stores[1].fold.notices.targets.keys() == {"web"}
    lab.fail(["b"])
    lab.now_s += 61
    lab.step()
    assert ("job_failed", 1) in lab.told()


def test_a_pod_with_an_old_look_does_not_call_a_restarted_one_dead(layout: Layout, server: Hook) -> None:
    lab = Lab(layout, server, targets={"web": {"webhook": {"url": server.url}, "events": ["pod_dead"]}})
    pods = {
        "gpu-b": PodInfo(
            pod="gpu-b", host="gpu-b", boot_id="b", pid_namespace=1, pid=1, start_ticks=1, user="lab", started_at="",
            heartbeat=150, heartbeat_s=2.0, lock="flock", heartbeat_at=now_text(EVENING_S),
        )
    }  # fmt: skip
    dead = {150}
    seen = [Conditions(600.0, pods.values, lambda info: info.heartbeat in dead) for _ in lab.stores]

    def news(number: int, *, looks: bool) -> list[str]:
        """What a pod writes."""
        store, conditions = lab.stores[number], seen[number]
        store.refresh()
        conditions.has_news(store.fold, poll_is_due=looks)
        with store.transaction() as tx:
            found = conditions.news(store.fold)
            for incident in found:
                tx.note(incident)
        return [word for one in found for word in (*one.began, *(f"over {key}" for key in one.over))]

    assert news(0, looks=True) == ["pod_dead:gpu-b:150"] and news(1, looks=True) == []
    pods["gpu-b"] = msgspec.structs.replace(pods["gpu-b"], heartbeat=151)
    assert news(1, looks=True) == ["over pod_dead:gpu-b:150"]
    assert news(0, looks=False) == []
    # It may die again, which is news.
    dead.add(151)
    assert news(0, looks=True) == ["pod_dead:gpu-b:151"]


def test_a_pod_whose_clock_is_behind_dies_before_it_was_asked_for(layout: Layout, server: Hook) -> None:
    """By its own clock: it was seen alive after that."""
    lab = Lab(layout, server, targets={"web": {"webhook": {"url": server.url}, "events": ["pod_dead"]}})
    pod = PodInfo(
        pod="gpu-b", host="gpu-b", boot_id="b", pid_namespace=1, pid=1, start_ticks=1, user="lab", started_at="",
        heartbeat=150, heartbeat_s=2.0, lock="flock", heartbeat_at=now_text(EVENING_S - 6 * 3600),
    )  # fmt: skip
    dead: set[str] = set()
    seen, late = (Conditions(600.0, lambda: [pod], lambda info: info.pod in dead) for _ in range(2))
    fold = lab.stores[0].fold
    assert not seen.has_news(fold, poll_is_due=True)
    dead.add("gpu-b")
    assert seen.has_news(fold, poll_is_due=True)
    assert [key for one in seen.news(fold) for key in one.began] == ["pod_dead:gpu-b:150"]
    assert not late.has_news(fold, poll_is_due=True), "it may have been dead before"


def test_targets_that_were_removed_are_not_brought_back_by_pods_with_the_older_file(
    layout: Layout, server: Hook
) -> None:
    lab = Lab(layout, server)
    lab.config.layout.config_file.write_text("")
    newer = Store(layout, by="pod-2", wall_clock=lambda: lab.now_s)
    Notifier(newer, load_config(layout), Conditions(600.0, list, lambda _: False), lambda _: None).begin()
    for number in range(3):
        lab.fail([f"a{number}"])
        lab.now_s += 61
        lab.step()
    assert newer.rotate()
    lab.step()
    for store in lab.stores:
        assert store.fold.notices.targets == {}
    assert server.got == []


def test_nothing_is_written_when_nothing_happens(layout: Layout, server: Hook, tmp_path: Path) -> None:
    lab = Lab(layout, server)
    lab.fail(["a"])
    lab.now_s += 61
    lab.step()
    seq = lab.stores[0].seq
    for _ in range(50):
        lab.now_s += 30
        lab.step()
    assert lab.stores[0].seq == seq and len(server.got) == 1
