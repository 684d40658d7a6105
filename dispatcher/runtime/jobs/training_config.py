"""The settings of every training except those of its optimizer, its schedule and its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dispatcher.base.values import BadValueError, parse_duration, shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.checkpoint import Retention
from dispatcher.runtime.configuration import field

# per_device_batch_size: find the largest that fits into the memory of a device.
AUTO = -1
# jax.random.key uses 32 bits of a seed.
SEEDS = 2**32


@dataclass(frozen=True)
class TrainingConfig:
    """How long to train, in what batches, and when to evaluate, log and save.

    `batch_size` is the number of rows of one update, over all devices. `per_device_batch_size` is how many of them each
    device computes at once; the gradients of the resulting microbatches are accumulated. null: all at once, -1: as many
    as fit into memory. `eval_every` is in steps, null: only after the last. A checkpoint is saved before each
    evaluation, when `save_interval` (10m, 1h30m or seconds; null: never) has passed since the last one, every
    `save_every` steps unless that is null, and after the last step. `keep` is the number of checkpoints that are kept
    beside the best one; `keep_every` also keeps those whose step is a multiple of it. A preempted training exits within
    `preemption_timeout_s` seconds, or within four fifths of `kill_grace` in dispatcher.yaml if that is less.
    """

    steps: int = field("training/steps")
    batch_size: int = field("training/batch_size", default=32)
    per_device_batch_size: int | None = field("training/per_device_batch_size", default=None)
    seed: int = field("training/seed", default=0)
    log_every: int = field("training/log_every", default=10)
    eval_every: int | None = field("training/eval_every", default=None)
    save_every: int | None = field("training/save_every", default=None)
    save_interval: str | float | None = field("training/save_interval", default="10m")
    keep: int = field("training/keep", default=2)
    keep_every: int | None = field("training/keep_every", default=None)
    preemption_timeout_s: float = field("training/preemption_timeout_s", default=60.0)
    wandb: bool = field("training/wandb", default=False)

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "log_every", "eval_every", "save_every", "keep", "keep_every")
        faults = [
            f"training.{name} = {value}: expected at least 1"
            for name in counts
            if (value := getattr(self, name)) is not None and value < 1
        ]
        per_device = self.per_device_batch_size
        if per_device is not None and per_device < 1 and per_device != AUTO:
            faults.append(f"training.per_device_batch_size = {per_device}: expected 1 or more, or -1")
        if not 0 <= self.seed < SEEDS:
            faults.append(f"training.seed = {self.seed}: expected 0 to {SEEDS - 1}")
        if self.preemption_timeout_s <= 0:
            faults.append(f"training.preemption_timeout_s = {self.preemption_timeout_s}: expected more than 0 seconds")
        try:
            self.save_interval_s  # noqa: B018  # raises when it cannot be parsed
        except BadValueError as error:
            faults.append(f"training.save_interval = {shown(self.save_interval)}: {error}, or null")
        if faults:
            raise ConfigError("\n".join(faults))

    @property
    def save_interval_s(self) -> float | None:
        """The longest time between two checkpoints in seconds; None: no limit."""
        return None if self.save_interval is None else parse_duration(self.save_interval)

    @property
    def retention(self) -> Retention:
        return Retention(last=self.keep, every=self.keep_every)

    def is_due(self, every: int | None, step: int) -> bool:
        """Whether something that is done every `every` steps, and after the last step, is due after `step`."""
        return step == self.steps or (every is not None and step % every == 0)


@dataclass(frozen=True)
class DataConfig:
    """.npy files of integer tokens; relative paths are below the data directory. `seq_len` is in tokens."""

    train: Path | None = field("data/train", default=None)
    eval: Path | None = field("data/eval", default=None)
    seq_len: int = field("data/seq_len", default=128)

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ConfigError(f"data.seq_len = {self.seq_len}: expected at least 1")


@dataclass(frozen=True)
class Microbatching:
    """How a batch is split: `accumulation_steps` microbatches of `microbatch_size` rows over all devices."""

    accumulation_steps: int
    microbatch_size: int

    @classmethod
    def of(cls, batch_size: int, per_device: int | None, data_shards: int) -> Microbatching:
        """Microbatches of `per_device` rows on each device, None: one microbatch; ConfigError if they do not fit."""
        if batch_size % data_shards:
            raise ConfigError(f"training.batch_size = {batch_size}: expected a multiple of {data_shards} data shards")
        size = batch_size if per_device is None else per_device * data_shards
        if batch_size % size:
            raise ConfigError(
                f"training.batch_size = {batch_size}: expected a multiple of {size}, which is per_device_batch_size "
                f"{per_device} on {data_shards} data shards"
            )
        return cls(batch_size // size, size)

    @classmethod
    def within(cls, batch_size: int, max_per_device: int, data_shards: int) -> Microbatching:
        """As few accumulation steps as possible with at most `max_per_device` rows on each device."""
        if batch_size % data_shards:
            raise ConfigError(f"training.batch_size = {batch_size}: expected a multiple of {data_shards} data shards")
        share = batch_size // data_shards
        per_device = max(size for size in range(1, min(max_per_device, share) + 1) if share % size == 0)
        return cls.of(batch_size, per_device, data_shards)
