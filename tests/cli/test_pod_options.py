"""`dispatcher` without a subcommand: what becomes of options, variables and mistakes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dispatcher.matrix.condition import Where
from dispatcher.pod.options import PodOptions
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State


def test_the_labs_own_command_line(lab, started):
    lab.write_manifest([], "matrix_tokfix_only.json")
    command = "--pod shivam-0_tokfix --gpus 0,1,2,3,4,5,6,7 --methods fft --matrix matrix_tokfix_only.json"
    outcome = lab.run(*command.split(), "--poll-interval", "30")
    assert outcome.code == 7
    assert outcome.out.endswith(" a line\n")
    assert started == [
        PodOptions(
            pod="shivam-0_tokfix",
            gpus="0,1,2,3,4,5,6,7",
            methods=("fft",),
            matrix=lab.layout.matrix_dir / "matrix_tokfix_only.json",
            poll_interval_s=30.0,
        )
    ]


def test_all_other_options(lab, started):
    words = "--pod p --slots 3 --jobs-per-gpu 2 --gpus all --methods fft,lora --where lang=sp* --where seed=4"
    lab.run(*words.split(), "--poll-interval", "10m", "--until-empty", "--max-jobs", "5", "--on-exit", "stop")
    assert started == [
        PodOptions(
            pod="p",
            gpus="all",
            cpu_slots=3,
            jobs_per_gpu=2,
            methods=("fft", "lora"),
            where=Where.parse(["lang=sp*", "seed=4"]),
            poll_interval_s=600.0,
            until_empty=True,
            max_jobs=5,
            on_exit="stop",
        )
    ]


def test_options_from_the_environment(lab, started, monkeypatch):
    monkeypatch.setenv("DISPATCHER_POD", "env-pod")
    monkeypatch.setenv("DISPATCHER_SLOTS", "2")
    monkeypatch.setenv("DISPATCHER_UNTIL_EMPTY", "1")
    assert lab.run().code == 7
    assert (started[0].pod, started[0].cpu_slots, started[0].until_empty) == ("env-pod", 2, True)


def test_a_job_does_not_become_a_pod(lab, started, monkeypatch):
    monkeypatch.setenv("DISPATCHER_POD", "pod-0")
    monkeypatch.setenv("DISPATCHER_JOB_ID", "fft_german_s1")
    monkeypatch.setenv("DISPATCHER_SLOTS", "2")
    assert "Usage:" in lab.run().out
    assert lab.run("status").code == 0
    assert started == []


def test_help_without_options(lab, started):
    outcome = lab.run()
    assert outcome.code == 0
    assert "--pod NAME" in outcome.out
    assert "status" in outcome.out
    assert started == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--gpus", "0"], "--pod NAME"),
        (["--pod", "a/b", "--slots", "1"], "letters, digits"),
        (["--pod", "p", "--slots", "1", "--poll-interval", "soon"], "90m"),
        (["--pod", "p", "--slots", "1", "--where", "lang"], "expected key=value"),
        (["--pod", "p", "--slots", "1", "--matrix", "matrx.json"], "did you mean 'matrix.json'?"),
        (["--pod", "p", "status"], "--pod is an option of a pod and cannot be used with `status`"),
        (["statsu"], "did you mean 'status'?"),
        (["--root", "/nonexistent", "status"], "does not exist"),
    ],
)
def test_mistakes_are_named(lab, started, words, part):
    outcome = lab.run(*words)
    assert outcome.code == 2
    assert outcome.err.startswith("dispatcher: ")
    assert part in outcome.err
    assert started == []


def test_a_pod_without_slots_is_refused(lab):
    """By the real pod: only the outlets know whether it has any."""
    outcome = lab.run("--pod", "p")
    assert outcome.code == 2
    assert outcome.err == (
        "dispatcher: a pod needs slots: --gpus 0,1,2,3 for GPUs, --slots N for CPU slots, "
        "--outlet NAME for a configured host\n"
    )
    assert not list(lab.layout.pods_dir.glob("*"))


def test_an_error_of_ours_has_its_exit_code(lab):
    (lab.root / "dispatcher.yaml").write_text("matrx: x\n")
    outcome = lab.run("--slots", "1", "--dry-run")
    assert outcome.code == 1
    assert outcome.err.startswith("dispatcher: ")
    assert "did you mean 'matrix'?" in outcome.err


def test_root_stands_before_or_after_the_command(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from dispatcher.cli.main import main

    assert main(["status", "--root", str(lab.root)]) == 0
    assert main(["--root", str(lab.root), "matrix", "show"]) == 0
    assert main(["matrix", "show", "--root", str(lab.root)]) == 0
    assert main(["status"]) == 2


def test_dry_run_changes_nothing(lab):
    before = lab.snapshot()
    outcome = lab.run("--dry-run", "--slots", "1", "--json")
    assert outcome.code == 0
    rows = {row["job"]: row for row in outcome.json}
    assert rows["base"]["claimed"] == "yes"
    assert "base" in rows["fft_german_s1"]["why"]
    assert lab.snapshot() == before


def test_people_read_local_times_and_programs_iso(lab, monkeypatch):
    lab.put("base", "queued", retry_at="2999-01-01T00:00:00.000Z")
    for words in (("--dry-run", "--slots", "1"), ("show", "base")):
        assert "waits for a retry until 2999-01-01 00:00:00Z" in lab.run(*words, "--utc").out
        assert "2999-01-01T00:00:00.000Z" in lab.run(*words, "--json").out
        local = lab.start(*words, stdout=subprocess.PIPE, env={"TZ": "XXX-3"}).communicate(timeout=30)[0]
        assert b"waits for a retry until 2999-01-01 03:00:00" in local


def test_interrupt(lab, until):
    lab.put("base", "running")
    lab.attempt("base", log="begun\n")
    process = lab.start("logs", "-f", "base", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(lab):
    with lab.workspace.transaction() as tx:
        for number in range(2000):
            tx.change(f"job_{number}", Event.QUEUED, Change(state=State.QUEUED), extra={"note": "x" * 80})
    # Where Python does not buffer, it ignores that a closing pipe has taken only a part.
    buffered = {"PYTHONUNBUFFERED": ""}
    process = lab.start("history", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_status_loads_nothing_heavy(lab):
    program = (
        "import sys; from dispatcher.cli.main import main; main(['status']); "
        "heavy = {'yaml', 'jinja2', 'filelock', 'psutil', 'jax', 'tabulate', 'subprocess', 'pynvml', 'tempfile'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", program], cwd=lab.root, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


def test_completion_of_job_ids(lab):
    environment = {"_DISPATCHER_COMPLETE": "bash_complete", "COMP_WORDS": "dispatcher show fft_g", "COMP_CWORD": "2"}
    process = lab.start(env=environment, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=20)
    assert out.decode().split() == ["plain,fft_german_s1", "plain,fft_german_s2"]
