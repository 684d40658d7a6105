"""Submissions to a real SLURM, and what hearing of them costs: a cluster of the beds, see tests/beds."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, BenchError, Figure, Skipped, interleave, median_of, percentile, ratio, shown
from benchmarks.pods import run_pod
from dispatcher.config import CodeMode, Config, Method
from dispatcher.hosts.types import Hosts, SlurmHost
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Bundle, Key, Request, Slot, Unknown
from dispatcher.outlets.batch.outlet import BatchOutlet
from dispatcher.outlets.bundle import Assignment, render
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.remote.connection import Connection, Pace
from dispatcher.outlets.remote.transport import LocalTransport
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.run_state import journal
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import Layout

_CHECKOUT = Path(__file__).resolve().parents[3]
_POLL_S = 0.5
_LIMIT_S = 120.0
_ENDS_POLL_S = 2.0


def measure(bench: Bench) -> Iterator[Figure]:
    """200 submissions as an array against one sbatch each; calls for each poll; from a job's end to its record."""
    sys.path.insert(0, str(_CHECKOUT / "tests"))
    from beds.bed import BedError
    from beds.needs import why_not
    from beds.slurm import SlurmBed

    if reason := why_not("slurm"):
        raise Skipped(reason)
    try:
        with SlurmBed() as bed, _environment(bed.env):
            yield _submissions(bench, bed)
            yield _calls(bench, bed)
            yield _ends(bench, bed)
    except BedError as error:
        raise BenchError(f"the bed: {error}") from error


class _OneByOne(SlurmScheduler):
    """What a tool does that calls sbatch once for every job."""

    makes_arrays = False


def _submissions(bench: Bench, bed: Any) -> Figure:
    rounds, entries = bench.pick((5, 200), (2, 200), (1, 2))
    bench.say(f"{rounds} rounds of {entries} submissions, as an array and one by one")
    arms = {
        "array": lambda: [_submit(bed, SlurmScheduler, entries)],
        "single": lambda: [_submit(bed, _OneByOne, entries)],
    }
    found = interleave(arms, rounds)
    array, single = (entries / median_of(found[name]) for name in ("array", "single"))
    return Figure(
        what=f"{entries} submissions to SLURM, from their files to their ids",
        ours=f"{shown(array)}/s as an array",
        against=f"one sbatch each {shown(single)}/s",
        ratio=ratio(found["single"], found["array"]),
        target=TARGETS["200 submissions to SLURM, from their files to their ids"],
        samples=found,
    )


def _submit(bed: Any, kind: type[SlurmScheduler], entries: int) -> float:
    with _outlet(bed, kind, entries) as (outlet, config, _):
        bundles = [_claim(outlet, config, f"j{number}") for number in range(entries)]
        # Writes the attempts' files, which is the same for both, and begins the call.
        outlet.submit(bundles)
        begun = time.perf_counter()
        _wait_accepted(outlet, bundles)
        elapsed_s = time.perf_counter() - begun
    bed.run("scancel", "--user=root")
    return elapsed_s


def _calls(bench: Bench, bed: Any) -> Figure:
    polls, entries = bench.pick((20, 200), (20, 200), (2, 2))
    bench.say(f"{polls} polls with {entries} attempts in flight")
    with _outlet(bed, _OneByOne, entries) as (outlet, config, connection):
        bundles = [_claim(outlet, config, f"j{number}") for number in range(entries)]
        outlet.submit(bundles)
        _wait_accepted(outlet, bundles)
        before, begun = connection.calls, time.monotonic()
        while time.monotonic() - begun < polls * _POLL_S:
            _poll(outlet, bundles)
        per_poll = (connection.calls - before) / polls
    bed.run("scancel", "--user=root")
    return Figure(
        what=f"remote calls for each poll, {entries} submissions in flight",
        ours=shown(per_poll),
        target=TARGETS["remote calls for each poll, 200 submissions in flight"],
        judged=per_poll,
        samples={"calls": per_poll * polls, "polls": polls},
    )


