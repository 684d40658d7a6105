"""Full fine-tuning: train every weight of the pretrained model on one language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dispatcher import contract
from dispatcher.runtime import text
from dispatcher.runtime.evaluation import evaluate
from dispatcher.runtime.model import parameter_count
from dispatcher.runtime.training import TrainingSettings, train
from dispatcher.runtime.weights import load_model, save_model

PARAMS = {
    "lang": ...,
    "seed": ...,
    "output_dir": ...,
    "base": "runs/pretrain/weights.npz",
    "steps": 200,
    "batch_rows": 8,
    "learning_rate": 3e-3,
    "dropout": 0.2,
    # Labels, not read below: with them a rendered script says which run it is.
    "config_id": "",
    "run_kind": "main",
}


def main(params: dict[str, Any]) -> dict[str, float | str]:
    """Fine-tune, save the weights, and return the row of the results table."""
    model, vocabulary = load_model(params["base"])
    names = text.split(params["lang"])
    held_out = [vocabulary.encode(name) for name in names.held_out]
    base = evaluate(model, held_out)

    settings = TrainingSettings(
        steps=params["steps"],
        batch_rows=params["batch_rows"],
        learning_rate=params["learning_rate"],
        dropout=params["dropout"],
    )
    train_names = [vocabulary.encode(name) for name in names.train]
    run = train(model, train_names, settings, seed=params["seed"], progress=contract.report_progress)
    test = evaluate(model, held_out)

    save_model(Path(params["output_dir"]) / "weights.npz", model, vocabulary)
    return {
        "test_bpc": round(test.bits_per_character, 4),
        "base_bpc": round(base.bits_per_character, 4),
        "gain": round(base.bits_per_character - test.bits_per_character, 4),
        "train_bpc": round(run.train_bpc, 4),
        "n_chars": test.characters,
        "n_trained": parameter_count(model),
        "train_seconds": round(run.train_seconds, 2),
    }


if __name__ == "__main__":
    contract.report_result(**main(PARAMS))
