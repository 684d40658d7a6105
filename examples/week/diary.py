"""Witnesses of the week, for the account: they know nothing of what the dispatcher records.

A thread sees when each pod prints its first line, when it says that it has ended or its process is gone, and when the
directory of each attempt appears (the time is the kernel's). Attempts note in `diary/` what became of them
(lab/train.py). The last file that an attempt's wrapper writes is its end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleet import Dispatcher

_LOOK_S: Final = 0.03


@dataclass
class Lifetime:
    """One run of a pod."""

    pod: str
    slots: int
    gpus: int
    process: Dispatcher
    began_s: float | None = None
    ended_s: float | None = None

    @property
    def seconds(self) -> float:
        assert self.began_s is not None and self.ended_s is not None, f"{self.pod} has not begun or not ended"
        return self.ended_s - self.began_s


class Watch:
    """Sees pods come and go, and attempts begin."""

    def __init__(self, jobs: Path) -> None:
        self.lifetimes: list[Lifetime] = []
        self.began_s: dict[tuple[str, int], float] = {}
        self._jobs = jobs
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_again_and_again, daemon=True)
        self._thread.start()

    def begin(self, pod: str, slots: int, gpus: int, process: Dispatcher) -> None:
        self.lifetimes.append(Lifetime(pod, slots, gpus, process))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _look_again_and_again(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            now_s = time.time()
            for one in [*self.lifetimes]:
                if one.began_s is None and one.process.said:
                    one.began_s = now_s
                if one.ended_s is None and (" ended after " in one.process.said or not one.process.is_running()):
                    one.ended_s = now_s
            self._look_for_attempts()

    def _look_for_attempts(self) -> None:
        for job in os.scandir(self._jobs) if self._jobs.is_dir() else ():
            made_s = job.stat().st_mtime
            for name in os.listdir(job.path):
                if name.isdigit():
                    self.began_s.setdefault((job.name, int(name)), made_s)


@dataclass(frozen=True)
class Noted:
    """An attempt; one that was killed has noted neither how it ended nor when."""

    job: str
    attempt: int
    method: str
    lang: str
    pod: str
    slots: int
    how: str = "killed"
    loss: float | None = None


def read(folder: Path) -> list[Noted]:
    """The diaries of all attempts."""
    return [Noted(**json.loads(page.read_text())) for page in sorted(folder.glob("*.json"))]
