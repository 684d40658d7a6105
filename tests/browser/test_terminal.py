"""Logs look as on a terminal: carriage returns fold, colours go, and hostile sequences do no harm."""

from __future__ import annotations

from typing import Any

import pytest

WRITE = """async (parts) => {
  const { Terminal } = await import("/static/terminal.js");
  const terminal = new Terminal();
  let settled = "";
  for (const part of parts) settled += terminal.write(part);
  return settled + terminal.last;
}"""


@pytest.fixture
def shown(bare_page: Any) -> Any:
    return lambda *parts: bare_page.evaluate(WRITE, list(parts))


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("one\ntwo\n", "one\ntwo\n"),
        ("10%\r20%\r100%\nend", "100%\nend"),
        ("long line\rshort", "shortline"),
        ("long line\r\x1b[Kshort", "short"),
        ("a\r\nb", "a\nb"),
        ("ab\bc", "ac"),
        ("\x1b[32mgreen\x1b[0m and \x1b[1;31mred\x1b[m", "green and red"),
        ("bar 1\nbar 2\x1b[A\rBAR 1\n", "BAR 1\nbar 2"),
        ("\x1b]0;a title\x07text", "text"),
        ("a\x00b\x07c", "abc"),
        ("<script>alert(1)</script> & 语言", "<script>alert(1)</script> & 语言"),
    ],
)
def test_text_is_shown_as_a_terminal_would(shown: Any, written: str, seen: str) -> None:
    assert shown(written) == seen
    # Wherever a part of the log is cut, also within a sequence.
    assert shown(*written) == seen


def test_lines_beyond_the_last_ones_are_settled_once(shown: Any) -> None:
    lines = [f"line {number}\n" for number in range(500)]
    assert shown(*lines) == "".join(lines)


@pytest.mark.parametrize(
    "sequence", ["\x1b[999999999B", "\x1b[999999999C", "\x1b[999999999A", "\x1b[9999999999G", "\b" * 50]
)
def test_a_hostile_count_neither_hangs_nor_fills_the_memory(shown: Any, sequence: str) -> None:
    seen = shown(f"before{sequence}after\n" * 20)
    assert "after" in seen
    assert len(seen) < 100_000
