"""Cloud TPU VMs: what gcloud tells of them, and when they are a choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.hosts.types import Hosts, TpuHost
from dispatcher.outlets.remote.operations import Ran, Run
from dispatcher.outlets.solver import tpu
from dispatcher.outlets.solver.query import questions, read_report
from dispatcher.outlets.solver.reports import Unreachable, VmReport
from dispatcher.outlets.solver.request import Choice, HardwareRequest

READY = VmReport(state="READY", accelerator_type="v4-32", workers=4)
ABSENT = VmReport()


def host(**keys: Any) -> TpuHost:
    return TpuHost(name="t", cluster="t", zone="us-central2-b", accelerator_type="v4-32", **keys)


def ask(n: int = 32, chip: str = "tpu-v4", **fields: Any) -> HardwareRequest:
    return HardwareRequest(chip=chip, min_chips=n, **fields)


def verdict(request: HardwareRequest, found: VmReport | None, **keys: Any) -> str:
    answer = tpu.judge(host(**keys), request, Hosts(), found)
    if not isinstance(answer, Choice):
        return answer.why
    how = "must be created" if answer.must_be_created else "waits" if answer.is_queued else "starts"
    return f"{how}: {answer.why}"


@pytest.mark.parametrize(
    ("request_", "report", "expected"),
    [
        (ask(), None, "waits: as configured, not asked"),
        (ask(), READY, "starts: the VM is READY, with 32 tpu-v4"),
        (ask(1, ""), READY, "starts: the VM is READY"),
        (ask(8, nodes=4), READY, "starts: the VM is READY"),
        (ask(8, nodes=5), READY, "too few nodes: the VM has 4, 5 needed"),
        (ask(33), READY, "33 chips are asked for, and t has 32 tpu-v4"),
        (ask(1, "h100"), READY, "t has no h100, but tpu-v4"),
        (ask(0, ""), READY, "it is a TPU VM, and no chips are asked for"),
        (ask(), VmReport(state="READY", accelerator_type="v4-8"), "the VM is a v4-8, not the v4-32 that is configured"),
        *((ask(), VmReport(state=state), f"the VM is {state}") for state in ("CREATING", "PREEMPTED", "NEW_WORD")),
        (ask(), ABSENT, "must be created: there is no VM t in us-central2-b: it has to be created first"),
        (ask(33), ABSENT, "33 chips are asked for"),
    ],
)
def test_when_it_is_a_choice(request_: HardwareRequest, report: VmReport | None, expected: str) -> None:
    assert verdict(request_, report).startswith(expected)


def test_one_that_the_loop_may_create_is_a_queue() -> None:
    assert verdict(ask(), ABSENT, create="auto").startswith("waits: there is no VM t in us-central2-b: it is created")


def test_one_attempt_has_the_whole_vm() -> None:
    given = tpu.give(host(), ask(1), Hosts(), READY)
    assert verdict(ask(1), given) == "waits: an attempt is running on the VM"


def test_the_question_and_its_answers() -> None:
    (asked,) = questions(host(project="p"), 30, Path("/w"))
    assert isinstance(asked, Run) and asked.words[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "describe"]
    described = {"state": "READY", "acceleratorType": "v4-32", "networkEndpoints": [{"ipAddress": "10.0.0.2"}] * 4}
    assert read_report(host(), [Ran(exit_code=0, out=json.dumps(described))]) == READY
    absent = "ERROR: (gcloud.x) NOT_FOUND: Resource 'projects/p/locations/z/nodes/t' was not found"
    assert read_report(host(), [Ran(exit_code=1, err=absent)]) == ABSENT
    down = read_report(host(), [Ran(exit_code=1, err="ERROR: (gcloud) UNAVAILABLE: try again")])
    assert down == Unreachable("UNAVAILABLE: try again")
