"""Real editors in a real terminal (tmux): what a person types, and what stands on their screen."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet import wait_until

_SIZE = ("-x", "200", "-y", "40")


class Terminal:
    """One program in a terminal of 200 by 40 characters."""

    def __init__(self, socket: Path, command: list[str], directory: Path) -> None:
        self._tmux = ("tmux", "-f", "/dev/null", "-S", str(socket))
        words = " ".join(["exec", *map(shlex.quote, command)])
        self._run("new-session", "-d", "-s", "person", *_SIZE, "-c", str(directory), words)

    def _run(self, *words: str, check: bool = True) -> str:
        environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [*self._tmux, *words], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 or not check, f"tmux {words}: {done.stderr}"
        return done.stdout

    def type(self, text: str) -> None:
        self._run("send-keys", "-t", "person", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, Escape, C-o."""
        self._run("send-keys", "-t", "person", *keys)

    def screen(self) -> str:
        return self._run("capture-pane", "-p", "-t", "person", check=False)

    def shows(self, pattern: str) -> str:
        """Wait until the screen has it; what of the pattern matched."""
        compiled = re.compile(pattern)
        found = None

        def seen() -> bool:
            nonlocal found
            found = compiled.search(self.screen())
            return found is not None

        try:
            wait_until(seen, f"{pattern!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}, but:\n{self.screen()}") from None
        assert found is not None
        return found[0]

    def is_over(self) -> bool:
        return not self._run("list-sessions", check=False)

    def close(self) -> None:
        self._run("kill-server", check=False)


@contextmanager
def terminal(socket: Path, command: list[str], directory: Path) -> Iterator[Terminal]:
    opened = Terminal(socket, command, directory)
    try:
        yield opened
    finally:
        opened.close()
