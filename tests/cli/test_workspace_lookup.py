"""Which workspace a command works on, and that it creates nothing outside of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import commands
import pytest

from dispatcher.api import Workspace
from dispatcher.cli.main import _COMMANDS, main
from dispatcher.errors import UsageError
from dispatcher.workspace import Layout, nearest_workspace

# Every command, and the words after it; `init` creates a workspace; `job` and `schema` work anywhere.
ARGUMENTS = {
    "matrix": ("make", "given/sweep.yaml"),
    "status": (),
    "wait": ("a",),
    "show": ("a",),
    "diff": ("a", "b"),
    "usage": (),
    "clean": ("--yes",),
    "ship": ("given/sweep.yaml",),
    "logs": ("a",),
    "history": (),
    "results": (),
    "export": ("tensorboard", "runs"),
    "web": ("--port", "0"),
    "notify": (),
    "requeue": ("a",),
    "hold": ("a",),
    "cancel": ("a",),
    "update": ("a", "--priority", "1"),
    "mark": ("done", "a"),
    "delete": ("a", "--yes"),
    "edit": (),
    "pods": (),
    "drain": ("pod-0",),
    "undrain": ("pod-0",),
    "pause": ("fft",),
    "unpause": ("fft",),
    "outlets": (),
    "submit": ("a",),
    "poll": (),
    "doctor": (),
    "solve": ("--chip", "h100"),
}
OTHERS = (
    ("matrix", "check"),
    ("matrix", "check", "given/matrix.json"),
    ("matrix", "show"),
    ("matrix", "make", "given/sweep.yaml", "-o", "new.json"),
    ("matrix", "tune", "given/tune.yaml"),
    ("matrix", "trials", "study"),
    ("export", "wandb", "--project", "lab"),
    ("notify", "--once"),
    ("notify", "--test"),
    ("status", "--restore"),
    ("history", "a", "--json"),
    ("edit", "--clear-refused"),
    ("doctor", "--repair"),
    ("outlets", "create", "tpu", "--yes"),
    ("outlets", "delete", "tpu", "--yes"),
    ("job", "submit", "new", "given/config.yaml"),
    ("--pod", "pod-0", "--slots", "1", "--until-empty"),
    ("--slots", "1", "--dry-run"),
)
SWEEP = "job_id: '{seed}'\ndefaults: {method: fft, command: 'true'}\nsweeps: [{grid: {seed: [1, 2]}}]\n"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DISPATCHER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that is in no workspace, with files that commands may be given."""
    place = tmp_path / "a'; echo foo"
    given = place / "given"
    given.mkdir(parents=True)
    (given / "matrix.json").write_text('[{"job_id": "a", "method": "fft", "command": "true"}]')
    (given / "sweep.yaml").write_text(SWEEP)
    (given / "config.yaml").write_text("job: none\n")
    return place


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one job and a directory below it."""
    root = tmp_path / "a lab"
    (root / "below" / "deeper").mkdir(parents=True)
    (root / "matrix").mkdir()
    (root / "matrix" / "matrix.json").write_text('[{"job_id": "a", "method": "fft", "command": "true"}]')
    return root


def dispatcher(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return commands.run(
        [*commands.COMMAND, *words], cwd=place, env={**os.environ, **variables},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def listing(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.lstat().st_mtime_ns for path in [place, *place.rglob("*")]}


def test_no_command_is_forgotten() -> None:
    assert {*ARGUMENTS, "init", "job", "schema"} == {name for names in _COMMANDS.values() for name in names}


@pytest.mark.parametrize("words", [*((name, *rest) for name, rest in ARGUMENTS.items()), *OTHERS], ids=" ".join)
def test_outside_of_a_workspace_a_command_creates_nothing(
    outside: Path, words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(outside)
    before = listing(outside.parent)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, listing(outside.parent)) == ("", before)
    assert err.startswith(f"dispatcher: not in a workspace: neither {outside} nor a directory above it has ")
    # Named outright, it is no workspace either; `doctor` takes any directory then.
    if words[0] != "doctor":
        assert main(["--root", str(outside), *words]) == 2
        assert capsys.readouterr().err.startswith(f"dispatcher: --root: {outside} is not a workspace: ")
    monkeypatch.setenv("DISPATCHER_ROOT", str(outside))
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"dispatcher: $DISPATCHER_ROOT: {outside} is not a workspace: ")
    assert listing(outside.parent) == before


def test_a_command_of_its_own_process_creates_nothing_either(outside: Path) -> None:
    before = listing(outside.parent)
    for words in (("status",), ("--pod", "p", "--slots", "1")):
        done = dispatcher(outside, *words)
        assert (done.returncode, done.stdout, listing(outside.parent)) == (2, "", before), done.stderr


@pytest.mark.parametrize("mark", ["dispatcher.yaml", "matrix/matrix.json", "run_state/journal/"])
def test_what_makes_a_directory_a_workspace(tmp_path: Path, mark: str) -> None:
    root = tmp_path / "lab"
    below = root / "below" / "deeper"
    below.mkdir(parents=True)
    assert nearest_workspace(below) is None
    path = root / mark
    path.mkdir(parents=True) if mark.endswith("/") else path.parent.mkdir(exist_ok=True)
    if not mark.endswith("/"):
        path.touch()
    for place in (root, below):
        found = nearest_workspace(place)
        assert found is not None and found.root == root
    # The nearest one is meant.
    (below.parent / "dispatcher.yaml").touch()
    found = nearest_workspace(below)
    assert found is not None and found.root == below.parent


def test_commands_work_in_any_directory_of_the_workspace(workspace: Path) -> None:
    for place in (workspace, workspace / "matrix", workspace / "below" / "deeper"):
        assert json.loads(dispatcher(place, "status", "--json").stdout)["counts"]["queued"] == 1
    ran = dispatcher(workspace / "below", "--pod", "p", "--slots", "1", "--until-empty")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    attempt = workspace / "run_state" / "jobs" / "a" / "1"
    assert json.loads(dispatcher(attempt, "status", "--json").stdout)["counts"]["done"] == 1
    assert [path.name for path in (workspace / "below").iterdir()] == ["deeper"]


def test_paths_on_the_command_line_are_relative_to_the_current_directory(workspace: Path) -> None:
    below = workspace / "below"
    (below / "sweep.yaml").write_text(SWEEP)
    made = dispatcher(below, "matrix", "make", "sweep.yaml", "-o", "deeper/other.json")
    assert made.returncode == 0, made.stderr
    assert dispatcher(below / "deeper", "matrix", "check", "other.json").stdout.startswith("other.json: 2 jobs")
    shown = dispatcher(below, "--slots", "1", "--matrix", "deeper/other.json", "--dry-run", "--json")
    assert [row["job"] for row in json.loads(shown.stdout)] == ["1", "2"]
    (below / "deeper" / "hosts.yaml").write_text("hosts: {h1: {type: plain, ssh: nowhere.invalid}}\n")
    named = dispatcher(below, "outlets", "--hosts", "deeper/hosts.yaml", "--timeout", "1", "--json")
    assert [row["outlet"] for row in json.loads(named.stdout)] == ["h1"]
    # Without a name, the workspace's own is meant.
    assert "matrix/matrix.json: 1 job" in dispatcher(below, "matrix", "check").stdout


def test_root_and_the_environment_come_before_the_current_directory(workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "dispatcher.yaml").touch()
    assert json.loads(dispatcher(workspace, "status", "--json", DISPATCHER_ROOT=str(other)).stdout)["total"] == 0
    both = dispatcher(other, "status", "--json", "--root", str(workspace), DISPATCHER_ROOT=str(other))
    assert json.loads(both.stdout)["total"] == 1


def test_the_api_looks_upwards_too(workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace / "below")
    assert Workspace().root == workspace
    monkeypatch.chdir(outside)
    with pytest.raises(UsageError, match="not in a workspace"):
        Workspace()


def test_job_classes_run_outside_of_a_workspace(outside: Path) -> None:
    done = dispatcher(outside, "job", "list")
    assert done.returncode == 0, done.stderr


def test_what_a_stranger_puts_above_the_directories_of_others_is_no_workspace(tmp_path: Path) -> None:
    """Its settings and its manifest could have any commands."""
    shared = tmp_path / "like tmp"
    mine = shared / "mine"
    mine.mkdir(parents=True)
    mark = shared / "dispatcher.yaml"
    mark.touch()
    shared.chmod(0o1777)
    assert nearest_workspace(mine) is not None
    try:
        os.chown(mark, 65534, 65534)
    except PermissionError:
        pytest.skip("a file cannot be given to another user: that needs root")
    assert nearest_workspace(mine) is None
    assert nearest_workspace(shared) is not None
    # A lab's directory that only its group may write is nobody's trap.
    shared.chmod(0o2775)
    assert nearest_workspace(mine) is not None


def test_the_search_ends_at_the_edge_of_the_filesystem(small_disk: Path) -> None:
    (small_disk.parent / "dispatcher.yaml").touch()
    below = small_disk / "below"
    below.mkdir()
    assert nearest_workspace(below) is None
    Layout(small_disk).config_file.touch()
    found = nearest_workspace(below)
    assert found is not None and found.root == small_disk


def test_a_current_directory_that_was_deleted(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["bash", "-c", f'rmdir "$PWD" && exec "{sys.executable}" -P -m dispatcher status'],
        cwd=gone, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("dispatcher: the current directory cannot be found: No such file or directory")


def test_a_manifest_that_is_named_makes_its_directory_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "matrix.json").write_text('[{"job_id": "a", "method": "fft", "gpus": 0}]')
    (tmp_path / "matrix_status.json").write_text('{"a": {"state": "done"}}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPATCHER_ROOT", raising=False)
    assert main(["--pod", "x", "--gpus", "0,1", "--methods", "fft", "--matrix", "matrix.json"]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/matrix_status.json has records that no dispatcher has adopted" in said
    assert "dispatcher init --adopt matrix_status.json" in said
    assert sorted(os.listdir(tmp_path)) == ["matrix.json", "matrix_status.json"]
    assert main(["init", "--adopt", "matrix_status.json"]) == 0
    assert "write `matrix: FILE` into dispatcher.yaml" in capsys.readouterr().out
    assert main(["--pod", "x", "--slots", "1", "--matrix", "matrix.json", "--until-empty"]) == 0
    assert "matrix.json: 1 done" in capsys.readouterr().out
