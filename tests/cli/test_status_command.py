"""`dispatcher status` and the other commands that only look."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import subprocess

import pytest

from dispatcher.run_state.facets.pauses import Paused

LOOKERS = [
    ["status"],
    ["status", "--json"],
    ["status", "--by", "lang,method"],
    ["status", "--format", "csv"],
    ["show", "base"],
    ["history"],
    ["pods"],
    ["results"],
    ["--dry-run", "--slots", "1"],
    ["requeue", "--state", "failed"],
]


@pytest.mark.parametrize("words", LOOKERS)
def test_looking_leaves_a_fresh_workspace_as_it_is(lab, words):
    before = lab.snapshot()
    assert lab.run(*words).code == 0
    assert lab.snapshot() == before


@pytest.mark.parametrize("words", LOOKERS)
def test_looking_takes_no_lock_and_writes_nothing(lab, words):
    lab.put("base", "done")
    with open(lab.layout.status_file) as file:
        text = file.read()
    lab.layout.status_file.write_text(text.replace('"state": "done"', '"state": "queued"'))
    before = lab.snapshot()
    with open(lab.layout.lock_file, "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lab.run(*words).code == 0
    assert lab.snapshot() == before


def test_what_would_be_queued(lab):
    outcome = lab.run("status")
    assert outcome.out.startswith("9 jobs: queued 9\n")
    assert "needs base (queued)" in outcome.out
    assert "no pod is running" in outcome.out


def test_no_workspace(lab, tmp_path):
    from dispatcher.cli.main import main

    assert main(["--root", str(tmp_path), "status"]) == 2


def test_running_jobs_with_progress_and_remaining_time(lab):
    lab.put("base", "running", started_at="2026-06-17T22:48:00.000Z", gpu=[2, 3])
    lab.attempt("base", progress='{"step": 250, "of": 1000, "metrics": {"loss": 2.5}}')
    row = next(row for row in lab.run("status", "--json").json["jobs"] if row["job"] == "base")
    assert (row["step"], row["of"], row["gpu"]) == (250, 1000, [2, 3])
    assert row["remaining_s"] == pytest.approx(3 * row["elapsed_s"])
    assert "25% 250/1000" in lab.run("status").out


def test_the_labs_time_with_an_hour_26_is_unknown(lab):
    lab.put("base", "running", started_at="2026-06-17T26:12:00Z")
    lab.attempt("base", progress='{"step": 1, "of": 2}')
    line = next(line for line in lab.run("status").out.splitlines() if line.startswith("base"))
    assert line.split() == ["base", "pod-0", "50%", "1/2", "?"]
    row = lab.run("status", "--json", "--state", "running").json["jobs"][0]
    assert (row["elapsed_s"], row["remaining_s"]) == (None, None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": "x"}', '{"step": 1, "of": 0}', "\x00", "[" * 100000])
def test_broken_progress_is_no_error(lab, text):
    lab.put("base", "running", started_at="2026-06-17T22:48:00Z")
    lab.attempt("base", progress=text)
    assert lab.run("status").code == 0


def test_what_a_job_writes_in_another_encoding_is_no_error(lab):
    lab.put("base", "done")
    lab.put("fft_german_s1", "running", started_at="2026-06-17T22:48:00Z")
    for job in ("base", "fft_german_s1"):
        lab.attempt(job, progress="{}")
        for name in ("progress.json", "result.json", "exit.json"):
            (lab.layout.attempt(job, 1).directory / name).write_bytes('{"note": "größer"}'.encode("latin-1"))
    for command in (["status"], ["show", "base"], ["results"]):
        assert lab.run(*command).code == 0


def test_why_the_rest_waits(lab):
    lab.put("base", "done")
    lab.put("fft_german_s1", "queued", retry_at="2999-01-01T00:00:00.000Z")
    lab.put("fft_german_s2", "queued")
    lab.put("lora_german_s1", "held")
    lab.put("stranger", "queued")
    with lab.workspace.transaction() as tx:
        tx.note(Paused(scope="lora", why="5 failed alike"))
    why = {row["job"]: row["why"] for row in lab.run("status", "--json").json["jobs"]}
    assert why["fft_german_s1"] == "waits for a retry until 2999-01-01T00:00:00.000Z"
    assert why["fft_german_s2"] == "no pod is running"
    assert why["lora_german_s2"] == "method lora is paused: 5 failed alike"
    assert why["stranger"] == "no manifest lists it, so it is not claimed; its record is kept"
    assert why["base"] is None
    plain = lab.run("status")
    assert "held: not claimed until it is requeued" in plain.out
    assert "dispatcher unpause lora" in plain.err
    # What needs a person comes first, then the most frequent.
    needs_person = [wait["needs_person"] for wait in lab.run("status", "--json").json["waiting"]]
    assert needs_person == sorted(needs_person, reverse=True)
    assert set(needs_person) == {True, False}
    assert plain.out.index("is paused: 5 failed alike") < plain.out.index("  no pod is running")


def test_jobs_of_other_manifests_are_found(lab):
    lab.put("other_1", "failed", reason="exit 1")
    lab.write_manifest([{"job_id": "other_1", "method": "dpo", "lang": "basque"}], "other.json")
    lab.write_manifest([{"job_id": "broken"}], "aaa.json")
    row = lab.run("status", "--by", "method,lang", "--json", "--where", "job_id=other*").json
    assert row == [{"method": "dpo", "lang": "basque", "failed": 1, "total": 1}]
    assert "aaa.json" in lab.run("status").err


def test_a_broken_manifest_is_a_warning(lab):
    lab.put("base", "queued")
    (lab.layout.matrix_dir / "matrix.json").write_text("[{]")
    outcome = lab.run("status")
    assert outcome.code == 0
    assert "line 1" in outcome.err
    assert "its manifest cannot be read" in outcome.out


def test_pivot_of_states(lab):
    lab.put("fft_german_s1", "failed")
    rows = lab.run("status", "--by", "lang,method", "--json").json
    assert rows[1] == {"lang": "german", "method": "fft", "queued": 1, "failed": 1, "total": 2}
    assert sum(row["total"] for row in rows) == 9


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--by", "lan"], "did you mean 'lang'?"),
        (["--by", "state"], "columns already"),
        (["--where", "sed=1"], "did you mean 'seed'?"),
        (["--state", "quued"], "did you mean 'queued'?"),
    ],
)
def test_mistakes_are_named(lab, words, part):
    outcome = lab.run("status", *words)
    assert outcome.code == 2
    assert part in outcome.err


def test_filters(lab):
    lab.put("fft_german_s1", "failed", reason="out of memory", error="RESOURCE_EXHAUSTED: 3 GiB")
    assert lab.run("status", "--state", "failed,held", "--json").json["total"] == 1
    assert lab.run("status", "--where", "lang=ger*", "--where", "seed=1", "--json").json["total"] == 2
    assert lab.run("status", "--where", "reason=out of*", "--json").json["jobs"][0]["job"] == "fft_german_s1"
    plain = lab.run("status", "--state", "failed")
    assert "RESOURCE_EXHAUSTED: 3 GiB" in plain.out


def test_formats(lab):
    lab.put("fft_german_s1", "failed", reason="exit 1", error="a | b & c_d")
    rows = list(csv.DictReader(io.StringIO(lab.run("status", "--format", "csv").out)))
    assert [row["job"] for row in rows if row["state"] == "failed"] == ["fft_german_s1"]
    assert "a \\| b & c_d" in lab.run("status", "--format", "github").out
    assert r"a | b \& c\_d" in lab.run("status", "--format", "latex").out


def test_control_characters_of_a_job_do_not_reach_the_terminal(lab):
    lab.put("fft_german_s1", "failed", error="bad\x1b[2Jthing")
    out = lab.run("status").out
    assert "\x1b" not in out
    assert "bad?[2Jthing" in out


def test_a_hand_edit_is_shown_before_anybody_takes_it_in(lab):
    lab.put("base", "failed")
    document = json.loads(lab.layout.status_file.read_text())
    document["base"]["state"] = "queued"
    lab.layout.status_file.write_text(json.dumps(document))
    outcome = lab.run("status", "--state", "queued", "--where", "job_id=base")
    assert "queued (edited by hand)" in outcome.out
    assert "1 hand edit not applied yet" in outcome.err
    lab.run("hold", "fft_german_s1")
    assert "by hand" not in lab.run("status", "--where", "job_id=base").out
    assert lab.state("base") == "queued"


def test_a_refused_hand_edit_is_shown_until_it_is_cleared(lab):
    lab.put("base", "failed")
    text = lab.layout.status_file.read_text()
    lab.layout.status_file.write_text(text.replace('"state": "failed"', '"state": "quued"'))
    assert "did you mean 'queued'?" in lab.run("status").err
    lab.run("hold", "fft_german_s1")
    assert "did you mean 'queued'?" in lab.run("status").err
    assert lab.state("base") == "failed"
    assert lab.run("edit", "--clear-refused", "base").out == "1 refused hand edit cleared\n"
    assert lab.run("status").err == ""


def test_a_broken_status_file_is_named_and_restored_on_request(lab):
    lab.put("base", "failed")
    broken = lab.layout.status_file.read_text() + "}"
    lab.layout.status_file.write_text(broken)
    outcome = lab.run("status")
    assert outcome.code == 0
    assert "1 job" not in outcome.err
    assert "line 4" in outcome.err
    assert "failed 1" in outcome.out
    lab.run("requeue", "base")
    assert lab.layout.status_file.read_text() == broken
    assert "kept as" in lab.run("status", "--restore").out
    assert lab.state("base") == "queued"
    (kept,) = lab.layout.rejected_dir.iterdir()
    assert kept.read_text() == broken
    assert "nothing was changed" in lab.run("status", "--restore").out


def test_the_labs_status_file_without_a_journal(lab):
    lab.layout.run_state.mkdir()
    old = {"base": {"state": "running", "pod": "x", "pid": 1, "gpu": 2, "started_at": "2026-06-17T26:12:00Z"}}
    lab.layout.status_file.write_text(json.dumps(old))
    outcome = lab.run("status", "--json")
    assert outcome.json["counts"]["running"] == 1
    (notice,) = outcome.json["notices"]
    assert notice.startswith("base: external, not monitored")
    lab.layout.status_file.write_text("{")
    assert "line 1" in lab.run("status").err


def test_watch_draws_again_and_ends_on_interrupt(lab):
    import signal

    process = lab.start("status", "--watch", "--interval", "0.1", stdout=subprocess.PIPE)
    assert process.stdout is not None
    seen = b""
    while seen.count(b"9 jobs: queued 9") < 1:
        seen += process.stdout.readline()
    lab.put("base", "held")
    while b"held 1" not in seen:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"\x1b" not in seen


@pytest.mark.parametrize("words", [(), ("--state", "running")])
def test_where_jobs_run(lab, words):
    lab.put("base", "running", outlet="local", gpu=2)
    lab.put("fft_german_s1", "running", outlet="k8s")
    lines = lab.run("status", *words).out.splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("job ")) :]
    place = table[0].split().index("where")
    found = {line.split()[0]: line.split()[place] for line in table if line.startswith(("base", "fft_german_s1 "))}
    assert found == {"base": "pod-0:2", "fft_german_s1": "k8s"}
    rows = {row["job"]: row["outlet"] for row in lab.run("status", "--json").json["jobs"]}
    assert (rows["fft_german_s1"], rows["lora_german_s1"]) == ("k8s", None)


def test_jobs_without_a_value_are_counted_under_a_dash(lab):
    lab.put("base", "failed", reason="out of memory")
    rows = [line.split() for line in lab.run("status", "--by", "reason").out.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [("-", "8"), ("out", "1")]
    assert lab.run("status", "--by", "reason", "--json").json[0]["reason"] == ""
    assert lab.run("status", "--by", "reason", "--format", "csv").out.splitlines()[1].startswith(",")
