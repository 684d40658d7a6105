"""LoRA: train low-rank adapters of the pretrained model, whose weights are frozen, on one language."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatcher import contract
from dispatcher.runtime.execution import local
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.registry import find_job, import_jobs

PARAMS = {
    "job_id": "lora",
    "output_dir": "runs",
    # The project that the job comes from; its jobs/ are imported.
    "example": "examples/names",
    "lang": ...,
    "seed": ...,
    # A path below the checkpoints of `output_dir`.
    "base": "names/pretrain/pretrain/best",
    "rank": 8,
    "steps": 200,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "dropout": 0.1,
    # Labels, not read below: they identify the run in a rendered script.
    "config_id": "",
    "run_kind": "main",
}


def main(params: Mapping[str, Any]) -> Mapping[str, float | str]:
    """Fine-tune, and return the row of the results table."""
    import_jobs(Path(params["example"]))
    spec = local(params["output_dir"], params["job_id"], project="names", group="lora")
    return make_job(find_job("names/lora"), spec, config(params), restore=params["base"])()


def config(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "names": {"lang": params["lang"]},
        "training": {"steps": params["steps"], "batch_size": params["batch_size"], "seed": params["seed"]},
        "optimization": {"optimizer": "adamw", "lr": params["learning_rate"]},
        "model": {"dropout": params["dropout"]},
        "adapters": {"rank": params["rank"]},
    }


if __name__ == "__main__":
    contract.report_result(**main(PARAMS))
