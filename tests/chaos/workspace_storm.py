"""What happens to a workspace on its worst day, in random order."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.storm import Action, Storm
from fleet import Fleet


class WorkspaceStorm(Storm):
    """Kills of jobs and wrappers, and people who edit the status file, by hand and without a lock."""

    pods_at_once = 4
    poll = "0.5"
    lull_s = 0.3

    def __init__(self, fleet: Fleet, seed: int, window: Path) -> None:
        super().__init__(fleet, seed)
        # What was asked of each job: nothing else may have happened to it by an edit.
        self.asked: defaultdict[str, set[str]] = defaultdict(set)
        self._window = window
        self._old_copy = b""

    def slots(self) -> Sequence[str]:
        return ["--slots", str(self.random.choice([1, 2, 3]))]

    def actions(self) -> Mapping[Action, int]:
        return {
            self.kill_dispatcher: 3,
            self.stop_dispatcher: 2,
            self.freeze_dispatcher: 2,
            self.kill_wrapper: 5,
            self.kill_job: 8,
            self.run_the_labs_snippet: 6,
            self.save_in_place: 6,
            self.save_by_rename: 6,
            self.save_half: 3,
            self.save_an_old_copy: 3,
            self.requeue_by_command: 3,
            self.hold_by_command: 2,
        }

    # Jobs.

    def kill_wrapper(self) -> bool:
        """Or its subshell: their command lines are the same."""
        return self._kill_one("/job.sh ")

    def kill_job(self) -> bool:
        return self._kill_one("witness.py")

    def _kill_one(self, part: str) -> bool:
        pids = [pid for pid, words in self.fleet.pids().items() if part in words]
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(pids), signal.SIGKILL)
        return True

    # People.

    def run_the_labs_snippet(self) -> bool:
        """Load everything, change one line, dump everything, without any lock."""
        file = self.fleet.layout.status_file
        with self._in_place():
            found = self._load()
            if found is None:
                return False
            time.sleep(self.random.choice([0.0, 0.02]))
            self._edit(found)
            with open(file, "w", encoding="utf-8") as out:
                json.dump(found, out)
        return True

    def save_in_place(self) -> bool:
        """An editor that was open for a while and writes into the file that is there."""
        found = self._load()
        if found is None:
            return False
        time.sleep(self.random.uniform(0.0, 0.2))
        self._edit(found)
        with self._in_place():
            self.fleet.layout.status_file.write_bytes(self._text(found))
        return True

    def save_by_rename(self) -> bool:
        """An editor that was open for a while and writes a new file."""
        found = self._load()
        if found is None:
            return False
        time.sleep(self.random.uniform(0.0, 0.2))
        self._edit(found)
        self._rename_over(self._text(found))
        return True

    def save_half(self) -> bool:
        """A file that is half written for a while, and then whole."""
        found = self._load()
        if found is None:
            return False
        self._edit(found)
        text = self._text(found)
        with self._in_place():
            file = self.fleet.layout.status_file
            file.write_bytes(text[: self.random.randrange(len(text))])
            time.sleep(self.random.uniform(0.05, 0.5))
            file.write_bytes(text)
        return True

    def save_an_old_copy(self) -> bool:
        """Somebody puts back what they copied a while ago: merely old lines change nothing."""
        copy = self._old_copy
        with contextlib.suppress(OSError):
            data = self.fleet.layout.status_file.read_bytes()
            self._old_copy = data if self._parsed(data) is not None else b""
        if not copy:
            return False
        self._rename_over(copy)
        return True

    def requeue(self, *jobs: str) -> None:
        self._ask("queued", *jobs)
        super().requeue(*jobs)

    def hold_by_command(self) -> bool:
        jobs = self.some_jobs(2)
        self._ask("held", *jobs)
        self.workspace().hold(*jobs)
        return True

    def _ask(self, desired: str, *jobs: str) -> None:
        for job in jobs:
            self.asked[job].add(desired)

    def _edit(self, found: dict[str, dict[str, Any]]) -> None:
        """What people do to one line or two: mostly requeue."""
        for job in self.random.sample(sorted(found), self.random.choice([1, 1, 2])):
            line = found[job]
            what = self.random.random()
            if what < 0.75:
                desired = "queued" if what < 0.6 else self.random.choice(["held", "abandoned", "quued"])
                line["state"] = desired
                self._ask(desired, job)
            elif what < 0.9:
                line["note"] = f"seen {self.random.random()}"
                self._ask("edit", job)
            else:
                line["priority"] = self.random.randrange(10)
                self._ask("edit", job)

    def _load(self) -> dict[str, dict[str, Any]] | None:
        with contextlib.suppress(OSError):
            return self._parsed(self.fleet.layout.status_file.read_bytes())
        return None

    def _parsed(self, data: bytes) -> dict[str, dict[str, Any]] | None:
        with contextlib.suppress(ValueError):
            return dict(json.loads(data)) or None
        return None

    def _text(self, found: dict[str, dict[str, Any]]) -> bytes:
        lines = (f"{json.dumps(job)}: {json.dumps(line)}" for job, line in found.items())
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    def _rename_over(self, data: bytes) -> None:
        file = self.fleet.layout.status_file
        temporary = file.with_name("4913~")
        temporary.write_bytes(data)
        temporary.replace(file)

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """While this is held, readers do not expect a whole file."""
        with open(self._window, "w") as window:
            fcntl.flock(window, fcntl.LOCK_EX)
            yield
