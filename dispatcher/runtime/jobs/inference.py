"""InferenceJob: uses a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime.configuration import configuration, configure, current_config
from dispatcher.runtime.device_types import converted
from dispatcher.runtime.encoding import Chat, Encoding, encoded
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.jobs.inference_config import InferenceConfig, TrainedWith, mesh_sizes, rows_at_once
from dispatcher.runtime.jobs.model_job import ModelJob
from dispatcher.runtime.parameters import AbstractModel, Arrays, evaluating
from dispatcher.runtime.rollout import Decoder, Prompts, Recomputing, pad_left, rollout
from dispatcher.runtime.training import data
from dispatcher.runtime.training.config import SEEDS
from dispatcher.runtime.training.model_arrays import kept_arrays, load_arrays
from dispatcher.runtime.training.placement import Placement, batch_shards, make_mesh, tracing
from dispatcher.runtime.training.precision import Precision, parameter_names
from dispatcher.runtime.training.trainer import Trainer

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)


@dataclass(frozen=True)
class InferenceSetup:
    """The parts of an inference that hold no arrays: the mesh, where arrays live, the model, the types of numbers."""

    placement: Placement
    model: AbstractModel
    precision: Precision

    @property
    def mesh(self) -> Mesh:
        return self.placement.mesh

    @cached_property
    def parameters(self) -> frozenset[str]:
        return parameter_names(self.model.variables)

    def merged(self, arrays: Arrays) -> Any:
        """The model with these arrays, in evaluation mode, as it computes."""
        return evaluating(self.model.merge(self.precision.computing(arrays, self.parameters)))


class InferenceJob(ModelJob[C, M], Generic[C, M]):
    """A job that uses a model and trains nothing. The user writes MODEL or `make_model`, `forward`, `run`,
    and `config` if the job has settings of its own:

        @job("lab/classify")
        class Classify(InferenceJob[ClassifyConfig, Classifier]):
            MODEL = Classifier

            @classmethod
            def config(cls):
                return ClassifyConfig

            def forward(self, model, batch):
                return {"label": model(batch["image"]).argmax(-1)}

            def run(self):
                labels = self.predict({"image": np.load(self.args.images)})["label"]

    MODEL and AXIS_RULES are those of the trainer. The model's arrays and configuration come from a checkpoint of its
    trainer (`from_checkpoint_path`), or from a running trainer (`from_trainer`). All processes of a job call `predict`,
    `rollout` and `generate` together, with the same rows; the mesh determines which device computes which rows.
    """

    AXIS_RULES: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.topology: Topology = spec.topology or Topology.detect()
        self.inference = configure(InferenceConfig)
        self._trained_with = configure(TrainedWith)
        self._setup: InferenceSetup | None = None
        self._arrays: Callable[[], Arrays] | None = None
        self._predict = jax.jit(self._predict_batch)
        self._rollout = jax.jit(self._rollout_batch, static_argnames="max_new_tokens")

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        return (*super().config_classes(), InferenceConfig, TrainedWith)

    @classmethod
    def checkpoint_classes(cls) -> tuple[type[Any], ...]:
        return (TrainedWith, *cls.model_classes())

    # What a user writes or replaces.

    @classmethod
    def config(cls) -> type[Any] | Sequence[type[Any]]:
        """The dataclass of the job's own settings; none by default."""
        return ()

    def forward(self, model: M, batch: Any) -> Any:
        """What the model makes of a batch: any pytree of arrays [rows, ...]; traced, with no effect but its result.

        `model` is in evaluation mode; what the pass changes of its variables is dropped. By default `model(batch)`, or
        the `logits` of rows of tokens.
        """
        if isinstance(batch, Prompts):
            return self.logits(model, *batch)
        return model(batch)

    def logits(self, model: M, tokens: Any, segment_ids: Any) -> jax.Array:
        """Logits of the token after each token, int32[rows, seq_len] twice -> float[rows, seq_len, vocab_size]."""
        found: jax.Array = model(tokens, segment_ids=segment_ids)
        return found

    # Where the model comes from.

    @classmethod
    def from_trainer(cls, trainer: Trainer[Any, M]) -> Self:
        """The job on the trainer's live state: it always computes with the current arrays."""
        with configuration(current_config() or trainer.configuration_in_force):
            made = cls(trainer.spec)
        trainer.begin()
        made.topology = trainer.topology
        setup = trainer.setup
        made._setup = InferenceSetup(setup.placement, setup.layout.model, trainer.training.precision)

        def live() -> Arrays:
            return trainer.model_to_evaluate() if made.inference.ema else trainer.live_state.model

        made._arrays = live
        return made

    def restore_from_path(self, rel_path: str) -> None:
        """Load the model's arrays from a checkpoint of its trainer onto this job's mesh."""
        setup = self.setup
        target = kept_arrays(setup.model, setup.placement, setup.precision)
        arrays, restored = load_arrays(self, rel_path, target, averaged=self.inference.ema)
        self.check_model(restored)
        self._arrays = lambda: arrays

    @property
    def setup(self) -> InferenceSetup:
        """The mesh, the form of the model, where its arrays live."""
        if self._setup is None:
            rules = {**self.AXIS_RULES, **self._trained_with.axis_rules}
            sizes = mesh_sizes(self.inference.mesh, self._trained_with.mesh, rules)
            mesh = make_mesh(self.topology, sizes, where="inference.mesh")
            placement = Placement(mesh, rules, fsdp=self.inference.fsdp)
            with tracing(mesh, rules):
                model = AbstractModel.made_by(lambda: self.make_model(nnx.Rngs(0)))
            self._setup = InferenceSetup(placement, model, self._trained_with.precision)
        return self._setup

    @property
    def arrays(self) -> Arrays:
        """The model's arrays by name; UsageError before a checkpoint was restored."""
        if self._arrays is None:
            raise UsageError(f"{self.spec.name}: there is no model yet: restore a checkpoint first")
        return self._arrays()

    @property
    def model(self) -> M:
        """The model itself, for use inside or outside jit."""
        model: M = self.setup.merged(self.arrays)
        return model

    # What it does.

    def predict(self, rows: Any, *, batch_size: int | None = None) -> Any:
        """What `forward` makes of all `rows`, host arrays [rows, ...], on every process.

        `rows` is a pytree of arrays that have the same first axis, or a Source. `batch_size` of them are computed at
        once, by default `inference.batch_size`; the last ones are padded, and the padding is cut off.
        """
        source = rows if _is_source(rows) else data.Arrays(rows)
        if not len(source):
            raise UsageError("there are no rows to predict from")
        size = min(batch_size or self.inference.batch_size or len(source), len(source))
        mesh = self.setup.mesh
        found = [
            self.gather(each) for each in _one_late(self._predictions(source, rows_at_once(size, batch_shards(mesh))))
        ]
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(source)], *found)

    def rollout(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        stop_token: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> list[list[int]]:
        """Generate at most `max_new_tokens` tokens after each prompt, up to the first `stop_token` (exclusive).

        Greedy at `temperature` 0, else sampled: the samples depend only on the `seed`, the prompt and its index. Every
        process returns all of them. The model is a `Decoder` (rollout.py), or any causal model: see `logits`.
        """
        if not prompts:
            return []
        if not 0 <= seed < SEEDS:
            raise UsageError(f"seed = {seed}: expected 0 to {SEEDS - 1}")
        self._check_tokens(prompts)
        shards = batch_shards(self.setup.mesh)
        size = rows_at_once(min(batch_size or self.inference.batch_size or len(prompts), len(prompts)), shards)
        padded = self.pad(prompts, rows=rows_at_once(len(prompts), size))
        stop = converted("stop_token", np.array(-1 if stop_token is None else stop_token), np.int32)
        sampling = jax.random.key(seed), jnp.float32(temperature), jnp.asarray(stop)
        generated: list[list[int]] = []
        numbered = data.Arrays((np.arange(len(padded.tokens), dtype=np.int32), padded))
        for batch, _ in data.evaluation_batches(numbered, size, self.setup.mesh):
            with self._tracing():
                made = self._rollout(self.arrays, *batch, *sampling, max_new_tokens=max_new_tokens)
            tokens, lengths = self.gather(made)
            generated += [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
        return generated[: len(prompts)]

    def generate(
        self, prompts: Sequence[str | Chat], max_new_tokens: int, encoding: Encoding, **sampling: Any
    ) -> list[str]:
        """As `rollout`, from text to text by an `encoding`: any object with `encode` and `decode`.

        A prompt may be a conversation, [{"role": ..., "content": ...}, ...], if the encoding has `apply_chat_template`.
        """
        tokens = [encoded(encoding, prompt) for prompt in prompts]
        return [encoding.decode(found) for found in self.rollout(tokens, max_new_tokens, **sampling)]

    def pad(self, texts: Sequence[Sequence[int]], *, rows: int = 0, seq_len: int = 0) -> Prompts:
        """`texts` as rows padded on the left, to at least `rows` rows of `seq_len` tokens."""
        return pad_left(texts, rows=rows, seq_len=seq_len)

    def gather(self, tree: Any) -> Any:
        """The full values of arrays that are sharded over the devices of all processes, on every process."""
        return jax.tree.map(_full_value, tree)

    def _check_tokens(self, prompts: Sequence[Sequence[int]]) -> None:
        """A token outside the vocabulary would silently be taken for another one."""
        vocab_size = getattr(self.model_config, "vocab_size", None)
        if vocab_size is None:
            return
        for number, prompt in enumerate(prompts):
            unknown = [token for token in prompt if not 0 <= token < vocab_size]
            if unknown:
                raise ConfigError(
                    f"prompt {number}: the model has no token {unknown[0]}: expected 0 to {vocab_size - 1}"
                )

    def _predictions(self, source: Any, rows: int) -> Iterator[Any]:
        for batch, _ in data.evaluation_batches(source, rows, self.setup.mesh):
            with self._tracing():
                found = self._predict(self.arrays, batch)
            yield found

    def _tracing(self) -> Any:
        return tracing(self.setup.mesh, self.setup.placement.rules)

    def _predict_batch(self, arrays: Arrays, batch: Any) -> Any:
        precision = self.setup.precision
        found = self.forward(self.setup.merged(arrays), precision.batch(batch))
        _check_rows(found, len(jax.tree.leaves(batch)[0]))
        return precision.returned(found)

    def _rollout_batch(
        self, arrays: Arrays, numbers: jax.Array, prompts: Any, key: jax.Array, *sampling: Any, max_new_tokens: int
    ) -> Any:
        model = self.setup.merged(arrays)
        decoder = model if isinstance(model, Decoder) else Recomputing(lambda *rows: self.logits(model, *rows))
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
        return rollout(decoder, prompts, keys, *sampling, max_new_tokens=max_new_tokens)


def _is_source(rows: Any) -> bool:
    """Whether `rows` is no pytree of arrays, but an object of its own with a length and an index."""
    return jax.tree_util.all_leaves([rows]) and not hasattr(rows, "dtype") and isinstance(rows, data.Source)


def _one_late(found: Iterator[Any]) -> Iterator[Any]:
    """Each item after the next one is made, so that the devices always have one queued while another is read."""
    before = next(found)
    for each in found:
        yield before
        before = each
    yield before


def _check_rows(found: Any, rows: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        if jnp.shape(leaf)[:1] != (rows,):
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "the array"
            raise TypeError(
                f"forward: {name} has the shape {list(jnp.shape(leaf))} for a batch of {rows} rows: expected "
                f"[{rows}, ...], one row for each of the batch"
            )


def _full_value(array: jax.Array) -> Any:
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
