"""Real dispatchers, started as a person starts them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import BenchError

# Beside the interpreter of this environment, which may not be on PATH.
DISPATCHER = str(Path(sys.executable).parent / "dispatcher")
_END_S = 20.0


def environment() -> dict[str, str]:
    """This process's, without what would change what a dispatcher does, or have every start compile the package."""
    unwanted = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE")
    return {k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith("DISPATCHER_")}


def run_pod(root: Path, *options: str) -> float:
    """Run a pod until nothing is left to do; seconds from its start to its end."""
    begun = time.perf_counter()
    with start_pod(root, "--until-empty", *options) as pod:
        code = pod.wait()
    elapsed_s = time.perf_counter() - begun
    if code != 0:
        raise BenchError(f"the dispatcher ended with {code}:\n{_log(root).read_text()[-2000:]}")
    return elapsed_s


@contextlib.contextmanager
def start_pod(root: Path, *options: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A pod, with these environment variables besides, that is stopped at the end of the block."""
    with open(_log(root), "wb") as log:
        pod = subprocess.Popen(
            [DISPATCHER, "--pod", "bench", *options],
            cwd=root,
            env={**environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # An interrupt from the terminal is for the benchmark, which then ends it in good order.
            start_new_session=True,
        )
    try:
        yield pod
    finally:
        pod.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            pod.wait(_END_S)
        pod.kill()
        pod.wait()


def wait_until_ready(root: Path, pod: subprocess.Popen[bytes], limit_s: float = 120.0) -> float:
    """Wait for the line by which a pod says that it begins to claim; the monotonic time when it was there."""
    end_s = time.monotonic() + limit_s
    while "poll interval" not in _log(root).read_text():
        if pod.poll() is not None or time.monotonic() > end_s:
            raise BenchError(f"the dispatcher does not begin:\n{_log(root).read_text()[-2000:]}")
        time.sleep(0.005)
    return time.monotonic()


def memory_mib(pid: int) -> tuple[float, float]:
    """PSS (shared pages in parts) and RSS of a process."""
    kib = _kib(f"/proc/{pid}/smaps_rollup")
    return kib["Pss:"] / 1024, kib["Rss:"] / 1024


def peak_mib(pid: int) -> float:
    """The greatest RSS that a process has had."""
    return _kib(f"/proc/{pid}/status")["VmHWM:"] / 1024


def _kib(path: str) -> dict[str, int]:
    rows = (line.split() for line in Path(path).read_text().splitlines())
    return {words[0]: int(words[1]) for words in rows if len(words) == 3 and words[2] == "kB"}


def _log(root: Path) -> Path:
    return root / "pod.log"
