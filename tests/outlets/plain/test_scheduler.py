"""A plain host as a Scheduler: what it is asked, and what its answers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatcher.errors import OutletError
from dispatcher.hosts.types import Cluster, PlainHost
from dispatcher.outlets.base import CANNOT_START, Bundle, Key, Request, Slot
from dispatcher.outlets.batch.scheduler import Accepted, NoRoom, Phase, Refused, Submission, Submitted
from dispatcher.outlets.plain.scheduler import PlainScheduler
from dispatcher.outlets.remote.operations import (
    Check,
    Checked,
    CheckResult,
    Failed,
    Launch,
    Launched,
    Signal,
    Signalled,
)
from dispatcher.workspace import Layout

HOST = PlainHost(name="h1", cluster="lab", ssh="h1", chips={"h100": 4})
KEY = Key("a", 1)
ATTEMPT = Submitted(key=KEY, name="d-1", index=0, directory="/w/1")


def scheduler(host: PlainHost = HOST, log: str | None = None) -> PlainScheduler:
    return PlainScheduler(host, Cluster(name="lab", log=log), Path("/here"))


def submission(request: Request = Request(1), root: str = "/there", **labels: str) -> Submission:  # noqa: B008
    bundle = Bundle(key=KEY, request=request, slot=Slot(), files={}, environment={"A": "b"}, labels=labels)
    return Submission(
        name="d-1", bundles=(bundle,), directories=("/w/1",), layout=Layout(root), request=request, groups=((0,),)
    )


def launch(host: PlainHost = HOST, log: str | None = None, **words: Any) -> Launch:
    made = scheduler(host, log).submit(submission(**words))
    assert isinstance(made, Launch)
    return made


def state(**known: Any) -> Any:
    checked = Checked(**{"is_alive": False, "was_launched": True, "was_taken": True, "host": "h1", "pid": 7, **known})
    return scheduler().states([ATTEMPT], [CheckResult(attempts=[checked])]).get(KEY)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(4), ""),
        (Request(0), ""),
        (Request(), ""),
        (Request(2, chip="h100"), ""),
        (Request(5), "h1 has 4 GPUs, and 5 are asked for (`chips` of the host: 4 h100)"),
        (Request(1, chip="a100"), "h1 has no a100 (`chips` of the host: 4 h100)"),
        (Request(2, nodes=2), "h1 is one machine, and 2 nodes are asked for"),
    ],
)
def test_what_it_can_never_run(request_: Request, why: str) -> None:
    assert scheduler().refuses(request_) == why


def test_a_launch() -> None:
    expected = Launch(directory="/w/1", root="/there", environment={"A": "b"}, gpus=1, chips=("h100",))
    assert launch() == expected
    assert launch(request=Request()).gpus == 1, "an entry that does not say gets one where there are some"
    assert launch(request=Request(0)).gpus == 0
    without = msgspec.structs.replace(HOST, chips={})
    assert launch(without, request=Request()).gpus == 0
    pinned = msgspec.structs.replace(HOST, env={"CUDA_VISIBLE_DEVICES": "2, 3"})
    assert launch(pinned).only == (2, 3)
    hidden = msgspec.structs.replace(HOST, env={"CUDA_VISIBLE_DEVICES": ""})
    assert launch(hidden).only == ()


def test_the_name_of_a_log() -> None:
    labels = {"project": "../my lab", "group": "fft", "name": "a" * 200}
    made = launch(log="~/logs", **labels)
    assert made.log == f"~/logs/_my_lab_fft_{'a' * 60}"
    assert not made.needs_shared_log
    assert launch(log="~/logs", root="/here", **labels).needs_shared_log, "where the workspace is seen it has the log"


def test_what_comes_of_a_launch() -> None:
    meant = scheduler().accepted
    assert meant(submission(), Launched(outcome="started", host="h1", pid=7)) == Accepted(handle="h1:7")
    assert meant(submission(), Launched(outcome="taken", host="h1")) == Accepted(handle="h1")
    full = Launched(outcome="no_room", host="h1", why="GPU 0: used")
    assert meant(submission(), full) == NoRoom(why="h1: GPU 0: used")
    assert meant(submission(), Failed(error="no bash")) == Refused(why="h1: no bash")


def test_states() -> None:
    assert state(was_launched=False, was_taken=False) is None, "it was never there"
    running = state(is_alive=True, gpus=(1,))
    assert (running.phase, running.pid, running.gpus, running.handle) == (Phase.RUNNING, 7, (1,), "h1:7")
    assert state(has_exit=True).phase is Phase.ENDED
    lost = state()
    assert (lost.phase, lost.exit_code, lost.reason) == (Phase.ENDED, None, "")
    assert lost.why == "its processes on h1 are gone, and it left no exit status"
    assert state(was_rebooted=True).why == "h1 was restarted while it ran"
    assert state(was_taken=False).reason == CANNOT_START
    unknown = state(is_alive=None, error="it was started on h2, and this is h1")
    assert (unknown.phase, unknown.why) == (Phase.UNKNOWN, "it was started on h2, and this is h1")


def test_a_question_that_failed_is_no_absence() -> None:
    assert scheduler().query([ATTEMPT]) == [Check(directories=["/w/1"])]
    with pytest.raises(OutletError, match="h1: /w: Input/output error"):
        scheduler().states([ATTEMPT], [Failed(error="/w: Input/output error", errno=5)])


def test_cancelling() -> None:
    assert scheduler().cancel([ATTEMPT], force=True) == [Signal(directory="/w/1", force=True)]
    assert scheduler().cancelled(Signalled(count=0)) == "", "there was nothing to stop"
    assert scheduler().cancelled(Failed(error="it runs on h2")) == "h1: it runs on h2"
