"""`api/rollout`: answers of a model behind HTTP to the prompts of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field
from dispatcher.runtime.jobs.api_rollouts import ApiRollouts
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.registry import job

ANSWERS_FILE: Final = "answers.jsonl"


@dataclass(frozen=True)
class PromptsConfig:
    """`file` is JSON lines, each with a `prompt` (text) or `messages`, and any other keys; relative paths are below the
    data directory. Each line gets `samples` answers, after the system message `system` if there is one.
    """

    file: Path = field("prompts/file")
    samples: int = field("prompts/samples", default=1)
    system: str | None = field("prompts/system", default=None)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"prompts.samples = {self.samples}: expected at least 1")


@job("api/rollout")
class ApiPrompts(ApiRollouts[PromptsConfig]):
    """Ask a model behind HTTP each prompt of a file; writes answers.jsonl, one line per answer."""

    @classmethod
    def config(cls) -> type[PromptsConfig]:
        return PromptsConfig

    def requests(self) -> Sequence[Any]:
        # Kept until the end: answers must not be paired with lines that were edited in the meantime.
        self._lines = self._read_lines()
        system = [] if self.args.system is None else [{"role": "system", "content": self.args.system}]
        bodies = [{"messages": [*system, *_messages(line)]} for line in self._lines]
        return [body for body in bodies for _ in range(self.args.samples)]

    def result(self, rows: Iterable[Any]) -> Row:
        lines = iter([line for line in self._lines for _ in range(self.args.samples)])
        return self.write_rows(ANSWERS_FILE, rows, merged=lambda row: {**next(lines), **row})

    def _read_lines(self) -> list[Mapping[str, Any]]:
        path = self.spec.hardware.cluster.data / self.args.file
        try:
            texts = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"prompts.file = {path}: cannot be read: {error}") from None
        return [_line(text, f"{path}, line {number}") for number, text in enumerate(texts, start=1) if text.strip()]


def _line(text: str, where: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    if not isinstance(line, dict) or isinstance(line.get("prompt"), str) == isinstance(line.get("messages"), list):
        raise ConfigError(f'{where}: expected {{"prompt": "..."}} or {{"messages": [...]}}, not {text:.80}')
    return line


def _messages(line: Mapping[str, Any]) -> list[Any]:
    return list(line["messages"]) if "messages" in line else [{"role": "user", "content": line["prompt"]}]
