"""Tuners of two hosts work on one study over real NFS: each trial is asked for once, and as the journal says."""

from __future__ import annotations

import json

import pytest
from study import suggested_again

from dispatcher.workspace import Layout

from .lab import COMMAND, PROVE, Lab, wait_until

TRIALS = 8
MEASURE = PROVE + '; echo "{\\"loss\\": $0}" > "$DISPATCHER_ATTEMPT_DIR/result.json"'


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_trial_is_asked_for_twice_and_the_journal_gives_the_same_suggestions(nfs, tmp_path):
    pytest.importorskip("optuna")
    a, b = nfs.hosts()
    lab = Lab(a, b)
    settings = {
        "name": "s", "space": {"x": {"uniform": [0, 1]}}, "objective": {"value": "loss", "goal": "min"},
        "sampler": {"tpe": {"startup": 2}}, "trials": TRIALS, "parallel": 4,
        "defaults": {"gpus": 0, "command": ["sh", "-c", MEASURE, "{x}"]},
    }  # fmt: skip
    a.write_text("tune.yaml", json.dumps(settings))
    pods = [lab.start(host, f"{host.name}-pod", "--on-exit=drain") for host in (a, b)]
    words = [COMMAND, "matrix", "tune", "tune.yaml"]
    tuners = [host.start(words, cwd=host.root) for host in (a, b)]
    wait_until(lab.proofs, "the first trial runs", 200)
    # One of them dies, and is started again.
    tuners[0].kill()
    tuners[0] = a.start(words, cwd=a.root)
    assert [tuner.wait(300) for tuner in tuners] == [0, 0], [tuner.output() for tuner in tuners]
    for pod in pods:
        pod.terminate()
    assert [pod.wait() for pod in pods] == [0, 0]
    rows = json.loads(lab.run(b, "matrix", "trials", "s", "--json").stdout)
    assert [(row["trial"], row["state"]) for row in rows] == [(number, "done") for number in range(TRIALS)]
    assert lab.proofs() == {row["job"]: 1 for row in rows}
    assert all(row["loss"] == row["x"] for row in rows)
    lab.check_journal()
    layout = Layout(tmp_path)
    layout.journal(1).parent.mkdir(parents=True)
    for name in a.run(["ls", a.path("run_state/journal")], check=True).stdout.split():
        text = a.run(["cat", a.path(f"run_state/journal/{name}")], check=True).stdout
        (layout.journal(1).parent / name).write_text(text)
    replayed = list(suggested_again(layout))
    assert len(replayed) == TRIALS and all(said == again for _, said, again in replayed)
