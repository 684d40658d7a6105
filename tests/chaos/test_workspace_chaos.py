"""A workspace on its worst day: nothing is lost and nothing runs twice, and every unlocked read is whole."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.proofs import check_intervals, check_journal
from chaos.storm import weather
from chaos.workspace_storm import WorkspaceStorm
from fleet import COMMAND, MAIN, Fleet, wait_until

HERE = Path(__file__).parent
JOBS = 150
# New generations of the journal every few seconds, instead of after tens of thousands of lines.
ROTATING = "from dispatcher.run_state import rotation; rotation._LEAST_LINES = 300; rotation._LINES_PER_RECORD = 1; "
CONFIG = """
heartbeat: 0.5s
lost_after: 30s
kill_grace: 2s
max_requeues: 1000
methods:
  m: {retries: 1000, retry_on: [signal], backoff: 0.1s}
"""


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.timeout(0)
def test_the_worst_day(fleet: Fleet, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seconds, seed = weather(pytestconfig)
    proof = tmp_path / "proof"
    proof.mkdir()
    write_matrix(fleet, proof, random.Random(seed))
    fleet.command = [*COMMAND[:-1], ROTATING + MAIN]
    storm = WorkspaceStorm(fleet, seed, tmp_path / "window")
    reader = start_reader(fleet, tmp_path)
    storm.begin()
    wait_until(lambda: len(fleet.records()) == JOBS, "all entries are queued")
    storm.blow(seconds)
    storm.finish()
    reader.send_signal(signal.SIGTERM)
    assert reader.wait(60) == 0
    generations = len(list(fleet.layout.journal_dir.iterdir()))
    print(f"{generations} generations of the journal")

    assert not (proof / "twice").exists(), (proof / "twice").read_text()
    check_intervals(proof)
    check_reader(tmp_path / "report")
    check_journal(fleet)
    check_edits(fleet, storm)
    assert set(fleet.states().values()) == {"done"}


def write_matrix(fleet: Fleet, proof: Path, chance: random.Random) -> None:
    fleet.write_config(CONFIG)
    python = [sys.executable, "-I", "-S", str(HERE / "witness.py"), str(proof)]
    entries = []
    for number in range(JOBS):
        job = f"job_{number:03d}"
        stray = ["stray"] if number % 15 == 0 else []
        entries.append({"job_id": job, "command": [*python, job, f"{chance.uniform(0.05, 0.6):.3f}", *stray]})
    fleet.write_manifest(entries)


def start_reader(fleet: Fleet, tmp_path: Path) -> subprocess.Popen[bytes]:
    fleet.layout.run_state.mkdir()
    fleet.layout.status_file.write_text("{}\n")
    words = [fleet.layout.status_file, tmp_path / "window", tmp_path / "report"]
    return subprocess.Popen([sys.executable, "-I", "-S", str(HERE / "reader.py"), *map(str, words)])


def check_reader(report: Path) -> None:
    found = json.loads(report.read_text())
    assert found["faults"] == []
    assert found["reads"] > 100


def check_edits(fleet: Fleet, storm: WorkspaceStorm) -> None:
    """Nothing was done to an entry in the name of a person who had not asked for it, and no old line was an edit."""
    requests = {"requeued": "queued", "held": "held", "abandoned": "abandoned", "edited": "edit", "adopted": "nobody's"}
    for line in fleet.history():
        if line.event in requests or line.event == "requested":
            desired = requests.get(line.event) or str(line.set["desired"])
            assert desired in storm.asked[str(line.job)], f"not asked for {line}"
        elif line.event == "refused":
            assert storm.asked[str(line.job)] - {"edit"}, f"refused, but nothing was asked for: {line}"
