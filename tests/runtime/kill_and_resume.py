"""Run as a script: train, killed with SIGKILL again and again, until it is done; prints at which step each kill came.

Each attempt is a process of its own, forked from this one, which has imported everything and started nothing: so an
attempt costs what its training costs. The first word is the module whose `made` makes the job.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

MOST_ATTEMPTS = 200
# NumPy starts threads when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"


def main(module: str, root: str, kills: int, seed: int, words: dict[str, Any]) -> list[int]:
    made = importlib.import_module(module).made
    chance = random.Random(seed)
    killed: list[int] = []
    # JAX's would not be there in the child, and what they held would stay locked.
    assert len(os.listdir("/proc/self/task")) == 1, "threads were started before the fork"
    for _ in range(MOST_ATTEMPTS):
        child = os.fork()
        if child == 0:
            made(root, **words)()
            os._exit(0)
        if len(killed) < kills:
            begun = last_step(root)
            if wait_for(root, begun + chance.randint(1, words["steps"] // kills), child):
                # Every other one at once: later most would meet a save, which takes longer than the steps before it.
                time.sleep(chance.uniform(0, 0.05) if len(killed) % 2 else 0)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                killed.append(last_step(root))
                continue
            raise SystemExit(f"an attempt ended before its kill, after {len(killed)} kills")
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        return killed
    raise SystemExit(f"not done after {MOST_ATTEMPTS} attempts")


def wait_for(root: str, step: int, child: int) -> bool:
    """Wait until `step` has been logged by this attempt; False when it ends before."""
    while last_step(root) < step:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        time.sleep(0.002)
    return True


def last_step(root: str) -> int:
    for path in Path(root).glob("results/*/*/*/metrics.jsonl"):
        lines = path.read_text().split("\n")
        return int(json.loads(lines[-2])["step"]) if len(lines) > 1 else 0
    return 0


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))))