def _ends(bench: Bench, bed: Any) -> Figure:
    ends = bench.pick(40, 40, 2)
    bench.say(f"{ends} jobs that end one after the other, poll interval {_ENDS_POLL_S:g} s")
    root = _new_root(bed)
    words = ["bash", "-c", "sleep 0.$((RANDOM % 900 + 100))"]
    entries = [{"job_id": f"j{number}", "method": "m", "gpus": 0, "command": words} for number in range(ends)]
    layout = Layout(root)
    layout.matrix_dir.mkdir()
    layout.default_matrix.write_text(json.dumps(entries))
    layout.config_file.write_text("hosts:\n  hpc:\n    type: slurm\n")
    run_pod(root, "--outlet", f"hpc:{ends}", "--poll-interval", str(_ENDS_POLL_S))
    recorded = {line.job: line.at for line in journal.history(layout) if line.event == "done"}
    if len(recorded) != ends:
        raise BenchError(f"{len(recorded)} of {ends} jobs are done")
    late = [_seconds(at) - _seconds(_ended_at(layout, str(job))) for job, at in recorded.items()]
    return Figure(
        what="from the end of a job to its record",
        ours=f"p50 {shown(percentile(late, 50))} s, p99 {shown(percentile(late, 99))} s",
        against=f"poll interval {_ENDS_POLL_S:g} s",
        target=TARGETS["from the end of a job to its record"],
        judged=percentile(late, 50),
        samples={"late_s": late},
    )


def _ended_at(layout: Layout, job: str) -> str:
    return str(json.loads(layout.attempt(job, 1).exit.read_text())["ended_at"])


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@contextlib.contextmanager
def _outlet(bed: Any, kind: type[SlurmScheduler], entries: int) -> Iterator[tuple[BatchOutlet, Config, Connection]]:
    """An outlet whose jobs are held, so that nothing else takes time."""
    root = _new_root(bed)
    host = SlurmHost(name="hpc", cluster="hpc", sbatch_args=("--hold",))
    hosts = Hosts(hosts={"hpc": host})
    config = Config(
        layout=Layout(root), matrix=root / "m.json", methods={"m": Method(name="m", template=root / "none.py")},
        hosts=hosts, code=CodeMode.NONE,
    )  # fmt: skip
    observer = Observer(config.layout, config.lost_after_s, lambda: True)
    context = PodContext(pod="bench", config=config, observer=observer, log=print, poll_interval_s=_POLL_S)
    scheduler = kind(host, hosts, config.layout, config.kill_grace_s)
    connection = Connection("hpc", LocalTransport("hpc"), Pace(calls_per_minute=10_000))
    outlet = BatchOutlet(host, scheduler, connection, context, entries)
    try:
        _wait(outlet, [], lambda: not outlet.capacity.is_full, "the host is reached")
        yield outlet, config, connection
    finally:
        outlet.close()


def _claim(outlet: BatchOutlet, config: Config, job: str) -> Bundle:
    key, request = Key(job, 1), Request(0)
    config.layout.attempt(job, 1).directory.mkdir(parents=True)
    entry = Entry(job_id=job, method="m", command=("true",))
    slot = outlet.capacity.take(request) or Slot()
    assigned = Assignment(entry=entry, key=key, pod="bench", request=request, slot=slot)
    return render(config, assigned, outlet.site(slot, request))


def _wait_accepted(outlet: BatchOutlet, bundles: list[Bundle]) -> None:
    def are_accepted() -> bool:
        reports = outlet.poll([bundle.key for bundle in bundles]).values()
        return all(report.placement is not None and report.placement.handle for report in reports)

    _wait(outlet, bundles, are_accepted, "all are accepted")


def _wait(outlet: BatchOutlet, bundles: list[Bundle], condition: Any, what: str) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > end_s:
            raise BenchError(f"{what}: not within {_LIMIT_S:g} s")
        _poll(outlet, bundles)


def _poll(outlet: BatchOutlet, bundles: list[Bundle]) -> None:
    """As the loop does, woken by the outlet alone."""
    due_s = outlet.due_in_s()
    select.select(outlet.wait_fds(), [], [], _POLL_S if due_s is None else min(due_s, _POLL_S))
    reports = outlet.poll([bundle.key for bundle in bundles])
    if any(isinstance(report.status, Unknown) for report in reports.values()):
        raise BenchError(f"the cluster does not answer: {outlet.slot_infos()[0].note}")


_roots = itertools.count()


def _new_root(bed: Any) -> Path:
    root = Path(bed.directory) / "work" / f"bench-{next(_roots)}"
    root.mkdir()
    return root


@contextlib.contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
