"""`submit` and `poll`: jobs on a host behind ssh, without a pod that goes on. The host does not see the workspace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from beds.sshd import SshBed
from fleet import COMMAND, PATIENCE_S, Fleet, fleet_at, shell, wait_until
from repositories import Repository

HOSTS = """
hosts:
  h1: {type: plain, ssh: h1}
  h2: {type: plain, ssh: h2, chips: {h100: 4}}
poll_interval: 2s
kill_grace: 2s
"""
GATED = "echo begun; until [ -e ~/go ]; do sleep 0.05; done; echo over"


class Lab:
    """A workspace in a repository, and two hosts."""

    def __init__(self, fleet: Fleet, ssh: SshBed) -> None:
        self.fleet = fleet
        self.ssh = ssh
        self.repository = Repository(fleet.root)
        self.environment = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}

    def write(self, *entries: dict[str, Any]) -> None:
        self.fleet.write_config(HOSTS)
        self.fleet.write_manifest(list(entries))
        (self.fleet.root / ".gitignore").write_text("run_state/\nsaid/\n")
        (self.fleet.root / "module.py").write_text("committed\n")
        self.repository.commit()

    def run(self, *words: str) -> str:
        return self.fleet.run(*words, **self.environment)

    def fails(self, *words: str) -> str:
        """A command that must fail; its last error."""
        done = self.fleet.try_(*words, **self.environment)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def submit(self, *words: str) -> list[dict[str, Any]]:
        return list(json.loads(self.run("submit", *words, "--json")))

    def poll_until(self, job: str, *states: str) -> str:
        """Poll as a person does until the record says so; what the polls printed."""
        said = []

        def reached() -> bool:
            said.append(self.run("poll"))
            return self.fleet.record(job).state in states

        wait_until(reached, f"{job} is {' or '.join(states)}")
        return "".join(said)

    def output(self, job: str) -> str:
        """The log without its first line, which tells what code it runs."""
        first, _, rest = self.fleet.output(job).partition("\n")
        assert first.startswith("dispatcher: note: code ")
        return rest

    def let_go(self, host: str = "h1") -> None:
        """Jobs that wait for it end."""
        self.ssh[host].path("/root/go").touch()


@pytest.fixture
def lab(tmp_path: Path, ssh: SshBed) -> Iterator[Lab]:
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        yield Lab(fleet, ssh)


def test_a_job_is_submitted_once_and_poll_records_how_it_went(lab: Lab) -> None:
    lab.write(shell("a", f"cat module.py; {GATED}; exit 3"), shell("b", "true"))
    (row,) = lab.submit("a", "--outlet", "h1")
    assert (row["job"], row["outlet"], row["error"]) == ("a", "h1", None)
    assert row["handle"] and row["state"] in ("submitted", "running")
    record = lab.fleet.record("a")
    assert record.pod is not None and record.pod.startswith("submit-")
    assert record.code is not None and record.code.startswith(lab.repository.git("rev-parse", "HEAD")[:12])
    assert lab.fleet.record("b").attempt == 0
    lab.poll_until("a", "running")
    assert lab.fleet.record("a").host == "h1"
    lab.let_go()
    said = lab.poll_until("a", "failed")
    assert "failed a (attempt 1): exit 3" in said
    assert lab.output("a") == "committed\nbegun\nover\n"
    assert lab.run("poll") == ""
    assert record.code in lab.run("show", "a")
    assert lab.run("pods").strip() == "no pod has run here"
    assert not list(lab.fleet.layout.pods_dir.glob("*.lock"))


def test_a_new_command_goes_to_a_host_at_once_and_is_waited_for_without_a_pod(lab: Lab) -> None:
    lab.write()
    place = lab.fleet.root / "it's" / "deep"
    place.mkdir(parents=True)
    (place / "data").write_text("tracked\n")
    lab.repository.commit()
    words = [*COMMAND, "submit", "--outlet", "h1", "--clean", "--wait", "--name", "new"]
    script = 'cat data; pwd | grep -c "$PWD"; exit 4'
    done = commands.run(
        [*words, "--", "bash", "-c", script], cwd=place, env=lab.fleet.environment(**lab.environment),
        capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "new\n"), done.stderr
    assert "new: h1, handle " in done.stderr
    assert lab.output("new") == "tracked\n1\n"
    (line,) = lab.fleet.layout.submitted_manifest.read_text().splitlines()
    entry = json.loads(line)
    assert (entry["outlet"], entry["cwd"]) == (["h1"], "it's/deep")
    dry = lab.run("submit", "--outlet", "h2", "--gpus", "2", "--dry-run", "--", "true")
    assert json.loads(dry)["outlet"] == ["h2"]


def test_no_other_pod_with_the_host_is_first(lab: Lab) -> None:
    """It would run the job as its own options say, and not as was asked."""
    lab.write()
    (lab.fleet.root / "module.py").write_text("changed\n")
    lab.fleet.start("other", "--slots", "1", "--outlet", "h1:4", poll="1", **lab.environment).ready()
    for job in ("a", "b", "c"):
        lab.run("submit", "--outlet", "h1", "--dirty", "--wait", "--name", job, "--", "cat", "module.py")
        assert lab.output(job) == "changed\n"
        assert lab.fleet.events(job).count("claimed") == 1
        assert str(lab.fleet.record(job).pod).startswith("submit-")


def test_what_cannot_be_submitted_as_asked_is_held(lab: Lab) -> None:
    lab.write(shell("first", "true"))
    lab.fleet.start("queuing", "--methods", "none", "--until-empty", **lab.environment).end()
    words = ("submit", "--outlet", "h1", "--needs", "first")
    said = lab.fails(*words, "--dirty", "--name", "a", "--", "cat", "module.py")
    assert "a was not submitted, and is held: needs first (queued)" in said
    said = lab.fails(*words, "--name", "b", "--", "cat", "module.py")
    assert "b was not submitted: needs first (queued)" in said
    assert lab.fleet.states() == {"first": "queued", "a": "held", "b": "queued"}


KILL_AT = """
import os, signal, sys
from dispatcher.pod.starting import Starter
from dispatcher.run_state.replica import Replica
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "before the journal":
    append, calls = Replica.append, []
    def count(self, fd, lines): return die() if any(line.job == "j" for line in lines) else append(self, fd, lines)
    Replica.append = count
