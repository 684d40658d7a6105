"""Run as a script: train in single steps, in blocks, and interrupted in a block; prints of each what it came to.

A process of its own has XLA's own flags, which those of the other tests would change.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from small_trainings import Classification, arrays, trained
from written_metrics import read_metrics


class Told(Classification):
    """Notes the losses that `on_step` is told."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.told: list[tuple[int, float]] = []

    def on_step(self, step: int, metrics: dict[str, Any]) -> None:
        self.told.append((step, metrics["loss"]))


def outcome(job: Any) -> dict[str, Any]:
    return {
        "digests": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays(job).items()},
        "told": job.told,
        "logged": [(line["step"], line["loss"]) for line in read_metrics(job.spec.result_path("metrics.jsonl"))],
        "held out": job.result()["held_out/loss"],
    }


def main(root: str) -> None:
    # Blocks of 4, 4 and 2 steps.
    blocks = {"steps": 10, "steps_per_call": 4, "eval_every": 4, "log_every": 4}
    jobs = {
        "whole": trained(root, "whole", Told, steps=10, eval_every=4),
        "blocks": trained(root, "blocks", Told, **blocks),
    }
    trained(root, "apart", steps=6, steps_per_call=2, eval_every=2, log_every=2)
    # It goes on in the middle of what would be a block: the one that ends at the eighth step has two of its own.
    jobs["apart"] = trained(root, "apart", Told, **blocks)
    print(json.dumps({name: outcome(job) for name, job in jobs.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
