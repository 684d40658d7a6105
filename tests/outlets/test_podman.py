"""Containers of the real podman: what reaches the command, how it is stopped, and that nothing is left."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fleet import wait_until
from hostile_words import HOSTILE_WORDS
from node_trials import archive_of
from podman_here import IMAGE, PODMAN
from sessions import kill_session

from dispatcher.hosts.types import Container
from dispatcher.outlets.local import processes

pytestmark = pytest.mark.slow

NODE = os.uname().nodename
CONTAINER = Container(runtime="podman", image=IMAGE)


@pytest.fixture
def contained(node, podman):
    """A node whose attempts run in a container of the tiny image."""
    node.path.append(podman.bin)
    node.environment.update(podman.environment)
    node.configure(container=CONTAINER)
    yield node
    assert podman.containers() == []


def in_shell(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.mark.parametrize("status", [0, 3, 125, 137])
def test_exit_status(contained, status):
    one = contained.run("", arguments=in_shell(f"echo out; echo err >&2; exit {status}"))
    assert (one.status, sorted(one.output.split())) == (status, ["err", "out"])
    assert not one.has_failed_setup
    assert contained.leftovers() == []


def test_words_variables_and_secrets(contained):
    """Values arrive as they are, and none is seen on a command line."""
    words = [word for word in HOSTILE_WORDS if word]
    environment = {f"WORD_{number}": word for number, word in enumerate(words)} | {"API_KEY": "s3cret-value"}
    script = 'echo ready; until [ -e go ]; do sleep 0.05; done; for w; do printf "%s\\0" "$w"; done; env'
    one = contained.start("", arguments=[*in_shell(script), "sh", *words], environment=environment).says("ready")
    seen = command_lines()
    assert any(b"API_KEY" in line for line in seen)
    assert not any(b"s3cret-value" in line for line in seen)
    (contained.root / "go").touch()
    assert one.ended().status == 0
    assert one.output.split("\0")[:-1] == ["ready\n" + words[0], *words[1:]]
    for number, word in enumerate(words):
        assert f"WORD_{number}={word}\n" in one.output
    assert "API_KEY=s3cret-value" in one.output
    assert "PATH=/usr/local/sbin" in one.output


RUNS = os.fsencode(PODMAN) + b"\0"


def command_lines(group: int | None = None) -> list[bytes]:
    """Of all processes, or of those in one process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if group in (None, os.getpgid(int(path.parent.name))):
                found.append(path.read_bytes())
    return found


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_told_to_stop_while_the_container_starts(contained, pause_s):
    """Podman then leaves with status 0, which must not be taken for that of the command."""
    one = contained.start("", arguments=["sleep", "60"])
    group = one.process.pid
    wait_until(lambda: any(one.startswith(RUNS) and b"\0run\0" in one for one in command_lines(group)), "podman runs")
    time.sleep(pause_s)
    one.tell_group()
    assert one.ended().status == 143
    assert (one.first, one.has_failed_setup) == ("signal TERM", False)


def test_directories(contained):
    """The workspace, the code and a /tmp of its own, in the working directory that it would have outside."""
    data = contained.folder / "data"
    data.mkdir()
    (data / "x").write_text("data\n")
    contained.configure(
        directories=(os.fspath(data), "/nonexistent/data"),
        container=Container(runtime="podman", image=IMAGE, mounts=(f"{data}:/mnt:ro",), options=("--env", "EXTRA=1")),
    )
    script = 'pwd; cat train.py /mnt/x; ls -a /tmp; echo $EXTRA; touch /tmp/mine "$DISPATCHER_ATTEMPT_DIR/reported"'
    one = contained.run("", arguments=in_shell(script), code=archive_of({"train.py": "code\n"}))
    assert one.status == 0, one.output
    tree = contained.work / "dispatcher-work" / contained.setup.work_id / "job.1" / NODE / "tree"
    lines = one.output.splitlines()[1:]
    assert lines[:4] == [str(tree), "code", "data", "."]
    assert set(lines[4:-1]) <= {"..", "1", contained.folder.parts[2]}
    assert (one.directory / "reported").exists()
    assert not Path("/tmp/mine").exists()
    assert contained.leftovers() == []


@pytest.mark.parametrize("to_group", [True, False])
def test_the_command_is_told_to_stop(contained, to_group):
    script = "trap 'echo saving; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    one = contained.start("", arguments=in_shell(script)).says("ready")
    one.tell_group() if to_group else one.process.send_signal(signal.SIGTERM)
    one.ended()
    assert (one.status, one.output, one.first) == (75, "ready\nsaving\n", "signal TERM")


def test_a_command_without_handlers_ends_at_once(contained):
    """As process 1 of a container it would ignore TERM."""
    one = contained.start("", arguments=["sleep", "60"])
    name = f"dispatcher-{contained.setup.work_id}-job.1-{NODE}-0"
    wait_until(lambda: running(contained, name), "the container runs")
    one.tell_group()
    assert one.ended().status == 143


