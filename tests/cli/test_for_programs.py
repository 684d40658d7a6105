"""What programs rely on: `--json` and its keys, `--timeout`, exit statuses, and the page for coding agents."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dispatcher.cli import example
from dispatcher.cli.main import cli, main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").partition("## Programs and agents\n")[2]
# Commands without --json, and why.
WITHOUT_JSON = {
    "logs": "what jobs have printed, as it is",
    "edit": "an editor",
    "web": "serves a page",
    "job": "becomes another program, the job",
    "schema": "prints JSON as it is",
    "matrix tune": "goes on for as long as the study does; `matrix trials --json` has what it has found",
}
# Run by other tests, with what they need.
ELSEWHERE = {"matrix trials", "export wandb", "outlets create", "outlets delete", "ship"}
CONFIG = """\
methods:
  m: {command: [sh, -c, "echo '{\\"x\\": 1}' > $DISPATCHER_ATTEMPT_DIR/result.json"], gpus: 0}
hosts:
  far: {type: plain, ssh: nowhere.invalid}
notify:
  targets:
    nothing: {command: ["true"], events: [job_failed]}
"""


def commands(group: click.Group = cli, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{above} {name}".strip()
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield words, command
        if isinstance(command, click.Group):
            yield from commands(command, words)


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Whether each command prints an object or a list, and its keys."""
    table = PAGE.partition("| command | prints | keys |\n")[2].partition("\n\n")[0]
    found = {}
    for row in table.splitlines()[1:]:
        _, names, kind, keys, _ = row.split("|")
        # What explains a key is in brackets, and the keys of another option follow a semicolon.
        own = re.sub(r"\(.*?\)", "", keys).partition("; with")[0]
        for name in re.findall(r"`([^`]+)`", names):
            found[name] = (kind.strip(), set(re.findall(r"`([^`]+)`", own)))
    return found


def test_every_command_has_json_or_a_reason() -> None:
    without = {words for words, command in commands() if "--json" not in options(command)}
    assert without == WITHOUT_JSON.keys()


def test_the_keys_of_every_command_are_documented() -> None:
    assert documented().keys() == {words for words, _ in commands()} - WITHOUT_JSON.keys()
    assert [f"`{words}`" for words in WITHOUT_JSON if f"`{words}`" not in PAGE] == []


@pytest.fixture
def programmed(lab):
    """Two jobs that have run, one that waits, a pod, a host and a notice."""
    (lab.root / "dispatcher.yaml").write_text(CONFIG)
    jobs = [{"job_id": job, "method": "m", "y": number} for number, job in enumerate("abc")]
    lab.write_manifest([jobs[0], {**jobs[1], "command": "false"}, jobs[2]])
    assert lab.start("--pod", "p", "--slots", "1", "--max-jobs", "2").wait(timeout=60) == 1
    return lab


CALLS = {
    "matrix make": ["sweep.yaml", "-o", "made.json"],
    "show": ["a"],
    "diff": ["a", "b"],
    "pods": ["--all"],
    "mark": ["done", "c"],
    "update": ["c", "--priority", "2"],
    "drain": ["p"],
    "undrain": ["p"],
    "pause": ["m"],
    "unpause": ["m"],
    "wait": ["a"],
    "delete": ["b", "--yes"],
    "outlets": ["--timeout", "1"],
    "solve": ["--timeout", "1", "--cpu", "1"],
    "export tensorboard": ["tb"],
    "requeue": ["a"],
    "hold": ["c"],
    "cancel": ["c"],
    "init": ["new", "--nested"],
    "submit": ["--name", "new"],
}


def test_what_json_prints_is_what_the_page_says(programmed, monkeypatch) -> None:
    monkeypatch.chdir(programmed.root)
    Path("sweep.yaml").write_text("sweeps: [{job_id: s, defaults: {method: m}}]\n")
    of_a_job = programmed.run("status", "--json").json["jobs"][0].keys()
    for words, (kind, keys) in documented().items():
        if words in ELSEWHERE:
            continue
        after = ["--", "true"] if words == "submit" else []
        outcome = programmed.run(*words.split(), *CALLS.get(words, []), "--json", *after)
        assert outcome.code in (0, 1) and outcome.out, f"{words}: {outcome.err}"
        found: Any = outcome.json
        if kind == "list":
            assert isinstance(found, list), words
            assert found, f"{words}: an empty list shows nothing"
            assert keys <= found[0].keys(), words
        else:
            assert found.keys() == (keys | of_a_job if words == "show" else keys), words


