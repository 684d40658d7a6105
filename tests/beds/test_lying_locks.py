"""Filesystems whose locks do not lock: found out before anything runs twice, and said with the mount and the cure."""

from __future__ import annotations

import pytest

from .hosts import Host, Process
from .lab import PROVE, WAIT, Lab

JOBS = [f"job-{number:02}" for number in range(12)]
ERRORS = ["ENOSYS", "EOPNOTSUPP", "EIO"]
LOCKFS = [*ERRORS, "ENOLCK", "nop", "local"]
# What the first dispatcher cannot know: its own host's locks work.
ONLY_SEEN_BY_TWO = ("local", "v3-nolock", "sshfs")


def _run_two(lab: Lab, jobs: list[str], slots: int = 2) -> tuple[Process, Process]:
    """Two dispatchers, one per host; the second starts when the first one is at work, and both have worked."""
    lab.write_matrix(dict.fromkeys(jobs, WAIT))
    first = lab.start(lab.a, "pod-a", slots=slots)
    first.wait_for_output("start job", 60)
    second = lab.start(lab.b, "pod-b", slots=slots)
    second.wait_for_output("start job", 120)
    lab.a.write_text("go", "")
    return first, second


def _check_all_ran_once(lab: Lab, jobs: list[str]) -> None:
    assert lab.proofs() == dict.fromkeys(jobs, 1)
    records = lab.file_records(lab.b)
    assert {job: (row["state"], row["attempt"]) for job, row in records.items()} == dict.fromkeys(jobs, ("done", 1))
    lab.check_journal()


@pytest.mark.parametrize("mode", ERRORS)
def test_a_dispatcher_goes_over_to_the_hard_link_lock_at_any_error(lockfs, mode):
    a, b = lockfs.hosts(mode)
    lab = Lab(a, b)
    lab.write_matrix({"job": PROVE})
    pod = lab.start(a, "pod-a")
    assert pod.wait(120) == 0, pod.output()
    _check_all_ran_once(lab, ["job"])
    _check_warning(pod.output(), a)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["ENOLCK", "nop", "local", *(pytest.param(mode, marks=pytest.mark.long) for mode in ERRORS)]
)
def test_dispatchers_go_over_to_the_hard_link_lock(lockfs, mode):
    a, b = lockfs.hosts(mode)
    lab = Lab(a, b, heartbeat="1s")
    first, second = _run_two(lab, JOBS)
    assert (first.wait(120), second.wait(120)) == (0, 0), first.output() + second.output()
    _check_all_ran_once(lab, JOBS)
    _check_warning((second if mode in ONLY_SEEN_BY_TWO else first).output(), a)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        *(pytest.param(mode, marks=pytest.mark.lockfs) for mode in LOCKFS),
        pytest.param("v3-nolock", marks=pytest.mark.nfs),
        pytest.param("sshfs", marks=pytest.mark.sshfs),
    ],
)
def test_with_flock_demanded_they_refuse(request, mode):
    a, b = _hosts(request, mode)
    lab = Lab(a, b, lock="flock", heartbeat="1s")
    lab.write_matrix(dict.fromkeys(JOBS, WAIT))
    first = lab.start(a, "pod-a")
    if mode not in ONLY_SEEN_BY_TWO:
        assert first.wait(60) == 1
        _check_refusal(first.output(), a)
        assert lab.proofs() == {}
        return
    first.wait_for_output("start job", 60)
    refused = lab.start(b, "pod-b")
    assert refused.wait(90) == 1, refused.output()
    _check_refusal(refused.output(), b)
    assert "start job" not in refused.output()
    a.write_text("go", "")
    assert first.wait(120) == 0, first.output()
    assert lab.proofs() == dict.fromkeys(JOBS, 1)


