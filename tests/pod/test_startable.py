"""Entries that cannot be started: they are not claimed, everybody says why, and they go on when the cause is mended."""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until

TEMPLATE = "PARAMS = {'lang': ..., 'lr': 0.1}\nprint('trained', PARAMS['lang'])\n"


def write_template(fleet: Fleet, text: str = TEMPLATE, method: str = "m") -> None:
    path = fleet.layout.training_template(method)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def why(fleet: Fleet, **environment: str) -> dict[str, str]:
    """The reasons that a dry run gives."""
    rows = json.loads(fleet.run("--pod", "dry", "--slots", "1", "--dry-run", "--json", **environment))
    return {row["job"]: row["why"] for row in rows}


def test_nothing_is_claimed_that_cannot_be_started(fleet: Fleet) -> None:
    write_template(fleet)
    fleet.write_config("methods: {bad: {command: 'source venv/bin/activate && python {script}'}}\n")
    fleet.write_manifest(
        [
            {"job_id": "good", "lang": "greek"},
            {"job_id": "lacks"},
            {"job_id": "follows", "lang": "greek", "needs": ["lacks"]},
            {"job_id": "no_template", "method": "other"},
            {"job_id": "bad_command", "method": "bad"},
            {"job_id": "own_command", "command": "cd src"},
            {"job_id": "placeholder", "command": "echo {lagn}", "lang": "greek"},
            shell("needs_no_template", "true", method="other"),
        ]
    )
    pod = fleet.run_all()
    assert pod.end() == 1
    done = {"good", "needs_no_template"}
    assert {job for job, state in fleet.states().items() if state == "done"} == done
    assert {job for job, record in fleet.records().items() if record.state == "queued" and record.attempt == 0} == {
        "lacks", "follows", "no_template", "bad_command", "own_command", "placeholder",
    }  # fmt: skip
    expected = {
        "lacks": "has no lang, which",
        "follows": "root cause: lacks cannot be started",
        "no_template": "train_other.py: there is no such template",
        "bad_command": "&& needs a shell",
        "own_command": "cd exists only in a shell",
        "placeholder": "{lagn}, which the entry does not have (did you mean 'lang'?)",
    }
    reasons = why(fleet)
    status = fleet.run("status")
    for job, text in expected.items():
        assert text in reasons[job], job
        assert text in status or job == "follows", status
    pod.says("warning: not claimed: lacks: has no lang")


def test_a_template_that_is_mended_while_the_pod_runs(fleet: Fleet) -> None:
    fleet.write_manifest([{"job_id": f"j{n}", "lang": "greek"} for n in range(3)])
    fleet.layout.training_template("m").parent.mkdir(exist_ok=True)
    # The poll interval is for the changes of other hosts.
    pod = fleet.start(poll="1h").ready()
    assert "there is no such template" in pod.says("3 jobs of m (such as j0): ")
    write_template(fleet)
    for n in range(3):
        assert fleet.wait_for(f"j{n}", "done", "failed").state == "done"
    assert pod.stop() == 0


def test_a_template_that_breaks_while_the_pod_runs_fails_nothing(fleet: Fleet) -> None:
    wait = "import os, time\nprint('runs', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    write_template(fleet, "PARAMS = {'lang': ...}\n" + wait)
    fleet.write_manifest([{"job_id": f"j{n}", "lang": "greek"} for n in range(8)])
    pod = fleet.start(poll="0.3")
    fleet.wait_running("j0")
    write_template(fleet, "PARAMS = {'lang': ...\n")
    (fleet.root / "go").touch()
    assert fleet.wait_for("j0", "done")
    pod.says("the template is not valid Python")
    assert [fleet.states()[f"j{n}"] for n in range(1, 8)] == ["queued"] * 7
    write_template(fleet)
    fleet.wait_for("j7", "done", "failed")
    assert set(fleet.states().values()) == {"done"}


def test_a_python_that_is_missing_and_then_made(fleet: Fleet) -> None:
    write_template(fleet)
    fleet.write_config("methods: {m: {python: envs/asr}}\n")
    fleet.write_manifest([{"job_id": "a", "lang": "greek"}, shell("b", "true", method="n")])
    pod = fleet.start(poll="0.3")
    pod.says(f"a: python = {fleet.root}/envs/asr: no interpreter on this host")
    fleet.wait_for("b", "done")
    assert "no interpreter on this host" in why(fleet)["a"]
    wait_until(lambda: "unusable method m: python = " in fleet.run("status"), "status says what the pod cannot start")
    bin_dir = fleet.root / "envs" / "asr" / "bin"
    bin_dir.mkdir(parents=True)
    os.symlink(sys.executable, bin_dir / "python")
    assert fleet.wait_for("a", "done", "failed").state == "done"
    assert fleet.output("a") == "trained greek\n"


@pytest.fixture
def bare_env(fleet: Fleet) -> Path:
    """A virtual environment without any package."""
    path = fleet.root / "a bare env"
    venv.create(path, symlinks=True)
    return path


def install_checkout(env: Path) -> None:
    """As `pip install --editable` does."""
    (site,) = env.glob("lib/python*/site-packages")
    (site / "dispatcher.pth").write_text(f"{Path(__file__).parents[2]}\n")


IMPORTS = "import dispatcher.contract\nPARAMS = {}\nprint('has it')\n"


