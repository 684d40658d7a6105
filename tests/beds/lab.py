"""A workspace on a bed: entries whose jobs prove that they ran, and the real `dispatcher` on its hosts."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .hosts import Host, Process

# O_EXCL: a second run of the same attempt fails. The file tells where it ran.
PROVE = 'set -C; echo "$DISPATCHER_POD" >"proof/$DISPATCHER_JOB_ID.$DISPATCHER_ATTEMPT"'
# Proves that it begins, then runs until the file `go` is there. To start `sleep` costs a guest kernel 80 ms.
WAIT = PROVE + '; while [ ! -e go ]; do sleep 2; true <.; done; echo "$DISPATCHER_POD" >"proof/$DISPATCHER_JOB_ID.end"'
COMMAND = "dispatcher"


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float, every_s: float = 0.2) -> Any:
    """The condition's value as soon as it is true."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(every_s)


class Lab:
    """One shared directory, seen by two hosts. `a` is the host that looks after the files of the test itself."""

    pod_a: Process
    pod_b: Process

    def __init__(self, a: Host, b: Host, **settings: object) -> None:
        self.a, self.b = a, b
        for folder in ("matrix", "proof"):
            a.make_directory(folder)
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in settings.items()]
        a.write_text("dispatcher.yaml", "".join(lines))

    def write_matrix(self, jobs: Mapping[str, str]) -> None:
        """`jobs`: what `sh -c` runs, by job id."""
        entries = [
            {"job_id": job, "method": "sh", "gpus": 0, "command": ["sh", "-c", command]}
            for job, command in jobs.items()
        ]
        self.a.write_text("matrix/matrix.json", json.dumps(entries))

    def start(self, host: Host, pod: str, *options: str, slots: int = 2) -> Process:
        """A dispatcher that looks around every second and ends when nothing is left, unless told otherwise."""
        given = options or ("--until-empty",)
        return host.start([COMMAND, "--pod", pod, "--slots", str(slots), "--poll-interval", "1", *given], cwd=host.root)

    def run(self, host: Host, *args: str, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        return host.run([COMMAND, *args], cwd=host.root, timeout=timeout, check=check)

    def records(self, host: Host) -> dict[str, dict[str, Any]]:
        """The records by the journal, as `dispatcher status --json` on that host tells them."""
        rows = json.loads(self.run(host, "status", "--json").stdout)["jobs"]
        return {row["job"]: row for row in rows}

    def file_records(self, host: Host) -> dict[str, dict[str, Any]]:
        """The records by the status file, as any tool on that host reads them (its directory looked at first)."""
        host.names("run_state")
        return json.loads(host.read_text("run_state/matrix_status.json"))

    def journal(self) -> list[dict[str, Any]]:
        """Every change in order, by `dispatcher history`."""
        return json.loads(self.run(self.a, "history", "--json").stdout)

    def proofs(self) -> Counter[str]:
        """How many attempts of each job have run."""
        return Counter(name.rpartition(".")[0] for name in self.a.names("proof") if not name.endswith(".end"))

    def check_journal(self) -> None:
        """The journal as it is on the disk: line numbers without a gap, no attempt claimed twice."""
        claims: Counter[tuple[str, int]] = Counter()
        seq = None
        for name in self.a.names("run_state/journal"):
            text = self.a.run(["sh", "-c", f"zcat -f run_state/journal/{name}"], cwd=self.a.root, check=True).stdout
            lines = [json.loads(line) for line in text.splitlines()]
            for line in lines[1 + lines[0].get("records", 0) :]:
                assert seq is None or line["seq"] == seq + 1, f"{name}: {line['seq']} after {seq}"
                if line["event"] == "continued":
                    continue
                seq = line["seq"]
                if line["event"] == "claimed":
                    claims[line["job"], line["set"]["attempt"]] += 1
        twice = [claim for claim, count in claims.items() if count > 1]
        assert not twice

    def job_processes(self, host: Host) -> list[str]:
        """The attempts that have processes on a host: `job_id/attempt`."""
        return host.machine.ask("attempts")["attempts"]


# Reads the status file again and again, as a careless tool does: open, parse. Prints what did not parse, and a summary.
READER = """
import json, os, sys, time
path, stop = sys.argv[1], sys.argv[2]
reads = missing = 0
while not os.path.exists(stop):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        missing += 1
    else:
        reads += 1
        try:
            json.loads(text)
        except ValueError as error:
            print("TORN", error, repr(text[-200:]), flush=True)
    time.sleep(0.1)
print("reads", reads, "missing", missing, flush=True)
"""
