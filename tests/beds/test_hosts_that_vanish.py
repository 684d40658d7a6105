"""A host is cut off or loses power: its jobs are taken over in time, and it has no say when it comes back."""

from __future__ import annotations

import time

import pytest

from .lab import WAIT, Lab, wait_until

LOST_AFTER_S = 12
# What lets the scripts below go on; each host has its own.
GO = "/tmp/go-on"
# Stays between its locks and the sync of the journal until the file argv[2], of this host's own, is there.
DECIDE_AND_STALL = """
import os, sys, time
from pathlib import Path
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout
store = Store(Layout(Path(sys.argv[1])), by="cut-off")
with store.transaction() as tx:
    tx.change("before", Event.QUEUED, Change(state=State.QUEUED))
try:
    with store.transaction() as tx:
        tx.change("late", Event.QUEUED, Change(state=State.QUEUED), extra={"note": "x" * 300})
        print("between the syncs", flush=True)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.05)
    print("written", flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
with store.transaction() as tx:
    tx.change("again", Event.QUEUED, Change(state=State.QUEUED))
print("records:", *store.records, flush=True)
"""
# Stays between the claims lock and the lock of the journal, likewise.
LOCK_AND_STALL = """
import os, sys, time
from pathlib import Path
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.lock import ClaimsLock
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout
guard = ClaimsLock.guard
def stall(lock, fd):
    ClaimsLock.guard = guard
    print("between the locks", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    guard(lock, fd)
store = Store(Layout(Path(sys.argv[1])), by="cut-off")
for job in ("before", "late", "again"):
    with store.transaction() as tx:
        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    if job == "before":
        ClaimsLock.guard = stall
print("records:", *store.records, flush=True)
"""
CHANGE_TWICE = """
import os, sys, time
from pathlib import Path
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout
store = Store(Layout(Path(sys.argv[1])), by="other")
for job in ("one", "two"):
    with store.transaction() as tx:
        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    print(job, flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
with store.transaction() as tx:
    tx.change("three", Event.QUEUED, Change(state=State.QUEUED))
print("records:", *store.records, flush=True)
"""
# A wrapper looks every quarter of lost_after; who takes over gives it two looks and the grace period.
GUARD_S = 2 * LOST_AFTER_S / 4 + 1
READ = """
import sys
from pathlib import Path
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout
store = Store(Layout(Path(sys.argv[1])), by="reader")
store.refresh(to_the_end=True)
print(*store.records)
"""


def takeover_limit_s(mount: str, lease_s: float) -> float:
    """NFSv4: the server frees the locks after at most two leases; NFSv3 keeps them, so heartbeats decide."""
    promised_s = 2 * lease_s if mount.startswith("v4") else LOST_AFTER_S + GUARD_S
    # Looks every second or two, and the slowness of a busy machine.
    return promised_s + 25


def _start(nfs, mount: str) -> Lab:
    """`mine` runs on host-a, and `theirs` on host-b, which has room for two."""
    a, b = nfs.hosts(mount)
    lab = Lab(a, b, heartbeat="1s", lost_after=f"{LOST_AFTER_S}s", kill_grace="1s")
    lab.write_matrix({"mine": WAIT, "theirs": WAIT})
    lab.pod_a = lab.start(a, "pod-a", "--until-empty", slots=1)
    wait_until(lambda: lab.proofs() == {"mine": 1}, "the first job runs on host-a", 60)
    lab.pod_b = lab.start(b, "pod-b", "--until-empty", slots=2)
    wait_until(lambda: lab.proofs() == {"mine": 1, "theirs": 1}, "the second job runs on host-b", 60)
    assert lab.job_processes(a) == ["mine/1"]
    # The pids have been recorded, and nobody is in the middle of a change.
    wait_until(lambda: all(row.get("pid") for row in lab.file_records(b).values()), "the pids are recorded", 30)
    return lab


def _wait_for_takeover(nfs, lab: Lab, mount: str) -> None:
    begun = time.monotonic()
    lab.pod_b.wait_for_output("start mine (attempt 2)", takeover_limit_s(mount, nfs.lease_s))
    took_s = time.monotonic() - begun
    print(f"{mount}: taken over after {took_s:.0f} s")
    assert "mine (attempt 1): lost" in lab.pod_b.output()
    # Not before a host that is merely slow could have come back.
    assert took_s > (5 if mount.startswith("v4") else LOST_AFTER_S), took_s


def _finish(lab: Lab) -> None:
    lab.b.write_text("go", "")
    assert lab.pod_b.wait(120) == 0, lab.pod_b.output()
    records = lab.file_records(lab.b)
    assert {job: (row["state"], row["attempt"], row["pod"]) for job, row in records.items()} == {
        "mine": ("done", 2, "pod-b"),
        "theirs": ("done", 1, "pod-b"),
    }
    assert lab.proofs() == {"mine": 2, "theirs": 1}
    assert lab.b.read_text("proof/mine.end") == "pod-b\n"
    lab.check_journal()


