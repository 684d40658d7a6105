"""`dispatcher doctor` on two hosts at about the same time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .hosts import Host
from .lab import COMMAND, Lab

MEASURED = {"lock latency", "sync latency", "hand-over", "rename seen", "append seen", "attribute cache", "clock skew"}


def _diagnose(a: Host, b: Host) -> tuple[list[int], list[dict[str, dict[str, Any]]]]:
    """Exit codes and findings, by check, of both hosts."""
    doctors = [
        host.start([COMMAND, "doctor", "--json", "--peer-wait", "60", "--root", "."], cwd=host.root) for host in (a, b)
    ]
    codes = [doctor.wait(150) for doctor in doctors]
    found = [json.loads(doctor.stdout())["findings"] for doctor in doctors]
    return codes, [{finding["check"]: finding for finding in one} for one in found]


def _files(host: Host) -> str:
    """Every path of the run state with its size and times: what a doctor must leave as it is."""
    command = "find run_state ! -type d -printf '%p %s %T@ %C@\\n' | sort; find run_state -type d | sort"
    return host.run(["sh", "-c", command], cwd=host.root, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("mount", ["v4.2", "v3"])
def test_nfs_with_working_locks(nfs, mount):
    a, b = nfs.hosts(mount)
    lab = Lab(a, b)
    lab.write_matrix({"job": "true"})
    assert lab.start(a, "pod", "--until-empty").wait(60) == 0
    before = _files(nfs.on_server(a))
    codes, found = _diagnose(a, b)
    assert codes == [0, 0], [each for one in found for each in one.values() if each["verdict"] != "ok"]
    assert _files(nfs.on_server(a)) == before
    for one, peer in zip(found, ("host-b", "host-a"), strict=True):
        assert {check for check, finding in one.items() if finding["verdict"] not in ("ok",)} <= {"gpus"}, one
        assert {f"{name} between hosts" for name in ("flock", "lockf", "hard-link lock")} <= one.keys()
        assert {"mkdir race", "transactions"} <= one.keys()
        assert {check for check, finding in one.items() if finding.get("value") is not None} >= MEASURED
        assert one["other host"]["what"] == f"{peer} answers"
    assert found[0]["clock skew"]["value"] == -found[1]["clock skew"]["value"]
    print(*(f"{mount}: {found[0][check]['what']}" for check in sorted(MEASURED | {"transactions"})), sep="\n")


@pytest.mark.slow
def test_nolock_is_named_with_its_cure(nfs):
    a, b = nfs.hosts("v3-nolock")
    codes, found = _diagnose(a, b)
    assert codes == [1, 1]
    for one in found:
        assert one["mount"]["verdict"] == "wrong"
        assert "nolock" in one["mount"]["what"]
        assert "mount it without nolock" in one["mount"]["cure"]
        between = one["flock between hosts"]
        assert between["verdict"] == "wrong"
        assert between["what"].startswith(f"flock is granted on both hosts at once on {a.root.rpartition('/')[0]}")
        assert one["hard-link lock between hosts"]["verdict"] == "ok"
        assert one["transactions"]["verdict"] == "ok"
        assert "(hardlink)" in one["transactions"]["what"]


@pytest.mark.parametrize("mode", ["ENOSYS", "ENOLCK", "EOPNOTSUPP", "EIO", "nop"])
def test_one_host_is_enough_for_locks_that_fail_or_lie_on_it(lockfs, mode):
    a, _ = lockfs.hosts(mode)
    done = a.run([COMMAND, "doctor", "--json", "--peer-wait", "0", "--root", "."], cwd=a.root)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert found["flock here"]["verdict"] == "wrong"
    assert ("granted twice" if mode == "nop" else mode) in found["flock here"]["what"]
    assert a.root.rpartition("/")[0] in found["flock here"]["what"]
    assert found["flock here"]["cure"]
    assert found["hard-link lock here"]["verdict"] == "ok"
    assert found["other hosts"]["verdict"] == "unknown"
    assert a.run(["ls", "-A", a.root]).stdout == ""


@pytest.mark.slow
def test_locks_that_stay_on_each_host_are_found_by_two(lockfs):
    a, b = lockfs.hosts("local")
    codes, found = _diagnose(a, b)
    assert codes == [1, 1]
    for one in found:
        assert one["flock here"]["verdict"] == "ok"
        assert one["flock between hosts"]["verdict"] == "wrong"
        assert "fuse.lockfs" in one["flock between hosts"]["what"]
        assert one["hard-link lock between hosts"]["verdict"] == "ok"
    assert a.run(["ls", "-A", a.root]).stdout == ""


@pytest.mark.slow
def test_sshfs_is_wrong_in_any_case(sshfs):
    a, b = sshfs.hosts()
    codes, found = _diagnose(a, b)
    assert codes == [1, 1]
    for one in found:
        assert one["mount"]["verdict"] == "wrong"
        assert "use NFS, or run all dispatchers on one host" in one["mount"]["cure"]
        assert one["flock between hosts"]["verdict"] == "wrong"
        assert "transactions" not in one
