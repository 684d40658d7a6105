"""`dispatcher submit -- COMMAND`: jobs without a manifest, on real pods."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import commands
import pytest
from fleet import COMMAND, PATIENCE_S, Fleet, fleet_at, shell, wait_until
from submitting import fails, submit, written

from dispatcher import Workspace
from dispatcher.base.users import user_name
from dispatcher.cli.waiting import wait_for
from dispatcher.errors import StateError, StorageError, UsageError
from dispatcher.query.ends import Ends
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.replica import Replica

ECHO = "import sys, os; print(sys.argv[1:], os.environ.get('X'))"


def test_a_pod_without_a_manifest_runs_what_is_submitted_at_once(empty: Fleet) -> None:
    pod = empty.start(poll="600").ready()
    pod.says("only jobs of `dispatcher submit -- COMMAND` are run")
    assert submit(empty, "--wait", "--", "bash", "-c", "exit 7", status=7) == ["bash-1"]
    assert submit(empty, "--wait", "--", "true") == ["true-1"]
    assert submit(empty, "--wait", "--", "true") == ["true-2"]
    assert pod.is_running()
    assert empty.states() == {"bash-1": "failed", "true-1": "done", "true-2": "done"}


def test_jobs_are_beside_those_of_a_manifest(empty: Fleet) -> None:
    empty.write_manifest([shell("a", "true"), shell("b", "true")], name="other.json")
    empty.start("pod", "--matrix", "other.json", poll="600").ready()
    (job,) = submit(empty, "--wait", "--needs", "a", "--", "true")
    assert "manifest" not in empty.run("show", job)
    empty.wait_for("b", "done")
    empty.write_manifest([shell("c", "true")])
    assert "there is no such job" in fails(empty, "--needs", "d", "--", "true")
    assert "there is a job c already" in fails(empty, "--name", "c", "--", "true", status=1)
    assert "there is a job a already (done)" in fails(empty, "--name", "a", "--", "true", status=1)


def test_hostile_words_reach_the_job_as_they_are(empty: Fleet) -> None:
    words = [
        "a b",
        "$(touch pwned)",
        "it's",
        'say "x"',
        "new\nline",
        "{",
        '{"a": 1}',
        "",
        "--",
        "; echo foo",
        "`id`",
        "é",
    ]
    empty.start(poll="600").ready()
    values = ",".join(word.replace(",", "\\,") for word in ("$(touch pwned)", "a b"))
    submit(empty, "--wait", "--name", "plain", "--env", "X=$(touch pwned) '", "--", sys.executable, "-c", ECHO, *words)
    assert empty.output("plain") == f"{words!r} $(touch pwned) '\n"
    jobs = submit(empty, "--wait", "--param", f"v={values}", "--", sys.executable, "-c", ECHO, "--v={v}")
    assert [empty.output(job) for job in jobs] == ["['--v=$(touch pwned)'] None\n", "['--v=a b'] None\n"]
    assert not list(empty.root.rglob("pwned"))


def test_the_current_directory_is_where_the_command_runs(empty: Fleet, tmp_path: Path) -> None:
    place = empty.root / "it's" / "a $dir"
    place.mkdir(parents=True)
    (tmp_path / "link").symlink_to(place)
    empty.start(poll="600").ready()
    for start in (place, tmp_path / "link"):
        words = [*COMMAND, "submit", "--root", str(empty.root), "--wait", "--", "./x"]
        (place / "x").write_text("#!/bin/sh\necho here\n")
        (place / "x").chmod(0o755)
        commands.run(words, cwd=start, env=empty.environment(), check=True, timeout=PATIENCE_S)
    assert (empty.output("x-1"), empty.output("x-2")) == ("here\n", "here\n")
    assert {one["cwd"] for one in written(empty)} == {"it's/a $dir"}
    elsewhere = [*COMMAND, "submit", "--root", str(empty.root), "--wait", "--name", "root", "--", "bash", "-c", "pwd"]
    commands.run(elsewhere, cwd=tmp_path, env=empty.environment(), check=True, timeout=PATIENCE_S)
    assert empty.output("root") == f"{empty.root}\n"
    assert "no such directory" in fails(empty, "--cwd", "missing", "--", "true")
    place.rename(place.with_name("gone"))
    done = empty.run("requeue", "x-1", "--yes") and empty.wait_for("x-1", "failed")
    assert done.exit_code == 127
    assert f"the directory {place} of the entry's cwd cannot be entered" in empty.output("x-1", 2)


def test_nothing_is_written_when_anything_is_wrong(empty: Fleet) -> None:
    assert "{b}, which the entry does not have" in fails(empty, "--param", "a=1,2", "--", "echo", "{a}", "{b}")
    assert '--time-limit "soon": expected a time' in fails(empty, "--time-limit", "soon", "--", "true")
    assert '--name "../x": expected 1 to 200 letters' in fails(empty, "--name", "../x", "--", "true")
    assert "add --yes" in fails(empty, "--param", "a=1..1001", "--", "true")
    assert "put its command after `--`" in fails(empty, "--priority", "1")
    assert "either jobs that are queued" in fails(empty, "a", "--", "true")
    assert "dispatcher submit [OPTIONS] -- python x.py" in fails(empty, "python", "x.py")
    assert "expected a command" in fails(empty, "--")
    assert "no hosts are configured" in fails(empty, "--outlet", "h1", "--", "true")
    assert "--follow is for one" in fails(empty, "--follow", "--param", "a=1,2", "--", "echo", "{a}")
    assert "the column of a CSV file" in fails(empty, "--param", "name=a,b", "--", "echo", "{name}")
    for words in (["--env", "X=\udcff", "--", "true"], ["--param", "x=\udcff", "--", "echo", "{x}"], ["--", "\udcff"]):
        assert "not UTF-8" in fails(empty, *words)
    dry = submit(empty, "--dry-run", "--param", "a=1,2", "--", "echo", "{a}")
    assert dry
    assert not empty.layout.submitted_manifest.exists()
    assert not empty.layout.journal_dir.exists() or not empty.records()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"params": {"lr": [float("nan")]}}, "finite numbers"),
        ({"params": {"lr": [object()]}}, "an entry holds text"),
        ({"params": {"name": ["a", "b"]}}, "the column of a CSV file"),
        ({"rows": []}, "there is no job"),
        ({"rows": [{"name": "a"}, {}]}, "row 2 has other keys"),
        ({"rows": [{"x": 1}, {"y": 1}]}, "row 2 has other keys"),
        ({"rows": [{"job_id": "other"}]}, "job_id is a key of every entry"),
        ({"rows": [{"command": ["rm"]}]}, "command is a key of every entry"),
        ({"needs": "abc"}, "expected a list of job ids"),
        ({"needs": 5}, "expected a list of job ids"),
        ({"env": {"A": "\udcff"}}, "not UTF-8"),
    ],
)
def test_python_values_that_no_entry_can_have(empty: Fleet, keys: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Workspace(empty.root).submit(["true"], **keys)
    assert not empty.layout.submitted_manifest.exists()


def test_jobs_that_are_queued_are_reported_whatever_fails_then(empty: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("on purpose")

    monkeypatch.setattr(Projector, "write_before_exit", fail)
    workspace = Workspace(empty.root)
    assert workspace.submit(["true"]) == ["true-1"], "whoever is told that it failed submits it again"
    monkeypatch.setattr(Replica, "append", fail)
    with pytest.raises(StorageError, match="on purpose"):
        workspace.submit(["true"])
    monkeypatch.undo()
    assert empty.run_all().end() == 0
    assert empty.states() == {"true-1": "done"}


BROKEN_AT_FIRST = """
import sys
from dispatcher.errors import StorageError
from dispatcher.pod.backlog import Backlog
take_in, calls = Backlog._take_in, []
def fail_once(backlog, jobs):
    if jobs and not calls:
        calls.append(jobs)
        raise StorageError("on purpose")
    take_in(backlog, jobs)
