"""What the nfs row runs on a host of the bed: `python -m benchmarks.on_host WHAT ...`; the answer is JSON on stdout."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import claims
from benchmarks.figures import interleave
from benchmarks.turnovers import gaps, spawns
from benchmarks.workspaces import make_workspace, queue_all
from dispatcher.workspace import Layout


def prepare(root: str, count: str) -> None:
    """A workspace with all its entries queued."""
    queue_all(make_workspace(Path(root), int(count)), int(count))


def claim(root: str, rounds: str, batch: str, warm_up: str) -> dict[str, Any]:
    """Claims of the workspace at `root` and the bare loop beside it, in turns."""
    arms = {"floor": claims.floor(root), "ours": claims.ours(root), "whole": claims.ours_and_preparation(root)}
    # The first ones also fill the caches of this host.
    for arm in arms.values():
        arm(int(warm_up))
    return interleave({name: lambda arm=arm: arm(int(batch)) for name, arm in arms.items()}, int(rounds))


def contend(root: str, pod: str, begin_at: str) -> dict[str, Any]:
    """Claim until nothing is queued, from `begin_at` on by the clock on the wall."""
    claim_all = claims.contender(root, pod)
    time.sleep(max(0.0, float(begin_at) - time.time()))
    report = claim_all(0)
    since_s = time.time() - time.monotonic()
    return {**report, "begun": report["begun"] + since_s, "ended": report["ended"] + since_s}


def written(root: str) -> list[str]:
    """The claimed entries, as the journal has them."""
    return claims.written(Layout(root))


def turnover(root: str, entries: str, rounds: str) -> dict[str, Any]:
    """Gaps between jobs on one slot, and what spawning bash takes here, in turns."""
    numbers = iter(range(int(rounds)))
    arms = {
        "ours": lambda: gaps(Path(root) / f"turnover-{next(numbers)}", int(entries)),
        "bash": lambda: spawns(int(entries)),
    }
    return interleave(arms, int(rounds))


_ORDERS = {"prepare": prepare, "claim": claim, "contend": contend, "written": written, "turnover": turnover}

if __name__ == "__main__":
    print(json.dumps(_ORDERS[sys.argv[1]](*sys.argv[2:])))
