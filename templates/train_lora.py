"""LoRA: train low-rank adapters beside the pretrained weights on one language; the weights themselves stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax import nnx

from dispatcher import contract
from dispatcher.runtime import text
from dispatcher.runtime.adapters import add_adapters
from dispatcher.runtime.evaluation import evaluate
from dispatcher.runtime.model import parameter_count
from dispatcher.runtime.training import TrainingSettings, train
from dispatcher.runtime.weights import load_model, save_adapters

PARAMS = {
    "lang": ...,
    "seed": ...,
    "output_dir": ...,
    "base": "runs/pretrain/weights.npz",
    "rank": 8,
    "steps": 200,
    "batch_rows": 8,
    "learning_rate": 1e-2,
    "dropout": 0.2,
    # Labels, not read below: with them a rendered script says which run it is.
    "config_id": "",
    "run_kind": "main",
}


def main(params: dict[str, Any]) -> dict[str, float | str]:
    """Fine-tune, save the adapters, and return the row of the results table."""
    model, vocabulary = load_model(params["base"])
    add_adapters(model, params["rank"], seed=params["seed"])
    names = text.split(params["lang"])
    held_out = [vocabulary.encode(name) for name in names.held_out]
    # Fresh adapters change nothing: this is the pretrained model's own figure.
    base = evaluate(model, held_out)

    settings = TrainingSettings(
        steps=params["steps"],
        batch_rows=params["batch_rows"],
        learning_rate=params["learning_rate"],
        dropout=params["dropout"],
    )
    run = train(
        model,
        [vocabulary.encode(name) for name in names.train],
        settings,
        seed=params["seed"],
        progress=contract.report_progress,
        trainable=nnx.LoRAParam,
    )
    test = evaluate(model, held_out)

    save_adapters(Path(params["output_dir"]) / "adapters.npz", model)
    return {
        "test_bpc": round(test.bits_per_character, 4),
        "base_bpc": round(base.bits_per_character, 4),
        "gain": round(base.bits_per_character - test.bits_per_character, 4),
        "train_bpc": round(run.train_bpc, 4),
        "n_chars": test.characters,
        "n_trained": parameter_count(model, nnx.LoRAParam),
        "train_seconds": round(run.train_seconds, 2),
    }


if __name__ == "__main__":
    contract.report_result(**main(PARAMS))