def test_a_faulty_manifest_is_json_too(programmed) -> None:
    programmed.write_manifest([{"job_id": "a", "method": "m", "priority": "high"}])
    outcome = programmed.run("matrix", "check", "--json")
    assert outcome.code == 1
    (manifest,) = outcome.json["manifests"]
    assert not manifest["ok"]
    assert "priority" in manifest["faults"][0]
    assert outcome.err == ""


def test_adopted_jobs_are_json(tmp_path: Path, capsys) -> None:
    (tmp_path / "lab.json").write_text('{"a": {"state": "done"}, "b": {"state": "queued"}}')
    for adopted in ({"queued": ["b"], "done": ["a"]}, {}):
        assert main(["init", str(tmp_path), "--adopt", str(tmp_path / "lab.json"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["workspace"], found["jobs"]) == (str(tmp_path), 2)
        assert {state: jobs for state, jobs in found["adopted"].items() if "manifest" not in state} == adopted


def test_what_waits_ends_after_its_timeout(programmed) -> None:
    before = signal.getsignal(signal.SIGINT)
    # As in a shell's background.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = programmed.run("wait", "c", "--timeout", "0.2")
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.code == 124
    assert outcome.out == ""
    assert "only the waiting has ended, not c: " in outcome.err
    assert "--timeout is over" in outcome.err
    assert programmed.run("submit", "--wait", "--timeout", "200ms", "--", "true").code in (2, 124)
    assert programmed.run("logs", "-f", "c", "--timeout", "0.2").code == 124
    assert programmed.run("status", "--watch", "--timeout", "0.2").code == 124
    # The limit of one command is not that of the next.
    assert programmed.run("wait", "a", "--timeout", "60").code == 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    for bad in ("0", "-1", "soon"):
        assert programmed.run("wait", "a", "--timeout", bad).code == 2


def test_what_waits_can_be_limited() -> None:
    waiting = {"wait", "submit", "logs", "status", "pods", "matrix tune", "outlets create"}
    assert [words for words, command in commands() if words in waiting and "--timeout" not in options(command)] == []


def test_the_status_of_waiting_is_that_of_the_jobs(lab) -> None:
    lab.write_manifest([{"job_id": job, "method": "fft"} for job in "abc"])
    lab.put("a", "done")
    lab.put("b", "failed", reason="exit 7", exit_code=7)
    assert lab.run("wait", "a").code == 0
    assert lab.run("wait", "b").code == 7
    outcome = lab.run("wait", "a", "b", "--json")
    assert outcome.code == 1
    assert outcome.json == {"states": {"done": 1, "failed": 1}, "not_done": {"b": "failed: exit 7"}}
    lab.put("c", "held")
    outcome = lab.run("wait")
    assert outcome.code == 1
    assert "c (held: not claimed until it is requeued) cannot end without help: see `dispatcher status`" in outcome.err


def test_the_page_for_agents_is_laid_where_they_look(tmp_path: Path, capsys) -> None:
    assert main(["init", "--skill", str(tmp_path)]) == 0
    path = tmp_path / ".claude" / "skills" / "dispatcher" / "SKILL.md"
    assert capsys.readouterr().out == f"{path}: written\n"
    text = path.read_text()
    assert text == example.readme("skill")
    assert len(text.splitlines()) <= 150
    _, front, _ = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts.keys() == {"name", "description"}
    assert facts["name"] == path.parent.name
    assert len(facts["description"]) <= 1024
    # It says where the workspace is to be, which it is not yet.
    assert [*tmp_path.iterdir()] == [tmp_path / ".claude"]
    assert main(["init", "--skill", str(tmp_path)]) == 0
    path.write_text("ours\n")
    assert main(["init", "--skill", str(tmp_path)]) == 2
    assert "remove it (rm) first" in capsys.readouterr().err
    assert path.read_text() == "ours\n"
