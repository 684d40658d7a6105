"""Dispatchers that run jobs on real hosts behind ssh, which go away, fill up, change keys and lose their power."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from beds.sshd import SshBed, SshHost
from fleet import Dispatcher, Fleet, shell, wait_until
from outlets.remote.nvidia_smi import SCRIPT, gpus

from dispatcher.api import Workspace
from dispatcher.provenance.read import package_lines, read_provenance

pytestmark = pytest.mark.slow

CONFIG = """\
code: none
kill_grace: 1s
# Without a scheduler there is nothing to be gained by it: each attempt is a launch of its own.
methods:
  m: {pack: 3}
clusters:
  lab: {work: ~/work, log: ~/logs}
hosts:
  h1: {type: plain, cluster: lab, ssh: h1}
  h2: {type: plain, cluster: lab, ssh: h2, chips: {h100: 2}}
"""
ODD = "it's; $(touch pwned)\n\"'\\ ä *"


class Lab:
    """A workspace on this machine, and hosts that do not see it."""

    def __init__(self, fleet: Fleet, bed: SshBed) -> None:
        self.fleet = fleet
        self.bed = bed
        fleet.write_config(CONFIG)

    def start(self, *outlets: str, pod: str = "pod", words: tuple[str, ...] = ()) -> Dispatcher:
        chosen = [word for name in outlets for word in ("--outlet", name)]
        return self.fleet.start(
            pod, "--slots", "4", *chosen, *words, poll="0.5", DISPATCHER_SSH_CONFIG=os.fspath(self.bed.config)
        )

    def run_all(self, *outlets: str) -> None:
        dispatcher = self.start(*outlets, words=("--until-empty",))
        assert dispatcher.end() == 0, dispatcher.said

    def root(self, host: SshHost) -> Any:
        """Where the workspace's attempts run on a host."""
        (found,) = host.path("work").iterdir()
        return found

    def begun(self, job: str) -> None:
        """Until the job runs and has said so in its log, which is here by then."""
        self.fleet.wait_for(job, "running")
        wait_until(lambda: self.fleet.attempt(job).log.exists() and self.fleet.output(job), f"{job} has begun")

    def shows(self, text: str) -> None:
        """Until `dispatcher pods` has this text."""
        wait_until(lambda: text in self.fleet.run("pods"), f"it is shown: {text}", timeout_s=30)

    def let_go(self, host: SshHost) -> None:
        (self.root(host) / "go").touch()


GATED = "echo begun; until [ -e go ]; do sleep 0.05; done; exit 3"


@pytest.fixture
def lab(ssh: SshBed, fleet: Fleet) -> Lab:
    """The dispatchers end before the hosts do."""
    return Lab(fleet, ssh)


def test_jobs_on_two_hosts(lab: Lab) -> None:
    script = """printf '%s' "$ODD" >&2; echo '{"loss": 0.5}' >$DISPATCHER_ATTEMPT_DIR/result.json; hostname"""
    entries = [
        shell(f"job{number}", script, env={"ODD": ODD}, outlet=f"h{number % 2 + 1}", gpus=0) for number in range(6)
    ]
    lab.fleet.write_manifest(entries)
    lab.run_all("h1", "h2")
    assert set(lab.fleet.states().values()) == {"done"}
    for number in range(6):
        job, name = f"job{number}", f"h{number % 2 + 1}"
        assert lab.fleet.output(job) == f"{ODD}{name}\n"
        record = lab.fleet.record(job)
        assert (record.outlet, record.host) == (name, name)
        assert json.loads(lab.fleet.attempt(job).result.read_text()) == {"loss": 0.5}
        (log,) = lab.bed[name].path("logs").glob(f"*_{job}_*.log")
        assert re.fullmatch(rf"[A-Za-z0-9._-]*_m_{job}_\d{{8}}-\d{{6}}\.log", log.name)
        assert log.read_text() == f"{ODD}{name}\n"