def test_a_python_without_the_package_that_a_template_imports(fleet: Fleet, bare_env: Path) -> None:
    write_template(fleet, IMPORTS)
    fleet.write_config(f"methods: {{m: {{python: {bare_env.name}}}}}\n")
    fleet.write_manifest([{"job_id": "a"}, shell("b", "true", method="other")])
    pod = fleet.start(poll="0.2")
    said = f"python = {bare_env}: has no package dispatcher, which templates/train_m.py imports; install it: "
    pod.says(said)
    assert "/bin/python' -m pip install --no-deps " in pod.said
    assert said in why(fleet)["a"]
    assert said in fleet.run("show", "a")
    assert said in fleet.try_("matrix", "check").stderr
    fleet.wait_for("b", "done")
    assert fleet.record("a").attempt == 0
    install_checkout(bare_env)
    fleet.wait_for("a", "done")


def test_a_python_without_the_package_that_job_classes_need(fleet: Fleet, bare_env: Path) -> None:
    fleet.write_config(f"methods: {{m: {{python: {bare_env.name}}}}}\n")
    fleet.write_manifest([{"job_id": "a", "job": "count/letters"}])
    reason = why(fleet)["a"]
    assert "has no package dispatcher, which job classes need; install it: " in reason
    assert reason.endswith("[jax]'")


@pytest.mark.parametrize(
    ("template", "settings", "entry"),
    [
        ("try:\n    import dispatcher\nexcept ImportError:\n    pass\nPARAMS = {}\n", "", {}),
        (IMPORTS, "setup: 'true', ", {}),
        (IMPORTS, "env: {PYTHONPATH: CHECKOUT}, ", {}),
        (IMPORTS, "", {"env": {"PYTHONPATH": "elsewhere"}}),
        (IMPORTS, "command: 'bash {script}', ", {}),
        (IMPORTS, "", {"command": "true"}),
    ],
)
def test_jobs_that_may_do_without_the_package(
    fleet: Fleet, bare_env: Path, template: str, settings: str, entry: dict[str, Any]
) -> None:
    write_template(fleet, template)
    checkout = str(Path(__file__).parents[2])
    fleet.write_config(f"methods: {{m: {{{settings.replace('CHECKOUT', checkout)}python: {bare_env.name}}}}}\n")
    fleet.write_manifest([{"job_id": "a", **entry}])
    assert why(fleet) == {"a": ""}


def test_the_dispatchers_own_packages_are_not_those_of_another_python(fleet: Fleet, bare_env: Path) -> None:
    write_template(fleet, IMPORTS)
    fleet.write_config(f"methods: {{m: {{python: {bare_env.name}}}}}\n")
    fleet.write_manifest([{"job_id": "a"}])
    assert "has no package dispatcher" in why(fleet, PYTHONPATH=str(Path(__file__).parents[2]))["a"]


def test_a_python_that_cannot_be_asked_beforehand(fleet: Fleet, bare_env: Path) -> None:
    write_template(fleet, IMPORTS)
    fleet.write_config(f"methods: {{m: {{setup: 'true', python: {bare_env.name}}}}}\n")
    fleet.write_manifest([{"job_id": "a"}])
    fleet.run_all().end()
    missing = "ModuleNotFoundError: No module named 'dispatcher'"
    assert fleet.record("a").error == f"{missing}; install the package dispatcher into the Python that runs the job"


def test_a_setup_that_bash_cannot_read(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {setup: 'if true; then'}}\n")
    fleet.write_manifest([shell("a", "true")])
    pod = fleet.run_all()
    assert pod.end() == 1
    assert "a: setup: line 2: syntax error" in pod.said
    assert fleet.record("a").attempt == 0


def test_a_setup_in_a_real_run(fleet: Fleet) -> None:
    fleet.write_config('methods:\n  m:\n    setup: |\n      export FROM_SETUP="it\'s $DISPATCHER_JOB_ID"\n')
    fleet.write_manifest([shell("a", 'echo "$FROM_SETUP"')])
    assert fleet.run_all().end() == 0
    assert fleet.output("a") == "it's a\n"
    fleet.write_config(
        "methods: {m: {setup: 'true\n\n  ls /nonexistent', retries: 1, retry_on: setup, backoff: 0.01s}}\n"
    )
    fleet.write_manifest([shell("b", "echo ran")])
    assert fleet.run_all().end() == 1
    record = fleet.record("b")
    assert (record.state, record.reason, record.attempt) == ("failed", "setup", 2)
    assert "ran" not in fleet.output("b", 2)


def test_misspelt_parameters_are_said_once(fleet: Fleet) -> None:
    write_template(fleet)
    fleet.write_manifest([{"job_id": f"j{n}", "lang": "greek", "time_limt": "8h", "label": n} for n in range(3)])
    pod = fleet.start(poll="0.2")
    fleet.wait_for("j2", "done")
    # A manifest and a template that are new and no different in this are no reason to say it again.
    fleet.write_manifest([{"job_id": f"j{n}", "lang": "spanish", "time_limt": "8h", "label": n} for n in range(3)])
    write_template(fleet, f"{TEMPLATE}print('new')\n")
    fleet.run("requeue", "j2")
    fleet.wait_for("j2", "done", attempt=2)
    assert "trained spanish" in fleet.output("j2", 2)
    line = "warning: parameters that nothing reads: 3 jobs of m (such as j0): nothing reads time_limt"
    assert pod.said.count(line) == pod.said.count("warning") == 1
    assert "label" not in pod.said
    assert pod.stop() == 0


def test_only_what_the_pod_takes_is_complained_about(fleet: Fleet) -> None:
    write_template(fleet)
    fleet.write_manifest([{"job_id": "a", "lang": "greek"}, {"job_id": "b", "method": "other"}])
    pod = fleet.run_all("--methods", "m")
    assert pod.end() == 0
    assert "warning" not in pod.said
