"""What is done about a TPU VM in each of its states."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import LOST, PREEMPTED
from dispatcher.outlets.tpu.gcloud import WORKSPACE_LABEL, Queued, Vm
from dispatcher.outlets.tpu.vm import Action, Condition, HostState, action, condition_of, kind_text, lost_attempts

MINE = "0123456789ab"
ON_DEMAND = TpuHost(name="pod", cluster="pod", zone="z", accelerator_type="v4-8")
SPOT = TpuHost(name="pod", cluster="pod", zone="z", accelerator_type="v4-8", spot=True)
STATES = (
    "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED", "STOPPING", "STARTING",
    "PREEMPTED", "TERMINATED", "FAILED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "", "DEFROSTING",
)  # fmt: skip
QUEUED = (
    "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "FAILED", "SUSPENDING", "SUSPENDED",
    "DELETING", "NEW_WORD",
)  # fmt: skip


def vm(state: str, workspace: str = MINE, queued: str = "") -> Vm:
    return Vm(state=state, identity="1", labels={WORKSPACE_LABEL: workspace}, queued_resource=queued)


def sight(**given_: object) -> HostState:
    return HostState(**{"workspace": MINE, "is_wanted": True, "may_create": True, **given_})


def test_it_is_created_when_it_is_wanted_and_may_be() -> None:
    assert action(sight()) is Action.CREATE
    assert action(sight(is_wanted=False)) is Action.NOTHING
    assert action(sight(may_create=False)) is Action.NOTHING


def test_without_capacity_it_is_asked_for_in_the_queue() -> None:
    assert action(sight(is_short=True)) is Action.QUEUE
    for state in ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"):
        assert action(sight(is_short=True, queued=Queued(state=state))) is Action.NOTHING
        given_up = sight(is_wanted=False, is_given_up=True, queued=Queued(state=state))
        assert action(given_up) is Action.DELETE_QUEUED, "taken back"
        assert action(sight(is_wanted=False, queued=Queued(state=state))) is Action.NOTHING, (
            "its jobs are not known yet"
        )
        assert action(sight(is_wanted=False, may_create=False, queued=Queued(state=state))) is Action.NOTHING


def test_a_request_for_another_size_is_taken_back() -> None:
    other = Queued(state="WAITING_FOR_RESOURCES", accelerator_type="v4-8")
    assert action(sight(accelerator_type="v4-32", queued=other)) is Action.DELETE_QUEUED
    assert action(sight(accelerator_type="v4-8", queued=other)) is Action.NOTHING


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED", "ACTIVE"])
def test_a_request_that_brings_nothing_more_is_deleted_before_the_next(state: str) -> None:
    assert action(sight(queued=Queued(state=state))) is Action.DELETE_QUEUED


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "FAILED"])
def test_a_dead_vm_is_deleted_whether_or_not_it_is_wanted(state: str) -> None:
    """It keeps its name and its quota."""
    for is_wanted in (False, True):
        assert action(sight(vm=vm(state), is_wanted=is_wanted)) is Action.DELETE
        assert action(sight(vm=vm(state, queued="q"), is_wanted=is_wanted)) is Action.DELETE_QUEUED
    assert action(sight(vm=vm(state), may_create=False)) is Action.NOTHING


def test_an_idle_vm_is_deleted_also_where_a_person_has_created_it_with_this_tool() -> None:
    for may_create in (False, True):
        assert action(sight(vm=vm("READY"), is_wanted=False, may_create=may_create, is_idle=True)) is Action.DELETE
    assert action(sight(vm=vm("READY"))) is Action.NOTHING


OWNERS = st.sampled_from([MINE, "f" * 12, ""])
VMS = st.none() | st.builds(vm, st.sampled_from(STATES), OWNERS, st.sampled_from(["", "q"]))
SIGHTS = st.builds(
    HostState,
    vm=VMS,
    queued=st.none() | st.sampled_from(QUEUED).map(lambda state: Queued(state=state)),
    workspace=st.just(MINE),
    is_wanted=st.booleans(),
    may_create=st.booleans(),
    is_given_up=st.booleans(),
    is_short=st.booleans(),
    is_idle=st.booleans(),
)


@given(SIGHTS)
def test_what_never_happens(seen: HostState) -> None:
    chosen = action(seen)
    if seen.vm is not None:
        assert chosen not in (Action.CREATE, Action.QUEUE), "two of one name"
        if not seen.vm.is_of(MINE):
            assert chosen is Action.NOTHING, "what others have created is left alone"
        if chosen is not Action.NOTHING:
            dead = condition_of(seen.vm.state) is Condition.DEAD
            assert dead or (seen.vm.state == "READY" and seen.is_idle), "a live one is deleted"
    if chosen in (Action.CREATE, Action.QUEUE):
        assert seen.may_create and seen.is_wanted, "it costs money"
        assert seen.queued is None, "asked for twice"


EVENTS = st.sampled_from(["preempt", "stop_wanting", "want", "fail", "grant", "pass"])


@given(st.lists(st.tuples(EVENTS, st.booleans())))
def test_one_thing_after_another_comes_to_rest(events: list[tuple[str, bool]]) -> None:
    """Google as it is told: whatever happens, at most one VM stands, and what is wanted is there in the end."""
    there: Vm | None = None
    queued: Queued | None = None
    is_wanted = True
    for event, has_capacity in [*events, ("want", True)]:
        if event == "preempt" and there is not None and there.state == "READY":
            there = vm("PREEMPTED", queued=there.queued_resource)
        elif event in ("want", "stop_wanting"):
            is_wanted = event == "want"
        elif event == "fail" and queued is not None and queued.state != "ACTIVE":
            queued = Queued(state="FAILED")
        elif event == "grant" and queued is not None and queued.state == "WAITING_FOR_RESOURCES":
            queued, there = Queued(state="ACTIVE"), vm("READY", queued="q")
        is_short = False
        for _ in itertools.count():
            assert _ < 8, "it does not come to rest"
            asked = None if there else queued
            seen = sight(vm=there, queued=asked, is_wanted=is_wanted, is_given_up=True, is_short=is_short)
            chosen = action(seen)
            if chosen is Action.NOTHING:
                break
            if chosen is Action.CREATE:
                there, is_short = (vm("READY"), False) if has_capacity else (None, True)
            elif chosen is Action.QUEUE:
                queued = Queued(state="WAITING_FOR_RESOURCES")
            elif chosen is Action.DELETE:
                there = None
            else:
                there, queued = None, None
    assert (there is not None and there.state == "READY") or queued == Queued(state="WAITING_FOR_RESOURCES")


@pytest.mark.parametrize(
    ("state", "host", "reason"),
    [
        (None, SPOT, PREEMPTED),
        (None, ON_DEMAND, LOST),
        ("PREEMPTED", SPOT, PREEMPTED),
        ("TERMINATED", ON_DEMAND, PREEMPTED),
        ("FAILED", SPOT, LOST),
        ("STOPPED", SPOT, LOST),
    ],
)
def test_what_ran_on_a_vm_that_is_gone_has_ended(state: str | None, host: TpuHost, reason: str) -> None:
    lost = lost_attempts(host, None if state is None else vm(state))
    assert lost is not None
    assert lost[0] == reason
    assert "the TPU VM pod " in lost[1] and (state or "does not exist") in lost[1]


@pytest.mark.parametrize("state", sorted(set(STATES) - {"PREEMPTED", "TERMINATED", "FAILED", "STOPPED"}))
def test_what_runs_on_a_vm_that_is_not_surely_gone_may_live(state: str) -> None:
    assert lost_attempts(SPOT, vm(state)) is None


def test_a_word_that_is_not_known_is_tolerated() -> None:
    assert condition_of("DEFROSTING") is condition_of("") is Condition.UNKNOWN


def test_the_kind_in_words() -> None:
    assert kind_text(SPOT) == "v4-8, spot, z"
    assert kind_text(ON_DEMAND) == "v4-8, on demand, z"
    assert kind_text(msgspec.structs.replace(ON_DEMAND, project="lab")) == "v4-8, on demand, z of lab"