Backlog._take_in = fail_once
from dispatcher.cli.main import main
sys.exit(main(["--pod", "p", "--slots", "1", "--poll-interval", "600"]))
"""


def test_jobs_that_a_pod_could_not_take_in_at_once_are_not_forgotten(empty: Fleet) -> None:
    pod = commands.Popen(
        [*COMMAND[:-1], BROKEN_AT_FIRST], cwd=empty.root, env=empty.environment(),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert pod.stdout is not None
        assert "no jobs" in pod.stdout.readline()
        submit(empty, "--wait", "--", "true")
    finally:
        pod.terminate()
        said, _ = pod.communicate(timeout=PATIENCE_S)
    assert "on purpose" in said


def test_a_file_that_cannot_be_read_stops_no_pod(empty: Fleet) -> None:
    submit(empty, "--name", "b", "--", "true")
    empty.write_manifest([shell("a", "true")])
    empty.layout.submitted_manifest.unlink()
    empty.layout.submitted_manifest.mkdir()
    pod = empty.run_all()
    assert pod.end() == 0
    assert empty.states() == {"a": "done", "b": "queued"}
    assert "submitted.jsonl cannot be read, so jobs in it may be missing" in pod.said
    assert "submitted.jsonl cannot be read" in empty.try_("status").stderr
    assert "submitted.jsonl" in fails(empty, "--", "true", status=1)


def test_a_manifest_that_is_gone_is_told_alike_by_pods_and_status(empty: Fleet) -> None:
    empty.write_manifest([shell("a", "true"), shell("b", "true")])
    submit(empty, "--name", "s", "--", "true")
    empty.start("queuing", "--methods", "none", "--until-empty").end()
    pod = empty.start("kept", "--methods", "none", poll="1").ready()
    away = empty.root / "away.json"
    empty.layout.default_matrix.rename(away)
    pod.says("matrix.json cannot be read, so the previous manifest is kept: No such file")
    wait_until(lambda: "previous manifest is kept" in empty.run("pods", "--json"), "the pod's file says so")
    lost = f"there is no {empty.layout.default_matrix}, and no other manifest lists a, b: restore it"
    assert lost in empty.try_("status").stderr
    second = empty.start("second", poll="600").ready()
    assert f"warning: {lost}" in second.says("restore it")
    empty.wait_for("s", "done")
    # Another manifest may list them.
    away.rename(empty.layout.default_matrix.with_name("b.json"))
    assert "there is no" not in empty.try_("status").stderr
    pod.stop()
    second.stop()
    assert "warning" not in empty.start("third", poll="600").ready().said


def test_a_file_of_submitted_jobs_that_is_gone_is_told_alike_by_pods_and_status(empty: Fleet) -> None:
    pod = empty.start(poll="1").ready()
    submit(empty, "--wait", "--name", "a", "--", "true")
    empty.layout.submitted_manifest.unlink()
    pod.says("submitted.jsonl is missing: jobs that were read from it go on")
    assert "submitted.jsonl is missing: the jobs in it are not known" in empty.try_("status").stderr
    pod.stop()
    pod = empty.start("second", poll="600").ready()
    assert "submitted.jsonl is missing: the jobs in it are not known" in pod.said


def test_what_is_wrong_with_submitted_jobs_is_found_by_matrix_check_and_doctor(empty: Fleet) -> None:
    submit(empty, "--name", "a", "--", "true")
    for job in ("lost", "gone", "twin"):
        submit(empty, "--name", job, "--needs", "a", "--", "true")
    assert "submitted.jsonl: 4 jobs" in empty.run("matrix", "check")
    assert "4 jobs" in empty.run("doctor", "--peer-wait", "0")
    empty.run("delete", "gone", "--yes")
    empty.write_manifest([shell("twin", "true")])
    done = empty.try_("matrix", "check")
    assert done.returncode == 0, done.stderr
    assert "1 line of no job (gone): deleted, or never queued" in done.stderr
    assert "twin: also in a manifest" in done.stderr
    path = empty.layout.submitted_manifest
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace('"command": ["true"], "method": "command"', '"method": "none"')
    lines[1] = lines[1].replace("}", "")
    lines[3] = lines[3].replace('["a"]', '["b"]')
    path.write_text("".join(f"{line}\n" for line in lines))
    done = empty.try_("matrix", "check")
    assert done.returncode == 1
    for fault in ("line 2: ", "lost: no line", "a: ", "twin: needs b: there is no such job"):
        assert fault in done.stderr
    doctor = empty.try_("doctor", "--peer-wait", "0")
    assert doctor.returncode == 1
    assert "twin: needs b: there is no such job" in doctor.stdout


def test_keys_of_the_entry(empty: Fleet) -> None:
    submit(empty, "--name", "first", "--", "true")
    options = [
        "--gpus",
        "2",
        "--cpus",
        "4",
        "--memory",
        "64G",
        "--priority",
        "-1",
        "--time-limit",
        "90",
        "--retries",
        "2",
    ]
    assert submit(empty, *options, "--needs", "first,first", "--env", "A=b=c", "--name", "x", "--", "./run") == ["x"]
    assert written(empty)[1] == {
        "job_id": "x", "command": ["./run"], "method": "command", "gpus": 2, "needs": ["first"], "priority": -1,
        "resources": {"cpus": 4, "memory": "65536M"}, "time_limit": 90.0, "retries": 2, "env": {"A": "b=c"},
        "user": user_name(),
    }  # fmt: skip


def test_options_that_look_right_and_are_not(empty: Fleet) -> None:
    done = empty.try_("submit", "--cwd", "/not/here", "--name", "away", "--", "true")
    assert (done.returncode, done.stdout) == (0, "away\n")
    assert "--cwd /not/here: there is no such directory here" in done.stderr
    assert '--name "my job": expected 1 to 200 letters' in fails(empty, "--name", "my job", "--", "true")
    for option, value, expected in (
        ("--cpus", "1.5", "expected a whole number, 1 or more"),
        ("--gpus", "9" * 30, "expected a whole number from 0 to 1000000000"),
        ("--priority", "1.5", "expected a whole number from -9223372036854775807 to"),
        ("--retries", "-1", "expected a whole number, 0 or more"),
        ("--memory", "0G", "more than nothing"),
        ("--time-limit", "nan", '--time-limit "nan": expected a time'),
    ):
        assert expected in fails(empty, option, value, "--", "true")
    for option in ("--needs", "--method", "--cwd"):
        assert f'{option} "": ' in fails(empty, option, "", "--", "true")
    (empty.root / "bad.csv").write_text('x,y\n1,2\n3,"4\n5,6\n')
    said = fails(empty, "--from", "bad.csv", "--", "echo", "{x}{y}")
    assert '--from bad.csv, line 3: a quotation mark (") is opened and never closed' in said


def test_submitted_jobs_are_checked_without_a_manifest(empty: Fleet) -> None:
    submit(empty, "--", "true")
    done = empty.try_("matrix", "check")
    assert (done.returncode, "1 job" in done.stdout) == (0, True), done.stderr
    assert "note: there is no " in done.stderr
    with open(empty.layout.submitted_manifest, "a") as file:
        file.write("no JSON\n")
    done = empty.try_("matrix", "check")
    assert done.stderr.count("matrix.json") == 1, done.stderr


def test_a_csv_file(empty: Fleet) -> None:
    (empty.root / "jobs.csv").write_text('name,text\na,"x, y"\nb,z\n')
    empty.start(poll="600").ready()
    assert submit(empty, "--from", "jobs.csv", "--wait", "--", "echo", "{text}") == ["a", "b"]
    assert (empty.output("a"), empty.output("b")) == ("x, y\n", "z\n")
    assert "there is a job a already (done), and 1 more" in fails(empty, "--from", "jobs.csv", "--", "true", status=1)


def test_a_csv_file_may_set_keys_of_entries(empty: Fleet) -> None:
    (empty.root / "jobs.csv").write_text("x,gpus,priority,needs,time_limit\n1,0,5,,90m\n2,,,first,\n1,2,,,60\n")
    submit(empty, "--name", "first", "--", "true")
    jobs = submit(empty, "--from", "jobs.csv", "--priority", "1", "--", "echo", "{x}")
    assert jobs == ["echo_1", "echo_2", "echo_3"], "keys tell no ids apart"
    keys = ("gpus", "priority", "needs", "time_limit")
    assert [[one.get(key) for key in keys] for one in written(empty)[1:]] == [
        [0, 5, None, "90m"], [None, 1, ["first"], None], [2, 1, None, 60],
    ]  # fmt: skip
    (empty.root / "jobs.csv").write_text("name,cpus,memory\na,2,8G\nb,,\n")
    submit(empty, "--from", "jobs.csv", "--cpus", "1", "--", "true")
    assert [one["resources"] for one in written(empty)[4:]] == [{"cpus": 2, "memory": "8G"}, {"cpus": 1}]
    (empty.root / "bad.csv").write_text("x,cpus\n1,many\n")
    assert 'resources.cpus = "many": expected a whole number' in fails(empty, "--from", "bad.csv", "--", "echo", "{x}")
    (empty.root / "bad.csv").write_text("x,gpus\n1,many\n")
    assert 'gpus = "many": expected a whole number' in fails(empty, "--from", "bad.csv", "--", "echo", "{x}")
    (empty.root / "bad.csv").write_text("x,command\n1,rm\n")
    assert "command is a key of every entry" in fails(empty, "--from", "bad.csv", "--", "echo", "{x}")


def test_follow_prints_the_log_and_exits_as_the_job_does(empty: Fleet) -> None:
    empty.start(poll="600").ready()
    done = empty.try_("submit", "--follow", "--", "bash", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "bash-1\nout\nerr\n")


@pytest.mark.parametrize("option", ["--wait", "--follow"])
def test_waiting_says_that_no_pod_is_running_and_ends_when_interrupted(empty: Fleet, option: str) -> None:
    words = [*COMMAND, "submit", option, "--", "true"]
    process = commands.Popen(
        words, cwd=empty.root, env=empty.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "true-1\n"
    assert "true-1 waits: no pod is running" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert "only the waiting has ended, not true-1: " in process.stderr.read()
    assert empty.run_all().end() == 0
    assert empty.states() == {"true-1": "done"}


def test_the_exit_status_of_waiting_for_jobs_that_did_not_exit_by_themselves(empty: Fleet) -> None:
    empty.write_config("kill_grace: 1s\n")
    empty.start(poll="1").ready()
    submit(empty, "--wait", "--", "bash", "-c", "kill -KILL $$", status=128 + signal.SIGKILL)
    submit(empty, "--wait", "--time-limit", "1", "--", "sleep", "600", status=128 + signal.SIGTERM)


@pytest.mark.parametrize(("change", "what"), [("cancel", "abandoned"), ("delete", "deleted")])
def test_waiting_for_a_job_that_is_given_up(empty: Fleet, change: str, what: str) -> None:
    words = [*COMMAND, "submit", "--wait", "--name", "j", "--", "true"]
    process = commands.Popen(words, cwd=empty.root, env=empty.environment(), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: "j" in empty.states(), "it is queued")
    empty.run(change, "j", "--yes")
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, f"j: {what}" in said) == (1, True), said


INTERRUPTED_LOOK = """
import os, signal, sys
from dispatcher.pod import run
work = run.Pod._work
run.Pod._work = lambda pod: (os.kill(os.getpid(), signal.SIGINT), work(pod))[1]
from dispatcher.cli.main import main
sys.exit(main(["submit", "--wait", "--name", "j", "--", "bash", "-c", "echo begun; exec sleep 600"]))
"""


def test_ctrl_c_while_it_looks_after_a_job_ends_the_waiting(empty: Fleet) -> None:
    empty.write_config("poll_interval: 1s\n")
    pod = empty.start(poll="600").ready()
    process = commands.Popen(
        [*COMMAND[:-1], INTERRUPTED_LOOK], cwd=empty.root, env=empty.environment(),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    empty.wait_running("j")
    pod.kill()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "only the waiting has ended, not j: " in said) == (130, True), said
    assert empty.record("j").state == "running"
    empty.run("cancel", "j", "--yes")
    empty.run("poll")


def test_a_setup_with_a_function_cd_does_not_change_where_the_command_runs(empty: Fleet) -> None:
    empty.write_config("methods: {command: {setup: 'cd() { :; }'}}\n")
    (empty.root / "-sub").mkdir()
    empty.start(poll="600").ready()
    submit(empty, "--wait", "--name", "j", "--cwd", "./-sub", "--env", "CDPATH=/", "--", "bash", "-c", "pwd")
    assert empty.output("j") == f"{empty.root}/-sub\n"


def test_waiting_outlives_a_file_server_in_trouble(
    empty: Fleet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(empty.root)
    jobs = workspace.submit(["bash", "-c", "exit 3"])
    look, looks = Ends.look, itertools.count()

    def fail_at_first(ends: Ends) -> None:
        if next(looks) < 2:
            raise StorageError("stale file handle")
        look(ends)

    monkeypatch.setattr(Ends, "look", fail_at_first)
    assert empty.run_all().end() == 1
    assert wait_for(workspace, jobs) == 3
    assert capfd.readouterr().err.count("stale file handle") == 1


def test_waiting_outlives_the_pod(empty: Fleet, tmp_path: Path) -> None:
    empty.write_config("poll_interval: 1s\n")
    gate = tmp_path / "gate"
    pod = empty.start(poll="600").ready()
    script = f"echo begun; until [ -e '{gate}' ]; do sleep 0.02; done; exit 5"
    process = commands.Popen(
        [*COMMAND, "submit", "--wait", "--name", "j", "--", "bash", "-c", script],
        cwd=empty.root,
        env=empty.environment(),
    )
    empty.wait_running("j")
    pod.kill()
    gate.touch()
    assert process.wait(PATIENCE_S) == 5
    assert empty.events("j").count("claimed") == 1


def test_deleted_jobs_do_not_come_back_and_their_name_is_free(empty: Fleet) -> None:
    empty.start(poll="1").ready()
    submit(empty, "--wait", "--name", "j", "--", "echo", "old")
    note = empty.try_("delete", "j", "--yes")
    assert "will be queued" not in note.stderr
    submit(empty, "--wait", "--name", "other", "--", "true")
    assert empty.states() == {"other": "done"}
    submit(empty, "--wait", "--name", "j", "--", "echo", "new")
    assert empty.output("j", empty.record("j").attempt) == "new\n"
    assert empty.events("j").count("claimed") == 2


def listed_elsewhere(fleet: Fleet, job: str) -> None:
    """Have a matrix list the job, and its record made by a pod that does not take it."""
    fleet.write_manifest([shell(job, "echo of the matrix")])
    assert fleet.start("queuing", "--methods", "none", "--until-empty").end() == 0
    assert fleet.states()[job] == "queued"


def test_a_line_of_a_deleted_job_is_no_entry_of_a_job_that_gets_its_name(empty: Fleet) -> None:
    empty.write_manifest([shell("first", "true")], name="other.json")
    other = empty.start("other", "--matrix", "other.json", poll="1").ready()
    submit(empty, "--wait", "--name", "j", "--", "echo", "old")
    empty.run("delete", "j", "--yes")
    listed_elsewhere(empty, "j")
    # What comes after it in the queue is run.
    submit(empty, "--wait", "--name", "after", "--", "true")
    assert empty.start("third", "--matrix", "other.json", "--until-empty").end() == 0
    assert empty.states() == {"first": "done", "after": "done", "j": "queued"}
    empty.run("delete", "j", "--yes")
    empty.layout.default_matrix.unlink()
    submit(empty, "--wait", "--name", "j", "--", "echo", "new")
    assert empty.output("j", empty.record("j").attempt) == "new\n"
    assert other.stop() == 0
    assert empty.events("j").count("claimed") == 2


def test_a_line_of_a_killed_submission_is_no_entry_of_a_job_that_gets_its_name(empty: Fleet) -> None:
    killed = commands.run(
        [*COMMAND[:-1], KILL_AT, "before the journal"], cwd=empty.root, env=empty.environment(),
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert [one["job_id"] for one in written(empty)] == ["true_n1", "true_n2", "true_n3"]
    listed_elsewhere(empty, "true_n2")
    empty.write_manifest([shell("first", "true")], name="other.json")
    assert "first" in empty.run("--pod", "p", "--slots", "1", "--dry-run", "--matrix", "other.json")
    assert empty.start("other", "--matrix", "other.json", "--until-empty").end() == 0
    assert empty.states() == {"first": "done", "true_n2": "queued"}
    empty.layout.default_matrix.rename(empty.root / "away.json")
    assert "its manifest cannot be read" in empty.run("show", "true_n2"), "the line is not its entry"
    (empty.root / "away.json").rename(empty.layout.default_matrix)
    assert empty.run_all().end() == 0
    assert empty.output("true_n2") == "of the matrix\n"


def test_many_submitters_at_once_lose_nothing(empty: Fleet) -> None:
    def one(_: int) -> list[str]:
        return submit(empty, "--param", "n=1..5", "--", "true", "{n}")

    with ThreadPoolExecutor(8) as pool:
        printed = [job for jobs in pool.map(one, range(24)) for job in jobs]
    assert len(printed) == len(set(printed)) == 120
    assert sorted(str(entry["job_id"]) for entry in written(empty)) == sorted(printed) == sorted(empty.states())
    assert empty.run_all("--slots", "2").end() == 0
    assert set(empty.states().values()) == {"done"}
    assert len(empty.claimed()) == 120


KILL_AT = """
import os, signal, sys
from dispatcher.matrix import submitted
from dispatcher.run_state import replica
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "before the journal":
    replica.Replica.append = die