def test_what_a_script_leaves_in_its_own_files_comes_home(lab: Lab) -> None:
    """Its metrics while it runs, its result before it is recorded as done; and what is not there is named."""
    line = 'mkdir "$1/out"; printf "loss,acc\\n5,\\n4,0.5\\n" >"$1/out/log.csv"; until [ -e go ]; do sleep 0.05; done'
    command = json.dumps(["bash", "-c", line, "job", "{attempt_dir}"])
    lab.fleet.write_config(
        CONFIG.replace(
            "methods:\n",
            f"methods:\n  s: {{command: {command}, gpus: 0, result: out/log.csv, metrics: out/log.csv}}\n"
            f"  none: {{command: 'true', gpus: 0, result: out/summary.json}}\n",
        )
    )
    lab.fleet.write_manifest([{"job_id": name, "method": name, "outlet": "h1"} for name in ("s", "none")])
    dispatcher = lab.start("h1", words=("--until-empty",))
    page = Workspace(lab.fleet.root)
    wait_until(lambda: [list(one.values) for one in page.metrics(["s"])] == [[5.0, 4.0], [0.5]], "its metrics")
    assert page.snapshot().progress["s"].metrics == {"loss": 4.0, "acc": 0.5}
    lab.let_go(lab.bed["h1"])
    assert dispatcher.end() == 0, dispatcher.said
    assert json.loads(lab.fleet.attempt("s").result.read_text()) == {"loss": 4, "acc": 0.5}
    assert lab.fleet.record("none").error == "result: out/summary.json: not on its host, or longer than 1.0 MiB"


def test_metrics_of_a_job_that_runs_are_those_of_its_host(lab: Lab) -> None:
    """Curves are drawn, and pruning decides, while it runs; also after it has begun its file anew."""
    write = """printf '{"step": %d, "loss": %d.5}\\n' $N $N >>"$DISPATCHER_ATTEMPT_DIR/metrics.jsonl"; """
    some = f"for N in 1 2 3; do {write} done; "
    anew = f"until [ -e go ]; do sleep 0.05; done; N=7; rm $DISPATCHER_ATTEMPT_DIR/metrics.jsonl; {write}"
    lab.fleet.write_manifest([shell("a", some + anew + "until [ -e end ]; do sleep 0.05; done", outlet="h1", gpus=0)])
    dispatcher = lab.start("h1", words=("--until-empty",))
    page = Workspace(lab.fleet.root)
    wait_until(lambda: [list(one.values) for one in page.metrics(["a"])] == [[1.5, 2.5, 3.5]], "its metrics")
    lab.let_go(lab.bed["h1"])
    wait_until(lambda: [list(one.steps) for one in page.metrics(["a"])] == [[7]], "the new file")
    (lab.root(lab.bed["h1"]) / "end").touch()
    assert dispatcher.end() == 0, dispatcher.said
    assert lab.fleet.attempt("a").metrics.read_text() == '{"step": 7, "loss": 7.5}\n'


def test_what_a_job_ran_from_comes_home(lab: Lab) -> None:
    """Host, Python and packages are those of the host; the list is kept once, here."""
    script = "import os, time\nend = time.time() + 60\nwhile not os.path.exists('go') and time.time() < end: "
    script += "time.sleep(0.02)"
    commands = {name: ["python3", "-c", script] for name in ("a", "b")}
    lab.fleet.write_manifest(
        [
            {"job_id": name, "method": "m", "command": words, "outlet": "h1", "gpus": 0}
            for name, words in commands.items()
        ]
    )
    dispatcher = lab.start("h1", words=("--until-empty",))
    for name in commands:
        wait_until(lambda name=name: lab.fleet.attempt(name).provenance_host.exists(), f"{name} has told")
    lab.let_go(lab.bed["h1"])
    assert dispatcher.end() == 0, dispatcher.said
    layout = lab.fleet.layout
    found = [read_provenance(layout, name, 1) for name in commands]
    for one, name in zip(found, commands, strict=True):
        assert one is not None
        assert one.command == tuple(commands[name])
        assert (one.host, one.git) == ("h1", None)
        assert one.python is not None
        assert one.packages is not None
        assert package_lines(layout, name, 1) is not None
    assert len(list(layout.provenance_packages("x").parent.iterdir())) == 1
    assert "ran from (attempt 1)" in lab.fleet.run("show", "a")


def test_the_environment_of_a_host_overrides_where_its_logs_are(start_ssh: Callable[..., SshBed], fleet: Fleet) -> None:
    lab = Lab(fleet, start_ssh(["h1", "h2"], env={"DISPATCHER_LOG_OVERRIDE": "~/other logs"}))
    fleet.write_manifest([shell("a", "echo said", outlet="h1", gpus=0)])
    lab.run_all("h1", "h2")
    assert fleet.output("a") == "said\n"
    (log,) = lab.bed["h1"].path("other logs").glob("*_m_a_*.log")
    assert log.read_text() == "said\n"
    assert not lab.bed["h1"].path("logs").exists()


