"""A host on which no job can run: a pod refuses to start there, and doctor says the same."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from fleet import COMMAND, Fleet, shell

from dispatcher.base.users import name_of
from dispatcher.doctor.fitness import Fault, check_bash, check_directories
from dispatcher.workspace import Layout


@pytest.fixture
def with_bash(tmp_path: Path) -> list[str]:
    """The words before a command that runs it where /bin/bash is the script of the first further word."""
    words = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /bin/bash && exec "$@"']
    stand_in = tmp_path / "bash"
    stand_in.write_text("#!/bin/sh\nexec true\n")
    stand_in.chmod(0o755)
    if subprocess.run([*words, str(stand_in), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here: that needs root")
    return [*words, str(stand_in)]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 4.2.46 works 0", "/bin/bash is version 4.2.46"),
        ("echo 'cannot fork: Resource temporarily unavailable' >&2; exit 254", "exit status 254): cannot fork"),
        ("", "it printed nothing"),
    ],
)
def test_a_pod_refuses_a_host_whose_bash_runs_no_wrapper(
    fleet: Fleet, with_bash: list[str], script: str, said: str
) -> None:
    fleet.write_manifest([shell("a", "true")])
    Path(with_bash[-1]).write_text(f"#!/bin/sh\n{script}\n")
    fleet.command = [*with_bash, *COMMAND]
    pod = fleet.start()
    assert pod.end() == 1
    for words in ("no job can run on this host", said, "install bash" if "4.2" in said else "bash 4.4", "doctor"):
        assert words in pod.said
    assert "Traceback" not in pod.said
    assert not fleet.layout.jobs_dir.exists(), "it has claimed something"
    doctor = subprocess.run(
        [*fleet.command, "doctor", "--json"], cwd=fleet.root, env=fleet.environment(), capture_output=True, check=False
    )
    (finding,) = [found for found in json.loads(doctor.stdout)["findings"] if found["check"] == "bash"]
    assert finding["verdict"] == "wrong"
    assert said in finding["what"]


def test_a_pod_runs_jobs_on_a_host_without_dev_fd(fleet: Fleet, without_dev_fd: list[str]) -> None:
    fleet.write_manifest([shell("a", "echo here; exit 3"), shell("b", "true")])
    fleet.command = [*without_dev_fd, *COMMAND]
    assert fleet.run_all().end() == 1
    assert {job: (r.exit_code, r.attempt) for job, r in fleet.records().items()} == {"a": (3, 1), "b": (0, 1)}


@pytest.mark.quiet
def test_this_host_is_fit_and_that_is_known_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert not isinstance(check_bash(), Fault)
    assert check_directories(Layout(tmp_path)) is None
    # Milliseconds; much more only where the machine does much else.
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("option", ["monitor", "errexit"])
def test_options_that_the_environment_switches_on_are_no_fault_of_bash(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("SHELLOPTS", option)
    assert not isinstance(check_bash(), Fault)


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    layout.jobs_dir.mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, _: path != layout.jobs_dir)
    fault = check_directories(layout)
    assert fault is not None
    assert str(layout.jobs_dir) in fault.what
    owner = name_of(layout.jobs_dir.stat().st_uid)
    assert f"{layout.jobs_dir} (of {owner})" in fault.what
    share = f"dispatcher init --shared {tmp_path}"
    assert f"{owner} (or root) lets the group" in fault.cure and share in fault.cure and "usermod" not in fault.cure
    monkeypatch.setattr("os.getegid", lambda: 12345)
    monkeypatch.setattr("os.getgroups", lambda: [12345])
    layout.jobs_dir.chmod(0o770)
    fault = check_directories(layout)
    assert fault is not None
    # An account's own group is none to join.
    assert f"chgrp GROUP {tmp_path} && {share}" in fault.cure and "usermod" not in fault.cure
    monkeypatch.setattr("dispatcher.doctor.fitness.group_name", lambda _: "lab")
    fault = check_directories(layout)
    assert fault is not None
    assert "join the group of the workspace, lab: " in fault.cure and share not in fault.cure