@pytest.mark.slow
def test_on_sshfs_the_second_host_is_refused(sshfs):
    a, b = sshfs.hosts()
    lab = Lab(a, b, heartbeat="1s")
    # The last one is queued until the test lets the others go.
    lab.write_matrix({**dict.fromkeys(JOBS, WAIT), JOBS[-1]: PROVE})
    first = lab.start(a, "pod-a")
    first.wait_for_output("start job", 60)
    refused = lab.start(b, "pod-b")
    assert refused.wait(90) == 1, refused.output()
    assert "start job" not in refused.output()
    assert "use NFS, or run all dispatchers on one host" in refused.output()
    assert b.root.rpartition("/")[0] in refused.output()
    edit = lab.run(b, "hold", JOBS[-1], check=False)
    assert edit.returncode == 1
    assert "use NFS" in edit.stderr
    a.write_text("go", "")
    assert first.wait(120) == 0, first.output()
    assert lab.proofs() == dict.fromkeys(JOBS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [24, pytest.param(60, marks=pytest.mark.long)])
def test_nolock_under_load(nfs, count):
    """NFSv3 with `nolock` shows old file content, too: the hard-link lock must not rely on what is cached."""
    a, b = nfs.hosts("v3-nolock")
    lab = Lab(a, b, heartbeat="1s")
    jobs = [f"job-{number:03}" for number in range(count)]
    # The first host is full until the other one is there.
    lab.write_matrix({**dict.fromkeys(jobs, PROVE), **dict.fromkeys(jobs[:3], WAIT)})
    first = lab.start(a, "pod-a", "--until-empty", slots=3)
    first.wait_for_output("start job", 60)
    second = lab.start(b, "pod-b", "--until-empty", slots=3)
    second.wait_for_output("start job", 120)
    a.write_text("go", "")
    assert (first.wait(280), second.wait(280)) == (0, 0), first.output()[-2000:] + second.output()[-2000:]
    _check_all_ran_once(lab, jobs)
    said = second.output()
    assert "nolock" in said
    assert "Using the hard-link lock" in said


@pytest.mark.slow
def test_a_command_of_another_host_goes_over_first(nfs):
    """A hand edit must not write the journal together with a dispatcher that its lock does not keep away."""
    a, b = nfs.hosts("v3-nolock")
    lab = Lab(a, b, heartbeat="1s")
    lab.write_matrix(dict.fromkeys(JOBS, WAIT))
    pod = lab.start(a, "pod-a", slots=1)
    pod.wait_for_output("start job", 60)
    lab.run(b, "cancel", *JOBS[8:])
    a.write_text("go", "")
    assert pod.wait(120) == 0, pod.output()
    assert a.run(["ls", a.path("run_state/claims.hardlink")]).returncode == 0
    assert [line["event"] for line in lab.journal()].count("abandoned") == 4
    lab.check_journal()


@pytest.mark.slow
def test_a_host_that_died_with_the_hard_link_lock_blocks_nobody_for_long(lockfs):
    a, b = lockfs.hosts("local")
    lab = Lab(a, b, lock="hardlink", heartbeat="1s", lost_after="8s", kill_grace="1s")
    lab.write_matrix(dict.fromkeys(JOBS[:4], PROVE))
    holder = a.start_python(HOLD_HARDLINK, a.root)
    holder.wait_for_output("held")
    a.power_cut()
    pod = lab.start(b, "pod-b")
    assert pod.wait(90) == 0, pod.output()
    lab.a = b
    a.boot()
    _check_all_ran_once(lab, JOBS[:4])


HOLD_HARDLINK = """
import signal, sys
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout
with Store(Layout(sys.argv[1]), by="holder", lock="hardlink").transaction() as tx:
    print("held", flush=True)
    signal.pause()
"""


def _hosts(request: pytest.FixtureRequest, mode: str) -> tuple[Host, Host]:
    if mode == "sshfs":
        return request.getfixturevalue("sshfs").hosts()
    if mode.startswith("v3"):
        return request.getfixturevalue("nfs").hosts(mode)
    return request.getfixturevalue("lockfs").hosts(mode)


def _check_warning(said: str, host: Host) -> None:
    assert "Using the hard-link lock (lock: hardlink) instead" in said, said
    assert host.root.rpartition("/")[0] in said, said


def _check_refusal(said: str, host: Host) -> None:
    assert host.root.rpartition("/")[0] in said, said
    assert "Cure: " in said, said