def test_a_host_that_goes_away_while_a_job_runs(lab: Lab) -> None:
    lab.fleet.write_manifest([shell("a", GATED, gpus=0)])
    dispatcher = lab.start("h1")
    lab.begun("a")
    with lab.bed["h1"].away():
        lab.let_go(lab.bed["h1"])
        lab.shows("Connection refused")
        assert lab.fleet.states() == {"a": "running"}, "what cannot be reached has not failed"
    record = lab.fleet.wait_for("a", "failed")
    assert (record.exit_code, record.attempt) == (3, 1)
    assert dispatcher.stop() == 1, "one has failed"


def test_a_host_key_that_changes(lab: Lab) -> None:
    lab.fleet.write_manifest([shell("a", GATED, gpus=0)])
    first = lab.start("h1")
    lab.begun("a")
    first.send(9)
    first.end()
    lab.bed["h1"].replace_key()
    again = lab.start("h1")
    lab.shows("host key of h1 has changed")
    assert lab.fleet.states() == {"a": "running"}
    lab.bed["h1"].trust_key()
    lab.let_go(lab.bed["h1"])
    assert lab.fleet.wait_for("a", "failed").exit_code == 3
    assert again.stop() == 1, "one has failed"


def test_a_name_that_leads_to_another_machine_by_now(lab: Lab) -> None:
    """Nothing is known of the attempt there, so it is neither lost nor run a second time."""
    lab.fleet.write_manifest([shell("a", GATED, gpus=0), shell("b", "hostname", gpus=0, priority=-1)])
    first = lab.start("h1:1")
    lab.begun("a")
    first.kill()
    config = lab.bed.config.read_text()
    _, of_h2 = config.split("Host h2\n")
    lab.bed.config.write_text(f"Host h1\n{of_h2}")
    second = lab.start("h1:2")
    lab.fleet.wait_for("b", "done")
    assert lab.fleet.output("b") == "h2\n"
    lab.shows("it was submitted to machine h1 (ssh h1), and h1 leads to machine h2 (ssh h1) now")
    assert lab.fleet.record("a").state == "running"
    second.kill()
    lab.bed.config.write_text(config)
    lab.let_go(lab.bed["h1"])
    third = lab.start("h1:2")
    assert lab.fleet.wait_for("a", "failed").attempt == 1
    assert third.stop() == 1, "one has failed"


def test_a_host_of_the_configuration_that_is_another_machine_by_now(lab: Lab) -> None:
    """What was begun on the machine before is found there."""
    lab.fleet.write_config(CONFIG + "  ws: {type: plain, ssh: h1, cluster: lab}\n")
    lab.fleet.write_manifest([shell("a", GATED, gpus=0), shell("b", "hostname", gpus=0, priority=-1)])
    first = lab.start("ws:1")
    lab.begun("a")
    first.kill()
    lab.fleet.write_config(CONFIG + "  ws: {type: plain, ssh: h2, cluster: lab}\n")
    second = lab.start("ws:1")
    lab.fleet.wait_for("b", "done")
    assert lab.fleet.output("b") == "h2\n"
    lab.let_go(lab.bed["h1"])
    assert lab.fleet.wait_for("a", "failed").attempt == 1
    assert second.stop() == 1, "one has failed"


def test_a_host_that_loses_its_power(lab: Lab) -> None:
    script = 'echo begun; [ "$DISPATCHER_ATTEMPT" = 2 ] || sleep 600'
    lab.fleet.write_manifest([shell("a", script, gpus=0)])
    dispatcher = lab.start("h1")
    lab.begun("a")
    lab.bed["h1"].power_cut()
    lab.bed["h1"].boot()
    record = lab.fleet.wait_for("a", "done")
    assert record.attempt == 2
    lost = next(line for line in lab.fleet.history("a") if line.event == "auto_requeued")
    assert lost.set["reason"] == "lost"
    assert "h1 was restarted while it ran" in lost.set["error"]
    assert dispatcher.stop() == 0


def test_a_full_disk_there(start_ssh: Callable[..., SshBed], fleet: Fleet) -> None:
    bed = start_ssh(["h1", "h2"], disk_mib=8)
    lab = Lab(fleet, bed)
    lab.fleet.write_manifest([shell("a", "echo ran", gpus=0)])
    with bed["h1"].full_disk():
        dispatcher = lab.start("h1")
        wait_until(lambda: "No space left on device" in str(fleet.records()), "it is told")
    fleet.wait_for("a", "done", timeout_s=120)
    assert dispatcher.stop() == 0


FILL = 'dd if=/dev/zero of="$HOME/filler" bs=4k status=none; '


