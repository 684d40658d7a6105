"""Pretrain the small language model on the text of all languages; every fine-tune starts from its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dispatcher import contract
from dispatcher.runtime import text
from dispatcher.runtime.evaluation import evaluate
from dispatcher.runtime.model import ModelSizes, create_model, parameter_count
from dispatcher.runtime.training import TrainingSettings, train
from dispatcher.runtime.vocabulary import Vocabulary
from dispatcher.runtime.weights import save_model

PARAMS = {
    "seed": 0,
    "output_dir": "runs/pretrain",
    "steps": 600,
    "batch_rows": 16,
    "learning_rate": 1e-2,
    "dropout": 0.1,
    # Labels, not read below: with them a rendered script says which run it is.
    "lang": "all",
    "config_id": "",
    "run_kind": "main",
}


def main(params: dict[str, Any]) -> dict[str, float | str]:
    """Train, save the weights, and return the row of the results table."""
    names = text.split(*text.LOCALES)
    # The alphabet is given, as the bytes are to a byte-level model; no held-out name is seen in training.
    vocabulary = Vocabulary.of(names.train + names.held_out)
    model = create_model(ModelSizes(vocabulary.size), seed=params["seed"])

    settings = TrainingSettings(
        steps=params["steps"],
        batch_rows=params["batch_rows"],
        learning_rate=params["learning_rate"],
        dropout=params["dropout"],
    )
    train_names = [vocabulary.encode(name) for name in names.train]
    run = train(model, train_names, settings, seed=params["seed"], progress=contract.report_progress)
    test = evaluate(model, [vocabulary.encode(name) for name in names.held_out])

    save_model(Path(params["output_dir"]) / "weights.npz", model, vocabulary)
    return {
        "test_bpc": round(test.bits_per_character, 4),
        "train_bpc": round(run.train_bpc, 4),
        "n_chars": test.characters,
        "n_trained": parameter_count(model),
        "train_seconds": round(run.train_seconds, 2),
    }


if __name__ == "__main__":
    contract.report_result(**main(PARAMS))
