"""Bundles whose command runs in node.sh: what the wrapper makes of it, and what stands in the files."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest
from node_trials import WORK_ID
from trials import KEY, Trial

from dispatcher import contract
from dispatcher.hosts.types import Container
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Ended, Request, Slot
from dispatcher.outlets.bundle import deliver, render
from dispatcher.outlets.node.setup import JuiceFS, NodeSetup, code_file
from dispatcher.outlets.wrapper import read_exit

PASSWORD = "s3cret'word"


class Site:
    """An attempt on a host with a set-up: rendered for it, delivered and run by hand with its wrapper."""

    def __init__(self, one: Trial, tmp_path: Path, *, is_shared: bool = True, **words: object) -> None:
        self.one = one
        (tmp_path / "locks").mkdir(exist_ok=True)
        made = NodeSetup(work_id=WORK_ID, work=f"{tmp_path}/work", local_dir=f"{tmp_path}/locks")
        node = msgspec.structs.replace(made, **words)
        site = msgspec.structs.replace(one.outlet.site(Slot(), Request(0)), node=node, is_shared=is_shared)
        assigned = Assignment(entry=one.entry, key=KEY, pod="pod", request=Request(), slot=Slot())
        self.bundle = render(one.config, assigned, site)
        assert deliver(self.bundle, one.config.layout)

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **{name: value or "" for name, value in self.bundle.environment.items()}}
        words = ["bash", os.fspath(self.one.paths.wrapper), "none"]
        return subprocess.Popen(words, env=environment, start_new_session=True)

    def end(self) -> Ended:
        self.start().wait(60)
        ended = read_exit(self.one.paths.directory)
        assert isinstance(ended, Ended)
        return ended


def test_the_command_runs_in_it(trial, tmp_path):
    one = trial('echo "$HOST_SAYS $OWN in $PWD"; exit 3', env={"OWN": "entry's"})
    ended = Site(one, tmp_path, env={"HOST_SAYS": "it's", "OWN": "host"}).end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (3, "", "")
    assert one.output == f"it's entry's in {one.root}\n"


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("modules", [(), ("python/3",)])
def test_the_environment_of_the_method_is_activated(trial, tmp_path, monkeypatch, is_shared, modules):
    """Before the setup, and also in place of what modules load, where the workspace is seen or not."""
    loads = f"module() {{ PATH={tmp_path}/modules:$PATH; }}\nexport -f module\n"
    for name in ("envs/asr", "active"):
        programs = tmp_path / "a'; echo foo" / name / "bin"
        programs.mkdir(parents=True)
        (programs.parent / "pyvenv.cfg").touch()
        (programs / "python").write_text(f"#!/bin/sh\necho {name} $PYTHONPATH\n")
        (programs / "python").chmod(0o755)
    root = tmp_path / "a'; echo foo"
    monkeypatch.setenv("PATH", f"{root}/active/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", f"{root}/active")
    monkeypatch.setenv("PYTHONPATH", "/of/the/dispatcher")
    (tmp_path / "modules").symlink_to(root / "active" / "bin")
    monkeypatch.setenv("MODULESHOME", str(tmp_path))
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").write_text(loads)
    one = trial('python; echo "$VIRTUAL_ENV"; type -P python', python=root / "envs/asr", setup="python")
    assert Site(one, tmp_path, is_shared=is_shared, modules=modules).end().exit_code == 0
    assert one.output == f"envs/asr\nenvs/asr\n{root}/envs/asr\n{root}/envs/asr/bin/python\n"


def test_configured_places_of_modules_stay(trial, tmp_path):
    one = trial("echo $PYTHONPATH", python=Path("/usr/bin/python3"))
    assert Site(one, tmp_path, env={"PYTHONPATH": "/of/the/host"}).end().exit_code == 0
    assert one.output == "/of/the/host\n"


def test_a_failed_setup_is_no_failed_job(trial, tmp_path):
    one = trial("echo ran")
    ended = Site(one, tmp_path, modules=("absent/1.0",)).end()
    assert (ended.exit_code, ended.exit_reason) == (1, "setup")
    assert one.output.splitlines()[-1].startswith("dispatcher: error: ")
    assert "absent/1.0" in one.output


def test_a_wrapper_that_is_run_again_forgets_an_earlier_failure(trial, tmp_path):
    one = trial("exit 4")
    site = Site(one, tmp_path)
    (one.paths.directory / "node.failed").write_text("node\n")
    (one.paths.directory / "node.first").write_text("signal TERM\n")
    (one.paths.directory / "node.0.status").write_text("9\n")
    ended = site.end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (4, "", "")
    assert not (one.paths.directory / "node.0.status").exists()


def test_a_scheduler_that_signals_the_step_and_not_the_wrapper(trial, tmp_path):
    """As SLURM does in a grace period: the job saves and ends well, which is no success."""
    one = trial("trap 'exit 0' TERM; echo ready; while :; do read -t 0.05 <>/dev/null; sleep 0.05; done")
    site = Site(one, tmp_path)
    wrapper = site.start()
    one.says("ready")
    step = [pid for pid in one.tree() if pid != wrapper.pid and b"node.sh" in cmdline(pid)]
    for pid in [
        *step,
        *(pid for pid in one.tree() if b"node.sh" not in cmdline(pid) and b"job.sh" not in cmdline(pid)),
    ]:
        # One that sleeps for a moment may be gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wrapper.wait(60)
    ended = read_exit(one.paths.directory)
    assert isinstance(ended, Ended)
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (0, "", "TERM")


@pytest.mark.parametrize(
    ("first", "exit_code", "told_by"),
    [("status 9", 9, ""), ("signal TERM", 143, "TERM"), ("status x", 143, ""), ('signal ", "', 143, ""), ("", 143, "")],
)
def test_what_ended_the_first_rank_counts(trial, tmp_path, first, exit_code, told_by):
    """The other ranks, and so the launcher, may end with anything afterwards. Nothing else is believed."""
    one = trial(f"echo '{first}' >\"$DISPATCHER_ATTEMPT_DIR/node.first\"; exit 143")
    ended = Site(one, tmp_path).end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (exit_code, "", told_by)
    assert not (one.paths.directory / "node.first").exists()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_wrapper_that_is_told_tells_the_job_once(trial, tmp_path):
    one = trial("trap 'echo told' TERM; echo ready; until [ -e go ]; do read -t 0.05 <>/dev/null; done; exit 75")
    site = Site(one, tmp_path)
    wrapper = site.start()
    one.says("ready")
    wrapper.send_signal(signal.SIGTERM)
    one.says("told")
    (one.root / "go").touch()
    assert wrapper.wait(60) == 75
    assert one.output == "ready\ntold\n"
    assert one.exit["signal"] == "TERM"


def test_by_hand_without_a_group_a_signal_reaches_the_command(trial, tmp_path):
    one = trial("trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    Site(one, tmp_path)
    wrapper = subprocess.Popen(["bash", one.paths.wrapper])
    one.says("ready")
    wrapper.send_signal(signal.SIGTERM)
    assert wrapper.wait(60) == 9
    assert one.output.splitlines()[-1] == "told"


def test_the_setup_of_a_method_runs_where_the_code_is(trial, tmp_path):
    for is_shared in (True, False):
        one = trial('echo "$FROM_SETUP"', root=tmp_path / f"w{is_shared}", setup="export FROM_SETUP=yes")
        site = Site(one, tmp_path, is_shared=is_shared)
        in_wrapper = b"set_up()" in site.bundle.files[contract.WRAPPER_FILE]
        in_node = b"set_up()" in site.bundle.files[contract.NODE_FILE]
        assert (in_wrapper, in_node) == (is_shared, not is_shared)
        assert site.end().exit_code == 0
        assert one.output == "yes\n"


def test_an_entry_says_where_its_command_runs(trial, tmp_path):
    """Below the directory of the code, which is where the setup runs."""
    for is_shared in (True, False):
        root = tmp_path / f"w{is_shared}"
        one = trial('echo "$SETUP_IN $PWD"', root=root, setup="export SETUP_IN=$PWD", cwd="it's/a $dir")
        (root / "it's/a $dir").mkdir(parents=True)
        assert Site(one, tmp_path, is_shared=is_shared).end().exit_code == 0
        assert one.output == f"{root} {root}/it's/a $dir\n"
    one = trial("pwd", cwd=os.fspath(tmp_path))
    assert Site(one, tmp_path).end().exit_code == 0
    assert one.output == f"{tmp_path}\n"
    one = trial("pwd", root=tmp_path / "other", cwd="missing")
    ended = Site(one, tmp_path).end()
    assert (ended.exit_code, ended.exit_reason) == (1, "setup")
    assert "missing of the entry's cwd cannot be entered" in one.output


def test_a_setup_that_fails_on_the_node(trial, tmp_path):
    one = trial("echo ran", setup="true\nfalse")
    ended = Site(one, tmp_path, is_shared=False).end()
    assert (ended.exit_code, ended.exit_reason) == (1, "setup")
    assert one.output.splitlines()[-1] == "dispatcher: error: setup, line 2, exit status 1: false"


def test_the_password_is_for_its_owner_alone(trial, tmp_path):
    one = trial("true")
    mount = JuiceFS(url="redis://:@h/1", root="/mnt/lab", password=PASSWORD)
    site = Site(one, tmp_path, juicefs=mount)
    assert not any(PASSWORD.encode() in content for content in site.bundle.files.values())
    path = one.paths.directory / contract.PASSWORD_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == PASSWORD
    # There is no juicefs here: the attempt ends, and its password is removed.
    assert site.end().exit_reason == "setup"
    assert not path.exists()


@pytest.mark.parametrize(
    ("entry", "method", "host", "used"), [("e", "m", "h", "e"), (None, "m", "h", "m"), (None, None, "h", "h")]
)
def test_whose_container_is_used(trial, tmp_path, entry, method, host, used):
    def made(image):
        return Container(runtime="podman", image=f"localhost/{image}:1") if image else None

    one = trial("true", container=made(entry))
    config = one.config
    methods = {name: msgspec.structs.replace(m, container=made(method)) for name, m in config.methods.items()}
    one.config = msgspec.structs.replace(config, methods=methods)
    site = Site(one, tmp_path, container=made(host))
    assert f"localhost/{used}:1".encode() in site.bundle.files[contract.NODE_FILE]


@pytest.mark.parametrize(("digest", "archive"), [("x", "/a"), ("0" * 63, "/a"), ("0" * 64, "/a\nb")])
def test_a_code_file_is_three_lines(digest, archive):
    assert code_file("0" * 64, "abc", "/it's") == b"0" * 64 + b"\nabc\n/it's\n"
    with pytest.raises(ValueError, match=r"SHA-256|line break"):
        code_file(digest, "abc", archive)