else:
    write_all = submitted.files.write_all
    submitted.files.write_all = lambda fd, data, at: (write_all(fd, data[:-20], at), die())
from dispatcher.cli.main import main
sys.exit(main(["submit", "--param", "n=1..3", "--", "true", "{n}"]))
"""


@pytest.mark.parametrize("moment", ["before the journal", "in the middle of a line"])
def test_a_submission_that_is_killed_has_added_nothing(empty: Fleet, moment: str) -> None:
    submit(empty, "--name", "before", "--", "true")
    killed = commands.run(
        [*COMMAND[:-1], KILL_AT, moment], cwd=empty.root, env=empty.environment(), capture_output=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b""), killed.stderr
    assert len(empty.layout.submitted_manifest.read_bytes().splitlines()) > 1
    assert submit(empty, "--param", "n=1..3", "--", "true", "{n}") == ["true_n1", "true_n2", "true_n3"]
    assert empty.run_all().end() == 0
    assert empty.states() == dict.fromkeys(["before", "true_n1", "true_n2", "true_n3"], "done")
    assert len(empty.claimed()) == 4


def test_edits_of_the_file_are_seen_and_faulty_lines_stop_nothing(empty: Fleet) -> None:
    pod = empty.start(poll="1").ready()
    submit(empty, "--name", "a", "--", "false")
    submit(empty, "--name", "b", "--wait", "--", "true")
    path = empty.layout.submitted_manifest
    path.write_text(path.read_text().replace('["false"]', '["true"') + "{}\n")
    pod.says("line 3: job_id is missing")
    assert "line 1: " in pod.said
    submit(empty, "--name", "c", "--wait", "--", "true")
    assert "submitted.jsonl cannot be read as a whole" in empty.try_("status").stderr
    path.write_text(
        "".join(f"{line}\n" for line in path.read_text().splitlines() if '"a"' not in line and line != "{}")
    )

    def is_unlisted() -> bool:
        # Until the pod has looked at the file, it runs once more.
        return bool(empty.run("requeue", "a", "--yes")) and "no manifest lists it" in empty.run("show", "a")

    wait_until(is_unlisted, "the job without a line is not claimed")
    assert pod.is_running()


@pytest.fixture
def small(small_disk: Path, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_at(small_disk / "w", tmp_path / "said") as made:
        made.write_config("")
        yield made


def test_a_full_disk(small: Fleet) -> None:
    submit(small, "--name", "a", "--", "true")
    before = small.layout.submitted_manifest.read_bytes()
    filler = small.root / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], capture_output=True, check=False)
    os.truncate(filler, filler.stat().st_size - 8192)
    error = fails(small, "--name", "b", "--env", f"X={'x' * 20_000}", "--", "true", status=1)
    assert "No space left on device" in error or "the disk is full" in error
    assert small.layout.submitted_manifest.read_bytes() == before
    filler.unlink()
    submit(small, "--name", "b", "--", "true")
    assert small.run_all().end() == 0
    assert small.states() == {"a": "done", "b": "done"}


def test_the_same_from_python(empty: Fleet) -> None:
    workspace = Workspace(empty.root)
    jobs = workspace.submit(["echo", "{lr}", "{seed}"], params={"lr": [0.1, 0.2], "seed": range(2)}, gpus=0)
    assert jobs == ["echo_lr0.1_seed0", "echo_lr0.1_seed1", "echo_lr0.2_seed0", "echo_lr0.2_seed1"]
    assert workspace.submit("echo 'a b'", name="line", needs=jobs, priority=1) == ["line"]
    with pytest.raises(UsageError, match=r"gpu: no key of entries.*gpus"):
        workspace.submit("true", gpu=1)
    with pytest.raises(UsageError, match="unknown job 'lime'"):
        workspace.wait("lime")
    with pytest.raises(StateError, match="did not end within"):
        workspace.wait("line", timeout_s=0.1)
    empty.start(poll="600").ready()
    ended = workspace.wait([*jobs, "line"], timeout_s=PATIENCE_S)
    assert {job: record and record.state for job, record in ended.items()} == dict.fromkeys([*jobs, "line"], "done")
    assert empty.output("line") == "a b\n"
