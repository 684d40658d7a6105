"""A screen that is kept up to date: some lines at the top stay, the others scroll.

Plain escape sequences on the alternate screen, which every terminal of today knows: our lines have their colours and
the widths of their letters already, curses would have to be told both, and some builds of Python are without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final

import click
import msgspec

from dispatcher.cli.printing import note_lines, terminal_size, terminal_width
from dispatcher.cli.streams import draw
from dispatcher.errors import DispatcherError

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE = "\x1b[H", "\x1b[K"
# What is too long for a terminal that was made narrower is cut off, until the next frame, not wrapped.
_TRUNCATE, _WRAP = "\x1b[?7l", "\x1b[?7h"
_REVERSE, _NORMAL = "\x1b[7m", "\x1b[m"

_LINE_DOWN, _LINE_UP, _PAGE_DOWN, _PAGE_UP, _TOP, _END, _QUIT, _REDRAW = range(8)
_KEYS: Final = {
    b"j": _LINE_DOWN, b"\x1b[B": _LINE_DOWN, b"\x1bOB": _LINE_DOWN, b"\r": _LINE_DOWN, b"\n": _LINE_DOWN,
    b"k": _LINE_UP, b"\x1b[A": _LINE_UP, b"\x1bOA": _LINE_UP,
    b" ": _PAGE_DOWN, b"\x1b[6~": _PAGE_DOWN, b"f": _PAGE_DOWN,
    b"b": _PAGE_UP, b"\x1b[5~": _PAGE_UP,
    b"g": _TOP, b"\x1b[H": _TOP, b"\x1b[1~": _TOP, b"\x1bOH": _TOP,
    b"G": _END, b"\x1b[F": _END, b"\x1b[4~": _END, b"\x1bOF": _END,
    b"q": _QUIT, b"Q": _QUIT,
}  # fmt: skip
# One key: a control sequence, a function key, a letter with Alt, or a letter.
_KEY: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b.|.", re.DOTALL)
# So many times as long as a frame takes to make nothing is done: a screen that is left open all day costs little.
_REST: Final = 10
# How long after a change of the terminal's size a frame of that size is made.
_SETTLED_S: Final = 0.2
# Signals that end the program; the terminal is put in order first.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Frame(msgspec.Struct, frozen=True):
    """The lines of one moment, which fit the width of the terminal."""

    header: Sequence[str]
    body: Sequence[str]


class View:
    """Which lines of the body are on the screen. Pure."""

    def __init__(self, *, has_keys: bool = True) -> None:
        self.top = 0
        self._has_keys = has_keys

    def move(self, key: int, length: int, room: int) -> None:
        """Scroll a body of `length` lines, of which `room` are shown."""
        steps = {_LINE_DOWN: 1, _LINE_UP: -1, _PAGE_DOWN: room - 1, _PAGE_UP: 1 - room, _TOP: -length, _END: length}
        self.top += steps.get(key, 0)
        self.keep_inside(length, room)

    def keep_inside(self, length: int, room: int) -> None:
        """Scroll back where the body has become shorter."""
        self.top = max(0, min(self.top, length - room))

    def lines(self, frame: Frame, height: int) -> list[str]:
        """The lines of a screen of `height` lines; the last one says what is below and above."""
        room = body_room(frame, height)
        self.keep_inside(len(frame.body), room)
        shown = list(frame.body[self.top : self.top + room])
        shown += [""] * (room - len(shown))
        lines = [*frame.header, *shown, f"{_REVERSE}{self._place(len(frame.body), room)}{_NORMAL}"]
        return lines[:height]

    def _place(self, length: int, room: int) -> str:
        if not self._has_keys:
            return " Ctrl-C quits "
        if length <= room:
            return " q quits "
        return f" lines {self.top + 1}-{min(length, self.top + room)} of {length}: j, k, space, b scroll; q quits "


def body_room(frame: Frame, height: int) -> int:
    """How many lines of the body a screen of `height` lines shows."""
    return max(1, height - 1 - len(frame.header))


def arranged(frame: Frame, height: int) -> Frame:
    """The frame with a header of at most half of the screen; the rest of it scrolls."""
    most = max(1, height // 2)
    return Frame(frame.header[:most], [*frame.header[most:], *frame.body])


def repeat(text: Callable[[], str], interval_s: float) -> None:
    """Print `text` again and again until Ctrl-C, for output that is no terminal."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            click.echo(f"{text()}\n")
            time.sleep(interval_s)


def watch(make_frame: Callable[[], Frame], interval_s: float) -> None:
    """Show a frame on the terminal that stdout is, a new one every `interval_s`, until q or Ctrl-C."""
    # The first one is made before the terminal is touched: its errors are printed as those of other commands are.
    began_s = time.monotonic()
    frame = good = make_frame()
    with contextlib.suppress(KeyboardInterrupt), _screen() as keys:
        view = View(has_keys=keys.has_keys)
        rested_s, next_s = _next_s(began_s, 0.0), _next_s(began_s, interval_s)
        while True:
            height = _height()
            shown = arranged(frame, height)
            _draw(view.lines(shown, height))
            key = keys.wait(max(0.0, next_s - time.monotonic()))
            if key == _QUIT:
                return
            if key == _REDRAW:
                # A window whose edge is dragged has many sizes; the frame is made for the last one.
                next_s = max(rested_s, time.monotonic() + _SETTLED_S)
            elif key is not None:
                view.move(key, len(shown.body), body_room(shown, height))
            else:
                began_s = time.monotonic()
                frame, good = _next_frame(make_frame, good)
                rested_s, next_s = _next_s(began_s, 0.0), _next_s(began_s, interval_s)


