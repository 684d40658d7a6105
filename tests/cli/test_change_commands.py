"""requeue, hold, cancel, delete, edit, pause and drain: what they change, what they refuse, and what they ask."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess

import pytest

from dispatcher import Workspace
from dispatcher.base.users import user_at_host
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.states import State


def journal_of(lab, job):
    return [(line.event, line.by) for line in lab.workspace.history(job)]


def test_requeue_by_name(lab):
    lab.put("base", "failed", reason="exit 1", exit_code=1)
    outcome = lab.run("requeue", "base")
    assert (outcome.code, outcome.out) == (0, "base: requeued\n")
    line = json.loads(lab.layout.status_file.read_text())["base"]
    assert (line["state"], line.get("reason"), line["attempt"]) == ("queued", None, 1)
    event, by = journal_of(lab, "base")[-1]
    assert event == "requeued"
    assert "@" in by


def test_a_glob_leaves_alone_what_is_done_or_runs(lab):
    lab.put("fft_german_s1", "done")
    lab.put("fft_german_s2", "running")
    lab.put("fft_spanish_s1", "failed")
    outcome = lab.run("requeue", "fft_*")
    assert outcome.out == "fft_spanish_s1: requeued\n"
    assert "2 jobs matched and left alone" in outcome.err
    assert (lab.state("fft_german_s1"), lab.state("fft_german_s2")) == ("done", "running")


def test_states_and_values_together(lab):
    for job in ("fft_german_s1", "lora_german_s1", "lora_spanish_s1"):
        lab.put(job, "done")
    assert lab.run("requeue", "--state", "done", "--where", "lang=german", "lora*").out == "lora_german_s1: requeued\n"


def test_a_running_job_that_is_named_is_asked_to_stop(lab):
    lab.put("base", "running")
    cancelled = lab.run("cancel", "base")
    assert cancelled.out == "base: stop requested\n"
    goes_on = "no pod is running, so base keeps running until one starts or `dispatcher poll` stops it"
    assert goes_on in " ".join(cancelled.err.split())
    assert json.loads(lab.layout.status_file.read_text())["base"]["desired"] == "abandoned"
    assert "running -> abandoned" in lab.run("status").out


def test_done_by_hand(lab):
    lab.put("base", "failed", reason="exit 1", exit_code=1)
    lab.attempt("base", 1, result='{"loss": 3}', exit='{"exit_code": 1}')
    assert lab.run("mark", "done", "base", "fft_german_s1").out == "base: set by hand\nfft_german_s1: set by hand\n"
    line = json.loads(lab.layout.status_file.read_text())["base"]
    assert (line["state"], line["reason"], line.get("exit_code")) == ("done", "set by hand", None)
    assert "done 2 (2 set by hand)" in lab.run("status").out
    assert "set by hand" in lab.run("show", "base").out
    assert journal_of(lab, "base")[-1][0] == "marked"
    assert lab.run("history", "base").out.splitlines()[-1].endswith("set by hand  state=done")
    # Nothing says that it ran to its end.
    assert lab.run("results", "--json").json == []
    # What needs it may run now.
    assert "needs base" not in lab.run("status").out


def test_done_by_hand_is_refused_while_it_runs(lab):
    lab.put("base", "running")
    outcome = lab.run("mark", "done", "base")
    assert outcome.code == 1
    assert "it is running" in outcome.err
    assert "set it to abandoned to stop it" in outcome.err
    assert lab.state("base") == "running"
    assert lab.run("mark", "running", "base").code == 2


def test_refusals_are_told_and_the_rest_is_done(lab):
    lab.put("base", "done")
    outcome = lab.run("cancel", "base", "fft_german_s1")
    assert outcome.code == 1
    assert outcome.out == "fft_german_s1: abandoned\n"
    assert outcome.err.startswith("base: refused: it is done")


def test_nothing_to_do(lab):
    outcome = lab.run("requeue", "--state", "failed")
    assert (outcome.code, outcome.out) == (0, "nothing to requeue: no job matches\n")
    assert lab.run("requeue", "base").out == "base: already queued\n"
    lab.put("base", "done")
    lab.put("fft_german_s1", "held")
    # Of jobs that are as they should be, nobody is told to name them.
    outcome = lab.run("hold", "fft_german_s1*", "base*")
    assert outcome.out == "nothing to hold: 1 job is already held\n"
    assert outcome.err == "note: 1 job matched and left alone (base): name it exactly, or use --state\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "name the jobs"),
        (["bas"], "did you mean 'base'?"),
        (["x*"], "no job matches"),
        (["--state", "failled"], "did you mean 'failed'?"),
    ],
)
def test_mistakes_are_named(lab, words, part):
    outcome = lab.run("hold", *words)
    assert outcome.code == 2
    assert part in outcome.err


def on_terminal(lab, *words, answer=b"", **env):
    """A command with a terminal of its own; its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    process = lab.start(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    os.write(ours, answer)
    written = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(timeout=20), written.decode()


def many(lab):
    lab.write_manifest([{"job_id": f"job_{n}", "method": "fft"} for n in range(30)])


# Each brings 30 jobs into another state; the state before, and what is asked.
CHANGES = [
    (("hold", "job_*"), "queued", "held"),
    (("cancel", "job_*"), "queued", "abandoned"),
    (("requeue", "job_*"), "failed", "queued"),
    (("mark", "done", "job_*"), "failed", "done"),
    (("delete", "job_*"), "failed", "queued"),
]


@pytest.mark.parametrize(("words", "before", "after"), CHANGES)
def test_many_jobs_are_changed_after_a_question_only(lab, words, before, after):
    many(lab)
    for number in range(30):
        lab.put(f"job_{number}", before)
    verb = "delete the records of" if words[0] == "delete" else " ".join(words[:-1])
    question = f"{verb} 30 jobs (30 {before}): job_0, job_1, job_2, ...?"
    unchanged = lab.snapshot()
    refused = lab.run(*words)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.splitlines()[-1] == f"dispatcher: {question} There is no terminal to ask on: add --yes"
    code, written = on_terminal(lab, *words, answer=b"n\n")
    assert code == 1
    assert written.endswith(f"{question} [y/N]: dispatcher: nothing was changed\r\n")
    assert lab.snapshot() == unchanged
    code, written = on_terminal(lab, *words, answer=b"y\n")
    assert code == 0
    assert question in written
    assert lab.run("status", "--json").json["counts"][after] == 30


def test_few_jobs_are_changed_without_a_question(lab):
    many(lab)
    assert lab.run("hold", *(f"job_{number}" for number in range(20))).code == 0
    assert lab.run("hold", *(f"job_{number}" for number in range(21))).code == 2


def test_many_jobs_without_a_question(lab):
    many(lab)
    assert lab.run("hold", "job_*", "--yes").out == "30 jobs: held\n"
    code, written = on_terminal(lab, "requeue", "job_*", "--yes")
    assert (code, written) == (0, "30 jobs: requeued\r\n")


def test_the_question_does_not_go_to_a_file(lab, tmp_path):
    """With its output in a file or a pipe, a command still asks on the terminal."""
    many(lab)
    ours, theirs = pty.openpty()
    with open(tmp_path / "out", "wb") as out:
        process = lab.start("hold", "job_*", "--json", stdin=theirs, stdout=out, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"y\n")
    assert process.wait(timeout=20) == 0
    assert b"hold 30 jobs" in os.read(ours, 4096)
    os.close(ours)
    assert len(json.loads((tmp_path / "out").read_text())["changed"]) == 30


def test_colour_on_a_terminal_only(lab):
    lab.put("base", "failed")
    assert "\x1b[31mfailed 1\x1b[0m" in on_terminal(lab, "status")[1]
    assert "\x1b" not in on_terminal(lab, "status", NO_COLOR="1")[1]
    assert "\x1b" not in lab.run("status").out


def test_delete(lab):
    lab.put("base", "failed")
    lab.put("stranger", "failed")
    lab.put("fft_german_s1", "running")
    assert "there is no terminal" in lab.run("delete", "stranger").err.lower()
    outcome = lab.run("delete", "stranger", "--yes")
    assert (outcome.out, outcome.err) == ("stranger: deleted\n", "")
    outcome = lab.run("delete", "base", "--yes")
    assert outcome.out == "base: deleted\n"
    assert "base is still in a manifest and will be queued and run again" in outcome.err
    outcome = lab.run("delete", "fft_german_s1", "--yes")
    assert outcome.code == 1
    assert outcome.err == "dispatcher: fft_german_s1: running; cancel it first (`dispatcher cancel fft_german_s1`)\n"
    lab.put("external", "running", external=True)
    assert "record how first (`dispatcher mark failed external`)" in lab.run("delete", "external", "--yes").err
    assert list(json.loads(lab.layout.status_file.read_text())) == ["fft_german_s1", "external"]
    assert [event for event, _ in journal_of(lab, "stranger")][-1] == "deleted"


def test_delete_warns_before_it_asks(lab):
    """Somebody who wants a job gone for good must learn before the answer that its manifest brings it back."""
    lab.put("base", "failed")
    code, written = on_terminal(lab, "delete", "base", answer=b"n\n")
    assert code != 0
    assert (
        0
        <= written.index("will be queued and run again")
        < written.index("delete the record of 1 job (1 failed): base?")
    )
    assert lab.state("base") == "failed"


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Makes an editor of a shell script, whose first argument is the file."""

    def make(script):
        path = tmp_path / "my editor"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("EDITOR", f"'{path}'")
        monkeypatch.delenv("VISUAL", raising=False)

    return make


def test_edit(lab, editor):
    lab.put("base", "failed")
    lab.put("fft_german_s1", "failed")
    editor("""sed -i 's/"state": "failed"/"state": "queued","note":"check LR"/' "$1" """)
    assert lab.run("edit", "base").out == "base: requeued\n"
    line = json.loads(lab.layout.status_file.read_text())["base"]
    assert (line["state"], line["note"]) == ("queued", "check LR")
    assert lab.state("fft_german_s1") == "failed"


def test_edit_without_a_change(lab, editor):
    lab.put("base", "failed")
    editor("true")
    before = lab.snapshot()
    assert lab.run("edit").out == "nothing was changed\n"
    assert lab.snapshot() == before


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("""sed -i 's/"failed"/"quued"/' "$1" """, "did you mean 'queued'?"),
        ("""printf '}' >>"$1" """, "the edited copy: line 4"),
        ("""echo '{}' >"$1" """, "the line was removed"),
        ("""sed -i 's/"attempt": 1/"attempt": 9/' "$1" """, "only dispatchers may change attempt"),
        ("exit 3", "exited with status 3"),
    ],
)
def test_edit_applies_nothing_that_has_a_fault(lab, editor, script, part):
    lab.put("base", "failed")
    editor(script)
    before = lab.snapshot()
    outcome = lab.run("edit")
    assert outcome.code in (1, 2)
    assert part in outcome.err
    assert lab.snapshot() == before


def test_edit_without_an_editor_and_a_terminal(lab, monkeypatch):
    lab.put("base", "failed")
    for name in ("EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    before = lab.snapshot()
    outcome = lab.run("edit", "base")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no terminal for vi, and EDITOR is not set" in outcome.err
    assert lab.snapshot() == before
    # No editor is needed for this.
    assert lab.run("edit", "--clear-refused").out == "0 refused hand edits cleared\n"
    monkeypatch.setenv("EDITOR", "sed -i s/failed/queued/")
    assert lab.run("edit", "base").out == "base: requeued\n"


def test_edit_again_after_a_fault(lab, editor, tmp_path):
    lab.put("base", "failed")
    # The first time a slip of the pen, the second time right.
    editor(
        f"""if [ -e '{tmp_path}/once' ]; then sed -i 's/quued/queued/' "$1";
        else touch '{tmp_path}/once'; sed -i 's/"failed"/"quued"/' "$1"; fi"""
    )
    code, written = on_terminal(lab, "edit", answer=b"y\n", EDITOR=os.environ["EDITOR"])
    assert code == 0
    assert "did you mean 'queued'?" in written
    assert lab.state("base") == "queued"


def test_edit_of_a_job_that_changes_meanwhile(lab, editor):
    lab.put("base", "failed")
    program = "from dispatcher import Workspace; w = Workspace();\nw.hold('base')"
    import sys

    editor(f"""DISPATCHER_ROOT="$LAB" "{sys.executable}" -c "{program}" && sed -i 's/"failed"/"queued"/' "$1" """)
    process = lab.start(
        "edit", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env={"EDITOR": os.environ["EDITOR"], "LAB": lab.root}
    )
    out, _ = process.communicate(timeout=20)
    # Whoever wanted it queued still wants so, and a held job can be.
    assert out == b"base: requeued\n"
    assert lab.state("base") == "queued"


def test_edit_of_a_broken_status_file_leaves_it_alone(lab, editor):
    lab.put("base", "failed")
    broken = lab.layout.status_file.read_text() + "}"
    lab.layout.status_file.write_text(broken)
    editor("""sed -i 's/"failed"/"queued"/' "$1" """)
    assert lab.run("edit").out == "base: requeued\n"
    assert lab.layout.status_file.read_text() == broken


def test_unpause(lab):
    with lab.workspace.transaction() as tx:
        tx.note(Paused(scope="lora", why="5 failed alike"))
    assert "did you mean 'lora'?" in lab.run("unpause", "loro").err
    assert lab.run("unpause", "lora").out == "lora unpaused\n"
    assert "nothing is" in lab.run("unpause", "lora").err
    assert lab.run("status").err == ""


def test_pause_a_method(lab):
    assert "unknown method 'loro' (did you mean 'lora'?)" in lab.run("pause", "loro").err
    assert lab.run("pause", "lora", "--why", "tokenizer is broken").out == "lora paused\n"
    notice = lab.run("status").err
    assert "method lora is paused since" in notice
    assert "tokenizer is broken" in notice
    assert "dispatcher unpause lora" in notice
    assert f"by {user_at_host()}" in notice
    again = lab.run("pause", "lora")
    assert (again.code, "lora is already paused" in again.err) == (2, True)
    assert lab.run("unpause", "lora").code == 0
    assert lab.run("status").err == ""
    lab.run("pause", "lora")
    assert f": no reason given (by {user_at_host()})" in lab.run("status").err


@pytest.mark.parametrize(
    ("scope", "part"),
    [
        ("gpu:nowhere:0", "unknown host 'nowhere'"),
        ("host:nowhere", "unknown host 'nowhere'"),
        ("gpu:nowhere", "gpu:nowhere:0"),
        ("gpu:nowhere:x", "gpu:HOST:N"),
        ("gpu:0", "gpu:HOST:N, for example gpu:node1:0"),
        ("pod:a", "a method, METHOD:KEY=VALUE, gpu:HOST:N, host:HOST or host:HOST:METHOD"),
    ],
)
def test_pause_refuses_a_scope_that_nothing_has(lab, scope, part):
    outcome = lab.run("pause", scope)
    assert outcome.code == 2
    assert part in outcome.err
    assert list(lab.workspace.history()) == []


def test_the_hint_for_a_word_of_other_tools(lab):
    words = {"abandon": "cancel", "stop": "cancel", "rm": "delete", "resume": "unpause", "retry": "requeue"}
    for word, verb in {**words, "requeu": "requeue", "ls": "status", "run": "--pod NAME"}.items():
        outcome = lab.run(word, "base")
        assert outcome.code == 2
        assert f"no such command '{word}' (did you mean '{verb}'?)" in outcome.err


def test_the_priority_and_the_time_limit_of_jobs_are_changed(lab):
    outcome = lab.run("update", "base", "--priority", "5", "--time-limit", "90m")
    assert (outcome.code, outcome.out) == (0, "base: priority 5, time_limit 90m\n")
    assert lab.run("update", "base", "--priority", "5").out == "base: already priority 5\n"
    lab.put("fft_german_s1", "running")
    lab.put("fft_german_s2", "done")
    outcome = lab.run("update", "fft_*", "--time-limit", "300")
    assert outcome.out.splitlines() == [f"fft_spanish_s{seed}: time_limit 300s" for seed in (1, 2)]
    assert "2 jobs matched and left alone (fft_german_s1, fft_german_s2)" in outcome.err
    assert lab.run("update", "fft_german_s1", "--priority", "1").out.endswith("priority 1, from its next attempt on\n")
    lines = json.loads(lab.layout.status_file.read_text())
    assert (lines["base"]["priority"], lines["base"]["time_limit"], lines["base"]["state"]) == (5, "90m", "queued")
    limited = lab.run("status", "--where", "time_limit=300s").out
    assert "2 jobs: queued 2" in limited
    assert "what is to change? --priority N, --time-limit TIME, or --method" in lab.run("update", "base").err
    assert "expected a time such as 90m" in lab.run("update", "base", "--time-limit", "soon").err
    assert "name the jobs" in lab.run("update", "--priority", "1").err


def test_a_job_ends_by_the_time_limit_that_it_was_given_by_command(fleet):
    fleet.write_manifest([{"job_id": "a", "method": "m", "command": "sleep 600", "gpus": 0, "time_limit": "8h"}])
    workspace = Workspace(fleet.root)
    assert workspace.update("a", time_limit="1s").changed == {"a": "time_limit 1s"}
    fleet.run_all("--slots", "1")
    record = workspace.records()["a"]
    assert (record.state, record.reason) == (State.FAILED, "time limit")
    assert json.loads(workspace.layout.attempt("a", 1).entry.read_text())["time_limit"] == "1s"


def test_max_running_of_a_method_is_written_into_the_settings(lab):
    lab.layout.config_file.write_text("# ours\nmethods:\n  fft: {gpus: 0}  # small\n")
    os.chmod(lab.layout.config_file, 0o640)
    outcome = lab.run("update", "--method", "fft", "--max-running", "4")
    assert outcome.out == f"{lab.layout.config_file}: max_running of fft is 4\n"
    assert lab.layout.config_file.read_text() == "# ours\nmethods:\n  fft: {max_running: 4, gpus: 0}  # small\n"
    assert stat.S_IMODE(lab.layout.config_file.stat().st_mode) == 0o640
    assert Workspace(lab.root).config.method("fft").max_running == 4
    assert "for --method METHOD alone" in lab.run("update", "base", "--method", "fft", "--max-running", "4").err
    lab.layout.config_file.write_text("methods: &x {fft: {gpus: 0}}\nother: *x\n")
    assert lab.run("update", "--method", "fft", "--max-running", "4").code == 1, "it is broken already"
    assert lab.layout.config_file.read_text() == "methods: &x {fft: {gpus: 0}}\nother: *x\n"
