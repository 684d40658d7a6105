"""Scrolling and keys of a screen that is kept up to date; tests/cli/test_screens.py has it on a terminal."""

from __future__ import annotations

import itertools
import time

import pytest

from dispatcher.base.terminal import width_of
from dispatcher.cli import watch
from dispatcher.cli.watch import Frame, View, keys_in
from dispatcher.errors import StateError

FRAME = Frame(["title", "counts"], [str(number) for number in range(100)])


def drawn(view: View, height: int, frame: Frame = FRAME) -> list[str]:
    return view.lines(watch.arranged(frame, height), height)


def press(view: View, keys: bytes, height: int = 10) -> None:
    for key in keys_in(keys):
        view.move(key, len(FRAME.body), watch.body_room(FRAME, height))


@pytest.mark.parametrize(
    ("keys", "top"),
    [
        (b"j", 1), (b"jjk", 1), (b"k", 0), (b"\x1b[B\x1b[B\x1b[A", 1), (b"\x1bOB", 1),
        (b" ", 6), (b" b", 0), (b"\x1b[6~", 6), (b"  \x1b[5~", 6), (b"G", 93), (b"GG ", 93), (b"Gg", 0),
        (b"xyz\x1b?", 0),
    ],
)  # fmt: skip
def test_keys_scroll_the_body(keys: bytes, top: int) -> None:
    view = View()
    press(view, keys)
    lines = drawn(view, 10)
    assert len(lines) == 10
    assert lines[:3] == ["title", "counts", str(top)]
    assert f"lines {top + 1}-{top + 7} of 100" in lines[-1]


def test_a_body_that_became_shorter_scrolls_back() -> None:
    view = View()
    press(view, b"G")
    lines = drawn(view, 10, Frame(["title"], ["a", "b"]))
    assert lines[:3] == ["title", "a", "b"]
    assert "q quits" in lines[-1]


def test_half_of_a_small_screen_is_left_for_what_scrolls() -> None:
    frame = Frame([f"header {number}" for number in range(9)], ["body"] * 9)
    lines = drawn(View(), 8, frame)
    assert lines[:5] == [f"header {number}" for number in range(5)]
    view = View()
    press(view, b"j")
    assert drawn(view, 8, frame)[3:6] == ["header 3", "header 5", "header 6"]


@pytest.mark.parametrize("height", range(1, 12))
def test_the_screen_is_full_and_not_more(height: int) -> None:
    lines = drawn(View(), height)
    assert len(lines) == height
    assert max(map(width_of, lines)) < 80


def test_frames_that_take_long_are_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", itertools.repeat(103.0).__next__)
    assert watch._next_s(102.9, 2.0) == pytest.approx(105.0)
    assert watch._next_s(100.0, 2.0) == pytest.approx(133.0)


@pytest.mark.parametrize("keys", [b"\x1bOQ", b"\x1bq", b"\x1b[1;5B", b"\x1b[15~", b"\x1b"])
def test_keys_without_a_meaning_do_nothing(keys: bytes) -> None:
    assert list(keys_in(keys)) == []
    assert len(list(keys_in(keys + b"q"))) == (0 if keys == b"\x1b" else 1)


def test_without_keys_only_ctrl_c_quits() -> None:
    assert "Ctrl-C quits" in View(has_keys=False).lines(FRAME, 10)[-1]


def test_one_error_at_a_time_is_on_the_screen() -> None:
    errors = iter(("first", "second"))

    def fail() -> Frame:
        raise StateError(next(errors))

    for text in ("first", "second"):
        frame, good = watch._next_frame(fail, FRAME)
        assert frame.header == [f"note: cannot be read, shown as it was: {text}", "title", "counts"]
        assert good is FRAME
