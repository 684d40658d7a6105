"""The last lines of logs, and progress bars: of a line that is begun anew the last state."""

from __future__ import annotations

import io

import pytest

from dispatcher.cli import log_lines
from dispatcher.cli.log_lines import LastLines, LastStates, Lines, read_pattern, show

BAR = b"".join(b"\r%6d/20000 loss=0.1" % number for number in range(20000))


class Counted(io.BytesIO):
    """A file that knows how much of it was read."""

    was_read = 0

    def read(self, size=-1):
        block = super().read(size)
        self.was_read += len(block)
        return block


def shown(text, tail, file_type=io.BytesIO):
    out = io.BytesIO()
    show(file_type(text), out, tail)
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "tail", "last"),
    [
        (BAR + b"\n", 1, b" 19999/20000 loss=0.1\n"),
        (b"a\nb" + BAR, 2, b"a\n 19999/20000 loss=0.1"),
        (b"a\nb" + BAR + b"\nc\n", 2, b" 19999/20000 loss=0.1\nc\n"),
        (b"a\n" + BAR + b"\nc\n", 3, b"a\n 19999/20000 loss=0.1\nc\n"),
        # Bars that clear themselves, that end with the carriage return, and lines of other systems.
        (b"10%\r90%\r    \r", 1, b"90%"),
        (b"10%\r90%\r\nend\r\n", 2, b"90%\nend\n"),
        (b"\r\n\r\n", 1, b"\n"),
        (b"old\r\nx\ry", 9, b"old\ny"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
    ],
)
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_the_last_lines_in_their_last_states(text, tail, last, block, monkeypatch):
    if block == 1 and len(text) > 10_000:
        text = text[:100] + text[-100:]
    monkeypatch.setattr(log_lines, "_BLOCK", block)
    assert shown(text, tail) == last
    kept, out = LastLines(tail), io.BytesIO()
    for start in range(0, len(text), 1000 * block):
        kept.write(text[start : start + 1000 * block])
    kept.write_to(out)
    assert tail == 0 or out.getvalue() == last


def test_of_a_log_of_one_long_bar_the_end_is_read(monkeypatch):
    monkeypatch.setattr(log_lines, "_BLOCK", 4096)
    file = Counted(b"first\n" + BAR + b"\n")
    show(file, out := io.BytesIO(), 1)
    assert out.getvalue() == b" 19999/20000 loss=0.1\n"
    assert file.was_read < 20_000


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("loss", [b" 19999/20000 loss=0.1", b"loss nan"]),
        ("  77/", [b"    77/20000 loss=0.1"]),
        ("nan", [b"loss nan"]),
        ("none", []),
    ],
)
def test_of_a_bar_the_last_state_with_a_match_is_shown(pattern, lines):
    text = b"begin\n" + BAR + b"\nloss nan\rdone\n"
    for size in (1 << 20, 5000):
        out = io.BytesIO()
        matching = Lines(out, b"job: ", read_pattern(pattern))
        for start in range(0, len(text), size):
            matching.write(text[start : start + size])
        matching.end()
        assert out.getvalue().splitlines() == [b"job: " + line for line in lines]


def test_a_bar_is_drawn_until_its_line_ends():
    drawn = []
    out = io.BytesIO()
    states = LastStates(out, drawn.append)
    for block in (b"begin\n", b"\r10%", b"\r20%\r", b"30%", b" done\n", b"\rpart", b"ial"):
        states.write(block)
    assert out.getvalue() == b"begin\n30% done\n"
    assert drawn == [b"10%", b"", b"20%", b"", b"30%", b"", b"part", b"", b"partial"]
    states.end()
    assert out.getvalue() == b"begin\n30% done\npartial"
    assert drawn[-1] == b""
