"""The settings of every training except those of its optimizer, its schedule and its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dispatcher.base.values import BadValueError, parse_duration, shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.checkpoint import Retention
from dispatcher.runtime.configuration import field
from dispatcher.runtime.training.precision import Precision

# per_device_batch_size: find the largest that fits into the memory of a device.
AUTO = -1
# jax.random.key uses 32 bits of a seed.
SEEDS = 2**32
# Steps are counted in int32.
_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class TrainingConfig:
    """How long to train, in what batches, where, and when to evaluate, log and save.

    `batch_size` is the number of rows of one update, over all devices. `per_device_batch_size` is how many of them each
    device computes at once; the gradients of the resulting microbatches are accumulated. null: all at once, -1: as many
    as fit into memory. `steps_per_call` steps are one call of the compiled function; all other numbers of steps are
    multiples of it. `eval_every` is in steps, null: only after the last.

    A checkpoint is saved before each evaluation, when `save_interval` (10m, 1h30m or seconds; null: never) has passed
    since the last one, every `save_every` steps unless that is null, and after the last step. Those of `save_every` are
    permanent; of the others the last `keep` are kept. A preempted training exits within `preemption_timeout_s` seconds,
    or within four fifths of `kill_grace` in dispatcher.yaml if that is less.

    `mesh` has the sizes of the mesh's axes, `axis_rules` map logical axes to them, `fsdp` shards large parameters
    (`placement`). `ema` is the decay of averages of the parameters, which evaluations then use, with statistics of
    BatchNorm of their own. `not_finite` says what happens when a loss or a gradient is not finite: the training stops,
    or the step changes nothing. `profile` are the first and the last step of a trace. `prefetch` batches are read
    ahead.
    """

    steps: int = field("training/steps")
    batch_size: int = field("training/batch_size", default=32)
    per_device_batch_size: int | None = field("training/per_device_batch_size", default=None)
    seed: int = field("training/seed", default=0)
    steps_per_call: int = field("training/steps_per_call", default=1)
    log_every: int = field("training/log_every", default=10)
    eval_every: int | None = field("training/eval_every", default=None)
    save_every: int | None = field("training/save_every", default=None)
    save_interval: str | float | None = field("training/save_interval", default="10m")
    keep: int = field("training/keep", default=2)
    preemption_timeout_s: float = field("training/preemption_timeout_s", default=60.0)
    mesh: dict[str, int] = field("training/mesh", default_factory=dict)
    axis_rules: dict[str, str | list[str] | None] = field("training/axis_rules", default_factory=dict)
    fsdp: bool = field("training/fsdp", default=False)
    precision: Precision = field("training/precision", default_factory=Precision)
    ema: float | None = field("training/ema", default=None)
    not_finite: Literal["stop", "skip"] = field("training/not_finite", default="stop")
    profile: list[int] | None = field("training/profile", default=None)
    prefetch: int = field("training/prefetch", default=2)
    wandb: bool = field("training/wandb", default=False)

    def __post_init__(self) -> None:
        faults = [*self._faults_of_counts(), *self._faults_of_blocks()]
        per_device = self.per_device_batch_size
        if per_device is not None and per_device < 1 and per_device != AUTO:
            faults.append(f"training.per_device_batch_size = {per_device}: expected 1 or more, or -1")
        if not 0 <= self.seed < SEEDS:
            faults.append(f"training.seed = {self.seed}: expected 0 to {SEEDS - 1}")
        if self.steps > _MOST_STEPS:
            faults.append(f"training.steps = {self.steps}: expected at most {_MOST_STEPS}")
        if not self.preemption_timeout_s > 0:
            faults.append(f"training.preemption_timeout_s = {self.preemption_timeout_s}: expected more than 0 seconds")
        if self.ema is not None and not 0 < self.ema < 1:
            faults.append(f"training.ema = {self.ema}: expected a decay between 0 and 1, such as 0.999, or null")
        if self.profile is not None and not (len(self.profile) == 2 and 0 < self.profile[0] <= self.profile[1]):
            faults.append(f"training.profile = {self.profile}: expected the first and the last step, such as [10, 15]")
        try:
            self.save_interval_s  # noqa: B018  # raises when it cannot be parsed
        except BadValueError as error:
            faults.append(f"training.save_interval = {shown(self.save_interval)}: {error}, or null")
        if faults:
            raise ConfigError("\n".join(faults))

    def _faults_of_counts(self) -> list[str]:
        counts = ("steps", "batch_size", "steps_per_call", "log_every", "eval_every", "save_every", "keep")
        faults = [
            f"training.{name} = {value}: expected at least 1"
            for name in counts
            if (value := getattr(self, name)) is not None and value < 1
        ]
        return faults if self.prefetch >= 0 else [*faults, f"training.prefetch = {self.prefetch}: expected 0 or more"]

    def _faults_of_blocks(self) -> list[str]:
        """A block of steps is one call: nothing can happen between two of its steps."""
        block = self.steps_per_call
        if block <= 1:
            return []
        return [
            f"training.{name} = {value}: expected a multiple of training.steps_per_call = {block}"
            for name in ("log_every", "eval_every", "save_every")
            if (value := getattr(self, name)) is not None and value % block
        ]

    @property
    def save_interval_s(self) -> float | None:
        """The longest time between two checkpoints in seconds; None: no limit."""
        return None if self.save_interval is None else parse_duration(self.save_interval)

    @property
    def retention(self) -> Retention:
        return Retention(last=self.keep, every=self.save_every)

    def is_due(self, every: int | None, step: int) -> bool:
        """Whether something that is done every `every` steps, and after the last step, is due after `step`."""
        return step == self.steps or (every is not None and step % every == 0)

    def block_end(self, step: int) -> int:
        """The step at which the call that begins at `step` ends: a multiple of steps_per_call, or the last step."""
        return min(self.steps, (step // self.steps_per_call + 1) * self.steps_per_call)


@dataclass(frozen=True)
class Microbatching:
    """How a batch is split: `accumulation_steps` microbatches of `microbatch_size` rows over all devices."""

    accumulation_steps: int
    microbatch_size: int

    @classmethod
    def of(cls, batch_size: int, per_device: int | None, shards: int) -> Microbatching:
        """Microbatches of `per_device` rows on each device, None: one microbatch; ConfigError if they do not fit."""
        if batch_size % shards:
            raise ConfigError(f"training.batch_size = {batch_size}: expected a multiple of {shards} data shards")
        size = batch_size if per_device is None else per_device * shards
        if batch_size % size:
            raise ConfigError(
                f"training.batch_size = {batch_size}: expected a multiple of {size}, which is per_device_batch_size "
                f"{per_device} on {shards} data shards"
            )
        return cls(batch_size // size, size)

    @classmethod
    def within(cls, batch_size: int, max_per_device: int, shards: int) -> Microbatching:
        """As few accumulation steps as possible with at most `max_per_device` rows on each device."""
        if batch_size % shards:
            raise ConfigError(f"training.batch_size = {batch_size}: expected a multiple of {shards} data shards")
        share = batch_size // shards
        per_device = max(size for size in range(1, min(max_per_device, share) + 1) if share % size == 0)
        return cls.of(batch_size, per_device, shards)