@pytest.mark.slow
@pytest.mark.parametrize("mount", ["v4.2", "v3"])
def test_a_host_that_is_cut_off(nfs, mount):
    lab = _start(nfs, mount)
    lab.a.cut()
    _wait_for_takeover(nfs, lab, mount)
    assert lab.job_processes(lab.a) == ["mine/1"], "nothing can tell a host that is cut off"
    lab.a.restore()
    back = time.monotonic()
    wait_until(lambda: not lab.job_processes(lab.a), "the host that is back has stopped its old job", 60)
    print(f"{mount}: the old job was gone {time.monotonic() - back:.0f} s after the host was back")
    assert lab.job_processes(lab.b) == ["mine/2", "theirs/1"]
    _finish(lab)
    assert lab.pod_a.wait(120) == 0, lab.pod_a.output()
    assert lab.records(lab.a) == lab.records(lab.b)


@pytest.mark.slow
@pytest.mark.parametrize("mount", ["v4.2", "v3"])
def test_a_host_that_loses_power(nfs, mount):
    lab = _start(nfs, mount)
    lab.a.power_cut()
    _wait_for_takeover(nfs, lab, mount)
    lab.a.boot()
    # A dispatcher of the same name starts on the host that is up again, while its old job runs elsewhere.
    pod = lab.start(lab.a, "pod-a", "--until-empty", slots=1)
    pod.wait_for_output("pod pod-a on host-a", 90)
    assert lab.job_processes(lab.a) == []
    _finish(lab)
    assert pod.wait(60) == 0, pod.output()
    assert "start" not in pod.output()


@pytest.mark.slow
def test_a_name_that_was_taken_over(nfs):
    """While a host is cut off, a dispatcher of its name starts on another one; the first one then gives way."""
    a, b = nfs.hosts("v4.2")
    lab = Lab(a, b, heartbeat="1s", lost_after=f"{LOST_AFTER_S}s", kill_grace="1s")
    lab.write_matrix({"mine": WAIT})
    old = lab.start(a, "pod", "--until-empty", slots=1)
    wait_until(lambda: lab.proofs() == {"mine": 1}, "the job runs on host-a", 60)
    wait_until(lambda: lab.file_records(b)["mine"].get("pid"), "its pid is recorded", 30)
    refused = lab.start(b, "pod", "--until-empty", slots=1)
    assert refused.wait(90) == 1
    assert "a dispatcher named 'pod' is already running (on host host-a" in refused.output()
    a.cut()
    lab.a = b
    wait_until(lambda: _takes_over(lab), "a dispatcher of that name may start on host-b", 120, 2)
    a.restore()
    assert old.wait(90) == 1, old.output()
    assert "a dispatcher named 'pod' is already running (on host host-b" in old.output()
    wait_until(lambda: not lab.job_processes(a), "the old job has ended", 60)
    b.write_text("go", "")
    assert lab.pod_b.wait(90) == 0, lab.pod_b.output()
    assert lab.file_records(b)["mine"]["state"] == "done"
    assert lab.proofs() == {"mine": 2}
    lab.check_journal()


def _takes_over(lab: Lab) -> bool:
    lab.pod_b = lab.start(lab.b, "pod", "--until-empty", slots=1)
    try:
        lab.pod_b.wait_for_output("start mine (attempt 2)", 60)
    except AssertionError:
        # The file server still holds the name for the host that is gone.
        assert "is already running" in lab.pod_b.output(), lab.pod_b.output()
        return False
    return True


def _cut_off_while(nfs, a, b, script, stalled):
    """Cut host a off where `script` has said `stalled`, until b has changed something: a's output, b's process."""
    for host in (a, b):
        host.run(["rm", "-f", GO], check=True)
    slow = a.start_python(script, a.root, GO)
    slow.wait_for_output(stalled)
    a.cut()
    other = b.start_python(CHANGE_TWICE, b.root, GO)
    other.wait_for_output("two", nfs.lease_s * 4)
    a.restore()
    a.run(["touch", GO], check=True)
    return _all_said(slow, 120), other


def _all_said(process, timeout=60):
    """Its output once it has ended: the line of its records may come in pieces."""
    process.wait(timeout)
    return process.output()


@pytest.mark.slow
def test_a_host_that_is_cut_off_between_two_locks_reads_what_others_wrote(nfs):
    """It has lost the claims lock without a word; the lock of the journal comes after that, and then it reads."""
    a, b = nfs.hosts("v4.2")
    said, other = _cut_off_while(nfs, a, b, LOCK_AND_STALL, "between the locks")
    assert said.splitlines()[-1] == "records: before one two late again"
    b.run(["touch", GO], check=True)
    assert _all_said(other).splitlines()[-1] == "records: before one two late again three"


@pytest.mark.slow
@pytest.mark.parametrize("mount", ["v4.2", "v4.0"])
def test_a_host_that_is_cut_off_between_two_syncs_cannot_write_over_others(nfs, mount):
    """The server gives its locks to others; what it decided before comes too late, and it is told so."""
    a, b = nfs.hosts(mount)
    said, other = _cut_off_while(nfs, a, b, DECIDE_AND_STALL, "between the syncs")
    assert "LockLostError" in said, said
    assert said.splitlines()[-1] == "records: before one two again"
    b.run(["touch", GO], check=True)
    # This one had the lines of all in memory.
    assert _all_said(other).splitlines()[-1] == "records: before one two again three"
    for host in (a, b):
        newcomer = host.run_python(READ, host.root, check=True).stdout
        assert newcomer.split() == ["before", "one", "two", "again", "three"]
    assert '"late"' not in nfs.on_server(a).read_text("run_state/journal/000001.jsonl")
