"""Other tools that run many commands on one machine, each with a record of what it ran.

Each maker returns a function that runs `count` times /bin/true on two slots, with the directory to work in, and gives
the seconds from the first submission to the last end; or raises Skipped with how to install the tool.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.figures import BenchError, Skipped
from benchmarks.pods import environment

Run = Callable[[Path, int], float]
_LIMIT_S = 300.0
_SETTLE_S = 10.0
_INSTALL = "scripts/install bench"

# Its server and worker are threads of that process, started beforehand.
_HYPERQUEUE = """
import os, sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
with LocalCluster(server_dir=os.path.abspath("server"), worker_config=WorkerConfig(cores=2)) as cluster:
    client = cluster.client()
    begun = time.perf_counter()
    job = Job(default_workdir=os.getcwd())
    for _ in range(int(sys.argv[1])):
        job.program(["/bin/true"])
    client.wait_for_jobs([client.submit(job)])
    print(time.perf_counter() - begun, flush=True)
"""


def _parallel() -> Run:
    _need("parallel")

    def run(directory: Path, count: int) -> float:
        numbers = "".join(f"{number}\n" for number in range(count))
        command = ["parallel", "--will-cite", "-j2", "-N1", "--joblog", "joblog", "/bin/true {}"]
        begun = time.perf_counter()
        _run(command, directory, typed=numbers)
        elapsed_s = time.perf_counter() - begun
        _wait_for_all("parallel", count, lambda: len((directory / "joblog").read_text().splitlines()) - 1)
        return elapsed_s

    return run


def _task_spooler() -> Run:
    _need("tsp")

    def run(directory: Path, count: int) -> float:
        # The path of a socket has at most a hundred bytes.
        own = {"TS_SOCKET": "socket", "TS_MAXFINISHED": str(2 * count), "TMPDIR": str(directory)}
        script = f"tsp -S 2; for ((i = 0; i < {count}; i++)); do tsp /bin/true; done >ids; tsp -w"
        try:
            begun = time.perf_counter()
            _run(["bash", "-c", script], directory, **own)
            # -w waits for the last one submitted, which may end before the one before it.
            _wait_for_all("task-spooler", count, lambda: _run(["tsp", "-l"], directory, **own).count(" finished "))
            elapsed_s = time.perf_counter() - begun
        finally:
            _run(["tsp", "-K"], directory, **own)
        return elapsed_s

    return run


def _nq() -> Run:
    _need("nq")

    def run(directory: Path, count: int) -> float:
        # One queue runs one job at a time, so two slots are two queues.
        one = f'export NQDIR=$1; mkdir -p "$1"; for ((i = 0; i < {count // 2}; i++)); do nq /bin/true; done; nq -w'
        both = 'bash -c "$0" queue a >/dev/null & bash -c "$0" queue b >/dev/null & wait'
        begun = time.perf_counter()
        _run(["bash", "-c", both, one], directory)
        elapsed_s = time.perf_counter() - begun
        # -w may be over before the last one has written how it ended.
        _wait_for_all("nq", count, lambda: sum("exited with status 0" in log for log in _texts(directory, "[ab]/,*")))
        return elapsed_s

    return run


def _hyperqueue() -> Run:
    if importlib.util.find_spec("hyperqueue") is None:
        raise Skipped(f"no package hyperqueue here: {_INSTALL}")

    def run(directory: Path, count: int) -> float:
        elapsed_s = float(_run([sys.executable, "-c", _HYPERQUEUE, str(count)], directory).split()[-1])
        _wait_for_all("HyperQueue", count, lambda: len(list(directory.glob("**/*.stdout"))))
        return elapsed_s

    return run


RIVALS: dict[str, Callable[[], Run]] = {
    "parallel": _parallel,
    "task-spooler": _task_spooler,
    "nq": _nq,
    "HyperQueue": _hyperqueue,
}


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise Skipped(f"no {program} here: {_INSTALL}")


def _run(argv: list[str], directory: Path, typed: str | None = None, **variables: str) -> str:
    env = {**environment(), "PWD": os.fspath(directory), **variables}
    done = subprocess.run(
        argv, cwd=directory, env=env, input=typed, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode != 0:
        raise BenchError(f"{argv[0]} ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


def _texts(directory: Path, pattern: str) -> Iterator[str]:
    return (path.read_text(errors="replace") for path in directory.glob(pattern))


def _wait_for_all(tool: str, count: int, ended: Callable[[], int]) -> None:
    """Wait until that many jobs have ended; raise BenchError when they do not."""
    end_s = time.monotonic() + _SETTLE_S
    while (found := ended()) != count:
        if time.monotonic() > end_s:
            raise BenchError(f"{tool}: {found} of {count} jobs have been run")
