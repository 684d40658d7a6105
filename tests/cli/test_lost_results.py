"""Results that were on the disk when `done` was recorded, and are lost: shown, and run again when a person asks."""

from __future__ import annotations

import os

import pytest
from fleet import Fleet, shell

JOBS = BROKEN, EMPTY, GONE, NEVER, THERE = "broken", "empty", "gone", "never", "there"
WRITES = """echo '{"loss": 1.5}' >"$DISPATCHER_ATTEMPT_DIR/result.json\""""


@pytest.fixture
def lab_after_a_cut(lab):
    lab.write_manifest([{"job_id": job, "method": "fft"} for job in JOBS])
    for job in JOBS:
        left = {"has_result": True} if job != NEVER else {}
        lab.put(job, "done", exit_code=0, **left)
        lab.attempt(job, entry=f'{{"job_id": "{job}", "method": "fft"}}')
    lab.attempt(BROKEN, result='{"loss": ')
    lab.attempt(EMPTY, result="")
    lab.attempt(THERE, result='{"loss": 1}')
    return lab


def test_status_doctor_show_and_results_tell(lab_after_a_cut):
    lab = lab_after_a_cut
    told = "the results of 3 done jobs are lost or damaged (broken, empty, gone): `dispatcher show broken` says how"
    assert told in lab.run("status").err
    assert [line for line in lab.run("status", "--json").json["notices"] if told in line]
    [finding] = [
        one for one in lab.run("doctor", "--json", "--peer-wait", "0").json["findings"] if one["check"] == "results"
    ]
    assert finding["verdict"] == "wrong" and finding["what"].startswith("3 results of done jobs lost or damaged: ")
    assert f"{lab.layout.result_file(EMPTY, 1)} is empty" in lab.run("show", EMPTY).out
    assert (
        lab.run("show", GONE, "--json").json["lost_result"] == f"{lab.layout.result_file(GONE, 1)} is no longer there"
    )
    assert lab.run("show", THERE, "--json").json["lost_result"] is None
    assert f"{lab.layout.result_file(BROKEN, 1)} is not a JSON object" in lab.run("show", BROKEN).out
    assert f"{GONE}: {lab.layout.result_file(GONE, 1)} is no longer there" in " ".join(lab.run("results").err.split())
    assert f"{EMPTY}: empty" in lab.run("results").err


def test_requeue_takes_them_and_no_others(lab_after_a_cut):
    lab = lab_after_a_cut
    outcome = lab.run("requeue", "--no-result", "--json")
    assert outcome.json["changed"] == {BROKEN: "requeued", EMPTY: "requeued", GONE: "requeued"}
    assert [lab.state(job) for job in JOBS] == ["queued", "queued", "queued", "done", "done"]
    assert "are lost or" not in lab.run("status").err
    assert "no selected job is known to lack its result" in lab.run("requeue", "--no-result").out
    # Nothing is known any more of what a person has set.
    lab.run("mark", "done", EMPTY)
    assert lab.run("show", EMPTY, "--json").json["lost_result"] is None


def test_what_cannot_be_read_is_not_lost(lab_after_a_cut):
    lab = lab_after_a_cut
    lab.run("requeue", "--no-result")
    path = lab.layout.attempt(THERE, 1).result
    path.unlink()
    os.symlink(path, path)
    assert lab.run("show", THERE, "--json").json["lost_result"] is None
    assert "no selected job is known" in lab.run("requeue", "--no-result").out


def test_a_pod_records_that_a_result_is_there(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", WRITES), shell("b", "true")])
    fleet.start("pod", "--until-empty").end()
    assert [fleet.records()[job].has_result for job in ("a", "b")] == [True, False]
    fleet.layout.attempt("a", 1).result.write_text("")
    fleet.run("requeue", "--no-result")
    assert [fleet.records()[job].has_result for job in ("a", "b")] == [False, False]
    fleet.start("pod", "--until-empty").end()
    assert fleet.records()["a"].attempt == 2 and fleet.layout.attempt("a", 2).result.stat().st_size
