"""Words and keys of jobs that are wide, empty, or written to disturb a terminal, in the tables of all commands."""

from __future__ import annotations

import json

import pytest
from hostile_words import HOSTILE_WORDS
from screens import screen

from dispatcher.report.terminal import width_of

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