def test_an_attempt_that_fills_the_disk_ends_as_it_did(start_ssh: Callable[..., SshBed], fleet: Fleet) -> None:
    """What it has ended with is known at once, although its file cannot be written."""
    lab = Lab(fleet, start_ssh(["h1", "h2"], disk_mib=8))
    first = f'until [ -e "$HOME/b" ]; do sleep 0.05; done; {FILL} exit 3'
    second = f'touch "$HOME/b"; sleep 1; {FILL} exit 75'
    lab.fleet.write_manifest([shell("a", first, gpus=0), shell("b", second, gpus=0)])
    dispatcher = lab.start("h1:2", words=("--until-empty", "--max-jobs", "2"))
    dispatcher.end()
    assert fleet.record("a").reason == "exit 3"
    assert next(line for line in fleet.history("b") if line.event == "auto_requeued").set["reason"] == "preempted"
    assert fleet.attempt("a").exit.read_text().endswith("}\n")
    host = lab.bed["h1"]
    wait_until(lambda: not host.run("pgrep", "-f", "job.sh", check=False).strip(), "its wrapper does not wait for room")


@pytest.mark.parametrize("how", ["cancel", "until-empty"])
def test_an_exit_status_that_cannot_be_kept_at_all(start_ssh: Callable[..., SshBed], fleet: Fleet, how: str) -> None:
    lab = Lab(fleet, start_ssh(["h1", "h2"], disk_mib=8))
    if how == "until-empty":
        fleet.write_config(f"lost_after: 10s\nmax_requeues: 0\n{CONFIG}")
    lab.fleet.write_manifest([shell("a", f': >"$DISPATCHER_ATTEMPT_DIR/taken"; {FILL} exit 0', gpus=0)])
    dispatcher = lab.start("h1", words=("--until-empty",))
    why = "ended, its status cannot be written: no space on h1"
    lab.shows(f"a unknown: {why}")
    if how == "cancel":
        fleet.run("cancel", "a")
    dispatcher.end(120)
    record = fleet.record("a")
    assert record.state == ("abandoned" if how == "cancel" else "failed")
    assert how == "cancel" or why in (record.error or "")


def test_a_slow_host_that_greets_and_has_one_session(start_ssh: Callable[..., SshBed], fleet: Fleet) -> None:
    bed = start_ssh(["h1", "h2"], max_sessions=1)
    bed["h1"].greet("Welcome!\x1b[2J\n0000000000000000 17\n{}")
    lab = Lab(fleet, bed)
    lab.fleet.write_manifest([shell(f"a{number}", f"echo {number}", gpus=0) for number in range(8)])
    with bed["h1"].slow(0.05):
        lab.run_all("h1")
    assert set(fleet.states().values()) == {"done"}
    assert [fleet.output(f"a{number}") for number in range(8)] == [f"{number}\n" for number in range(8)]


def with_gpus(host: SshHost, count: int) -> None:
    host.install("nvidia-smi", SCRIPT)
    (host.bin / "gpus").write_text(gpus(count))


def test_gpus_shared_by_two_dispatchers(lab: Lab) -> None:
    """Each in a pod of its own, with more slots than the host has GPUs."""
    with_gpus(lab.bed["h2"], 2)
    script = "mkdir gpu$CUDA_VISIBLE_DEVICES || exit 9; sleep 0.5; rmdir gpu$CUDA_VISIBLE_DEVICES"
    lab.fleet.write_manifest([shell(f"a{number}", script, gpus=1) for number in range(8)])
    pods = [lab.start("h2", pod=name, words=("--until-empty",)) for name in ("one", "two")]
    lab.shows("of 1 GPUs are free; GPU 0: given to the attempt")
    assert [pod.end() for pod in pods] == [0, 0]
    assert set(lab.fleet.states().values()) == {"done"}
    assert {record.gpu for record in lab.fleet.records().values()} == {0, 1}


