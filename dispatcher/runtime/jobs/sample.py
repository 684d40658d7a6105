"""The package's own sampling."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.registry import job
from dispatcher.runtime.transformer import Transformer

SAMPLES_FILE = "samples.jsonl"
# The tokens of a model that reads bytes; it may have more of them.
BYTES = 256


@dataclass(frozen=True)
class SampleConfig:
    """Each of the `prompts` is a list of tokens, or text, of which the model reads the UTF-8 bytes.

    `count` times the model goes on from each of them with at most `tokens` tokens, and with none from `stop` on.
    """

    prompts: list[str | list[int]] = field("sample/prompts")
    tokens: int = field("sample/tokens", default=64)
    count: int = field("sample/count", default=1)
    temperature: float = field("sample/temperature", default=1.0)
    stop: int | None = field("sample/stop", default=None)
    seed: int = field("sample/seed", default=0)

    def __post_init__(self) -> None:
        counts = {"tokens": self.tokens, "count": self.count}
        faults = [f"sample.{name} = {value}: expected at least 1" for name, value in counts.items() if value < 1]
        empty = [number for number, prompt in enumerate(self.prompts) if not prompt]
        faults += [f"sample.prompts[{number}] is empty: expected at least one token" for number in empty]
        if self.temperature < 0:
            faults.append(f"sample.temperature = {self.temperature}: expected 0 (the likeliest tokens) or more")
        if faults:
            raise ConfigError("\n".join(faults))


@job("gpt/sample")
class Sample(InferenceJob[SampleConfig, Transformer]):
    """Let a trained transformer go on from prompts; writes samples.jsonl, a line for each sample."""

    MODEL = Transformer

    @classmethod
    def config(cls) -> type[SampleConfig]:
        return SampleConfig

    def run(self) -> Row:
        said = self.args
        prompts = [prompt for prompt in said.prompts for _ in range(said.count)]
        tokens = [self._read(prompt) for prompt in prompts]
        found = self.rollout(tokens, said.tokens, temperature=said.temperature, stop=said.stop, seed=said.seed)
        with self.spec.result(SAMPLES_FILE) as file:
            if file is not None:
                lines = (json.dumps(_line(*pair), ensure_ascii=False) for pair in zip(prompts, found, strict=True))
                file.writelines(f"{line}\n" for line in lines)
        return {"samples": len(found), "tokens": sum(map(len, found))}

    def _read(self, prompt: str | list[int]) -> list[int]:
        """The prompt's tokens; ConfigError when the model does not know them."""
        known = self.model_config.vocabulary
        if isinstance(prompt, str):
            if known < BYTES:
                raise ConfigError(
                    f"sample.prompts: {prompt!r} is text, and the model, with a vocabulary of {known}, does not read "
                    "bytes: give lists of tokens"
                )
            return list(prompt.encode())
        unknown = [token for token in prompt if not 0 <= token < known]
        if unknown:
            raise ConfigError(f"sample.prompts: the model has no token {unknown[0]}: expected 0 to {known - 1}")
        return prompt


def _line(prompt: str | list[int], tokens: list[int]) -> dict[str, Any]:
    """What follows text is text."""
    if isinstance(prompt, str):
        return {"prompt": prompt, "text": bytes(t for t in tokens if t < BYTES).decode(errors="replace")}
    return {"prompt": prompt, "tokens": tokens}
