"""Two hosts with two dispatchers each on one workspace over real NFS, while people edit and look from both."""

from __future__ import annotations

import time

import pytest

from .hosts import Process
from .lab import PROVE, READER, Lab, wait_until


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "most_looks"), [(30, 3), pytest.param(80, 500, marks=pytest.mark.long)])
@pytest.mark.parametrize("mount", ["v4.2", "v3"])
def test_nothing_is_lost_and_nothing_runs_twice(nfs, mount, count, most_looks):
    a, b = nfs.hosts(mount)
    lab = Lab(a, b)
    jobs = [f"job-{number:03}" for number in range(count)]
    lab.write_matrix(dict.fromkeys(jobs, PROVE))
    held = jobs[-count // 10 :]
    edits = [(job, "held", a.name) for job in held]
    lab.run(a, "hold", *held)
    status_file, stop = "run_state/matrix_status.json", f"/tmp/stop-{mount}-{count}"
    readers = [host.start_python(READER, host.path(status_file), stop) for host in (a, b)]
    pods = [lab.start(host, f"{host.name}-{number}", "--on-exit=drain") for host in (a, b) for number in (1, 2)]
    begun = time.monotonic()

    for number, job in enumerate(held):
        edits += _edit_from_both_hosts(lab, job, number)
        if number % 2:
            assert len(lab.records((a, b)[number // 2 % 2])) == count
    looks = 0
    while any(record["state"] != "done" for record in lab.file_records(a).values()):
        # One costs a guest kernel a second of its processor.
        if looks < most_looks:
            assert len(lab.records((a, b)[looks % 2])) == count
            looks += 1
        time.sleep(1)
        assert time.monotonic() - begun < 500, _said(pods)
    for pod in pods:
        pod.terminate()
    assert [pod.wait() for pod in pods] == [0, 0, 0, 0], _said(pods)
    took_s = time.monotonic() - begun
    time.sleep(1)
    by_file = [lab.file_records(host) for host in (a, b)]
    by_journal = [lab.records(host) for host in (a, b)]

    assert by_file[0] == by_file[1]
    assert by_journal[0] == by_journal[1]
    assert {job: record["state"] for job, record in by_file[0].items()} == dict.fromkeys(jobs, "done")
    assert {job: row["attempt"] for job, row in by_journal[0].items()} == dict.fromkeys(jobs, 1)
    assert lab.proofs() == dict.fromkeys(jobs, 1)
    lab.check_journal()
    _check_edits(lab, edits)
    assert {record["pod"] for record in by_file[0].values()} == {"host-a-1", "host-a-2", "host-b-1", "host-b-2"}
    _end_readers(lab, readers, stop)
    print(f"{mount}: {took_s:.0f} s for {count} jobs and {len(edits)} edits; {looks} looks at the journal meanwhile")


def _edit_from_both_hosts(lab: Lab, job: str, number: int) -> list[tuple[str, str, str]]:
    """Abandon a held job from one host and queue it again from the other; each edit as (job, event, host)."""
    one, other = (lab.a, lab.b) if number % 2 else (lab.b, lab.a)
    lab.run(one, "cancel", job)
    lab.run(other, "requeue", job)
    return [(job, "abandoned", one.name), (job, "requeued", other.name)]


def _check_edits(lab: Lab, edits: list[tuple[str, str, str]]) -> None:
    made = [
        (line["job"], line["event"], line["by"].rpartition("@")[2])
        for line in lab.journal()
        if line["event"] in ("held", "abandoned", "requeued")
    ]
    assert made == edits


def _end_readers(lab: Lab, readers: list[Process], stop: str) -> None:
    for host, reader in zip((lab.a, lab.b), readers, strict=True):
        host.run(["touch", stop], check=True)
        reader.wait(30)
        said = reader.stdout()
        assert "TORN" not in said, said
        assert int(said.split()[1]) > 50, said


def _said(pods: list[Process]) -> str:
    return "\n".join(f"{pod}:\n{pod.output()[-2000:]}" for pod in pods)


@pytest.mark.slow
def test_the_file_server_reboots_and_everybody_goes_on(nfs):
    a, b = nfs.hosts("v4.2")
    lab = Lab(a, b)
    jobs = [f"job-{number:02}" for number in range(24)]
    lab.write_matrix(dict.fromkeys(jobs, f"sleep 1; {PROVE}"))
    pods = [lab.start(host, host.name) for host in (a, b)]
    wait_until(lambda: len(lab.proofs()) > 4, "some jobs have run", 60)
    nfs.reboot_server()
    begun = time.monotonic()
    assert [pod.wait(240) for pod in pods] == [0, 0], _said(pods)
    print(f"all done {time.monotonic() - begun:.0f} s after the file server was back")
    assert {record["state"] for record in lab.file_records(b).values()} == {"done"}
    assert lab.proofs() == dict.fromkeys(jobs, 1)
    lab.check_journal()