def running(node, name: str) -> bool:
    done = subprocess.run(
        [node.path[0] / "podman", "inspect", "--format", "{{.State.Running}}", name],
        env=node.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() == "true"


def test_a_killed_script_leaves_no_container(contained, podman):
    one = contained.start("", arguments=in_shell("echo ready; sleep 60")).says("ready")
    assert podman.containers() == [f"dispatcher-{contained.setup.work_id}-job.1-{NODE}-0"]
    one.tell_group(signal.SIGKILL)
    one.ended()
    wait_until(lambda: podman.containers() == [], "the container is gone")
    wait_until(lambda: processes.of_attempt(one.directory) == [], "nothing of the attempt is left")
    assert list(contained.local.glob("dispatcher-*/node.*")) == []


def test_an_image_that_is_not_there(contained):
    contained.configure(container=Container(runtime="podman", image="localhost/absent:1", options=("--pull", "never")))
    one = contained.run("", arguments=["true"])
    assert (one.status, one.has_failed_setup) == (125, True)
    assert "localhost/absent:1" in one.output


def test_a_program_that_is_not_in_the_image(contained):
    one = contained.run("", arguments=["absent-program"])
    assert one.status not in (0, 75)
    assert "No such file" in one.output


def test_no_podman(contained, podman):
    contained.path.clear()
    contained.environment["PATH"] = without(contained.environment["PATH"], "podman", contained.folder)
    one = contained.run("", arguments=["true"])
    assert (one.status, one.has_failed_setup) == (1, True)
    assert "podman: there is no such program on PATH=" in one.output


def without(path: str, program: str, folder: Path) -> str:
    """A PATH with every program but one."""
    here = folder / "without"
    here.mkdir()
    for directory in reversed(path.split(os.pathsep)):
        for found in Path(directory).glob("*"):
            if found.name != program:
                link = here / found.name
                link.unlink(missing_ok=True)
                link.symlink_to(found)
    return os.fspath(here)


def test_a_setup_with_variables_of_the_same_names(contained):
    """On a host that does not see the workspace the setup runs before the container, in the same shell."""
    setup = "here=x; rank=x; image=x; tree=x; container_name=x; locks=x; export FROM_SETUP=yes; set -u; IFS=/"
    code = archive_of({"train.py": "code\n"})
    one = contained.run("", arguments=in_shell("cat train.py; echo $FROM_SETUP; exit 3"), setup=setup, code=code)
    assert (one.status, one.output.splitlines()[1:]) == (3, ["code", "yes"])


@pytest.fixture
def locally(trial, podman, monkeypatch, tmp_path):
    """Makes attempts of the local outlet, whose commands run in a container."""
    root = tmp_path / "a'; echo foo"
    work_id = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    monkeypatch.setenv("PATH", f"{podman.bin}:{os.environ['PATH']}")
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield lambda script, **words: trial("", **{"command": ("sh", "-c", script), "container": CONTAINER, **words})
    # Of those that were killed.
    for path in Path(f"/tmp/dispatcher-{os.getuid()}").glob(f"work-{work_id}-*"):
        path.unlink()
    assert podman.containers() == []


def test_the_bundle_of_a_container_on_this_host(locally):
    """The wrapper starts node.sh, and the command runs in the container."""
    one = locally('echo "$DISPATCHER_JOB_ID in $PWD"; ls /bin/busybox; exit 3')
    ended = one.start().end()
    assert (ended.exit_code, ended.exit_reason) == (3, "")
    assert one.output == f"job in {one.root}\n/bin/busybox\n"
    assert list(Path(os.environ["TMPDIR"]).glob("dispatcher-work/*/*")) == []


def test_an_image_that_is_missing_is_a_failed_setup(locally):
    container = Container(runtime="podman", image="localhost/absent:1", options=("--pull", "never"))
    ended = locally("true", container=container).start().end()
    assert (ended.exit_code, ended.exit_reason) == (125, "setup")


def test_the_time_limit(locally):
    script = "trap 'echo saving; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    one = locally(script, time_limit_s=60.0, clock_s=1000).start().says("ready")
    one.clock.passes(60)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (9, "time limit")
    # podman may complain that it could not forward the signal that continues a suspended job: it has ended.
    assert one.output.startswith("ready\nsaving\n")


def test_a_command_that_does_not_hear_is_killed_with_its_container(locally, podman):
    one = locally("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_s=1.0).start().says("ready")
    one.send(signal.SIGTERM)
    assert one.end().exit_code == 137
    wait_until(lambda: podman.containers() == [], "the container is gone")


def test_a_killed_attempt_ends_with_its_container(locally, podman):
    """It is no child of the wrapper: no end is reported while it runs."""
    one = locally("echo ready; while :; do sleep 0.05; done").start().says("ready")
    kill_session(one.pid)
    ended = one.end()
    assert (ended.exit_code, ended.error) == (None, "signal 9 killed its wrapper")
    wait_until(lambda: podman.containers() == [], "the container is gone")


def test_python_of_the_image(trial, podman):
    """Not that of the host, whose path the image does not have."""
    one = trial("", command=("{python}", "x.py"), container=CONTAINER)
    wrapper = one.bundle.files["job.sh"].decode()
    assert sys.executable not in wrapper
    assert json.dumps(one.paths.directory.name) == '"1"'
    assert "node.sh" in wrapper
