"""`dispatcher submit --env-file`, and the key env_file: secrets that only the job sees, on real pods."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from fleet import Fleet, shell
from submitting import fails, submit, written

from dispatcher.base.devices import DECIDED

SECRET = "hunter2 $(touch pwned) `id` 'q' # no comment"


def secrets(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return os.fspath(path)


@pytest.mark.parametrize("setup", ["", "methods: {command: {setup: 'export SEEN=$TOKEN'}}\n"])
def test_secrets_of_a_file_reach_the_job_and_nothing_else(empty: Fleet, tmp_path: Path, setup: str) -> None:
    empty.write_config(setup)
    lines = [f"TOKEN={SECRET}", "# a comment", "", "  export QUOTED=\"a 'b' c\"", "E=", "CR=x\r", "X=new", "L=last"]
    path = secrets(tmp_path / "it's secret.env", "\n".join(lines))
    pod = empty.start(poll="600", SHELLOPTS="xtrace").ready()
    names = ["TOKEN", "QUOTED", "E", "CR", "X", "L", "SEEN"]
    script = f"import os, json; open('{tmp_path}/out', 'w').write(json.dumps([os.environ.get(n) for n in {names}]))"
    words = ["--env", "X=of the entry", "--env-file", path, "--name", "j"]
    submit(empty, "--wait", *words, "--", sys.executable, "-c", script)
    expected = [SECRET, "a 'b' c", "", "x", "new", "last", SECRET if setup else None]
    assert json.loads((tmp_path / "out").read_text()) == expected
    assert written(empty)[0]["env_file"] == path
    pod.stop()
    told = [one for one in empty.root.rglob("*") if one.is_file() and b"hunter2" in one.read_bytes()]
    assert not told, "the value is written nowhere"
    assert "hunter2" not in pod.said
    assert not (empty.root / "pwned").exists()


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [
        ("A=1\n", 0o644, "others can read or change it (mode 644): chmod 600 it"),
        ("A=1\nsecret words\n", 0o600, "line 2 is not NAME=VALUE"),
        ("DISPATCHER_POD=secret\n", 0o600, "line 1: names with DISPATCHER_ are set by the dispatcher itself"),
        ("UID=secret\n", 0o600, "line 1: the shell keeps this variable for itself"),
        *((f"{name}=secret\n", 0o600, "line 1: which GPUs a job sees is decided by its slot") for name in DECIDED),
        (None, 0o600, "there is no such file on this host"),
    ],
)
def test_a_file_of_secrets_that_cannot_be_used(
    empty: Fleet, tmp_path: Path, text: str | None, mode: int, what: str
) -> None:
    path = tmp_path / "x.env"
    empty.write_manifest([shell("j", "true", env_file=os.fspath(path))])
    if text is not None:
        secrets(path, text, mode)
    assert empty.run_all().end() == 1
    assert f"env_file {path}: {what}" in empty.output("j")
    assert what in str(empty.record("j").error)
    assert "secret" not in empty.output("j").replace(os.fspath(path), "")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"# a comment\n\nA=1\nsecret words\n", "line 4 is not NAME=VALUE"),
        (b"MY secret=1\n", "line 1 is not NAME=VALUE"),
        (bytes(range(128, 256)), "line 1 is not NAME=VALUE"),
        (b"DISPATCHER_POD=secret\n", "line 1: names with DISPATCHER_ are set by the dispatcher itself"),
        (b"export UID=secret\n", "line 1: the shell keeps this variable for itself"),
        (b"CUDA_VISIBLE_DEVICES=secret\n", "line 1: which GPUs a job sees is decided by its slot"),
    ],
)
def test_the_content_of_a_file_of_secrets_is_checked_at_submission(
    empty: Fleet, tmp_path: Path, data: bytes, what: str
) -> None:
    path = tmp_path / "x.env"
    path.write_bytes(data)
    path.chmod(0o600)
    said = fails(empty, "--env-file", os.fspath(path), "--", "true")
    assert f"--env-file {path}: {what}" in said
    assert "secret" not in said.replace(os.fspath(path), "")


def test_what_is_no_file_of_secrets(empty: Fleet, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o644)
    assert "is a directory: expected a file" in fails(empty, "--env-file", os.fspath(tmp_path), "--", "true")
    assert "is no file: expected a file" in fails(empty, "--env-file", f"{tmp_path}/pipe", "--", "true")


def test_no_message_shows_the_path_of_a_file_of_secrets(empty: Fleet, tmp_path: Path) -> None:
    path = secrets(tmp_path / "x.env", "PATH=/usr/bin:/bin:/hunter2\n")
    assert submit(empty, "--env-file", path, "--name", "j", "--", "no-such-program") == ["j"]
    empty.run_all()
    assert "'no-such-program': there is no such program on PATH=(of the env_file)" in empty.output("j")
    assert "hunter2" not in empty.output("j")


def test_variables_and_files_of_secrets_on_the_command_line(empty: Fleet, tmp_path: Path) -> None:
    home = {"HOME": os.fspath(tmp_path), "TAKEN": "from here"}
    secrets(tmp_path / "s.env", "TOKEN=1\n")
    words = ("--env", "TAKEN", "--env-file", "~/s.env")
    done = empty.try_("submit", *words, "--", "printenv", "TOKEN", **home)
    assert (done.returncode, done.stdout) == (0, "printenv-1\n"), done.stderr
    assert (written(empty)[0]["env"], written(empty)[0]["env_file"]) == ({"TAKEN": "from here"}, "~/s.env")
    assert "there is no such variable here" in fails(empty, "--env", "MISSING_HERE", "--", "true")
    assert "others can read or change it" in fails(
        empty, "--env-file", secrets(tmp_path / "o", "", 0o640), "--", "true"
    )
    assert "there is no such file" in fails(empty, "--env-file", "missing.env", "--", "true")
    assert empty.start(poll="600", **home).ready()
    assert empty.wait_for("printenv-1", "done").exit_code == 0
    assert empty.output("printenv-1") == "1\n"


def test_a_message_about_variables_has_their_names_alone(empty: Fleet) -> None:
    for words in (["--env", "TOKEN=hunter2", "--env", "B-D=hunter2"], ["--env", "DISPATCHER_X=hunter2"]):
        said = fails(empty, *words, "--", "true")
        assert "hunter2" not in said and words[-1].partition("=")[0] in said
    empty.write_config("methods: {m: {env: {TOKEN: hunter2, B-D: [hunter2]}}}\n")
    said = empty.try_("status").stderr
    assert 'methods.m.env = {"TOKEN": ..., "B-D": ...}' in said and "hunter2" not in said
    empty.write_config("methods: {m: {env: {TOKEN: [hunter2]}}}\n")
    said = empty.try_("status").stderr
    assert "the value of TOKEN is a list" in said and "hunter2" not in said
