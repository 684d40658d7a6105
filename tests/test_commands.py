"""Forked commands (commands.Popen) are like started ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import commands
import pytest
from fleet import processes_with, wait_until

FACTS = """
import json, locale, os, signal, sys, threading, time
shown = lambda name: open(f"/proc/self/{name}", errors="surrogateescape").read()
print(json.dumps({
    "parent": os.getppid(), "group": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getpid(),
    "umask": os.umask(0o77), "cwd": os.getcwd(), "argv": sys.argv, "orig_argv": sys.orig_argv[:3], "path": sys.path,
    "environment": dict(os.environ), "shown": shown("environ").split("\\0"),
    "command": shown("cmdline").split("\\0"), "name": shown("comm"),
    "program": os.readlink("/proc/self/exe"), "zone": time.tzname, "locale": locale.setlocale(locale.LC_CTYPE),
    "signals": {int(number): str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()},
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "thread": threading.get_native_id() - os.getpid(),
    "streams": [[stream.fileno(), stream.encoding, stream.errors, stream.line_buffering, stream.write_through,
                 stream.isatty()] for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "descriptors": os.listdir("/proc/self/fd"), "modules": [name for name in ("jax", "numpy") if name in sys.modules],
    "limits": shown("limits"),
}))
sys.exit(3)
"""


def code(text: str) -> list[str]:
    return [*commands.COMMAND[:3], text]


def facts(run: Any, **options: Any) -> dict[str, Any]:
    # Readline puts variables into the environment of a started process that os.environ does not have.
    options = {"env": dict(os.environ), **options}
    done = run([*code(FACTS), "a", "ü \udcff"], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 3, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_new_session": True, "stdin": subprocess.DEVNULL},
        {"process_group": 0, "umask": 0o27, "cwd": "/"},
        {"env": {"PATH": "/bin", "TZ": "Asia/Tokyo", "A": "b\nc", **commands._read_by_interpreter(os.environ)}},
        {"env": {**os.environ, "PYTHONUNBUFFERED": "1"}, "input": "some"},
    ],
    ids=["plain", "session", "group", "environment", "unbuffered"],
)
def test_a_forked_command_is_like_a_started_one(options: dict[str, Any]) -> None:
    assert facts(commands.run, **options) == facts(subprocess.run, **options)


def test_descriptors_are_passed_and_no_others(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file, open(tmp_path / "other", "wb"):
        program = code("import os, sys; os.write(int(sys.argv[1]), b'x'); print(sorted(os.listdir('/proc/self/fd')))")
        done = commands.run([*program, str(file.fileno())], pass_fds=[file.fileno()], capture_output=True, text=True)
    assert (tmp_path / "file").read_bytes() == b"x"
    # The last one is that of the listing.
    assert len(done.stdout.splitlines()[0].split(",")) == 5


@pytest.mark.parametrize(
    "ends, status",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import signal; signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("raise ValueError('bad')", 1),
        ("import sys; sys.exit('bad')", 1),
        ("import sys; sys.exit(-1)", 255),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os; os.close(1); import sys; sys.stdout.write('x'); sys.exit(0)", 120),
        ("import atexit, sys; atexit.register(print, 'at exit'); sys.exit()", 0),
        ("import threading, sys; threading.Timer(0.1, print, ['thread']).start(); sys.exit()", 0),
    ],
)
def test_the_end_of_a_command(ends: str, status: int) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    forked, started = (
        run(code(ends), env=variables, capture_output=True, text=True, check=False)
        for run in (commands.run, subprocess.run)
    )
    assert forked.returncode == started.returncode == status
    assert forked.stdout == started.stdout
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_signal_is_not_lost(tmp_path: Path) -> None:
    """Neither before the program has begun, nor later."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = commands.Popen(code("import time; time.sleep(600)"), stderr=subprocess.DEVNULL)
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_command_is_found_by_its_environment(tmp_path: Path) -> None:
    with commands.Popen(
        code("import time; time.sleep(600)"), env={**os.environ, "MARK_OF_THIS": str(tmp_path)}
    ) as process:
        assert list(processes_with("MARK_OF_THIS", str(tmp_path))) == [process.pid]
        process.kill()


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        commands.Popen(commands.COMMAND, cwd=tmp_path / "missing")


def test_many_at_once_from_several_threads() -> None:
    commands.run([*commands.COMMAND, "--version"], capture_output=True)
    before = os.listdir("/proc/self/fd")
    statuses: list[int] = []

    def start() -> None:
        for _ in range(5):
            with commands.Popen(code("import os, sys; sys.exit(os.getpid() % 200)")) as process:
                statuses.append(process.wait(60) - process.pid % 200)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 40
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_server_ends_with_the_tests(tmp_path: Path) -> None:
    """Also when they are killed. What they have started goes on."""
    program = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1]); import commands\n"
        "sleeper = commands.Popen([*commands.COMMAND[:3], 'import time; time.sleep(600)'])\n"
        "print(commands._server()._process.pid, sleeper.pid, flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-P", "-c", program, str(Path(__file__).parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        server, sleeper = map(int, tests.stdout.readline().split())
        tests.kill()
    wait_until(lambda: not is_running(server), "the server has ended")
    assert is_running(sleeper)
    os.kill(sleeper, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
