"""show, logs, history, pods, drain and results; and a workspace of `init` that really runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from dispatcher.run_state import liveness
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State


def ended(code: int) -> str:
    """What a wrapper writes."""
    return f'{{"exit_code": {code}, "ended_at": "2026-06-17T22:48:00Z"}}\n'


def test_logs(lab):
    lab.put("base", "failed")
    lab.put("base", "queued")
    lab.attempt("base", 1, log="one\ntwo\nthree\n")
    assert lab.run("logs", "base").out == "one\ntwo\nthree\n"
    assert lab.run("logs", "base", "--tail", "2").out == "two\nthree\n"
    assert lab.run("logs", "base", "--tail", "0").out == ""
    assert lab.run("logs", "base", "--tail", "9").out == "one\ntwo\nthree\n"
    outcome = lab.run("logs", "base", "--attempt", "7")
    assert outcome.code == 1
    assert "no attempt 7 (attempts: 1)" in outcome.err
    assert "has not run yet" in lab.run("logs", "fft_german_s1").err
    assert "did you mean 'base'?" in lab.run("logs", "bas").err


def test_logs_of_another_rank(lab):
    lab.put("base", "failed")
    directory = lab.attempt("base", 1, log="of rank 0\n")
    (directory / "output.1.log").write_text("of rank 1\nends\n")
    assert lab.run("logs", "base").out == "of rank 0\n"
    assert lab.run("logs", "base", "--rank", "1").out == "of rank 1\nends\n"
    assert lab.run("logs", "base", "--rank", "1", "-n", "1").out == "ends\n"
    outcome = lab.run("logs", "base", "--rank", "2")
    assert (outcome.code, outcome.out) == (1, "")
    assert "attempt 1 of base has no log of rank 2, only of ranks 0, 1; others come when the attempt has" in outcome.err
    (directory / "exit.json").write_text("{}")
    assert lab.run("logs", "base", "--rank", "2").err.endswith("has no log of rank 2, only of ranks 0, 1\n")
    (directory / "output.1.log").unlink()
    assert lab.run("logs", "base", "--rank", "2").err.endswith("has no log of rank 2, only of rank 0\n")


@pytest.mark.parametrize("how", ["exit", "record", "killed"])
def test_following_ends_with_the_attempt(lab, how):
    lab.put("base", "running")
    directory = lab.attempt("base", 1, alive="")
    liveness_lock = liveness.take(directory / "alive")
    assert liveness_lock is not None
    process = lab.start("logs", "-f", "base", stdout=subprocess.PIPE)
    assert process.stdout is not None
    with open(directory / "output.log", "w", buffering=1) as log:
        log.write("first\n")
        assert process.stdout.readline() == b"first\n"
        log.write("last\n")
    if how == "exit":
        (directory / "exit.json").write_text('{"exit_code": 0}')
    elif how == "record":
        with lab.workspace.transaction() as tx:
            tx.change("base", Event.DONE, Change(state=State.DONE))
    else:
        os.close(liveness_lock)
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == (b"last\n", 0)
    if how != "killed":
        os.close(liveness_lock)


def test_show(lab):
    lab.put("base", "failed", reason="exit 3", error="boom")
    lab.attempt("base", 1, log="x", exit='{"exit_code": 3, "reason": "", "ended_at": "2026-06-17T22:48:00Z"}')
    out = lab.run("show", "base").out
    for part in ("failed", "exit 3", "boom", "pretrain"):
        assert part in out
    document = lab.run("show", "fft_german_s1", "--json").json
    assert document["why"] == "needs base (failed: exit 3)"
    assert document["entry"]["lang"] == "german"
    assert document["attempts"] == []


def test_show_has_the_reason_of_each_attempt_on_a_line_of_its_own(lab, monkeypatch):
    lab.put("base", "running", host="node-17.cluster.example", started_at="2026-06-16T20:00:00.123Z")
    ends = [
        (Event.RETRIED, State.QUEUED, 137, "out of memory", f"RESOURCE: {'x' * 200}", "2026-06-16T20:12:00.456Z"),
        (Event.AUTO_REQUEUED, State.QUEUED, 143, "preempted", None, "2026-06-16T21:00:00.000Z"),
        (Event.FAILED, State.FAILED, 3, "exit 3", "ValueError: boom", "2026-06-16T22:00:00.000Z"),
    ]  # fmt: skip
    for number, (event, state, code, reason, error, at) in enumerate(ends, 1):
        # The wrapper knows nothing of most reasons.
        lab.attempt("base", number, log="x", exit=json.dumps({"exit_code": code, "reason": "", "ended_at": at}))
        change = Change(state=state, exit_code=code, reason=reason, error=error, finished_at=at)
        with lab.workspace.transaction() as tx:
            tx.change("base", event, change)
            if state is State.QUEUED:
                again = Change(state=State.RUNNING, attempt=number + 1, started_at=at, reason=None, error=None)
                tx.change("base", Event.CLAIMED, again)
    reasons = [attempt["reason"] for attempt in lab.run("show", "base", "--json").json["attempts"]]
    assert reasons == ["out of memory", "preempted", "exit 3"]
    monkeypatch.setattr("dispatcher.cli.printing.terminal_width", lambda: 80)
    out = lab.run("show", "base", "--utc").out
    assert max(map(len, out.splitlines())) <= 80
    first, second, third = out.splitlines()[-4:-1]
    assert out.splitlines()[-1] == "(no room for: host)"
    assert re.match(r" +1  2026-06-16 20:00:00Z  12m00s +137  out of memory  RESOURCE: x+…$", first), first
    assert re.match(r" +2  2026-06-16 20:12:00Z  47m59s +143  preempted$", second), second
    assert re.match(r" +3  2026-06-16 21:00:00Z  1h00m +3  exit 3 +ValueError: boom", third), third
    assert re.search(r"^finished_at +2026-06-16 22:00:00Z$", out, re.M)
    assert lab.run("show", "base", "--json").json["finished_at"] == "2026-06-16T22:00:00.000Z"


def test_show_tells_what_the_bootstrap_says_of_its_run(lab):
    run = {
        "run_id": "5f2a", "status": "running", "error": None, "host": "node7", "pid": 4, "commit": "c0ffee",
        "devices": 8, "chip": "NVIDIA H100", "processes": 2, "heartbeat_at": "2026-06-17T22:48:00.000Z",
    }  # fmt: skip
    lab.put("base", "running")
    directory = lab.attempt("base", 1)
    (directory / "run.json").write_text(json.dumps(run))
    out = lab.run("show", "base", "--utc").out
    assert "5f2a, running on node7, 8 x NVIDIA H100 in 2 processes" in out
    assert "c0ffee" in out
    assert re.search(r"^heartbeat +2026-06-17 22:48:00Z$", out, re.M)
    assert lab.run("show", "base", "--json").json["attempts"][0]["run"] == run
    (directory / "run.json").write_text(json.dumps({**run, "status": "failed", "error": "ValueError: boom"}))
    out = lab.run("show", "base").out
    assert "ValueError: boom" in out
    assert "22:48" not in out, "a run that has ended has no heartbeat"
    (directory / "run.json").write_text("{half")
    assert lab.run("show", "base").code == 0


def test_names_of_fields_do_not_control_the_terminal(lab):
    lab.write_manifest([{"job_id": "a", "method": "m", "x\x1b[31mred": "1\x1b[2J  2"}])
    out = lab.run("show", "a").out
    assert "  x?[31mred  1?[2J  2\n" in out
    assert "\x1b" not in out


def test_history(lab):
    lab.put("base", "failed")
    lab.put("fft_german_s1", "held")
    assert [line.split()[2] for line in history(lab, "base")] == ["queued", "claimed", "failed"]
    assert len(history(lab, "-n", "2")) == 2
    assert [line["event"] for line in lab.run("history", "base", "--json").json] == ["queued", "claimed", "failed"]
    assert lab.run("history", "fft_german_s2").out == ""
    assert lab.run("history", "nope").code == 2


def history(lab, *words):
    """The lines of the table."""
    outcome = lab.run("history", *words)
    assert outcome.code == 0, outcome.err
    return outcome.out.splitlines()[2:]


def test_history_of_jobs_events_and_times(lab):
    for job in ("base", "fft_german_s1", "lora_german_s1", "lora_spanish_s2"):
        lab.put(job, "failed", reason="exit 3", error="ValueError: boom")
    lab.workspace.delete("lora_spanish_s2")
    assert {line.split()[3] for line in history(lab, "fft*", "lora_g*")} == {"fft_german_s1", "lora_german_s1"}
    assert {line.split()[3] for line in history(lab, "--where", "lang=german", "--where", "method=lora")} == {
        "lora_german_s1"
    }
    failed = history(lab, "--event", "failed,deleted", "--event", "held")
    assert [line.split()[2:4] for line in failed] == [
        ["failed", "base"], ["failed", "fft_german_s1"], ["failed", "lora_german_s1"], ["failed", "lora_spanish_s2"],
        ["deleted", "lora_spanish_s2"],
    ]  # fmt: skip
    assert failed[0].endswith("exit 3: ValueError: boom")
    assert len(history(lab, "lora_spanish_s2")) == 4, "the history of a deleted job stays"
    last = lab.run("history", "--json").json[-1]
    assert len(history(lab, "--since", last["at"])) == 1
    assert len(history(lab, "--since", "1h")) == 13
    soon = lab.run("history", "--since", "2100-01-01")
    assert (soon.code, soon.out, soon.err) == (0, "", "note: no changes\n")
    unknown = lab.run("history", "nobody")
    assert (unknown.code, unknown.out) == (2, "")
    assert unknown.err.startswith("dispatcher: unknown job 'nobody'")
    columns = {line.index(" test ") for line in history(lab)}
    assert len(columns) == 1, "aligned"


def test_history_names_what_is_wrong(lab):
    lab.put("base", "failed")
    outcome = lab.run("history", "--event", "fialed")
    assert outcome.code == 2
    assert "--event fialed: unknown event; the events are queued, code_kept, claimed" in outcome.err
    outcome = lab.run("history", "--since", "2x")
    assert (outcome.code, "--since 2x: expected" in outcome.err) == (2, True)
    assert "did you mean 'lang'" in lab.run("history", "--where", "lnag=german").err
    outcome = lab.run("history", "base", "fft_nope")
    assert (outcome.code, "unknown job 'fft_nope'" in outcome.err) == (2, True)
    assert "no job matches" in lab.run("history", "nope*").err


def test_history_is_shown_in_local_time_or_utc(lab, monkeypatch):
    lab.put("base", "queued")
    at = lab.run("history", "--json").json[0]["at"]
    assert re.search(rf"(?m)^{at[11:19]}Z  ", lab.run("history", "--utc").out)
    out = lab.start("history", stdout=subprocess.PIPE, env={"TZ": "XXX-12"}).communicate(timeout=20)[0].decode()
    hour = (int(at[11:13]) + 12) % 24
    assert re.search(rf"(?m)^{hour:02d}{at[13:19]}  ", out), out


RESULTS = {
    ("fft", "german", 1): 2.0,
    ("fft", "german", 2): 3.0,
    ("fft", "spanish", 1): 1.5,
    ("lora", "german", 1): 2.5,
}


@pytest.fixture
def done(lab):
    for (method, lang, seed), bpc in RESULTS.items():
        job = f"{method}_{lang}_s{seed}"
        lab.put(job, "done")
        lab.attempt(job, 1, result=json.dumps({"test_bpc": bpc, "note": "a, b"}), exit=ended(0))
    return lab


def test_results_rows(done):
    rows = done.run("results", "--json").json
    assert rows[0] == {
        "job_id": "fft_german_s1", "state": "done", "method": "fft", "lang": "german", "seed": 1, "attempt": 1,
        "started_at": None, "finished_at": None, "test_bpc": 2.0, "note": "a, b",
    }  # fmt: skip
    assert len(rows) == 4
    assert done.run("results", "--format", "csv", "--where", "method=lora").out.splitlines()[1].endswith('2.5,"a, b"')


def test_results_of_a_job_that_runs_once_more(done):
    done.run("requeue", "fft_spanish_s1")
    done.put("fft_spanish_s1", "running")
    done.attempt("fft_spanish_s1", 2, result='{"test_bpc": 99}')
    row = done.run("results", "--json", "--where", "job_id=fft_spanish_s1").json
    assert [(r["attempt"], r["test_bpc"]) for r in row] == [(1, 1.5)]


def test_a_result_that_is_no_object_is_said(done):
    done.attempt("fft_german_s2", 1, result='{"test_bpc": 3.', exit=ended(0))
    assert len(done.run("results", "--json").json) == 4
    table = done.run("results", "--rows", "lang", "--value", "test_bpc")
    assert "1 result without test_bpc left out: fft_german_s2" in table.err
    assert "note: 1 result without values, because of result.json:\n      " in table.err
    assert "fft_german_s2: not a JSON object" in table.err


def test_a_failed_job_has_no_result_and_that_is_said(done):
    done.put("lora_spanish_s1", "failed", reason="exit 1")
    done.attempt("lora_spanish_s1", 1, result='{"test_bpc": 0.1}', exit=ended(1))
    done.put("lora_spanish_s2", "failed", reason="exit 1")
    done.attempt("lora_spanish_s2", 1, exit=ended(1))
    outcome = done.run("results", "--format", "csv")
    assert len(outcome.out.splitlines()) == 5
    assert "note: 1 job left out that wrote a result, but failed: lora_spanish_s1\n" in outcome.err
    # An earlier attempt that has succeeded counts.
    done.run("requeue", "fft_spanish_s1")
    done.put("fft_spanish_s1", "failed", reason="exit 1")
    done.attempt("fft_spanish_s1", 2, result='{"test_bpc": 0.1}', exit=ended(1))
    assert len(done.run("results", "--json").json) == 4


def test_results_pivot(done):
    words = "results --rows lang --cols method --value test_bpc --agg mean,std,best,n --best min --json"
    german, spanish = done.run(*words.split()).json
    assert german["fft mean"] == 2.5
    assert german["fft std"] == pytest.approx(0.5**0.5)
    assert (german["fft best"], german["fft n"], german["lora std"]) == (2.0, 2, None)
    assert (spanish["fft mean"], spanish["lora mean"]) == (1.5, None)
    table = done.run("results", "--rows", "lang", "--cols", "method", "--value", "test_bpc").out.splitlines()
    assert [line.split() for line in table] == [
        ["lang", "fft", "lora"], ["-------", "---", "----"], ["german", "2.5", "2.5"], ["spanish", "1.5"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "cell", ['"NaN"', "NaN", "null", '"-Infinity"', "1e999", '"a text"', "true", '{"a": 1}', "[1]", "1" + "0" * 400]
)
def test_one_cell_never_refuses_a_table(done, tmp_path, cell):
    done.attempt("fft_german_s2", 1, result=f'{{"test_bpc": {cell}}}', exit=ended(0))
    rows = done.run("results", "--by", "lang,method", "--value", "test_bpc")
    assert rows.code == 0 and re.search(r"german +fft +2 \(1 of 2\)", rows.out)
    assert "1 result without test_bpc left out: fft_german_s2" in rows.err
    table = done.run("results", "--rows", "lang", "--cols", "method", "--value", "test_bpc", "--agg", "mean,sum,n")
    assert table.code == 0 and "2.5" in table.out
    drawn = done.run("results", "--by", "lang", "--value", "test_bpc", "--plot", str(tmp_path / "a.svg"))
    assert drawn.code == 0 and (tmp_path / "a.svg").exists()
    assert (
        done.run("results", "--sort", "-test_bpc").out.splitlines()[2].split()[0] != "fft_german_s2"
        or cell[0] in '1["{t'
    )
    found = done.workspace.results()
    assert len(found.to_pandas()) == len(found.to_polars()) == 4


def test_names_may_have_commas(done):
    for job in ("fft_german_s1", "fft_spanish_s1"):
        done.attempt(job, 1, result='{"test_bpc": 1, "loss, total": 2.0, "a,b": 3}', exit=ended(0))
    words = ("--value", "loss, total,test_bpc", "--value", "a,b", "--sort", "-loss, total mean,lang", "--agg", "mean,n")
    rows = done.run("results", "--by", "lang,method", *words, "--json")
    assert rows.code == 0, rows.err
    assert (rows.json[0]["loss, total mean"], rows.json[0]["a,b n"], rows.json[0]["test_bpc mean"]) == (2.0, 1, 2.0)
    unknown = done.run("results", "--by", "lang", "--value", "loss, totl")
    assert unknown.code == 2 and "no result has 'loss'" in unknown.err
    assert "names no key" in done.run("results", "--by", " , ", "--value", "test_bpc").err


def test_results_by_keys_say_how_many_jobs_are_missing(done):
    done.put("lora_spanish_s1", "failed", reason="exit 1")
    done.attempt("fft_german_s2", 1, result='{"test_bpc": NaN, "other": 4}', exit=ended(0))
    lines = done.run("results", "--by", "lang,method", "--value", "test_bpc,other").out.splitlines()
    assert [re.split(r"  +", line) for line in lines[2:]] == [
        ["german", "fft", "2 (1 of 2)", "4 (1 of 2)"],
        # No job of lora has another value to lack.
        ["german", "lora", "2.5 (1 of 2)"],
        ["spanish", "fft", "1.5 (1 of 2)", "- (0 of 2)"],
        ["spanish", "lora", "- (0 of 2)"],
    ]
    assert (
        "1 result without test_bpc left out: fft_german_s2"
        in done.run("results", "--by", "lang", "--value", "test_bpc").err
    )
    german, spanish = done.run("results", "--by", "lang", "--value", "test_bpc", "--json").json
    assert german == {
        "lang": "german", "test_bpc mean": 2.25, "test_bpc std": pytest.approx(0.125**0.5), "test_bpc n": 2,
        "test_bpc of": 4,
    }  # fmt: skip
    assert (spanish["test_bpc std"], spanish["test_bpc n"], spanish["test_bpc of"]) == (None, 1, 4)
    # base has no language, so it is a group of its own only where it is asked for.
    across = done.run("results", "--by", "lang", "--cols", "method", "--value", "test_bpc", "--where", "lang=german")
    assert "2 (1 of 2)" in across.out


def test_results_are_sorted_as_ps_sorts(done):
    def jobs(*words):
        outcome = done.run("results", "--format", "csv", *words)
        assert outcome.code == 0, outcome.err
        return [line.split(",")[0] for line in outcome.out.splitlines()[1:]]

    down = ["fft_german_s2", "lora_german_s1", "fft_german_s1", "fft_spanish_s1"]
    assert jobs("--sort", "test_bpc") == down[::-1]
    assert jobs("--sort=-test_bpc") == down
    assert jobs("--sort", "-test_bpc", "--top", "2") == down[:2]
    assert "note: the first 2 of 4 rows\n" in done.run("results", "--sort", "-test_bpc", "--top", "2").err
    assert "first" not in done.run("results", "--sort", "-test_bpc", "--top", "4").err
    done.attempt("fft_german_s2", 1, result='{"test_bpc": NaN}', exit=ended(0))
    done.attempt("lora_german_s1", 1, result='{"other": 1}', exit=ended(0))
    # What has no value is last in either direction.
    last = ["fft_german_s2", "lora_german_s1"]
    assert jobs("--sort", "test_bpc") == ["fft_spanish_s1", "fft_german_s1", *last]
    assert jobs("--sort", "-test_bpc") == ["fft_german_s1", "fft_spanish_s1", *last]
    assert jobs("--sort", "method,-seed")[:2] == ["fft_german_s2", "fft_german_s1"]
    grouped = done.run("results", "--by", "method", "--value", "test_bpc", "--sort", "-test_bpc").out.splitlines()
    assert [line.split()[0] for line in grouped[2:]] == ["fft", "lora", "pretrain"]


def test_results_are_plotted(done, tmp_path):
    (done.layout.attempt("fft_german_s1", 1).directory / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')

    def plot(name, *words):
        outcome = done.run("results", "--plot", str(tmp_path / name), *words)
        assert outcome.code == 0, outcome.err
        assert (tmp_path / name).stat().st_size > 1000
        return outcome.out

    where = f"{tmp_path}/"
    assert plot("a.png", "--by", "method,lang", "--value", "test_bpc", "--where", "seed=*") == (
        f"{where}a.png: bars of test_bpc by method, lang, 4 of 8 jobs\n"
    )
    assert plot("b.svg", "--rows", "lang", "--cols", "method", "--value", "test_bpc") == (
        f"{where}b.svg: heatmap of test_bpc by lang, method, 4 of 8 jobs\n"
    )
    assert (
        plot("c.pdf", "--by", "method", "--curves", "loss") == f"{where}c.pdf: curves of loss by method, 1 of 5 jobs\n"
    )
    outcome = done.run("results", "--plot", "/nonexistent/a.png", "--by", "lang", "--value", "test_bpc")
    assert (outcome.code, "cannot be written" in outcome.err) == (1, True)


def test_what_to_install_for_pictures_is_one_line(done, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = done.run("results", "--plot", str(tmp_path / "a.png"), "--by", "lang", "--value", "test_bpc")
    wanted = "--plot needs matplotlib, which is not installed: pip install 'dispatcher[plot]'\n"
    assert (outcome.code, outcome.err.endswith(wanted)) == (2, True)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--plot a.gif --by lang --value test_bpc", "ends with .png, .svg or .pdf"),
        ("--plot a.png --by lang", "--curves METRIC"),
        ("--plot a.png --value test_bpc", "bars need a key"),
        ("--plot a.png --by lang --kind heatmap --value test_bpc", "--rows KEY --cols KEY"),
        ("--plot a.png --by lang --kind curves", "curves are those of one metric"),
        ("--plot a.png --by lang --curves loss --value test_bpc", "leave one of them out"),
        ("--plot a.png --by lang --curves loss", "none has any"),
        ("--kind bars", "add --plot FILE"),
        ("--rows lang", "--value KEY"),
        ("--rows lang --value test_bcp", "did you mean 'test_bpc'?"),
        ("--rows lnag --value test_bpc", "did you mean 'lang'?"),
        ("--value nosuch", "no result has 'nosuch' (known: test_bpc, "),
        ("--value test_bpc --agg maen", "did you mean 'mean'?"),
        ("--value test_bpc --agg best", "--best min"),
        ("--by lang", "--value KEY"),
        ("--by lang --rows method --value test_bpc", "leave one of them out"),
        ("--top 3", "--sort -COLUMN"),
        ("--sort tets_bpc", "did you mean 'test_bpc'?"),
        ("--rows lang --value test_bpc --sort seed", "no column 'seed'"),
        ("--value note", "is not a number"),
    ],
)
def test_results_mistakes(done, words, part):
    outcome = done.run("results", *words.split())
    assert outcome.code == 2
    assert part in outcome.err


def test_pods_and_drain_of_a_real_pod(lab, until):
    lab.write_manifest([{"job_id": "slow", "method": "x", "command": "sleep 60"}])
    pod = lab.start("--pod", "pod-0", "--slots", "2", "--on-exit", "stop", stdout=subprocess.DEVNULL)
    try:
        until(lambda: lab.run("status", "--json").json["counts"]["running"] == 1, "the job runs")
        until(lambda: lab.run("pods", "--json").json[0]["busy"] == 1, "the pod says so")
        (row,) = lab.run("pods", "--json").json
        assert (row["pod"], row["alive"], row["state"], row["size"]) == ("pod-0", True, "running", 2)
        assert [slot["job"] for slot in row["slots"]] == ["slow/1", None]
        assert row["slots"][0]["elapsed_s"] >= 0
        assert re.search(r"^pod-0 +running +1/2 busy +\d+ s ago +\d+s ", lab.run("pods").out, re.M)
        assert "no pod 'pod-1' (did you mean 'pod-0'?)" in lab.run("drain", "pod-1").err
        assert "claim no more" in lab.run("drain", "pod-0").out
        until(lambda: lab.run("pods", "--json").json[0]["state"] == "draining", "the pod drains")
        assert lab.run("cancel", "slow").code == 0
        assert pod.wait(timeout=30) == 0
        assert lab.run("pods", "--json").json == []
        assert lab.run("pods").out == "no pod is running\n(1 pod has ended: --all)\n"
        assert lab.run("pods", "--all", "--json").json[0]["state"] == "ended"
        ended = lab.run("pods", "--all").out.splitlines()[2]
        assert re.match(r"pod-0 +ended +\d+ s ago +all ", ended), ended
        assert "is not running" in lab.run("drain", "pod-0").out
    finally:
        pod.kill()
        pod.wait()


def test_a_dead_pod_with_jobs_is_a_notice(lab, until):
    lab.write_manifest([{"job_id": "slow", "method": "x", "command": "sleep 60"}])
    pod = lab.start("--pod", "pod-0", "--slots", "1", stdout=subprocess.DEVNULL)
    try:
        until(lambda: lab.workspace.records()["slow"].pid is not None, "the job runs")
    finally:
        pod.kill()
        pod.wait()
    job = lab.workspace.records()["slow"].pid
    assert job is not None
    try:
        assert "pod pod-0 on " in lab.run("status").err
        assert lab.run("pods", "--json").json[0]["state"] == "dead"
    finally:
        os.kill(job, signal.SIGTERM)


def test_init_lays_a_workspace_that_runs(lab, tmp_path, monkeypatch):
    from dispatcher.cli.main import main

    monkeypatch.chdir(tmp_path)
    new = tmp_path / "b'; $(echo) foo"
    assert main(["init", new.name]) == 0
    assert main(["init", new.name]) == 2
    assert sorted(path.name for path in new.iterdir()) == [
        ".gitignore", "dispatcher.yaml", "matrix", "run_state", "scripts", "templates",
    ]  # fmt: skip
    sweep = new / "matrix" / "sweep.yaml"
    sweep.write_text(sweep.read_text().replace("steps: 200", "steps: 200, pause_s: 0"))
    monkeypatch.chdir(new)
    assert main(["matrix", "make", "matrix/sweep.yaml"]) == 0
    assert main(["matrix", "check"]) == 0
    assert lab.start("--root", str(new), "--pod", "p", "--slots", "2", "--until-empty").wait(timeout=60) == 0
    from dispatcher import Workspace

    results = Workspace(new).results()
    assert len(results) == 6
    assert all(row["loss"] < 0.1 for row in results)


def test_the_generation_script_of_init_writes_the_same_kind_of_manifest(tmp_path):
    import sys

    from dispatcher import Workspace
    from dispatcher.cli.main import main

    assert main(["init", str(tmp_path / "new")]) == 0
    subprocess.run([sys.executable, "scripts/make_matrix.py"], cwd=tmp_path / "new", check=True)
    assert len(Workspace(tmp_path / "new").entries()) == 6
