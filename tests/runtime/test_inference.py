"""A model at work: from a trainer and from its checkpoint, token by token as in one pass."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from tiny_training import CONFIG, Text, made

from dispatcher.errors import ConfigError, DispatcherError, UsageError
from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.encoding import ByteEncoding
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.rollout import Decoder, pad_left

pytestmark = pytest.mark.demo

PROMPTS = [[1, 4, 7], [2], [9, 12, 15, 2, 5], [0, 3]]


class Use(InferenceJob[Text, Transformer]):
    MODEL = Transformer

    @classmethod
    def config(cls) -> type[Any]:
        return Text

    def run(self) -> None:
        return None


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    job = made(tmp_path_factory.mktemp("trained"), steps=60, eval_every=None)
    job()
    return job


@pytest.fixture(scope="module")
def live(trainer: Any) -> Use:
    return Use.from_trainer(trainer)


def alone(job: Any, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens after one prompt, each from a pass over everything before it."""
    text = list(prompt)
    for _ in range(count):
        logits = job.predict(pad_left([text], seq_len=16))
        text.append(int(np.argmax(logits[0, -1])))
    return text[len(prompt) :]


def test_rows_end_together() -> None:
    tokens, segments = pad_left(PROMPTS, rows=6, pad_token=8)
    assert tokens.tolist()[:2] == [[8, 8, 1, 4, 7], [8, 8, 8, 8, 2]]
    assert segments.tolist() == [[0, 0, 1, 1, 1], [0] * 4 + [1], [1] * 5, [0, 0, 0, 1, 1], [0] * 5, [0] * 5]
    assert pad_left([b"ab", [7]]).tokens.tolist() == [[97, 98], [0, 7]]
    with pytest.raises(ValueError, match="text 1 is empty"):
        pad_left([[1], []])


def test_a_rollout_is_what_one_pass_per_token_gives(live: Use) -> None:
    found = live.rollout(PROMPTS, 6)
    assert found == [alone(live, prompt, 6) for prompt in PROMPTS]
    # It has learned the rule: three more each time, most of the time.
    hits = sum(after == (before + 3) % 16 for row in found for before, after in itertools.pairwise(row))
    assert hits >= 15


def test_a_row_does_not_depend_on_its_neighbours_or_its_padding(live: Use) -> None:
    together = live.rollout(PROMPTS, 6, temperature=1.0, seed=5)
    assert live.rollout(PROMPTS[:1], 6, temperature=1.0, seed=5) == together[:1]
    assert live.rollout([*PROMPTS[:3], [3] * 7], 6, temperature=1.0, seed=5)[:3] == together[:3]


