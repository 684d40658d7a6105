"""What must hold after a storm: by the proofs that jobs have left (witness.py), and by the journal."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from fleet import Fleet

from dispatcher.run_state.edits.status_file import TIMES, whole_second
from dispatcher.run_state.fold import Fold


def check_intervals(proof: Path) -> None:
    """No two attempts of an entry overlap by their own times; of those that were killed their successor tells."""
    for path in proof.glob("*.times"):
        open_attempt = None
        last_ns = 0
        begun = Counter[str]()
        for line in path.read_text().splitlines():
            what, attempt, at = line.split()
            assert int(at) >= last_ns, f"{path.name}: {line} is out of order"
            last_ns = int(at)
            if what == "begin":
                assert open_attempt is None, f"{path.name}: {line}, but attempt {open_attempt} has not ended"
                open_attempt = attempt
                begun[attempt] += 1
            else:
                assert open_attempt in (attempt, None) or attempt == "?", f"{path.name}: {line} of {open_attempt}"
                open_attempt = None
        assert max(begun.values()) == 1, f"{path.name}: an attempt ran twice: {begun}"


def check_journal(fleet: Fleet) -> None:
    """Every line follows the one before it, every attempt was claimed once, and all lines make the status file."""
    fold = Fold()
    claims = Counter[tuple[str, int]]()
    for line in fleet.history():
        assert line.seq == fold.seq + 1, f"line {line.seq} follows {fold.seq}"
        fold.extend([line])
        if line.event == "claimed":
            claims[str(line.job), fold.records[str(line.job)].attempt] += 1
    assert max(claims.values()) == 1, claims.most_common(3)
    shown = fleet.status()
    replayed = {job: json.loads(json.dumps(record.fields())) for job, record in fold.records.items()}
    for line in replayed.values():
        # The journal keeps the milliseconds.
        line.update({key: whole_second(line[key]) for key in TIMES if key in line})
    assert shown == replayed
