"""Claims and slot turnover on real NFS: user-mode Linux kernels on this machine, see tests/beds.

What `fsync` costs there is the network and the server, no disk; processes cost more than on real hosts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import BenchError, Figure, Skipped, Spread, interleave, median_of, milliseconds, ratio, shown
from benchmarks.rows.contention import check_claimed_once
from benchmarks.rows.turnover import turnover_figure

_CHECKOUT = Path(__file__).resolve().parents[3]
_ENV = {"PYTHONPATH": str(_CHECKOUT / "scripts")}
_MOUNTS = ("v4.2", "v3")
_LIMIT_S = 600.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Claims and slot turnover on NFS v4.2 and v3, between kernels on this machine."""
    sys.path.insert(0, str(_CHECKOUT / "tests"))
    from beds.bed import BedError
    from beds.needs import why_not
    from beds.nfs import NfsBed

    if reason := why_not("nfs"):
        raise Skipped(reason)
    bench.say("booting a file server and two clients")
    try:
        with NfsBed() as bed:
            for mount in _MOUNTS:
                yield from measure_at(bench, mount, *bed.hosts(mount))
    except BedError as error:
        raise BenchError(f"the bed: {error}") from error


def measure_at(bench: Bench, mount: str, a: Any, b: Any) -> Iterator[Figure]:
    """The figures of two hosts that see the same directory by this mount."""
    rounds, batch, warm_up, entries = bench.pick((20, 10, 20, 1_200), (4, 10, 20, 1_200), (1, 2, 1, 20))
    bench.say(f"{mount}: {rounds} rounds of {batch} claims")
    root = a.path("claims")
    _ask(a, "prepare", root, entries)
    found = _ask(a, "claim", root, rounds, batch, warm_up)
    ours_s, floor_s = median_of(found["ours"]), median_of(found["floor"])
    yield Figure(
        what=f"NFS {mount}: claim, {entries:,} entries",
        ours=f"{milliseconds(ours_s)}, {shown(1 / ours_s)}/s",
        against=f"bare loop there {milliseconds(floor_s)}",
        ratio=ratio(found["ours"], found["floor"]),
        samples=found,
    )
    yield Figure(
        what=f"NFS {mount}: the same with its preparation",
        ours=milliseconds(median_of(found["whole"])),
        against=f"bare loop there {milliseconds(floor_s)}",
        ratio=ratio(found["whole"], found["floor"]),
        note="prepared while jobs run",
    )
    yield _contention(bench, mount, a, b)
    bench.say(f"{mount}: turnover")
    found = _ask(a, "turnover", a.root, *bench.pick((20, 3), (8, 1), (2, 1)))
    yield turnover_figure(f"NFS {mount}: slot turnover", found["ours"], found["bash"], target=None)


def _contention(bench: Bench, mount: str, a: Any, b: Any) -> Figure:
    """One host alone, and both together, in turns."""
    counts = {1: [a], 2: [a, b]}
    rounds, entries = bench.pick((3, 400), (1, 400), (1, 4))
    # Time for both hosts to start Python and open the workspace, and by how much one may be late.
    start = bench.pick((10.0, 0.5), (10.0, 0.5), (0.0, _LIMIT_S))
    bench.say(f"{mount}: {rounds} rounds of {entries} claims by one host and by both")
    arms = {str(count): lambda hosts=hosts: [_contend(hosts, entries, *start)] for count, hosts in counts.items()}
    found = interleave(arms, rounds)
    one, two = (entries / median_of(found[number]) for number in ("1", "2"))
    return Figure(
        what=f"NFS {mount}: 2 hosts contend for {entries} entries",
        ours=f"{shown(two)}/s",
        against=f"1 host {shown(one)}/s",
        ratio=Spread.of([alone[0] / both[0] for alone, both in zip(found["1"], found["2"], strict=True)]),
        note="none claimed twice",
        samples=found,
    )


def _contend(hosts: list[Any], entries: int, start_s: float, late_s: float) -> float:
    first = hosts[0]
    root = first.path(f"contended-{time.monotonic_ns()}")
    _ask(first, "prepare", root, entries)
    begin_at = time.time() + start_s
    started = [host.start(_argv("contend", root, f"pod-{host.name}", begin_at), env=_ENV) for host in hosts]
    if any(process.wait(_LIMIT_S) != 0 for process in started):
        raise BenchError("\n".join(process.output()[-1000:] for process in started))
    reports = [json.loads(process.stdout()) for process in started]
    begun = [report["begun"] for report in reports]
    if max(begun) - begin_at > late_s:
        raise BenchError(f"the hosts did not begin together: {begun}, wanted {begin_at}")
    claimed = [job for report in reports for job in report["jobs"]]
    check_claimed_once(claimed, _ask(first, "written", root), entries)
    return max(report["ended"] for report in reports) - min(begun)


def _argv(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "benchmarks.on_host", *map(str, words)]


def _ask(host: Any, *words: object) -> Any:
    done = host.run(_argv(*words), env=_ENV, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise BenchError(f"{host.name}: {words[0]} ended with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout)
