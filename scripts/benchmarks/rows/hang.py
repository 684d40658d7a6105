"""Turnover of a local slot while a host of the same pod, behind ssh, answers nothing. For the host see tests/beds."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, BenchError, Figure, Skipped, interleave, median_of, milliseconds, ratio
from benchmarks.pods import start_pod, wait_until_ready
from dispatcher.run_state import journal
from dispatcher.workspace import Layout

_CHECKOUT = Path(__file__).resolve().parents[3]
# The shell's own clock: nothing is started to read it.
_TIMED = "echo $EPOCHREALTIME; sleep 0.05; echo $EPOCHREALTIME"
_REMOTE = ("far0", "far1")
_LIMIT_S = 120.0


def measure(bench: Bench) -> Iterator[Figure]:
    """End of one local job to the start of the next, with two jobs in flight on a host that hangs or answers."""
    sys.path.insert(0, str(_CHECKOUT / "tests"))
    from beds.bed import BedError
    from beds.needs import why_not
    from beds.sshd import SshBed

    if reason := why_not("sshd"):
        raise Skipped(reason)
    try:
        with SshBed(["h1"]) as bed:
            yield _turnover(bench, bed)
    except BedError as error:
        raise BenchError(f"the bed: {error}") from error


def _turnover(bench: Bench, bed: Any) -> Figure:
    rounds, entries = bench.pick((8, 40), (2, 20), (1, 2))
    bench.say(f"{rounds} rounds of {entries} local jobs beside a host that answers and one that hangs")
    with _pod(bench.new_directory("hang"), bed) as pod:
        arms = {"hangs": lambda: pod.gaps(entries, bed["h1"].hanging()), "answers": lambda: pod.gaps(entries)}
        found = interleave(arms, rounds)
    what = "slot turnover beside a host that hangs"
    return Figure(
        what=what,
        ours=milliseconds(median_of(found["hangs"])),
        against=f"beside one that answers {milliseconds(median_of(found['answers']))}",
        ratio=ratio(found["hangs"], found["answers"]),
        target=TARGETS[what],
        samples=found,
    )


class _Pod:
    """A pod with one local slot and two jobs on the host."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.layout.matrix_dir.mkdir(parents=True)
        self.layout.config_file.write_text("code: none\nhosts:\n  h1: {type: plain, ssh: h1}\n")
        self._entries: list[dict[str, Any]] = []
        self._names = itertools.count()
        self._add(_REMOTE, "h1", "sleep 3600")

    def gaps(self, count: int, trouble: contextlib.AbstractContextManager[None] | None = None) -> list[float]:
        """Seconds between local jobs that run one after the other."""
        with trouble or contextlib.nullcontext():
            number = next(self._names)
            jobs = [f"job{number}_{index}" for index in range(count)]
            self._add(jobs, "local", _TIMED)
            self.wait(jobs, "done")
        logs = [self.layout.attempt(job, 1).log.read_text().split() for job in jobs]
        times = sorted((float(begun), float(ended)) for begun, ended in logs)
        return [begun - ended for (_, ended), (begun, _) in itertools.pairwise(times)]

    def wait(self, jobs: Any, event: str) -> None:
        end_s = time.monotonic() + _LIMIT_S
        while not set(jobs) <= {line.job for line in journal.history(self.layout) if line.event == event}:
            if time.monotonic() > end_s:
                raise BenchError(f"{', '.join(jobs)}: not {event} within {_LIMIT_S:g} s")
            time.sleep(0.1)

    def _add(self, jobs: Any, outlet: str, script: str) -> None:
        words = {"method": "m", "gpus": 0, "outlet": outlet, "command": ["bash", "-c", script]}
        self._entries += [{"job_id": job, **words} for job in jobs]
        new = self.layout.default_matrix.with_name("new")
        new.write_text(json.dumps(self._entries))
        new.replace(self.layout.default_matrix)


@contextlib.contextmanager
def _pod(root: Path, bed: Any) -> Iterator[_Pod]:
    made = _Pod(root)
    options = ("--outlet", "local:1", "--outlet", "h1:2", "--poll-interval", "1")
    with start_pod(root, *options, DISPATCHER_SSH_CONFIG=os.fspath(bed.config)) as pod:
        wait_until_ready(root, pod)
        made.wait(_REMOTE, "started")
        yield made
