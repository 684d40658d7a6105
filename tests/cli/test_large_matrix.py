"""What a terminal of 80 columns and 24 lines shows of 1,200 jobs, and that docs/commands.md shows the same."""

from __future__ import annotations

import re
from pathlib import Path

import large_matrix
import pytest
from pages import alike
from screens import screen

from dispatcher.base.terminal import width_of

COMMANDS = Path(__file__).parent.parent.parent / "docs" / "commands.md"


@pytest.fixture
def large(lab):
    large_matrix.fill(lab)
    return lab


def lines_of(lab, *words, **options):
    with screen(lab, *words, **options) as shown:
        assert shown.end() == 0
        return shown.lines()


def test_the_page_has_the_real_screens(large):
    text = COMMANDS.read_text(encoding="utf-8")
    section = text[text.index("## A large matrix") :].partition("\n## ")[0]
    blocks = re.findall(r"```console\n\$ dispatcher (.*?)\n(.*?)```", section, re.S)
    assert [command for command, _ in blocks] == ["status", "pods"]
    for command, wanted in blocks:
        printed = lines_of(large, *command.split())
        # What `pods` says of further slots is left out.
        lines = wanted.removesuffix("...\n").splitlines()
        shown = printed[: len(lines)] if wanted.endswith("\n...\n") else printed
        same = len(lines) == len(shown) and all(map(alike, lines, shown))
        assert same, f"--- the page\n{wanted}--- the terminal\n" + "\n".join(shown)


def test_watch_shows_a_large_matrix(large):
    with screen(large, "status", "--watch", "--interval", "30") as shown:
        shown.wait_for(lambda lines: len(lines) == 24, "the first frame")
        frame = shown.frame()
        assert max(map(width_of, frame)) <= 80
        assert [line.split()[0] for line in frame[1:6]] == ["1200", "abandoned", "30", "283", "failed:"]
        assert len(frame[6:-1]) == 17
        shown.send(b"q")
        assert shown.end() == 0


def test_the_stalled_job_comes_first_and_the_paused_method_is_told(large):
    lines = lines_of(large, "status")
    assert len(lines) <= 23
    running = next(number for number, line in enumerate(lines) if line.startswith("job "))
    assert "stalled 1h30m" in lines[running + 1]
    waiting = next(line for line in lines if "method lora is paused" in line)
    assert waiting.split()[0] == "240"
