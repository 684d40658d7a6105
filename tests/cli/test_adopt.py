"""`dispatcher init --adopt`: what a lab sees that moves in."""

from __future__ import annotations

import json
import os
import re
import shlex
import time

LAB = {
    "base": {"state": "done", "pod": "shivam-0", "pid": 3328333, "gpu": 2, "finished_at": "2026-06-17T26:12:00Z"},
    "fft_german_s1": {"state": "failed", "gpu": [2, 3]},
    "fft_german_s2": {"state": "running", "pod": "shivam-0", "pid": 3328334, "started_at": "2026-06-17T22:48:00Z"},
    "lora_german_s1": {"state": "quued"},
    "gone": {"state": "queued"},
}


def write_lab_file(lab, lines=LAB):
    path = lab.layout.matrix_dir / "matrix_status.json"
    path.write_text(json.dumps(lines))
    return path


def test_every_command_that_would_write_refuses_and_names_the_cure(lab):
    write_lab_file(lab)
    before = lab.snapshot()
    for words in ("--pod p --slots 1", "--pod p --slots 1 --dry-run", "requeue base", "edit --clear-refused"):
        outcome = lab.run(*words.split())
        assert outcome.code == 1
        assert "dispatcher init --adopt matrix/matrix_status.json" in outcome.err
        assert "status_file: matrix/matrix_status.json" in outcome.err
    assert "init --adopt" in lab.run("status").err
    assert lab.snapshot() == before


def test_one_command_moves_in(lab):
    path = write_lab_file(lab)
    text = path.read_text()
    outcome = lab.run("init", "--adopt", str(path))
    assert (outcome.code, outcome.err) == (0, "")
    rows = [re.split("  +", line) for line in outcome.out.splitlines()]
    became = {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == "1"}
    assert became == {
        "done": "base",
        "failed": "fft_german_s1",
        "queued": "gone",
        "running (external)": "fft_german_s2",
        "refused, held": "lora_german_s1",
        "in no manifest, not claimed": "gone",
    }
    assert "refused: lora_german_s1: unknown state 'quued' (did you mean 'queued'?)" in outcome.out
    assert path.read_text() == text
    assert lab.state("base") == "done"
    # A status file beside the manifests is none of them, whatever jobs it names.
    assert "matrix_status.json: " not in lab.run("status").err
    counts = lab.run("status", "--json").json["counts"]
    assert (counts["done"], counts["failed"], counts["running"], counts["held"]) == (1, 1, 1, 1)
    before = lab.snapshot()
    again = lab.run("init", "--adopt", str(path))
    assert again.code == 0
    assert "already adopted: the run state has 5 jobs" in again.out
    assert lab.snapshot() == before


def test_a_file_whose_keys_are_no_jobs_of_the_manifest_queues_nothing_anew(lab):
    path = write_lab_file(lab, {"jobs": LAB})
    outcome = lab.run("init", "--adopt", str(path))
    assert outcome.code == 1
    assert f"{path} has no job of any manifest: its first key is 'jobs'; expected" in outcome.err
    assert not lab.layout.status_file.exists() and not list(lab.layout.journal_dir.glob("*"))
    lab.layout.config_file.write_text("status_file: matrix/matrix_status.json\n")
    for words in ("--pod p --slots 1 --until-empty", "--pod p --slots 1 --dry-run", "requeue base"):
        outcome = lab.run(*words.split())
        assert "has no job of any manifest" in outcome.err, words
        assert outcome.code == 1, words
    assert "has no job of any manifest" in lab.run("status").err
    assert json.loads(path.read_text()) == {"jobs": LAB}


