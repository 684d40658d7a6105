"""InferenceJob: runs a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from dispatcher.errors import UsageError
from dispatcher.runtime import sharding
from dispatcher.runtime.configuration import configuration, configure, current_config
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.jobs.restoreable import RestoreableJob
from dispatcher.runtime.parameters import AbstractModel, Arrays, eval_shape, evaluating
from dispatcher.runtime.rollout import Prompts, pad_left, rollout
from dispatcher.runtime.training.placement import Placement, make_mesh, tracing
from dispatcher.runtime.training.state import MODEL
from dispatcher.runtime.training.trainer import Trainer

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)


class InferenceJob(RestoreableJob[C], Generic[C, M]):
    """A job that uses a model and trains nothing. The user writes MODEL, `config` and `run`:

        @job("gpt/analyse/surprise")
        class Surprise(InferenceJob[SurpriseConfig, Transformer]):
            MODEL = Transformer

            @classmethod
            def config(cls):
                return SurpriseConfig

            def run(self):
                logits = self.gather(self.forward(self.pad([[1, 2, 3], [4, 5]])))

    The model's arrays and configuration come from a checkpoint that a trainer of the same model saved
    (`from_checkpoint_path`), or from a running trainer (`from_trainer`). All processes of a job call `forward` and
    `rollout` together, with the same rows; the mesh determines which device computes which rows.
    """

    MODEL: type[Any]

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.topology: Topology = spec.topology or Topology.detect()
        self.model_config: Any = configure(self.MODEL.CONFIG)
        self._abstract_model: AbstractModel | None = None
        self._arrays: Callable[[], Arrays] | None = None
        self._placement = Placement(make_mesh(self.topology, {}), {})
        self._forward = jax.jit(self._forward_with)
        self._rollout = jax.jit(self._rollout_with, static_argnames="max_new_tokens")

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        return (*super().config_classes(), cls.MODEL.CONFIG)

    @classmethod
    def checkpoint_classes(cls) -> tuple[type[Any], ...]:
        return (cls.MODEL.CONFIG,)

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        return (cls.MODEL.CONFIG,)

    def make_model(self) -> M:
        """The model whose arrays are restored; replace it where the trainer replaced it."""
        model: M = self.MODEL(self.model_config, rngs=nnx.Rngs(0))
        return model

    @classmethod
    def from_trainer(cls, trainer: Trainer[Any, M]) -> Self:
        """The job on the trainer's live state: it always computes with the current arrays."""
        with configuration(current_config() or trainer.configuration_in_force):
            made = cls(trainer.spec)
        trainer.begin()
        made.topology = trainer.topology
        made._abstract_model = trainer.setup.layout.model

        def live() -> Arrays:
            return trainer.live_state.model

        made._arrays = live
        return made

    @property
    def abstract_model(self) -> AbstractModel:
        """The model without its arrays."""
        if self._abstract_model is None:
            with tracing(self._placement.mesh, self._placement.rules):
                self._abstract_model = AbstractModel.of(eval_shape(self.make_model))
        return self._abstract_model

    @property
    def arrays(self) -> Arrays:
        """The model's arrays by name; UsageError before a checkpoint was restored."""
        if self._arrays is None:
            raise UsageError(f"{self.spec.name}: there is no model yet: restore a checkpoint first")
        return self._arrays()

    @property
    def model(self) -> M:
        """The model itself, for use inside or outside jit."""
        model: M = evaluating(self.abstract_model.merge(self.arrays))
        return model

    def restore_from_path(self, rel_path: str) -> None:
        """Load the model's arrays from a checkpoint of its trainer onto this job's mesh."""
        target = self._placement.abstract_arrays(self.abstract_model)
        restored = self.load_from_path(rel_path, {MODEL: target}, partial=True)
        self.check_model(restored)
        arrays = restored.tree[MODEL]
        self._arrays = lambda: arrays

    def pad(self, texts: Sequence[Sequence[int]], *, seq_len: int = 0) -> Prompts:
        """`texts` as rows padded on the left to at least `seq_len` tokens, and to a multiple of the data shards."""
        shards = self.topology.data_shards
        return pad_left(texts, rows=-(-len(texts) // shards) * shards, seq_len=seq_len)

    def forward(self, rows: Prompts) -> jax.Array:
        """Next-token logits: float32[batch, seq_len, vocab_size], sharded over the data shards."""
        logits: jax.Array = self._forward(self.arrays, sharding.shard_batch(tuple(rows), self.topology.mesh))
        return logits

    def rollout(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        stop_token: int | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        """Generate at most `max_new_tokens` tokens after each prompt, up to the first `stop_token` (exclusive).

        Greedy at `temperature` 0, else sampled: the samples depend only on the `seed`, the prompt and its index. Every
        process returns all of them.
        """
        if not prompts:
            return []
        generated = self._rollout(
            self.arrays,
            sharding.shard_batch(tuple(self.pad(prompts)), self.topology.mesh),
            jax.random.key(seed),
            jnp.float32(temperature),
            jnp.int32(-1 if stop_token is None else stop_token),
            max_new_tokens=max_new_tokens,
        )
        tokens, lengths = (self.gather(array) for array in generated)
        return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)][: len(prompts)]

    def gather(self, array: jax.Array) -> np.ndarray[Any, Any]:
        """The full value of an array that is sharded over the devices of all processes, on every process."""
        if array.is_fully_addressable:
            return np.asarray(array)
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))

    def _rollout_with(self, arrays: Arrays, *arguments: Any, max_new_tokens: int) -> Any:
        return rollout(evaluating(self.abstract_model.merge(arrays)), *arguments, max_new_tokens=max_new_tokens)

    def _forward_with(self, arrays: Arrays, rows: Any) -> jax.Array:
        logits: jax.Array = evaluating(self.abstract_model.merge(arrays))(rows[0], segment_ids=rows[1])
        return logits
