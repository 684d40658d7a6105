"""Pretrain the small language model on the text of all languages; every fine-tune starts from its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatcher import contract
from dispatcher.runtime.execution import local
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.names.jobs import Pretrain

PARAMS = {
    "job_id": "pretrain",
    "output_dir": "runs",
    "seed": 0,
    "steps": 600,
    "batch_rows": 16,
    "learning_rate": 2e-2,
    "dropout": 0.05,
    # Labels, not read below: with them a rendered script says which run it is.
    "lang": "all",
    "config_id": "",
    "run_kind": "main",
}


def main(params: Mapping[str, Any]) -> Mapping[str, float | str]:
    """Train, and return the row of the results table."""
    spec = local(params["output_dir"], params["job_id"], project="names", group="pretrain")
    return make_job(Pretrain, spec, config(params))()


def config(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "training": {"steps": params["steps"], "batch_size": params["batch_rows"], "seed": params["seed"]},
        "optimization": {"optimizer": "muon", "lr": params["learning_rate"]},
        "model": {"layers": 1, "width": 128, "feed_forward": 352, "context": 64, "dropout": params["dropout"]},
    }


if __name__ == "__main__":
    contract.report_result(**main(PARAMS))
