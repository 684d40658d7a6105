"""InferenceJob: a trained model at work."""

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
from dispatcher.runtime.jobs.trainer import MODEL, BaseTrainer
from dispatcher.runtime.parameters import Arrays, Skeleton, abstract
from dispatcher.runtime.rollout import Prompts, pad_left, roll_out

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

    The model's arrays come from a checkpoint that a trainer of the same model saved, with the model's configuration
    (`from_checkpoint_path`), or from a trainer at work (`from_trainer`). All processes of a job call `forward` and
    `rollout` together, with the same rows; the mesh says who computes which.
    """

    MODEL: type[Any]

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.topology: Topology = spec.topology or Topology.detect()
        self.model_config: Any = configure(self.MODEL.CONFIG)
        self._skeleton: Skeleton | None = None
        self._arrays: Callable[[], Arrays] | None = None
        self._forward = jax.jit(lambda arrays, rows: self.skeleton.rebuild(arrays)(rows[0], segments=rows[1]))
        self._roll_out = jax.jit(self._rolled_out, static_argnames="new_tokens")

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
        """The model whose arrays are read; a job on a model that a trainer has changed makes it in the same way."""
        model: M = self.MODEL(self.model_config, rngs=nnx.Rngs(0))
        return model

    @classmethod
    def from_trainer(cls, trainer: BaseTrainer[Any, M]) -> Self:
        """The job on the trainer's live state: what it computes is always the model as it is then trained."""
        with configuration(current_config() or trainer.configuration_in_force):
            made = cls(trainer.spec)
        trainer.begin()
        made.topology = trainer.topology
        made._skeleton = trainer.programs.skeleton

        def live() -> Arrays:
            return trainer.live_state.trained | trainer.live_state.rest

        made._arrays = live
        return made

    @property
    def skeleton(self) -> Skeleton:
        """The model without its arrays."""
        if self._skeleton is None:
            self._skeleton = Skeleton.of(abstract(self.make_model))
        return self._skeleton

    @property
    def arrays(self) -> Arrays:
        """The model's arrays by name; UsageError before anything was restored."""
        if self._arrays is None:
            raise UsageError(f"{self.spec.name}: there is no model yet: restore a checkpoint first")
        return self._arrays()

    @property
    def model(self) -> M:
        """The model itself, to be used inside of a compiled program or out of it."""
        model: M = self.skeleton.rebuild(self.arrays)
        return model

    def restore_from_path(self, rel_path: str) -> None:
        """Take the model's arrays from a checkpoint of its trainer, onto this job's mesh."""
        target = self.skeleton.target(self.topology.mesh)
        restored = self.load_from_path(rel_path, {MODEL: target}, partial=True)
        self.check_model(restored)
        arrays = restored.tree[MODEL]
        self._arrays = lambda: arrays

    def pad(self, texts: Sequence[Sequence[int]], *, length: int = 0) -> Prompts:
        """`texts` as rows padded on the left, with rows of padding alone until the data shards divide them."""
        shards = self.topology.data_shards
        return pad_left(texts, rows=-(-len(texts) // shards) * shards, length=length)

    def forward(self, rows: Prompts) -> jax.Array:
        """Logits of each next token: float32[rows, length, vocabulary], cut over the data shards."""
        logits: jax.Array = self._forward(self.arrays, sharding.put_rows(tuple(rows), self.topology.mesh))
        return logits

    def rollout(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        temperature: float = 0.0,
        stop: int | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        """What the model says after each of the prompts: at most `new_tokens` tokens, and none from `stop` on.

        At `temperature` 0 the likeliest tokens, else drawn ones, which follow from the `seed`, the prompt and its
        place among the prompts. Every process gets all of them.
        """
        if not prompts:
            return []
        found = self._roll_out(
            self.arrays,
            sharding.put_rows(tuple(self.pad(prompts)), self.topology.mesh),
            jax.random.key(seed),
            jnp.float32(temperature),
            jnp.int32(-1 if stop is None else stop),
            new_tokens=new_tokens,
        )
        tokens, lengths = (self.gather(array) for array in found)
        return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)][: len(prompts)]

    def gather(self, array: jax.Array) -> np.ndarray[Any, Any]:
        """The whole of an array that is cut over the devices of all processes, on every process."""
        if array.is_fully_addressable:
            return np.asarray(array)
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))

    def _rolled_out(self, arrays: Arrays, *words: Any, new_tokens: int) -> Any:
        return roll_out(self.skeleton.rebuild(arrays), *words, new_tokens=new_tokens)
