"""Words and keys of jobs that are wide, empty, or written to disturb a terminal, in the tables of all commands."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from hostile_words import HOSTILE_WORDS
from screens import screen

from dispatcher.base.terminal import width_of

KEY = "größe_日本語の名前"
COMMANDS = [
    ["status"],
    ["status", "--state", "failed"],
    ["status", "--by", f"{KEY},word"],
    ["results"],
    ["results", "--rows", "word", "--cols", "method", "--value", "bpc"],
    ["results", "--rows", "method", "--cols", "word", "--value", "bpc"],
    ["history"],
    ["matrix", "show"],
    ["show", "job3"],
    ["show", "job4"],
]


@pytest.fixture
def hostile(lab):
    """Every second job has failed, the others have results."""
    entries = [
        {"job_id": f"job{number}", "method": "fft", "word": word, KEY: "日本語" * number, f"key {word}": number}
        for number, word in enumerate(HOSTILE_WORDS)
    ]
    lab.write_manifest(entries)
    for number, (entry, word) in enumerate(zip(entries, HOSTILE_WORDS, strict=True)):
        job = entry["job_id"]
        if number % 2:
            lab.put(job, "failed", reason=f"exit 1 {word}", error=f"{word} 日本語 \x1b[2J" * 5)
        else:
            lab.put(job, "done")
            result = {f"value {word}": number * 1e9, "日本": word, "bpc": 1.5, "nested": [1, {"a": word}]}
            lab.attempt(job, result=json.dumps(result), exit='{"exit_code": 0}', entry=json.dumps(entry))
    return lab


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_hostile_words_do_not_disturb_a_screen(hostile, words, columns):
    with screen(hostile, *words, columns=columns) as shown:
        assert shown.end() == 0
        assert [line for line in shown.lines() if width_of(line) > columns] == []
        assert "\x1b[2J" not in shown.written


def test_a_pipe_has_every_word_in_full(hostile):
    for words in (["results"], ["matrix", "show"], ["status", "--by", f"{KEY},word"]):
        out = hostile.run(*words).out
        assert "…" not in out
        assert "日本語" * 18 in out, words


# What a terminal would obey: a title, a bell, a sequence of one letter, an erased line, and text that runs backwards.
OBEYED = "\x1b]0;title\x07 \x9b31m \x1b[2Jgone \rover \u202eevil\u2066 \x1b\x08 \x00"
LOG = f"{OBEYED}\n\x1b[31mred\x1b[0m\tand\n 10%\r 20%\n"


@pytest.fixture
def obeyed(lab):
    lab.write_manifest([{"job_id": "job", "method": "fft", "word": OBEYED}])
    lab.put("job", "done")
    entry = json.dumps({"job_id": "job", "method": "fft", "word": OBEYED})
    lab.attempt("job", result=json.dumps({"bpc": OBEYED}), exit='{"exit_code": 0}', entry=entry, log=LOG)
    return lab


@pytest.mark.parametrize(
    "words",
    [
        ["logs", "job"],
        ["logs", "-f", "job"],
        ["logs", "-n", "9", "job"],
        ["logs", "--grep", ".", "job"],
        ["logs", "job*"],
        ["results", "--format", "csv"],
        ["results", "--format", "github"],
        ["results", "--json"],
        ["matrix", "show", "--json"],
        ["show", "job", "--json"],
        ["status", "--where", f"word={OBEYED.replace(chr(0), '')}"],
    ],
    ids=lambda words: " ".join(words)[:25],
)
def test_a_terminal_is_given_nothing_that_it_obeys(obeyed, words):
    with screen(obeyed, *words) as shown:
        shown.end()
    # The terminal itself makes \r\n of the end of a line; colours, and lines that are drawn anew, are ours.
    text = re.sub(r"\x1b\[[0-9;]*m|\r\x1b\[K", "", shown.written.replace("\r\n", "\n"))
    assert text, "it prints something"
    assert [letter for letter in text if not letter.isprintable() and letter not in "\n\t"] == []
    if words[0] == "logs":
        assert "\x1b[31mred\x1b[0m" in shown.written
        assert "20%" in text and "10%" not in text


@pytest.mark.parametrize("words", [["logs", "job"], ["logs", "-f", "job"]], ids=" ".join)
def test_a_pipe_is_given_a_log_as_it_is(obeyed, words):
    process = obeyed.start(*words, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0] == LOG.encode()


def test_a_pipe_is_given_values_as_they_are(obeyed):
    assert json.loads(obeyed.run("results", "--json").out)[0]["bpc"] == OBEYED
    assert OBEYED in obeyed.run("results", "--format", "csv").out
