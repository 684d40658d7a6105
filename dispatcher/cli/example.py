"""The files of the example that `dispatcher init` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# In this repository, the README files of matrix/ and run_state/ are links to these.
_READMES: Final = Path(__file__).parent / "readmes"
# runs/ has the checkpoints and results of jobs in JAX.
GITIGNORE: Final = "/runs/\n__pycache__/\n"

CONFIG: Final = """\
# Settings of this workspace. All have defaults, so the file may be empty; it also marks the directory as a workspace.
# methods:
#   example:
#     python: .venv        # the environment that runs the jobs
#     time_limit: 2h
#     retries: 1
"""

SWEEP: Final = """\
# What to run: `dispatcher matrix make matrix/sweep.yaml` writes matrix/matrix.json.
defaults: {method: example, steps: 200}
job_id: "{method}_lr{lr}_s{seed}"
sweeps:
  - grid: {lr: [0.1, 0.5], seed: [0, 1, 2]}
"""

TEMPLATE: Final = '''\
"""Fit a line through noisy points by gradient descent. Also runs by hand: python templates/train_example.py"""

import random
import time

from dispatcher.contract import report_progress, report_result

# The dispatcher replaces this assignment with the job's parameters; `...` would mark a required one.
PARAMS = {
    "lr": 0.1,
    "seed": 0,
    "steps": 200,
    "pause_s": 0.01,
}


def main(lr, seed, steps, pause_s):
    rng = random.Random(seed)
    points = [(x, 3.0 * x - 1.0 + rng.gauss(0.0, 0.1)) for x in (rng.uniform(-0.3, 0.3) for _ in range(100))]
    slope = offset = loss = 0.0
    for step in range(1, steps + 1):
        errors = [(slope * x + offset - y, x) for x, y in points]
        loss = sum(error**2 for error, _ in errors) / len(errors)
        slope -= lr * sum(2 * error * x for error, x in errors) / len(errors)
        offset -= lr * sum(2 * error for error, _ in errors) / len(errors)
        if step % 20 == 0:
            print(f"step {step} loss {loss:.5f}", flush=True)
            report_progress(step, steps, loss=loss)
        time.sleep(pause_s)
    report_result(loss=loss, slope=slope, offset=offset)


if __name__ == "__main__":
    main(**PARAMS)
'''

SCRIPT: Final = '''\
"""Write matrix/matrix.json, for what a sweep file cannot express: python scripts/make_matrix.py"""

from pathlib import Path

from dispatcher.matrix import write_manifest

ROOT = Path(__file__).resolve().parent.parent

write_manifest(
    ROOT / "matrix" / "matrix.json",
    [
        {"job_id": f"example_lr{lr}_s{seed}", "method": "example", "lr": lr, "seed": seed, "steps": 200}
        for lr in (0.1, 0.5)
        for seed in range(3)
    ],
)
'''


def readme(folder: str) -> str:
    """The page that explains a folder of a workspace: `matrix` or `run_state`."""
    return (_READMES / f"{folder}.md").read_text(encoding="utf-8")
