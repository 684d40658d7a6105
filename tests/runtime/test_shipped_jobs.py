"""What comes with the package: its public names, a pretraining on token files, samples of what it has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import CONFIG, text

import dispatcher.runtime
from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime import registry
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.pretrain import Pretrain
from dispatcher.runtime.jobs.sample import Sample
from dispatcher.runtime.language.trainer import LanguageTrainer
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.rollout import pad_left
from dispatcher.runtime.training.config import TrainingConfig

pytestmark = pytest.mark.demo

SONG = "row, row, row your boat, gently down the stream. " * 40


def pretrained(root: Path, tokens: np.ndarray[Any, Any], **model: Any) -> str:
    """Where the checkpoint of a training on `tokens` stands."""
    (root / "data").mkdir()
    np.save(root / "data" / "train.npy", tokens)
    np.save(root / "data" / "eval.npy", tokens[:100])
    said = {
        "data": {"train": "train.npy", "eval": "eval.npy", "seq_len": 12},
        "model": {**CONFIG["model"], **model},
        "training": {"steps": 40, "batch_size": 8},
        "optimization": {"lr": 1e-2},
    }
    job = make_job(Pretrain, local(root, "base"), said)
    row = job()
    assert row is not None
    assert row["held_out/loss"] < row["loss"] + 1
    return "default/default/base/best"


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("bytes")
    return root, pretrained(root, np.frombuffer(SONG.encode(), np.uint8), vocab_size=256, max_seq_len=40)


def samples(root: Path, checkpoint: str, **said: Any) -> list[dict[str, Any]]:
    job = make_job(Sample, local(root, "sample"), {"sample": said}, restore=checkpoint)
    row = job()
    found = [json.loads(line) for line in job.spec.result_path("samples.jsonl").read_text().splitlines()]
    assert row is not None
    assert row["samples"] == len(found)
    return found


def test_text_is_followed_by_text(bytes_model: tuple[Path, str]) -> None:
    found = samples(*bytes_model, prompts=["row, ", "é"], max_new_tokens=12, num_samples=2, temperature=0.0)
    assert [line["prompt"] for line in found] == ["row, ", "row, ", "é", "é"]
    # At temperature 0 nothing is drawn, and the model has learned its letters.
    assert found[0] == found[1]
    assert set(found[0]["text"]) <= set(SONG)
    assert len(found[0]["text"]) == 12


def test_tokens_are_followed_by_tokens(bytes_model: tuple[Path, str]) -> None:
    root, checkpoint = bytes_model
    prompt = list(b"row, ")
    of_text, of_tokens = samples(root, checkpoint, prompts=["row, ", prompt], max_new_tokens=6, temperature=0.0)
    assert of_tokens == {"prompt": prompt, "tokens": list(of_text["text"].encode())}
    job = make_job(Sample, local(root, "one"), {"sample": {"prompts": [prompt]}}, restore=checkpoint)
    assert isinstance(job, Sample)
    likeliest = int(np.argmax(job.predict(pad_left([prompt]))[0, -1]))
    assert of_tokens["tokens"][0] == likeliest


def test_drawn_samples_differ_and_follow_the_seed(bytes_model: tuple[Path, str]) -> None:
    words = {"prompts": ["row"], "num_samples": 4, "max_new_tokens": 8}
    first, again, other = (samples(*bytes_model, **words, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({line["text"] for line in first}) > 1


def test_what_the_model_cannot_read_is_refused(tmp_path: Path) -> None:
    checkpoint = pretrained(tmp_path, text(400, seed=1))
    assert samples(tmp_path, checkpoint, prompts=[[1, 4]], max_new_tokens=3)
    for prompt, message in (
        ("row", r"'row' is text, whose ByteEncoding has 256 tokens, but the model has 16: expected lists of tokens"),
        ([3, 16], r"the model has no token 16: expected 0 to 15"),
        ([], r"sample.prompts\[0\] is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            samples(tmp_path, checkpoint, prompts=[prompt])


def test_the_model_is_the_checkpoints_affair(tmp_path: Path) -> None:
    expected = r"starts from a checkpoint: set one with --restore or as `restore` of the entry, a path such as .*/best"
    with pytest.raises(UsageError, match=expected):
        make_job(Sample, local(tmp_path, "sample"), {"sample": {"prompts": ["a"]}})


def test_a_pretraining_says_what_it_trains_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.train: required, but not set: expected a path\n"):
        make_job(Pretrain, local(tmp_path, "base"), {"training": {"steps": 1}})


def test_a_trainer_that_adds_nothing_to_be_told_has_no_configuration_of_its_own(tmp_path: Path) -> None:
    class Plain(LanguageTrainer[TrainingConfig, Transformer]):
        MODEL = Transformer

    assert len(Plain.config_classes()) == len(set(Plain.config_classes()))
    job = make_job(Plain, local(tmp_path, "plain"), {"training": {"steps": 3}, "model": {"vocab_size": 16}})
    assert isinstance(job, Plain)
    assert job.args == job.training == TrainingConfig(steps=3)


def test_public_names() -> None:
    for name in dispatcher.runtime.__all__:
        # A union of types has no name.
        assert getattr(getattr(dispatcher.runtime, name), "__name__", "Value") == name
    with pytest.raises(AttributeError, match=r"'dispatcher\.runtime' has no attribute 'Job'"):
        _ = dispatcher.runtime.Job  # type: ignore[attr-defined]


def test_what_they_say_of_themselves_is_known_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {key: registry.find_job(key).__doc__.splitlines()[0] for key in registry._SHIPPED}
    monkeypatch.setattr(registry, "_registered", {})
    assert {key: registry.summary(key) for key in registry._SHIPPED} == expected
    assert all(expected.values())
