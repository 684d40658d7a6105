"""Commands on a terminal of a given size, and what it shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A command whose stdin, stdout and stderr are one terminal."""

    def __init__(self, lab, *words, lines=24, columns=80, **env):
        self._ours, theirs = pty.openpty()
        self._theirs = theirs
        self.written = ""
        self.resize(lines, columns)
        self.before = termios.tcgetattr(theirs)
        env = {"TERM": "xterm", "COLUMNS": "", "LINES": "", **env}
        self.process = lab.start(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=env)

    def resize(self, lines, columns):
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys):
        os.write(self._ours, keys)

    def wait_for(self, condition, what, timeout_s=30.0):
        """Read until the condition holds for the lines on the screen."""
        end_s = time.monotonic() + timeout_s
        while not condition(self.frame()):
            assert self.process.poll() is None, f"{what}: the command has ended:\n{self.written}"
            assert time.monotonic() < end_s, f"{what}: not within {timeout_s} s:\n" + "\n".join(self.frame())
            self._read(0.1)

    def end(self, number=None):
        """Wait until the command ends, after a signal; its exit code."""
        if number is not None:
            self.process.send_signal(number)
        end_s = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < end_s, "the command has not ended within 30 s"
            self._read(0.05)
        while self._read(0.1):
            pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def is_as_before(self):
        """Whether the terminal is in the mode in which the command found it."""
        return termios.tcgetattr(self._theirs) == self.before

    def lines(self):
        """Everything that was printed, as lines without colours."""
        return SEQUENCE.sub("", self.written).replace("\r", "").splitlines()

    def frame(self):
        """The lines of the last complete frame of --watch; none before the first."""
        frames = self.written.replace("\r", "").split("\x1b[?7l\x1b[H")[1:]
        whole = [frame.partition("\x1b[?7h")[0] for frame in frames if "\x1b[?7h" in frame]
        return SEQUENCE.sub("", whole[-1]).split("\n") if whole else []

    def _read(self, timeout_s):
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return b""
        data = os.read(self._ours, 65536)
        self.written += data.decode(errors="replace")
        return data


@contextlib.contextmanager
def screen(lab, *words, **options):
    found = Screen(lab, *words, **options)
    try:
        yield found
    finally:
        found.close()
