"""The trainer of a model that predicts next tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import configure, field
from dispatcher.runtime.language.tokens import Tokens, TokenWindows, negative_log_likelihood
from dispatcher.runtime.parameters import parameter_count
from dispatcher.runtime.training.data import Source, Streamed
from dispatcher.runtime.training.trainer import Trainer
from dispatcher.runtime.training.values import Value

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)


@dataclass(frozen=True)
class DataConfig:
    """.npy files of integer tokens; relative paths are below the data directory. `seq_len` is in tokens."""

    train: Path | None = field("data/train", default=None)
    eval: Path | None = field("data/eval", default=None)
    seq_len: int = field("data/seq_len", default=128)

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ConfigError(f"data.seq_len = {self.seq_len}: expected at least 1")


class LanguageTrainer(Trainer[C, M], Generic[C, M]):
    """Trains MODEL on the tokens of the file `data.train`, and evaluates it on those of `data.eval`.

    MODEL is called as `model(tokens, segment_ids=..., rngs=...)`, int32[batch, seq_len] each, for logits of next
    tokens, float[batch, seq_len, vocab_size].
    """

    UNIT: ClassVar[str] = "tokens"

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.data_config = configure(DataConfig)

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        return tuple(dict.fromkeys((*super().config_classes(), DataConfig)))

    def data(self) -> Source | Streamed:
        if self.data_config.train is None:
            raise ConfigError("data.train: required, but not set: expected the path of an .npy file of tokens")
        return self._windows(self.data_config.train)

    def evaluations(self) -> Mapping[str, Source]:
        return {} if self.data_config.eval is None else {"held_out": self._windows(self.data_config.eval)}

    def loss(self, model: Any, batch: Tokens, rngs: nnx.Rngs) -> Value | tuple[Value, dict[str, Value]]:
        """The loss in nats for each token that is predicted."""
        return negative_log_likelihood(model(batch.inputs, segment_ids=batch.segment_ids, rngs=rngs), batch.targets)

    def flops(self, batch: Tokens) -> float | None:
        """6 for each parameter and token (Kaplan et al. 2020, arXiv:2001.08361), and for attention half of the 12 x
        layers x d_model x seq_len for each token of Chowdhery et al. 2022 (arXiv:2204.02311): the mask is causal.

        None for a model whose configuration has no `num_layers` and `d_model`, or of which not all is trained.
        """
        layers, d_model = (getattr(self.model_config, name, None) for name in ("num_layers", "d_model"))
        state = self.setup.layout.abstract
        if layers is None or d_model is None or state.variables:
            return None
        rows, seq_len = batch.inputs.shape
        each_token = 6.0 * parameter_count(state.params) + 6.0 * layers * d_model * seq_len
        return float(each_token * rows * seq_len)

    def _windows(self, path: Path) -> TokenWindows:
        # A model of one's own may have neither.
        max_seq_len, vocab_size = (getattr(self.model_config, name, None) for name in ("max_seq_len", "vocab_size"))
        seq_len = self.data_config.seq_len
        if max_seq_len is not None and seq_len > max_seq_len:
            raise ConfigError(
                f"data.seq_len = {seq_len}: expected at most {max_seq_len}, the model's model.max_seq_len"
            )
        return TokenWindows.from_file(self.spec.hardware.cluster.data / path, seq_len, vocab_size=vocab_size)
