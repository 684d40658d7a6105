"""Bytes that are not UTF-8, numbers without bounds, an editor that removes the file: refused, or made readable."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import commands
import pytest

from dispatcher.api import Workspace
from dispatcher.base.host import host_name
from dispatcher.base.users import user_at_host
from dispatcher.cli.main import main
from dispatcher.errors import UsageError
from dispatcher.outlets.remote.agent import facts

LATIN_1 = os.fsdecode(b"caf\xe9")
COMMANDS = (
    ("status",),
    ("doctor",),
    ("doctor", "--repair"),
    ("matrix", "make", "matrix/sweep.yaml"),
    ("--pod", "p", "--slots", "1", "--until-empty"),
    ("init", "below"),
    ("init", "--adopt", "mine.json"),
)


def run(place: Path, *words: str | bytes, **variables: str | bytes) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DISPATCHER_ROOT"}
    return commands.run(
        [*commands.COMMAND, *words],
        cwd=place,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def latin_1(tmp_path: Path) -> Path:
    """A workspace whose path is not UTF-8."""
    assert main(["init", str(tmp_path / "plain")]) == 0
    (tmp_path / LATIN_1).mkdir()
    return (tmp_path / "plain").rename(tmp_path / LATIN_1 / "lab")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_begins_in_a_workspace_whose_path_is_not_utf_8(latin_1: Path, words: tuple[str, ...]) -> None:
    before = sorted(latin_1.rglob("*"))
    done = run(latin_1, *words)
    assert done.returncode == 2
    path = f"{latin_1.parents[1]}/caf\\xe9/lab"
    assert done.stderr.startswith(f"dispatcher: the path {path}")
    assert "not UTF-8" in done.stderr
    assert "rename the directory" in done.stderr
    assert sorted(latin_1.rglob("*")) == before


def test_a_named_workspace_whose_path_is_not_utf_8(latin_1: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "status", DISPATCHER_ROOT=os.fsencode(latin_1))
    assert (done.returncode, done.stderr[:30]) == (2, "dispatcher: $DISPATCHER_ROOT: ")
    with pytest.raises(UsageError, match="is not UTF-8"):
        Workspace(latin_1)


def test_a_manifest_whose_path_is_not_utf_8(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = lab.root / LATIN_1
    place.mkdir()
    (place / "own.json").write_text("[]")
    monkeypatch.chdir(place)
    outcome = lab.run("--pod", "p", "--slots", "1", "--matrix", "own.json", "--until-empty")
    assert (outcome.code, "caf\\xe9/own.json is not UTF-8" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "number"), [(("status", "--where", b"lr=\xff"), 3), (("pause", "fft", "--why", b"\xff"), 4)]
)
def test_an_argument_that_is_not_utf_8(tmp_path: Path, words: tuple[str | bytes, ...], number: int) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"dispatcher: argument {number}, '")
    assert "\\xff', is not UTF-8" in done.stderr
    assert done.stderr.count("\n") == 1


def test_names_from_the_environment_become_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPATCHER_HOST", "LOGNAME", "USER"):
        monkeypatch.setenv(name, os.fsdecode(b"n\xc3\xa9\xff"))
    assert host_name() == facts.host_name() == "n\xe9\\xff"
    assert user_at_host() == "n\xe9\\xff@n\xe9\\xff"


def test_a_pod_and_a_change_under_names_that_are_not_utf_8(lab: Any) -> None:
    lab.write_manifest([{"job_id": "a", "method": "m", "command": "true"}])
    names: dict[str, str | bytes] = {"DISPATCHER_HOST": b"h\xff", "LOGNAME": b"u\xfe", "USER": b"u\xfe"}
    assert run(lab.root, "--pod", "p", "--slots", "1", "--until-empty", **names).returncode == 0
    assert run(lab.root, "requeue", "a", **names).returncode == 0
    last = json.loads(run(lab.root, "history", "a", "--tail", "1", "--json").stdout)[-1]
    assert last["by"] == "u\\xfe@h\\xff"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--slots", "9" * 20), "--slots"),
        (("--slots", "10001"), "--slots"),
        (("--slots", "1", "--jobs-per-gpu", "9" * 20), "--jobs-per-gpu"),
        (("--outlet", f"local:{'9' * 5000}"), "--outlet"),
        (("--outlet", "local:10001"), "--outlet"),
    ],
)
def test_more_at_once_than_any_host_has(lab: Any, started: list[Any], words: tuple[str, ...], what: str) -> None:
    outcome = lab.run("--pod", "p", *words)
    assert (outcome.code, started) == (2, [])
    assert what in outcome.err
    assert "10000" in outcome.err


def test_the_most_at_once(lab: Any, started: list[Any]) -> None:
    assert lab.run("--pod", "p", "--slots", "10000").code == 7
    assert lab.run("--pod", "p", "--outlet", "local:10000").code == 7
    assert [options.cpu_slots for options in started] == [10000, 10000]


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "86401", "-1"])
@pytest.mark.parametrize("words", [("status", "--watch", "--interval"), ("pods", "--watch", "--interval"),
                                   ("doctor", "--peer-wait"), ("solve", "--timeout")], ids=" ".join)  # fmt: skip
def test_seconds_are_at_most_a_day(lab: Any, words: tuple[str, ...], seconds: str) -> None:
    outcome = lab.run(*words, seconds)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"'{words[-1]}'" in outcome.err
    assert "86400" in outcome.err


def test_an_editor_that_removes_the_file(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.put("base", "held")
    monkeypatch.setenv("EDITOR", "rm")
    monkeypatch.delenv("VISUAL", raising=False)
    outcome = lab.run("edit", "base")
    assert outcome.code == 2
    assert "the editor 'rm' left no file to read" in outcome.err
    assert "nothing was changed" in outcome.err


def test_init_of_empty_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["init", ""], ["init", "", "--adopt", "mine.json"]):
        assert main(words) == 2
        assert "name a directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_variables_of_pods_do_not_stop_commands(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_SLOTS", "abc")
    monkeypatch.setenv("DISPATCHER_WHERE", os.fsdecode(b"lr=\xff"))
    assert lab.run("status").code == 0


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [("SLOTS", "abc", "'abc'"), ("WHERE", "lr", "key=value"), ("WHERE", os.fsdecode(b"lr=\xff"), "'lr=\\xff'"),
     ("POLL_INTERVAL", "-1", "'-1'")],
)  # fmt: skip
def test_an_option_from_the_environment_is_named_as_it_was_given(
    lab: Any, started: list[Any], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, what: str
) -> None:
    monkeypatch.setenv(f"DISPATCHER_{variable}", value)
    outcome = lab.run("--pod", "p")
    assert (outcome.code, started) == (2, [])
    assert outcome.err.startswith(f"dispatcher: $DISPATCHER_{variable}: ")
    assert what in outcome.err


def test_terminals_obey_no_parameter(lab: Any) -> None:
    (lab.layout.config_file).write_text("methods: {m: {command: 'run {lr}'}}\n")
    (lab.layout.templates_dir).mkdir(exist_ok=True)
    entry = {"job_id": "a", "method": "m", "command": "true {seed}", "seed": 1, "time_li\x1bmt": 2, "\x1b[31mred": 3}
    lab.write_manifest([entry])
    outcome = lab.run("matrix", "check")
    assert "time_li?mt" in outcome.err
    assert outcome.err.replace("\n", "").isprintable()


def test_history_of_a_tail_that_no_counter_holds(lab: Any) -> None:
    lab.put("base", "held")
    assert lab.run("history", "--tail", "9" * 20).code == 0


def test_commands_that_do_not_need_the_broken_part_of_the_configuration_go_on(lab: Any) -> None:
    lab.put("base", "held")
    lab.layout.config_file.write_text("methods: {m: {retrys: 1}}\n")
    for words in (["status"], ["show", "base"], ["pods"], ["results"], ["history"], ["requeue", "base"]):
        outcome = lab.run(*words)
        assert (outcome.code, "methods.m.retrys: unknown key" in outcome.err) == (0, True), words
    assert lab.run("--pod", "p", "--slots", "1").code == 1
    for text in ("status_fil: mine.json\n", "methods: {\n"):
        lab.layout.config_file.write_text(text)
        assert lab.run("status").code == lab.run("show", "base").code == 0
        assert lab.run("hold", "base").code == 1, "the status file may be another one"


@pytest.mark.parametrize(
    "words",
    [
        ("outlets",), ("outlets", "create", "h"), ("poll",), ("clean", "--hosts"), ("submit", "--", "true"),
        ("submit", "a"), ("solve", "--gpus", "1"), ("--pod", "p", "--slots", "1"), ("doctor",), ("status",),
    ],
)  # fmt: skip
def test_faults_of_the_configuration_are_listed_once(lab: Any, words: tuple[str, ...]) -> None:
    (lab.root / "dispatcher.yaml").write_text("hosts: {h: {type: slurm, slots_per_node: 0}}\n")
    done = run(lab.root, *words)
    assert (done.stdout + done.stderr).count("hosts.h.slots_per_node = 0: expected") == 1


def test_a_status_file_that_is_a_link_to_itself_has_a_cure(lab) -> None:
    lab.layout.run_state.mkdir(exist_ok=True)
    lab.layout.status_file.symlink_to(lab.layout.status_file.name)
    outcome = lab.run("--pod", "p", "--slots", "1", "--until-empty")
    assert outcome.code == 1
    assert str(lab.layout.status_file) in outcome.err and "remove the link (rm)" in outcome.err
    findings = lab.run("doctor", "--json", "--peer-wait", "0").json["findings"]
    assert any(found["verdict"] == "wrong" and "remove the link (rm)" in found["what"] for found in findings)
    assert "Traceback" not in lab.run("status").err
