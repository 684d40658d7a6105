"""What tests leave on the machine is named."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import leftovers
import pytest
from leftovers import new, snapshot

# Detached as a daemon detaches itself.
DAEMON = "setsid sh -c 'sleep 987 & echo $! >\"$0\"; exit' {} & wait; exit {}"


# The inner shell leaves its child to the process that runs all.
ORPHAN = (
    "sh -c 'sleep 0.1 & echo $!' >{0}; for i in $(seq 300); do kill -0 $(cat {0}) || exit 0; sleep 0.02; done; exit 9"
)


def run(script: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import leftovers; {before}leftovers.main(patience_s=0.2)", "sh", "-c", script]
    env = {**os.environ, "PYTHONPATH": str(Path(leftovers.__file__).parent), **environment}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


def run_for_files(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As if no other tests ran now: only files in this folder count."""
    before = (
        f"leftovers.FOLDERS = ({str(folder)!r},); leftovers.snapshot = lambda: {{'file': set(leftovers._files())}}; "
    )
    return run(script, f"{before}leftovers._other_runs = bool; ", **environment)


@pytest.mark.parametrize(("ci", "status", "expected"), [("true", 0, leftovers.LEFT), ("true", 3, 3), ("", 0, 0)])
def test_a_process_that_outlives_the_run_is_named_and_ended(
    tmp_path: Path, ci: str, status: int, expected: int
) -> None:
    done = run(DAEMON.format(shlex.quote(f"{tmp_path}/pid"), status), CI=ci)
    pid = (tmp_path / "pid").read_text().strip()
    assert f"left by the tests: process {pid}: sleep 987\n" in done.stdout
    assert done.returncode == expected
    assert not Path("/proc", pid).exists()


def test_a_process_that_has_ended_is_gone_at_once(tmp_path: Path) -> None:
    done = run(ORPHAN.format(shlex.quote(f"{tmp_path}/pid")), CI="")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("ci", "status", "expected"), [("true", 0, leftovers.LEFT), ("true", 3, 3), ("", 0, 0)])
def test_a_file_that_is_left_is_named(tmp_path: Path, ci: str, status: int, expected: int) -> None:
    done = run_for_files(tmp_path, f"touch {shlex.quote(f'{tmp_path}/x')}; exit {status}", CI=ci)
    assert done.stdout == f"left by the tests: file {tmp_path}/x\n"
    assert done.returncode == expected


def test_so_are_the_tests_at_whose_end_it_was_new(tmp_path: Path) -> None:
    script = "from leftovers import Notes; notes = Notes(); notes.end_of('a'); open('x', 'w'); notes.end_of('b')"
    before = f"leftovers.FOLDERS = ({str(tmp_path)!r},); "
    words = shlex.join([sys.executable, "-c", f"import leftovers; {before}{script}; notes.end_of('c')"])
    done = run_for_files(tmp_path, f"cd {shlex.quote(str(tmp_path))}; {words}", CI="true")
    assert done.stdout == f"left by the tests: file {tmp_path}/x, first seen after b\n", done.stderr


def test_temporary_files_and_a_home_are_the_runs_own(tmp_path: Path) -> None:
    home = tmp_path / "the home"
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".cache" / "other").mkdir(parents=True)
    (home / ".gitconfig").write_text("mine\n")
    script = """
        mktemp; stat -c %a "$TMPDIR"; mkdir -p "$TMPDIR/x/y"; chmod a= "$TMPDIR/x"
        touch ~/.new ~/.config/new ~/.cache/new ~/.cache/dispatcher-beds/kept
        cat ~/.gitconfig; test -d ~/.config/pip && ls ~/.cache
    """
    own = {"HOME": str(home), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": "", "CI": "true"}
    done = run_for_files(home, script, **own)
    assert done.returncode == 0, done.stdout
    made, *printed = done.stdout.splitlines()
    assert printed == ["1777", *("mine", "dispatcher-beds", "dispatcher-jax", "dispatcher-tests", "new", "pip")]
    assert not Path(made).parent.exists()
    assert sorted(os.listdir(home)) == [".cache", ".config", ".gitconfig"]
    assert os.listdir(home / ".config") == ["pip"]
    assert {path.name for path in (home / ".cache").rglob("*")} == {"other", "kept", *leftovers.CACHES}


def test_nothing_is_removed_through_a_mount_that_is_left(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    script = f'mkdir "$TMPDIR/m" && mount --bind {shlex.quote(str(small_disk))} "$TMPDIR/m" && echo "$TMPDIR"'
    done = run(script, TMPDIR=str(tmp_path / "link"))
    place = Path(done.stdout.split("\n")[0])
    try:
        assert (small_disk / "mine").exists()
    finally:
        subprocess.run(["umount", place / "m"], check=True)
        shutil.rmtree(place)


def test_new_files_and_only_those_are_named() -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as old:
        before = snapshot()
        with tempfile.NamedTemporaryFile(dir="/tmp") as fresh:
            found = new(before, snapshot())
        assert f"file {fresh.name}" in found
        assert f"file {old.name}" not in found
    assert f"file {fresh.name}" not in new(before, snapshot())


def test_a_mount_is_named(small_disk: Path) -> None:
    now = snapshot()
    assert new({**now, "mount": now["mount"] - {str(small_disk)}}, now) == [f"mount {small_disk}"]
