"""`gpt/sample`: samples from a trained transformer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field
from dispatcher.runtime.encoding import ByteEncoding, Encoding, encoded
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.registry import job

SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True)
class SampleConfig:
    """Each of the `prompts` is a list of tokens, or text, whose tokens are its UTF-8 bytes.

    Each prompt gets `num_samples` samples of at most `max_new_tokens` tokens, up to the first `stop_token` (exclusive).
    """

    prompts: list[str | list[int]] = field("sample/prompts")
    max_new_tokens: int = field("sample/max_new_tokens", default=64)
    num_samples: int = field("sample/num_samples", default=1)
    temperature: float = field("sample/temperature", default=1.0)
    stop_token: int | None = field("sample/stop_token", default=None)
    seed: int = field("sample/seed", default=0)

    def __post_init__(self) -> None:
        counts = {"max_new_tokens": self.max_new_tokens, "num_samples": self.num_samples}
        faults = [f"sample.{name} = {value}: expected at least 1" for name, value in counts.items() if value < 1]
        empty = [number for number, prompt in enumerate(self.prompts) if not prompt]
        faults += [f"sample.prompts[{number}] is empty: expected at least one token" for number in empty]
        if self.temperature < 0:
            faults.append(f"sample.temperature = {self.temperature}: expected 0 (greedy) or more")
        if faults:
            raise ConfigError("\n".join(faults))


@job("gpt/sample")
class Sample(InferenceJob[SampleConfig, Transformer]):
    """Sample from a trained transformer after each prompt; writes samples.jsonl, one line per sample."""

    MODEL = Transformer

    @classmethod
    def config(cls) -> type[SampleConfig]:
        return SampleConfig

    def encoding(self) -> Encoding:
        """How text becomes tokens; replace it for a model that was trained on other ones than bytes."""
        return ByteEncoding()

    def run(self) -> Row:
        args, encoding = self.args, self.encoding()
        prompts = [prompt for prompt in args.prompts for _ in range(args.num_samples)]
        found = self.rollout(
            [self._encode(prompt, encoding) for prompt in prompts],
            args.max_new_tokens,
            temperature=args.temperature,
            stop_token=args.stop_token,
            seed=args.seed,
        )
        with self.spec.result(SAMPLES_FILE) as file:
            if file is not None:
                for prompt, tokens in zip(prompts, found, strict=True):
                    file.write(json.dumps(_line(prompt, tokens, encoding), ensure_ascii=False) + "\n")
        return {"samples": len(found), "tokens": sum(map(len, found))}

    def _encode(self, prompt: str | list[int], encoding: Encoding) -> list[int]:
        """The prompt's tokens; ConfigError for text that the model has not enough tokens for."""
        if not isinstance(prompt, str):
            return prompt
        has, needs = self.model_config.vocab_size, getattr(encoding, "vocab_size", 0)
        if has < needs:
            raise ConfigError(
                f"sample.prompts: {prompt!r} is text, whose {type(encoding).__qualname__} has {needs} tokens, but the "
                f"model has {has}: expected lists of tokens"
            )
        return encoded(encoding, prompt)


def _line(prompt: str | list[int], tokens: list[int], encoding: Encoding) -> dict[str, Any]:
    """A line of samples.jsonl; the sample after a text prompt is decoded to text."""
    return {"prompt": prompt, **({"text": encoding.decode(tokens)} if isinstance(prompt, str) else {"tokens": tokens})}