else:
    Starter.start = die
from dispatcher.cli.main import main
sys.exit(main(["submit", "--outlet", "h1", "--name", "j", "--", "bash", "-c", "echo x >> ~/proof"]))
"""


@pytest.mark.parametrize(("moment", "states"), [("before the journal", {}), ("after it", {"j": "submitted"})])
def test_a_submission_to_a_host_that_is_killed_runs_nothing_twice(
    lab: Lab, moment: str, states: dict[str, str]
) -> None:
    lab.write()
    killed = commands.run(
        [*COMMAND[:-1], KILL_AT, moment], cwd=lab.fleet.root, capture_output=True,
        env=lab.fleet.environment(**lab.environment), timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert lab.fleet.states() == states
    pod = lab.fleet.start("other", "--outlet", "h1:4", "--until-empty", poll="1", **lab.environment)
    assert pod.end(2 * PATIENCE_S) == 0
    assert lab.fleet.states() == dict.fromkeys(states, "done")
    proof = lab.ssh["h1"].path("/root/proof")
    assert (proof.read_text() if proof.exists() else "") == ("x\n" if states else "")


def test_secrets_are_read_on_the_host(lab: Lab) -> None:
    lab.write()
    there = lab.ssh["h1"].path("/root/s.env")
    there.write_text("TOKEN=hunter2\n")
    there.chmod(0o600)
    words = ("submit", "--outlet", "h1", "--env-file", "/root/s.env", "--wait")
    lab.run(*words, "--name", "a", "--", "bash", "-c", "echo ${#TOKEN}")
    assert lab.output("a") == "7\n"
    there.chmod(0o640)
    assert lab.fleet.try_(*words, "--name", "b", "--", "true", **lab.environment).returncode == 1
    assert "env_file /root/s.env: others can read or change it (mode 640)" in lab.output("b")
    told = [one for one in lab.fleet.root.rglob("*") if one.is_file() and b"hunter2" in one.read_bytes()]
    assert not told
    jobs = lab.ssh["h1"].path("/root")
    assert not [one for one in jobs.rglob("*") if one.is_file() and one != there and b"hunter2" in one.read_bytes()]


def test_clean_and_dirty_code(lab: Lab) -> None:
    lab.write(shell("clean", "cat module.py"), shell("dirty", 'cat module.py; echo "$DISPATCHER_CODE_COMMIT"'))
    (lab.fleet.root / "module.py").write_text("changed\n")
    lab.submit("clean", "--outlet", "h1", "--clean")
    lab.submit("dirty", "--outlet", "h1", "--dirty")
    for job in ("clean", "dirty"):
        lab.poll_until(job, "done")
    head = lab.repository.git("rev-parse", "HEAD")
    assert lab.output("clean") == "committed\n"
    assert lab.output("dirty") == f"changed\n{head}+dirty\n"
    assert str(lab.fleet.record("dirty").code).startswith(f"{head[:12]}+dirty ")
    # Once for each content, and nothing but whole archives.
    assert len(list(lab.ssh["h1"].path(".dispatcher/code").iterdir())) == 2


@pytest.mark.parametrize(("verb", "state"), [("cancel", "abandoned"), ("hold", "held"), ("requeue", "queued")])
def test_what_a_person_asks_for_meanwhile_is_carried_out_by_poll(lab: Lab, verb: str, state: str) -> None:
    lab.write(shell("a", GATED))
    lab.submit("a", "--outlet", "h1")
    lab.poll_until("a", "running")
    lab.run(verb, "a")
    lab.poll_until("a", state)
    assert lab.output("a") == "begun\n"
    wait_until(lambda: not lab.ssh["h1"].processes("sleep"), "nothing of it runs on")


def test_a_pod_records_what_submit_left_in_flight(lab: Lab) -> None:
    lab.write(shell("a", GATED), shell("b", "true", needs=["a"], outlet="local"))
    lab.submit("a", "--outlet", "h1")
    pod = lab.fleet.start("pod", "--until-empty", poll="0.2", **lab.environment)
    lab.fleet.wait_for("a", "running")
    lab.let_go()
    lab.fleet.wait_for("b", "done")
    assert pod.end() == 0
    assert lab.fleet.record("a").state == "done"


def test_a_pod_carries_out_what_a_person_asks_for(lab: Lab) -> None:
    lab.write(shell("a", GATED))
    lab.submit("a", "--outlet", "h1")
    pod = lab.fleet.start("pod", poll="0.2", **lab.environment)
    lab.fleet.wait_for("a", "running")
    lab.run("cancel", "a")
    lab.fleet.wait_for("a", "abandoned")
    pod.stop()


def test_polling_a_host_that_is_away_says_so_and_changes_nothing(lab: Lab) -> None:
    lab.write(shell("a", GATED), shell("b", "true"))
    lab.submit("a", "--outlet", "h1")
    lab.poll_until("a", "running")
    with lab.ssh["h1"].away():
        said = lab.run("poll", "a")
    assert "outlet h1: a unknown: " in said
    assert lab.fleet.record("a").state == "running"
    assert lab.run("poll", "b") == ""
    lab.let_go()
    lab.poll_until("a", "done")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_waiting_and_leaves_the_job(lab: Lab, number: int) -> None:
    lab.write(shell("a", GATED))
    with lab.ssh["h1"].slow(0.5):
        process = commands.Popen(
            [*COMMAND, "submit", "a", "--outlet", "h1"], cwd=lab.fleet.root, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, env=lab.fleet.environment(**lab.environment),
        )  # fmt: skip
        wait_until(lambda: lab.fleet.records() and lab.fleet.record("a").attempt, "it is claimed")
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
    lab.let_go()
    submission = lab.fleet.attempt("a").submission
    if submission.exists():
        # What the scheduler does not know half a minute later was never submitted.
        os.utime(submission, (1, 1))
    lab.poll_until("a", "done", "queued")
    assert lab.fleet.record("a").attempt == 1


def test_what_cannot_be_submitted_is_named(lab: Lab) -> None:
    lab.write(shell("a", GATED), shell("held", "true"), shell("waits", "true", needs=["held"]), shell("ok", "true"))
    lab.run("hold", "held")
    assert "only queued jobs can be submitted: held is held." in lab.fails("submit", "held", "ok", "--outlet", "h1")
    assert "unknown job 'helf' (did you mean 'held'?)" in lab.fails("submit", "helf", "--outlet", "h1")
    assert "name the jobs: ids, globs" in lab.fails("submit", "--outlet", "h1")
    assert "run by a pod: `dispatcher --pod NAME --slots N`" in lab.fails("submit", "ok", "--outlet", "local")
    assert "--outlet h3: no such host is configured (known: h1, h2)" in lab.fails("submit", "ok", "--outlet", "h3")
    assert "submit ok where? --outlet HOST (configured: h1, h2), --outlet auto or --chip" in lab.fails("submit", "ok")
    assert "waits was not submitted: needs held (held)" in lab.fails("submit", "waits", "--outlet", "h1")
    assert all(record.attempt == 0 for record in lab.fleet.records().values())


def test_a_host_that_is_away_takes_nothing_and_says_why(lab: Lab) -> None:
    lab.write(shell("a", "true"))
    with lab.ssh["h1"].away():
        error = lab.fails("submit", "a", "--outlet", "h1")
    assert "a was not submitted: " in error and "h1" in error
    assert (lab.fleet.record("a").state, lab.fleet.record("a").attempt) == ("queued", 0)


def test_code_that_cannot_be_archived_keeps_jobs_queued(lab: Lab) -> None:
    lab.fleet.write_config(HOSTS)
    lab.fleet.write_manifest([shell("a", "true")])
    error = lab.fails("submit", "a", "--outlet", "h1")
    assert "the repository has no commit yet: commit the code first" in error
    assert (lab.fleet.record("a").state, lab.fleet.record("a").attempt) == ("queued", 0)


def follow(lab: Lab, job: str, *words: str) -> subprocess.Popen[bytes]:
    return commands.Popen(
        [*COMMAND, "logs", job, "-f", *words], cwd=lab.fleet.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=lab.fleet.environment(**lab.environment), bufsize=0,
    )  # fmt: skip


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """What is printed, up to `text`."""
    assert process.stdout is not None
    said = b""
    while text not in said:
        block = os.read(process.stdout.fileno(), 65536)
        assert block, f"it ended without {text!r}: {said!r}, {process.communicate()}"
        said += block
    return said


def test_logs_follow_a_job_where_it_runs(lab: Lab) -> None:
    lab.write(shell("a", f"{GATED}; printf 'no newline at the end'"))
    lab.submit("a", "--outlet", "h1")
    process = follow(lab, "a")
    said = read_until(process, b"begun\n")
    # Nothing brings the log home meanwhile, and the connection breaks off once.
    with lab.ssh["h1"].away():
        assert process.stderr is not None
        assert b"trying again" in process.stderr.readline()
    lab.let_go()
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert (said + rest).endswith(b"\nbegun\nover\nno newline at the end")
    assert not lab.ssh["h1"].processes("tail")
    lab.poll_until("a", "done")
    # From now on it is at home.
    assert lab.run("logs", "a", "-f").encode() == said + rest
    assert lab.run("logs", "a", "-f", "-n", "1") == "no newline at the end"


def test_logs_of_several_jobs_are_followed_from_before_they_are_submitted(lab: Lab) -> None:
    lab.write(shell("a", f"{GATED}; echo 'a loss'"), shell("b", f"{GATED}; echo 'b loss'"))
    process = follow(lab, "[ab]", "--grep", "begun|loss")
    assert process.stderr is not None
    assert process.stderr.readline() == b"note: 2 jobs wait (a, b): no pod is running\n"
    lab.submit("a", "b", "--outlet", "h1")
    said = b""
    while said.count(b"begun\n") < 2:
        said += read_until(process, b"begun\n")
    lab.let_go()
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert sorted((said + rest).splitlines()) == [b"a: a loss", b"a: begun", b"b: b loss", b"b: begun"]
    assert process.returncode == 0


def test_following_begins_with_what_was_brought_home(lab: Lab) -> None:
    lab.write(shell("a", f"seq 100; {GATED}"))
    lab.submit("a", "--outlet", "h1")
    lab.poll_until("a", "running")
    wait_until(lambda: lab.run("poll") == "" and "begun" in lab.fleet.output("a"), "the log is brought home")
    process = follow(lab, "a", "-n", "2")
    said = read_until(process, b"begun\n")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert said == b"100\nbegun\n"
    wait_until(lambda: not lab.ssh["h1"].processes("tail"), "no tail is left on the host")
    lab.let_go()
    lab.poll_until("a", "done")


def test_dry_run_changes_nothing(lab: Lab) -> None:
    lab.write(shell("a", "true", outlet=["h2", "h1"]), shell("b", "true"))
    assert lab.submit("*", "--dry-run", "--outlet", "h1") == [
        {"job": "a", "outlet": "h1"},
        {"job": "b", "outlet": "h1"},
    ]
    assert lab.submit("a", "--dry-run") == [{"job": "a", "outlet": "h2 or h1"}]
    assert lab.fleet.records() == {}


def test_the_solver_chooses_the_host_that_has_the_chip(lab: Lab) -> None:
    lab.write(shell("a", "true", gpus=0), shell("b", "true", gpus=0))
    assert lab.submit("a", "--dry-run", "-n", "0", "--cluster", "h1") == [{"job": "a", "outlet": "h1"}]
    (row,) = lab.submit("a", "-n", "0", "--cluster", "h2")
    assert row["outlet"] == "h2" and row["handle"]
    lab.poll_until("a", "done")
    lab.run("requeue", "a")
    # Several find room where there is some, on any of these hosts.
    rows = lab.submit("*", "-n", "0", "--exclude-cluster", "h1")
    assert [row["outlet"] for row in rows] == ["h2", "h2"]
    lab.poll_until("a", "done")
    lab.poll_until("b", "done")
    lab.run("requeue", "a")
    error = lab.fails("submit", "a", "--chip", "a100", "-n", "4")
    assert "no host can run a (4 a100)" in error


def test_hosts_of_another_file_are_polled_and_followed_with_that_file(lab: Lab) -> None:
    lab.write(shell("a", GATED))
    others = lab.fleet.root / "hosts.yaml"
    others.write_text("clusters: {}\nhosts: {other: {type: plain, ssh: h1}}\n")
    given = ("--hosts", os.fspath(others))
    lab.run("submit", "a", "--outlet", "other", *given)
    said = lab.fleet.try_("poll", **lab.environment)
    assert "on other cannot be looked after here: no such host is configured" in said.stdout + said.stderr
    checks = lab.fleet.try_("doctor", "--peer-wait", "0", **lab.environment, DISPATCHER_HOSTS=os.fspath(others)).stdout
    assert "host other" in checks
    lab.let_go()
    assert lab.run("logs", "a", "-f", *given).endswith("over\n")

    def is_done() -> bool:
        lab.run("poll", *given)
        return lab.fleet.record("a").state == "done"

    wait_until(is_done, "a is done")


def test_a_script_finds_the_contract_on_a_host_where_nothing_is_installed(lab: Lab) -> None:
    script = "from dispatcher.contract import report_result\nreport_result(loss=0.5)\n"
    lab.write({"job_id": "a", "method": "train", "command": ["python", "module.py"]})
    (lab.fleet.root / "module.py").write_text(script)
    lab.repository.commit()
    lab.run("submit", "a", "--outlet", "h1")
    lab.poll_until("a", "done", "failed")
    assert lab.fleet.record("a").state == "done", lab.fleet.output("a")
    assert json.loads(lab.fleet.attempt("a").result.read_text()) == {"loss": 0.5}