def test_a_script_that_goes_on_with_the_old_file_is_noticed(lab):
    path = write_lab_file(lab)
    assert any("is not adopted" in found["what"] for found in doctor(lab))
    lab.run("init", "--adopt", str(path))
    assert "its script may claim" not in lab.run("status").err
    assert not any("is not adopted" in found["what"] for found in doctor(lab))
    later = time.time() + 60
    os.utime(path, (later, later))
    assert "its script may claim" not in lab.run("status").err
    write_lab_file(lab, {**LAB, "gone": {"state": "running"}})
    before = lab.snapshot()
    assert "its script may claim" in lab.run("status").err
    pod = ("--pod", "p", "--slots", "1", "--until-empty", "--methods", "none")
    for words in (pod, (*pod, "--dry-run")):
        outcome = lab.run(*words)
        assert (outcome.code, outcome.out) == (1, "")
        assert (
            "dispatcher mark" in outcome.err
            and f"mv {shlex.quote(str(path))} " in outcome.err
            and "--anyway" in outcome.err
        )
    assert lab.snapshot() == before
    assert "no job is claimed here" not in lab.run(*pod, "--anyway").err
    path.rename(f"{path}.old")
    assert "no job is claimed here" not in lab.run(*pod).err


def doctor(lab):
    return lab.run("doctor", "--json", "--peer-wait", "0").json["findings"]


def test_a_job_that_holds_no_object_is_held_and_the_others_are_adopted(lab):
    path = write_lab_file(lab, {"version": 2, **LAB, "fft_spanish_s1": "done"})
    outcome = lab.run("init", "--adopt", str(path))
    assert (outcome.code, outcome.err) == (0, "")
    assert "7 jobs adopted" in outcome.out
    assert 'refused: fft_spanish_s1: "done" is no object with a state; the job is held' in outcome.out
    assert "refused: version: 2 is no object" in outcome.out
    assert (lab.state("base"), lab.state("fft_spanish_s1"), lab.state("version")) == ("done", "held", "held")
    assert [kept.read_text() for kept in lab.layout.rejected_dir.iterdir()] == [path.read_text()]
    assert lab.run("mark", "done", "fft_spanish_s1").code == 0
    assert lab.run("delete", "version", "--yes").out == "version: deleted\n"
    assert lab.run("status", "--json").json["counts"]["done"] == 2


def test_a_file_that_stays_in_use_must_be_free_of_faults(lab):
    path = write_lab_file(lab, {**LAB, "fft_spanish_s1": "done"})
    lab.layout.config_file.write_text("status_file: matrix/matrix_status.json\n")
    before = lab.snapshot()
    for words in (("requeue", "base"), ("init", "--adopt", str(path))):
        outcome = lab.run(*words)
        assert outcome.code == 1
        assert "'fft_spanish_s1' holds 'done', expected an object with a state" in outcome.err
    assert path.read_text() == json.dumps({**LAB, "fft_spanish_s1": "done"})
    assert {name for name in lab.snapshot() if name.startswith("run_state/journal/")} == set()
    assert before.keys() <= lab.snapshot().keys()


def test_a_broken_file_changes_nothing(lab):
    path = write_lab_file(lab)
    path.write_text('{"base": {"state": "done"')
    before = lab.snapshot()
    outcome = lab.run("init", "--adopt", str(path))
    assert outcome.code == 1
    assert "line 1" in outcome.err
    assert lab.run("init", "--adopt", str(path.with_name("typo.json"))).code == 1
    assert lab.snapshot() == before


def test_a_status_file_that_is_there_is_not_replaced(lab):
    path = write_lab_file(lab)
    lab.layout.run_state.mkdir()
    lab.layout.status_file.write_text('{"base": {"state": "failed"}}')
    outcome = lab.run("init", "--adopt", str(path))
    assert outcome.code == 1
    assert "exists already" in outcome.err
    assert lab.run("init", "--adopt", str(lab.layout.status_file)).code == 0
    assert lab.state("base") == "failed"


def test_the_file_stays_where_it_is_when_the_configuration_says_so(lab):
    path = write_lab_file(lab)
    lab.layout.config_file.write_text("status_file: matrix/matrix_status.json\n")
    assert lab.run("requeue", "fft_german_s1").out == "fft_german_s1: requeued\n"
    assert json.loads(path.read_text())["fft_german_s1"]["state"] == "queued"
    assert not lab.layout.status_file.exists()
    lines = lab.run("history", "fft_german_s1").out.splitlines()[2:]
    assert [line.split()[2] for line in lines] == ["adopted", "requeued"]
    assert "edit:" not in lab.run("history").out
    assert lab.run("status", "--json").json["counts"]["done"] == 1
    assert lab.run("doctor", "--json", "--peer-wait", "0").json["findings"]
