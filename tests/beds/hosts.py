"""Hosts of a bed, as tests see them."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from .bed import Bed, BedError, wait_for

AGENT_PORT = 7000
# The virtual environment's, not what its symbolic link leads to.
PYTHON = os.path.abspath(sys.executable)
# What one answer may take beyond the time that was asked for: the hosts share few cores.
SLACK_S = 60.0


class Machine:
    """One host of a bed, or none while it is switched off. `power_cut` and `boot` are what a subclass adds."""

    def __init__(self, bed: Bed, name: str, address: str, port: int, home: str) -> None:
        self.bed, self.name, self.address, self.port = bed, name, address, port
        self.log = f"{bed.directory}/{name}.log"
        self.env = {
            "PATH": f"{os.path.dirname(PYTHON)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": home,
            "TMPDIR": home,
            "USER": "root",
            "LANG": "C.UTF-8",
            # The checkout is read-only on some hosts, and belongs to the tests on none.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self.home = home
        self.pid: int | None = None

    def boot(self) -> None:
        raise NotImplementedError

    def power_cut(self) -> None:
        """Stop the host at once, as a pulled plug does: nothing is written, closed or released any more."""
        if self.pid is not None:
            self.bed.kill(self.pid)
            self.pid = None

    def ask(self, op: str, answer_within_s: float = SLACK_S, **fields: object) -> dict:
        if self.pid is None:
            raise ConnectionError(f"{self.name} is switched off")
        with self.bed.connect(self.address, self.port) as connection:
            connection.settimeout(answer_within_s)
            with connection.makefile("rwb") as lines:
                lines.write(json.dumps({"op": op, **fields}).encode() + b"\n")
                lines.flush()
                line = lines.readline()
        if not line:
            raise ConnectionError(f"{self.name} broke off the connection during {op!r}")
        answer = json.loads(line)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"], answer["path"])
        return answer

    def wait_until_up(self, limit_s: float = 150) -> None:
        def failed() -> str:
            # A kernel's panic is longer than other daemons' last words.
            return f"{self.name} did not come up:\n{self.bed.log_tail(self.log, 100)}"

        def answers() -> bool:
            if not self.bed.alive(self.pid):
                raise BedError(failed())
            try:
                with self.bed.connect(self.address, self.port):
                    return True
            except ConnectionError:
                return False

        wait_for(answers, failed, limit_s=limit_s)

    def heal(self) -> None:
        """Whatever a test did: running, and with nothing left of what was started on it."""
        if not self._is_idle():
            # What even SIGKILL does not end waits for a file server; only the host's own end ends it.
            self.power_cut()
            self.boot()

    def _is_idle(self) -> bool:
        try:
            return not self.ask("reset")["left"]
        except (ConnectionError, TimeoutError):
            return False


class Host:
    """A host and the shared directory as it sees it. Relative paths start at that directory.

    `run` and `start` give the program the host's own small environment plus `env`, and nothing of the tests' own; the
    virtual environment's programs are on its PATH. Without `cwd` it starts in the host's private temporary directory.
    A program that cannot be found is exit status 127.
    """

    def __init__(self, machine: Machine, root: str) -> None:
        self.machine, self.root = machine, root
        self.name = machine.name
        self.python = PYTHON

    def __repr__(self) -> str:
        return f"<{self.name}:{self.root}>"

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        input: str | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with captured text. After `timeout` seconds the program's session is killed, then raises
        subprocess.TimeoutExpired, also where it does not die because it waits for a file server."""
        answer = self.machine.ask("run", timeout + SLACK_S, **self._order(argv, cwd, env, input), timeout_s=timeout)
        if answer["returncode"] is None:
            raise subprocess.TimeoutExpired(list(argv), timeout, answer["stdout"], answer["stderr"])
        done = subprocess.CompletedProcess(list(argv), answer["returncode"], answer["stdout"], answer["stderr"])
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def run_python(self, code: str, *args: str, **options) -> subprocess.CompletedProcess[str]:
        return self.run([self.python, "-c", code, *args], **options)

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
    ) -> Process:
        answer = self.machine.ask("start", **self._order(argv, cwd, env, input))
        return Process(self, list(argv), answer["pid"])

    def start_python(self, code: str, *args: str, **options) -> Process:
        return self.start([self.python, "-c", code, *args], **options)

    def read_text(self, path: str) -> str:
        return base64.b64decode(self.machine.ask("read", path=self.path(path))["data"]).decode()

    def write_text(self, path: str, text: str) -> None:
        """Written in place, without a lock: what a careless person does."""
        self.machine.ask("write", path=self.path(path), data=base64.b64encode(text.encode()).decode())

    def names(self, path: str) -> list[str]:
        """What is in a directory, sorted."""
        return self.machine.ask("names", path=self.path(path))["names"]

    def make_directory(self, path: str) -> None:
        self.machine.ask("make_directory", path=self.path(path))

    def power_cut(self) -> None:
        """Stop the host as a pulled plug does. What was started on it is gone; its handles raise from now on."""
        self.machine.power_cut()

    def boot(self) -> None:
        """Start it again, with the same name and mounts and another boot id."""
        self.machine.boot()

    def _order(self, argv, cwd, env, stdin) -> dict[str, object]:
        return {
            "argv": list(argv),
            "cwd": self.machine.home if cwd is None else self.path(cwd),
            "env": {**self.machine.env, **(env or {})},
            "stdin": stdin,
        }


class Process:
    """A program that `Host.start` started. It leads its own session; `pid` is its pid on that host."""

    def __init__(self, host: Host, args: list[str], pid: int) -> None:
        self.host, self.args, self.pid = host, args, pid

    def __repr__(self) -> str:
        return f"<{self.args} as {self.pid} on {self.host.name}>"

    def poll(self) -> int | None:
        return self.host.machine.ask("wait", pid=self.pid, timeout_s=0)["returncode"]

    def wait(self, timeout: float = 60) -> int:
        code = self.host.machine.ask("wait", timeout + SLACK_S, pid=self.pid, timeout_s=timeout)["returncode"]
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout, self.stdout(), self.stderr())
        return code

    def stdout(self) -> str:
        """All that it has written to standard output until now."""
        return self.host.machine.ask("output", pid=self.pid)["stdout"]

    def stderr(self) -> str:
        return self.host.machine.ask("output", pid=self.pid)["stderr"]

    def output(self) -> str:
        both = self.host.machine.ask("output", pid=self.pid)
        return both["stdout"] + both["stderr"]

    def wait_for_output(self, text: str, timeout: float = 60) -> str:
        """Its output, as soon as `text` is in it; AssertionError when it ends or the time is over before that."""
        # The host itself looks: a connection for each look costs a guest kernel more than what it runs.
        seen = self.host.machine.ask("wait_for_output", timeout + SLACK_S, pid=self.pid, text=text, timeout_s=timeout)
        output = seen["stdout"] + seen["stderr"]
        if text not in output:
            how = "ran on" if seen["returncode"] is None else "ended"
            raise AssertionError(f"{self} {how} without {text!r} in its output:\n{output}")
        return output

    def signal(self, number: int, *, tree: bool = False) -> None:
        """To the process alone, or to its whole process group."""
        self.host.machine.ask("signal", pid=self.pid, number=int(number), tree=tree)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self, *, tree: bool = False) -> None:
        self.signal(signal.SIGKILL, tree=tree)
