"""What a dispatcher costs while it has nothing to do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, Spread, shown
from benchmarks.pods import environment, memory_mib, start_pod, wait_until_ready
from benchmarks.workspaces import make_workspace, write_history

_SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]
_HOUR_S = 3600.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Memory and processor time of a dispatcher that has nothing to do, at the default poll interval."""
    # A whole number of poll intervals (30 s), so that their cost counts as it does in an hour.
    window_s = bench.pick(60.0, 30.0, 0.1)
    # After this, what came with the start is over.
    settle_s = bench.pick(5.0, 5.0, 0.0)
    sizes = bench.pick((1_200, 100_000), (1_200, 100_000), (20, 40))
    with contextlib.ExitStack() as stack:
        pids = {count: stack.enter_context(_idle_pod(bench, count)) for count in sizes}
        bare = stack.enter_context(_bare_interpreter())
        bench.say(f"watching them for {window_s:g} s")
        time.sleep(settle_s)
        before = {count: _processor_s(pid) for count, pid in pids.items()}
        time.sleep(window_s)
        used_s = {count: _processor_s(pid) - before[count] for count, pid in pids.items()}
        memory = {count: memory_mib(pid) for count, pid in pids.items()}
        bare_memory = memory_mib(bare)
    for count in sizes:
        pss, rss = memory[count]
        times = pss / bare_memory[0]
        yield Figure(
            what=f"memory of an idle dispatcher, {count:,} entries",
            ours=f"{shown(pss)} MiB PSS, {shown(rss)} MiB RSS",
            against=f"bare Python {shown(bare_memory[0])} MiB PSS",
            ratio=Spread(times, times, times),
            target=TARGETS["memory of an idle dispatcher, 100,000 entries"] if count == max(sizes) else None,
            judged=pss,
            samples={"pss_mib": pss, "rss_mib": rss, "bare_pss_mib": bare_memory[0]},
        )
    for count in sizes:
        part = used_s[count] / window_s
        yield Figure(
            what=f"processor time of an idle dispatcher, {count:,} entries",
            ours=f"{shown(part * _HOUR_S)} s per hour",
            against="one core",
            ratio=Spread(part, part, part),
            samples={"used_s": used_s[count], "window_s": window_s},
        )


@contextlib.contextmanager
def _idle_pod(bench: Bench, count: int) -> Iterator[int]:
    """A pod on a workspace whose entries are all done; its pid."""
    bench.say(f"starting a dispatcher on {count:,} entries that are done")
    layout = make_workspace(bench.new_directory("idle"), count)
    write_history(layout, count)
    with start_pod(layout.root, "--slots", "2") as pod:
        wait_until_ready(layout.root, pod)
        yield pod.pid


@contextlib.contextmanager
def _bare_interpreter() -> Iterator[int]:
    with subprocess.Popen(_SLEEP, env=environment(), start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _processor_s(pid: int) -> float:
    # The processor clock of another process (clock_getcpuclockid): /proc/PID/stat counts in ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)