def _next_s(began_s: float, interval_s: float) -> float:
    """When to make the next frame: one that takes long, of a huge matrix or a slow file server, is made less often."""
    now_s = time.monotonic()
    return now_s + max(interval_s, _REST * (now_s - began_s))


def _next_frame(make_frame: Callable[[], Frame], last: Frame) -> tuple[Frame, Frame]:
    """The frame to show, and the last one that could be made.

    They differ where nothing can be read for now, such as from a slow file server: then the error is on top.
    """
    try:
        last = make_frame()
    except DispatcherError as error:
        lines = note_lines([f"cannot be read, shown as it was: {error}"], terminal_width())
        return Frame([*lines, *last.header], last.body), last
    return last, last


def _draw(lines: Sequence[str]) -> None:
    # Overwritten in place: clearing the screen first would flicker. Each line is cleared before and not after it is
    # written, which would take the last letter of one that fills it.
    text = "\r\n".join(f"{_CLEAR_LINE}{line}" for line in lines)
    draw(f"{_TRUNCATE}{_HOME}{text}{_WRAP}")


def _height() -> int:
    size = terminal_size()
    return 24 if size is None else size.lines


class _Terminal:
    """The terminal in the mode that the screen needs: keys at once and unseen, the alternate screen, no cursor."""

    def __init__(self, stdin: int | None) -> None:
        self.stdin = stdin
        self._before = None if stdin is None else termios.tcgetattr(stdin)

    def enter(self) -> None:
        if self.stdin is not None:
            # Ctrl-C and Ctrl-Z still send their signals.
            tty.setcbreak(self.stdin, termios.TCSADRAIN)
        self._write(_ENTER)

    def leave(self) -> None:
        self._write(_LEAVE)
        if self.stdin is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                # What was typed and not read does not reach the shell.
                termios.tcsetattr(self.stdin, termios.TCSAFLUSH, self._before)

    def suspend(self) -> None:
        """Stop, as Ctrl-Z asks, with the terminal as it was; go on when the shell says so."""
        self.leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self.enter()

    def _write(self, text: str) -> None:
        # The terminal may be gone.
        with contextlib.suppress(OSError):
            draw(text)


class _Keys:
    """Waits for keys, where stdin is a terminal, and for a new size of the terminal."""

    def __init__(self, terminal: _Terminal, wakeup: int) -> None:
        self.has_keys = terminal.stdin is not None
        self._terminal = terminal
        self._stdin = terminal.stdin
        self._wakeup = wakeup
        self._pending: list[int] = []

    def wait(self, timeout_s: float) -> int | None:
        """The next key; _REDRAW when the terminal has another size, None when the time is over."""
        if self._pending:
            return self._pending.pop(0)
        readers = [self._wakeup] if self._stdin is None else [self._wakeup, self._stdin]
        end_s = time.monotonic() + timeout_s
        while True:
            ready = select.select(readers, [], [], max(0.0, end_s - time.monotonic()))[0]
            if self._wakeup in ready:
                if signal.SIGTSTP in os.read(self._wakeup, 4096):
                    self._terminal.suspend()
                return _REDRAW
            if not ready:
                return None
            self._pending = self._read()
            if self._pending:
                return self._pending.pop(0)

    def _read(self) -> list[int]:
        assert self._stdin is not None
        data = os.read(self._stdin, 4096)
        if not data:
            # The terminal is gone, and would be readable for ever.
            return [_QUIT]
        return list(keys_in(data))


def keys_in(data: bytes) -> Iterator[int]:
    """The known keys in what a terminal has sent; other keys, with all that they send, are skipped."""
    for name in _KEY.findall(data):
        if name in _KEYS:
            yield _KEYS[name]


@contextlib.contextmanager
def _screen() -> Iterator[_Keys]:
    """The terminal made ready; at the end, however it comes, it is as it was before."""
    stdin = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    terminal = _Terminal(stdin)
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)

    handlers: dict[int, Callable[[int, FrameType | None], object]] = {
        # Nothing is done here: a frame may be half written.
        **dict.fromkeys((signal.SIGWINCH, signal.SIGTSTP), lambda number, _frame: None),
        **dict.fromkeys(_ENDING, _exit),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    # The pipe gets the number of a signal when it arrives. Python's own handlers may run after a wait that the signal
    # was too early to end. A full pipe shows that something happened already.
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    terminal.enter()
    try:
        yield _Keys(terminal, reader)
    finally:
        terminal.leave()
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