def test_drawn_tokens_follow_the_seed(live: Use) -> None:
    draw = [live.rollout(PROMPTS, 6, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert draw[0] == draw[1]
    assert draw[0] != draw[2]


def test_drawn_tokens_have_the_models_probabilities(live: Use) -> None:
    drawn = live.rollout([[1, 4, 7]] * 4000, 1, temperature=1.5)
    counts = np.bincount([row[0] for row in drawn], minlength=16) / 4000
    expected = jax.nn.softmax(live.predict(live.pad([[1, 4, 7]]))[0, -1] / 1.5)
    # Four standard deviations of the largest probability.
    np.testing.assert_allclose(counts, expected, atol=4 * (0.25 / 4000) ** 0.5)


def test_rows_end_at_the_stop_token(live: Use) -> None:
    whole = live.rollout(PROMPTS, 6)
    stop = whole[0][2]
    expected = [row[: row.index(stop)] if stop in row else row for row in whole]
    assert live.rollout(PROMPTS, 6, stop_token=stop) == expected
    assert min(map(len, expected)) < 6


def test_no_prompts_and_too_many_tokens(live: Use) -> None:
    assert live.rollout([], 4) == []
    with pytest.raises(ValueError, match=r"a row of 21 tokens: expected at most 20 \(max_seq_len\)"):
        live.rollout([[1]], 20)


def test_the_state_is_shared_with_the_trainer(tmp_path: Any) -> None:
    job = made(tmp_path, steps=1, eval_every=None)
    view = Use.from_trainer(job)
    before = np.asarray(view.predict(view.pad(PROMPTS)))
    job()
    after = np.asarray(view.predict(view.pad(PROMPTS)))
    assert not np.array_equal(before, after)
    assert view.arrays["norm/scale"] is job.live_state.params["norm/scale"]


def test_a_checkpoint_gives_the_trainers_model(trainer: Any, live: Use) -> None:
    with configuration(Use.checked_config({"model": CONFIG["model"]})):
        job = Use.local(trainer.spec.hardware.cluster.root, "use")
    with pytest.raises(UsageError, match="use: there is no model yet: restore a checkpoint first"):
        job.rollout(PROMPTS, 1)
    job.restore_from_path(trainer.path_of("step-00000060"))
    assert job.rollout(PROMPTS, 6) == live.rollout(PROMPTS, 6)
    np.testing.assert_array_equal(job.predict(job.pad(PROMPTS)), live.predict(live.pad(PROMPTS)))


def test_a_checkpoint_of_another_model_is_refused(trainer: Any) -> None:
    with configuration(Use.checked_config({"model": {**CONFIG["model"], "num_layers": 2}})):
        job = Use.local(trainer.spec.hardware.cluster.root, "use")
    with pytest.raises(DispatcherError, match=r"model/blocks/1/.*missing"):
        job.restore_from_path(trainer.path_of("step-00000060"))


def test_the_models_configuration_comes_from_the_checkpoint(trainer: Any, live: Use) -> None:
    spec = local(trainer.spec.hardware.cluster.root, "analysis")
    job = Use.from_checkpoint_path(trainer.path_of("step-00000060"), spec, {"text": {"tokens": 7}})
    assert isinstance(job, Use)
    assert job.args.tokens == 7
    assert job.rollout(PROMPTS[:1], 6) == live.rollout(PROMPTS[:1], 6)


class Uncached(Transformer):
    """The same model for readers that know of no cache."""

    decode = None  # type: ignore[assignment]


class UseUncached(Use):
    MODEL = Uncached


@pytest.fixture(scope="module")
def uncached(trainer: Any) -> UseUncached:
    spec = local(trainer.spec.hardware.cluster.root, "uncached")
    return UseUncached.from_checkpoint_path(trainer.path_of("step-00000060"), spec)


def test_a_model_without_a_cache_generates_the_same_tokens(uncached: UseUncached, live: Use) -> None:
    assert not isinstance(uncached.model, Decoder)
    assert uncached.rollout(PROMPTS, 6) == live.rollout(PROMPTS, 6)
    sampling = {"temperature": 1.0, "seed": 3, "stop_token": 5}
    # Also a few rows at a time.
    assert uncached.rollout(PROMPTS, 6, batch_size=3, **sampling) == live.rollout(PROMPTS, 6, **sampling)


class Letters:
    """16 letters as tokens."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(token + ord("a")) for token in tokens)


class Chats(Letters):
    def apply_chat_template(self, messages: list[Any], **how: Any) -> Any:
        assert how == {"tokenize": True, "add_generation_prompt": True}
        return {"input_ids": self.encode("".join(message["content"] for message in messages) + "a")}


def test_text_and_conversations_are_continued(live: Use) -> None:
    expected = [Letters().decode(row) for row in live.rollout(PROMPTS, 6)]
    assert live.generate([Letters().decode(prompt) for prompt in PROMPTS], 6, Letters()) == expected
    chat = [{"role": "user", "content": "be"}, {"role": "assistant", "content": "h"}]
    assert live.generate([chat, "behab"], 6, Chats()) == live.generate(["beha", "behab"], 6, Letters())
    with pytest.raises(UsageError, match="a conversation, but Letters has no apply_chat_template: expected text"):
        live.generate([chat], 6, Letters())
    with pytest.raises(ConfigError, match="prompt 1: the model has no token 16: expected 0 to 15"):
        live.generate(["a", "q"], 6, Letters())


def test_bytes_are_an_encoding() -> None:
    encoding = ByteEncoding()
    assert encoding.encode("é!") == [0xC3, 0xA9, 0x21]
    assert encoding.decode([0xC3, 0xA9, 300, 0x21, 0xC3]) == "é!�"
