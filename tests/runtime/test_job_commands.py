"""`dispatcher job`, and matrix entries that say `job`: real processes, in a workspace with jobs of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from fleet import COMMAND, Fleet

JOBS = '''
import os, signal
from dataclasses import dataclass

from dispatcher.runtime.configuration import current_config, field, to_dict
from dispatcher.runtime.jobs.basic import BasicJob
from dispatcher.runtime.registry import job


@dataclass(frozen=True)
class Counting:
    text: str = field("count/text")
    times: int = field("count/times", default=1)


@job("count/letters")
class CountLetters(BasicJob[Counting]):
    """Count letters.

    The second paragraph is nobody's business.
    """

    @classmethod
    def config(cls):
        return Counting

    def run(self):
        print(to_dict(current_config()), self.spec.relative_path, os.environ.get("GREETING"))
        return {"letters": len(self.args.text) * self.args.times}


@job("count/preempted")
class Preempted(CountLetters):
    """Is preempted once."""

    def run(self):
        with self.spec.result("begun", mode="a") as file:
            pass
        marker = self.spec.hardware.cluster.root / "marker"
        if not marker.exists():
            marker.touch()
            raise SystemExit(75)
        return super().run()


@job("count/restored")
class Restored(CountLetters):
    """Goes on from somewhere."""

    @classmethod
    def from_checkpoint_path(cls, rel_path, spec, runtime_cfg):
        from dispatcher.runtime.configuration import configuration

        with configuration({"count": {"text": rel_path, **runtime_cfg.get("count", {})}}):
            return cls(spec)
'''


@pytest.fixture
def workspace(fleet: Fleet) -> Fleet:
    (fleet.root / "jobs").mkdir()
    (fleet.root / "jobs" / "count.py").write_text(JOBS)
    return fleet


def dispatcher_job(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(
        [*COMMAND, "job", *words, "--root", str(fleet.root)],
        cwd=fleet.root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_jobs_are_listed(workspace: Fleet) -> None:
    done = dispatcher_job(workspace, "list")
    assert (done.returncode, done.stderr) == (0, "")
    listed = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert listed["count/letters"] == "Count letters."
    assert listed["count/preempted"] == "Is preempted once."
    # The package's own, of which none was imported.
    assert listed["gpt/train/pretrain"].startswith("Train a transformer on the tokens of .npy files")


def test_a_configuration_leaves_to_the_checkpoint_what_it_brings(workspace: Fleet) -> None:
    done = dispatcher_job(workspace, "configure", "gpt/sample", "c.yaml", "sample.prompts=[row]", "model.dropout=0.1")
    assert done.returncode == 0, done.stderr
    written = (workspace.root / "c.yaml").read_text()
    assert written.startswith("job: gpt/sample\nsample:\n  prompts:\n  - row\n  max_new_tokens: 64\n")
    # Overrides stay; other values of the model would replace the checkpoint's.
    assert written.endswith("\nmodel:\n  dropout: 0.1\n")

    run = dispatcher_job(workspace, "run", "x", "c.yaml", "out")
    assert run.returncode == 2
    assert "c.yaml: this job starts from a checkpoint: set one" in run.stderr


def test_a_configuration_is_written_filled_in_and_run(workspace: Fleet) -> None:
    done = dispatcher_job(workspace, "configure", "count/letters", "c.yaml", "count.times=2")
    assert done.returncode == 0, done.stderr
    path = workspace.root / "c.yaml"
    assert path.read_text() == "job: count/letters\ncount:\n  text: '...'\n  times: 2\n"

    again = dispatcher_job(workspace, "configure", "count/letters", "c.yaml")
    assert again.returncode == 2 and "--force replaces it" in again.stderr and "times: 2" in path.read_text()

    empty = dispatcher_job(workspace, "run", "first", "c.yaml", "out")
    assert empty.returncode == 1
    assert empty.stderr.splitlines() == [
        "dispatcher: c.yaml: 1 problem",
        "  count.text: required, but not set: expected text",
    ]

    run = dispatcher_job(workspace, "run", "first", "c.yaml", "out", "count.text=hello", "--project", "p")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "{'count': {'text': 'hello', 'times': 2}} p/default/first None",
        '{"letters": 10}',
    ]
    assert (workspace.root / "out" / "results" / "p" / "default" / "first" / "result.json").is_file()


def test_what_a_job_cannot_do_is_said(workspace: Fleet) -> None:
    (workspace.root / "c.yaml").write_text("job: count/letters\ncount: {text: a}\n")
    for words, code, problem in (
        (("configure", "count/leters", "d.yaml"), 2, "there is no job 'count/leters' (did you mean 'count/letters'?)"),
        (("configure", "count/letters", "d.yaml", "count.tims=1"), 1, "count.tims = 1: unknown key (did you mean"),
        (("run", "x", "c.yaml", "out", "--restore", "a/b"), 2, "CountLetters cannot start from 'a/b'"),
        (("run", "x/y", "c.yaml", "out"), 2, "name = 'x/y': expected a folder name"),
        (("run", "x"), 2, "Missing argument 'CONFIG.yaml'"),
        (("rum", "x"), 2, "No such command 'rum'"),
        (("list", "--import", "nowhere"), 2, "nowhere: cannot be imported"),
    ):
        done = dispatcher_job(workspace, *words)
        assert (done.returncode, problem in done.stderr) == (code, True), done.stderr
    assert not (workspace.root / "d.yaml").exists()


def test_a_name_may_begin_with_a_dash(workspace: Fleet) -> None:
    (workspace.root / "c.yaml").write_text("job: count/letters\ncount: {text: a}\n")
    words = ["job", "--root", str(workspace.root), "run", "--project", "p", "--", "-x", "c.yaml", "out"]
    done = commands.run([*COMMAND, *words], cwd=workspace.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (workspace.root / "out/results/p/default/-x/result.json").is_file()


def test_a_job_goes_on_from_a_checkpoint(workspace: Fleet) -> None:
    (workspace.root / "c.yaml").write_text("job: count/restored\ncount: {times: 3}\n")
    done = dispatcher_job(workspace, "run", "x", "c.yaml", "out", "--restore", "p/g/base/best")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == json.dumps({"letters": 3 * len("p/g/base/best")})


def test_entries_run_jobs_with_no_script_to_write(workspace: Fleet) -> None:
    other = workspace.root / "elsewhere.py"
    other.write_text(JOBS.replace('@job("count/', '@job("elsewhere/'))
    workspace.layout.config_file.write_text("methods:\n  count:\n    env: {GREETING: hello}\n    time_limit: 5m\n")
    entry = {"method": "count", "gpus": 0, "lang": "greek"}
    workspace.write_manifest(
        [
            {**entry, "job_id": "plain", "job": "count/letters", "config": {"count": {"text": "abc"}}, "count.times": 2,
             "labels": ["a"]},
            {**entry, "job_id": "preempted", "job": "count/preempted", "count.text": "ab", "output_dir": "o"},
            {**entry, "job_id": "restored", "job": "count/restored", "restore": "p/g/base"},
            {**entry, "job_id": "wrong", "job": "count/letters", "config": {"count": {"txt": 1}}},
            {**entry, "job_id": "unknown", "job": "count/leters"},
            {**entry, "job_id": "imported", "job": "elsewhere/letters", "count.text": "a", "import": [str(other)],
             "project": "p", "group": "g"},
        ]
    )  # fmt: skip
    workspace.run_all("--slots", "2")
    assert workspace.states() == {
        "plain": "done",
        "preempted": "done",
        "restored": "done",
        "wrong": "failed",
        "unknown": "failed",
        "imported": "done",
    }
    results = {
        job: json.loads(workspace.attempt(job, number).result.read_text())
        for job, number in (("plain", 1), ("preempted", 2), ("restored", 1), ("imported", 1))
    }
    assert results == {
        "plain": {"letters": 6},
        "preempted": {"letters": 2},
        "restored": {"letters": len("p/g/base")},
        "imported": {"letters": 1},
    }
    assert workspace.exit_file("preempted", 1)["exit_code"] == 75
    assert workspace.output("plain").startswith("{'count': {'text': 'abc', 'times': 2}} default/default/plain hello")
    assert (workspace.root / "o" / "results" / "default" / "default" / "preempted" / "result.json").is_file()
    assert (workspace.root / "runs" / "results" / "p" / "g" / "imported" / "result.json").is_file()
    assert "count.txt = 1: unknown key (did you mean 'count.text'?)" in workspace.output("wrong")
    assert "there is no job 'count/leters' (did you mean 'count/letters'?)" in workspace.output("unknown")


def test_an_entry_that_cannot_be_is_refused(workspace: Fleet) -> None:
    path = workspace.write_manifest(
        [
            {"job_id": "a", "method": "m", "job": "count letters"},
            {"job_id": "b", "method": "m", "job": "count/letters", "config": ["text"]},
            {"job_id": "c", "method": "m", "config": {"text": "a"}},
            {"job_id": "d", "method": "m", "job": "count/letters", "import": 3},
        ]
    )
    done = commands.run(
        [*COMMAND, "matrix", "check", str(path)], cwd=workspace.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    for problem in (
        'job = "count letters": expected the key of a class with @job',
        'config = ["text"]: expected keys and values',
        "only an entry with `job` has a config",
        "import = 3: expected one name or a list of names",
    ):
        assert problem in done.stderr, done.stderr


def test_checking_a_matrix_asks_the_jobs(workspace: Fleet) -> None:
    entry = {"method": "nowhere", "job": "count/letters", "config": {"count": {"text": "a"}}}
    good = [
        {**entry, "job_id": "a"},
        {**entry, "job_id": "b", "command": ["echo", "{job}", "{config}"], "config": {"x": 1}},
        {
            **entry,
            "job_id": "c",
            "job": "count/restored",
            "restore": "p/g/base",
            "config": {"model": {"num_layers": 2}},
        },
    ]
    workspace.write_manifest(good)
    done = workspace.try_("matrix", "check")
    assert (done.returncode, done.stderr) == (0, "")
    workspace.write_manifest(
        [
            *good,
            {**entry, "job_id": "d", "count.times": "many", "count.tims": 2},
            {**entry, "job_id": "e", "job": "count/leters"},
            {**entry, "job_id": "f", "count": 1, "count.text.more": 1},
            {**entry, "job_id": "g", "job": "gpt/sample", "config": {"sample": {"prompts": ["row"]}}},
        ]
    )
    done = workspace.try_("matrix", "check")
    assert done.returncode == 1
    assert [line.strip() for line in done.stderr.splitlines()[1:]] == [
        'd: count.times = "many": expected a whole number',
        "d: count.tims = 2: unknown key (did you mean 'count.times'?)",
        "e: there is no job 'count/leters' (did you mean 'count/letters'?)",
        'f: count.text = {"more": 1}: expected text',
        "g: this job starts from a checkpoint: set one with --restore or as `restore` of the entry, a path such as "
        "default/default/NAME/best",
    ]


def test_a_sweep_with_jobs_that_are_refused_makes_no_manifest(workspace: Fleet) -> None:
    (workspace.root / "dispatcher.yaml").touch()
    sweep = workspace.root / "sweep.yaml"
    text = "sweeps: [{job_id: a, defaults: {method: m, job: count/letters, count.KEY: abc}}]\n"
    sweep.write_text(text.replace("KEY", "tims"))
    done = workspace.try_("matrix", "make", str(sweep))
    assert done.returncode == 1
    assert "which was not written" in done.stderr and "count.tims" in done.stderr
    manifest = workspace.root / "matrix" / "matrix.json"
    assert not manifest.exists()
    sweep.write_text(text.replace("KEY", "text"))
    assert workspace.try_("matrix", "make", str(sweep)).returncode == 0
    assert manifest.exists()


def test_a_rewind_needs_checkpoints_of_its_own(workspace: Fleet) -> None:
    (workspace.root / "c.yaml").write_text("job: count/letters\ncount: {text: abc}\n")
    run = ("run", "x", "c.yaml", "out", "--from", "step-00000001")
    done = dispatcher_job(workspace, *run)
    assert done.returncode == 2
    assert "CountLetters cannot rewind to 'step-00000001': it is not a CheckpointedJob" in done.stderr
    done = dispatcher_job(workspace, *run, "--restore", "p/g/base")
    assert done.returncode == 2
    assert "--from takes a checkpoint of this run, --restore one of another run: choose one of them" in done.stderr


def test_an_attempt_does_not_rewind(workspace: Fleet) -> None:
    """It would do so again after each preemption, and get no further."""
    (workspace.root / "c.yaml").write_text("job: count/letters\ncount: {text: abc}\n")
    command = [sys.executable, "-P", "-m", "dispatcher", "job", "run", "x", "c.yaml", "out", "--from", "step-00000001"]
    workspace.write_manifest([{"job_id": "a", "method": "m", "command": command}])
    assert workspace.run_all().end() == 1
    assert workspace.record("a").reason == "exit 2"
    assert "not possible inside an attempt of a dispatcher" in workspace.output("a")


def test_jobs_that_cannot_be_asked_are_a_warning(workspace: Fleet) -> None:
    (workspace.root / "jobs" / "count.py").write_text("import os; os._exit(3)")
    workspace.write_manifest([{"job_id": "a", "method": "m", "job": "count/letters"}])
    done = workspace.try_("matrix", "check")
    assert done.returncode == 0
    assert done.stderr == "warning: the job classes could not be checked: no reason given\n"


def test_the_command_line_itself_does_not_load_jax() -> None:
    code = "import sys, dispatcher.cli.job, dispatcher.cli.main; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_needs_no_device_loads_no_jax(tmp_path: Path) -> None:
    code = (
        "import sys; from dispatcher.runtime.command_line import main; import dispatcher.runtime.metrics\n"
        "assert main(['--help']) == 0 and main(['list']) == 0; print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
