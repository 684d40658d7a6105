"""Pretrain the small language model on the text of all languages; every fine-tune starts from its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatcher import contract
from dispatcher.runtime.execution import local
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.registry import find_job, import_jobs

PARAMS = {
    "job_id": "pretrain",
    "output_dir": "runs",
    # The project that the job comes from; its jobs/ are imported.
    "example": "examples/names",
    "seed": 0,
    "steps": 600,
    "batch_size": 16,
    "learning_rate": 2e-2,
    "dropout": 0.05,
    # Labels, not read below: they identify the run in a rendered script.
    "lang": "all",
    "config_id": "",
    "run_kind": "main",
}


def main(params: Mapping[str, Any]) -> Mapping[str, float | str]:
    """Train, and return the row of the results table."""
    import_jobs(Path(params["example"]))
    spec = local(params["output_dir"], params["job_id"], project="names", group="pretrain")
    return make_job(find_job("names/pretrain"), spec, config(params))()


def config(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "training": {"steps": params["steps"], "batch_size": params["batch_size"], "seed": params["seed"]},
        "optimization": {"optimizer": "muon", "lr": params["learning_rate"]},
        "model": {"num_layers": 1, "d_model": 128, "d_ff": 352, "max_seq_len": 64, "dropout": params["dropout"]},
    }


if __name__ == "__main__":
    contract.report_result(**main(PARAMS))