def test_idle_gpus_of_a_host(lab: Lab) -> None:
    """Of attempts on it, told with the polls that there are anyway; what the driver does not say is unknown."""
    host = lab.bed["h2"]
    with_gpus(host, 2)

    def busy(*percent: str) -> None:
        text = "".join(f"{index}, GPU-{index}, {value}\n" for index, value in enumerate(percent))
        (host.bin / "use.new").write_text(text)
        (host.bin / "use.new").rename(host.bin / "use")

    quick = "gpu_idle: {after: 2s}\nmethods: {m: {}, stops: {gpu_idle: {stop: true}}}\n"
    lab.fleet.write_config(CONFIG.replace("methods:\n  m: {pack: 3}\n", quick))
    waits = "echo begun; exec sleep 600"
    lab.fleet.write_manifest([shell("a", waits, gpus=1), shell("b", waits, gpus=1)])
    pod = lab.start("h2")
    lab.begun("a")
    lab.begun("b")
    gpu = lab.fleet.record("a").gpu
    assert isinstance(gpu, int) and {gpu, lab.fleet.record("b").gpu} == {0, 1}
    of_a = [gpu == 0, gpu == 1]
    # Nothing is told of it without an answer, and with MIG.
    busy(*("[N/A]" if is_a else "0" for is_a in of_a))
    wait_until(lambda: "gpu_idle" in lab.fleet.events("b"), "the other one is idle")
    assert "gpu_idle" not in lab.fleet.events("a")
    busy(*("0" if is_a else "7" for is_a in of_a))
    wait_until(lambda: "gpu_busy" in lab.fleet.events("b"), "it is in use again")
    wait_until(lambda: "gpu_idle" in lab.fleet.events("a"), "this one is idle")
    (idle,) = (line.data or {} for line in lab.fleet.history("a") if line.event == "gpu_idle")
    assert (idle["attempt"], idle["gpus"]) == (1, 1)
    wait_until(lambda: "a (attempt 1): GPU" in pod.said, "it is told")
    rows = {row["job"]: row for row in json.loads(lab.fleet.run("status", "--json"))["jobs"]}
    assert rows["a"]["gpu_idle_s"] >= 2 and rows["b"]["gpu_idle_s"] is None
    lab.fleet.run("cancel", "a", "b")
    lab.fleet.wait_for("a", "abandoned")
    lab.fleet.wait_for("b", "abandoned")
    # Where a method wants it stopped, it has failed.
    busy("0", "0")
    lab.fleet.write_manifest([shell("c", waits, gpus=1, method="stops")])
    record = lab.fleet.wait_for("c", "failed")
    assert record.reason == "GPU idle for 2 s"
    (host.bin / "use").unlink()


def test_gpus_that_others_use(lab: Lab) -> None:
    host = lab.bed["h2"]
    with_gpus(host, 2)
    (host.bin / "apps").write_text("GPU-0, 1, 4000\n")
    lab.fleet.write_manifest([shell("one", GATED, gpus=1), shell("two", "true", gpus=2)])
    dispatcher = lab.start("h2")
    lab.begun("one")
    assert lab.fleet.record("one").gpu == 1
    lab.shows("GPU 0: 4000 MiB used by pid 1")
    lab.fleet.write_manifest([
        shell("one", GATED, gpus=1), shell("two", "true", gpus=2), shell("three", "true", gpus=1),
        shell("four", "true", gpus=0),
    ])  # fmt: skip
    lab.fleet.wait_for("four", "done")
    assert lab.fleet.states() == {"one": "running", "two": "submitted", "three": "queued", "four": "done"}
    (host.bin / "apps").unlink()
    lab.let_go(host)
    for job in ("two", "three"):
        lab.fleet.wait_for(job, "done")
    assert lab.fleet.wait_for("one", "failed").exit_code == 3
    assert dispatcher.stop() == 1


def test_dispatchers_that_are_killed_and_hosts_that_go_away(lab: Lab) -> None:
    """Nothing is lost, nothing runs twice, nothing is left running."""
    script = 'mkdir "ran.$DISPATCHER_JOB_ID" && echo once; sleep 0.4'
    jobs = [f"job{number}" for number in range(40)]
    lab.fleet.write_manifest([shell(job, script, gpus=0) for job in jobs])
    pods = {name: lab.start("h1", "h2", pod=name) for name in ("one", "two")}
    choice = random.Random(5)
    for _ in range(8):
        name = choice.choice(list(pods))
        lab.fleet.wait_for(choice.choice(jobs), "running", "done", timeout_s=120)
        pods[name].kill()
        with lab.bed[choice.choice(("h1", "h2"))].away():
            pods[name] = lab.start("h1", "h2", pod=name).ready()
    wait_until(lambda: set(lab.fleet.states().values()) == {"done"}, "all are done", timeout_s=150)
    assert [lab.fleet.output(job, lab.fleet.record(job).attempt) for job in jobs] == ["once\n"] * len(jobs)
    for name in ("h1", "h2"):
        left = lab.bed[name].run(
            "sh", "-c", "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep ^DISPATCHER_JOB_ID; true"
        )
        assert left == ""
    for pod in pods.values():
        assert pod.stop() == 0
