"""What every training can be told, beside its optimizer, its schedule and its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dispatcher.base.values import BadValueError, parse_duration, shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.checkpoint import Retention
from dispatcher.runtime.configuration import field

# Find the largest that fits into the memory of the device.
FIND = -1
# JAX makes a key of so many different seeds.
SEEDS = 2**32


@dataclass(frozen=True)
class TrainingConfig:
    """How long, in which portions, and what is kept of it.

    `batch_size` rows make one update, over all devices. `per_device_batch_size` of them are computed at once by each
    device, the rest one after another; null: all at once, -1: as many as fit into memory. `evaluate_every` is in steps,
    null: only at the end. A checkpoint is saved before each evaluation, when `save_interval` (10m, 1h30m or seconds;
    null: never) has passed since the last one, every `save_every` steps if that is not null, and at the end. `keep` is
    how many checkpoints stay beside the best one; `keep_every` keeps those whose step is a multiple of it, too.
    `preemption_s` bounds the time from a SIGTERM to the end, in seconds; so does four fifths of `kill_grace` in
    dispatcher.yaml.
    """

    steps: int = field("training/steps")
    batch_size: int = field("training/batch_size", default=32)
    per_device_batch_size: int | None = field("training/per_device_batch_size", default=None)
    seed: int = field("training/seed", default=0)
    log_every: int = field("training/log_every", default=10)
    evaluate_every: int | None = field("training/evaluate_every", default=None)
    save_every: int | None = field("training/save_every", default=None)
    save_interval: str | float | None = field("training/save_interval", default="10m")
    keep: int = field("training/keep", default=2)
    keep_every: int | None = field("training/keep_every", default=None)
    preemption_s: float = field("training/preemption_s", default=60.0)
    wandb: bool = field("training/wandb", default=False)

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "log_every", "evaluate_every", "save_every", "keep", "keep_every")
        faults = [
            f"training.{name} = {value}: expected at least 1"
            for name in counts
            if (value := getattr(self, name)) is not None and value < 1
        ]
        per_device = self.per_device_batch_size
        if per_device is not None and per_device < 1 and per_device != FIND:
            faults.append(f"training.per_device_batch_size = {per_device}: expected 1 or more, or -1")
        if not 0 <= self.seed < SEEDS:
            faults.append(f"training.seed = {self.seed}: expected 0 to {SEEDS - 1}")
        if self.preemption_s <= 0:
            faults.append(f"training.preemption_s = {self.preemption_s}: expected more than 0 seconds")
        try:
            self.save_interval_s  # noqa: B018  # to see whether it can be read
        except BadValueError as error:
            faults.append(f"training.save_interval = {shown(self.save_interval)}: {error}, or null")
        if faults:
            raise ConfigError("\n".join(faults))

    @property
    def save_interval_s(self) -> float | None:
        """After how many seconds without a checkpoint one is saved; None: never."""
        return None if self.save_interval is None else parse_duration(self.save_interval)

    @property
    def retention(self) -> Retention:
        return Retention(last=self.keep, every=self.keep_every)

    def is_due(self, every: int | None, step: int) -> bool:
        """Whether something that happens every so many steps, and at the end, happens after `step`."""
        return step == self.steps or (every is not None and step % every == 0)


@dataclass(frozen=True)
class DataConfig:
    """Where the tokens are: .npy files of whole numbers, below the data directory unless the path is absolute.

    `length` is how many tokens a row has.
    """

    train: Path | None = field("data/train", default=None)
    held_out: Path | None = field("data/held_out", default=None)
    length: int = field("data/length", default=128)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"data.length = {self.length}: expected at least 1")


@dataclass(frozen=True)
class Portions:
    """How the rows of one update are computed: `parts` one after another, each of `rows` over all devices."""

    parts: int
    rows: int

    @classmethod
    def of(cls, batch_size: int, per_device: int | None, data_shards: int) -> Portions:
        """ConfigError when the numbers do not go together."""
        if batch_size % data_shards:
            raise ConfigError(f"training.batch_size = {batch_size}: expected a multiple of {data_shards} data shards")
        rows = batch_size if per_device is None else per_device * data_shards
        if batch_size % rows:
            raise ConfigError(
                f"training.batch_size = {batch_size}: expected a multiple of {rows}, which is per_device_batch_size "
                f"{per_device} on {data_shards} data shards"
            )
        return cls(batch_size // rows, rows)

    @classmethod
    def fitting(cls, batch_size: int, most: int, data_shards: int) -> Portions:
        """As few parts as possible with at most `most` rows on each device."""
        if batch_size % data_shards:
            raise ConfigError(f"training.batch_size = {batch_size}: expected a multiple of {data_shards} data shards")
        share = batch_size // data_shards
        per_device = max(size for size in range(1, min(most, share) + 1) if share % size == 0)
        return cls.of(batch_size, per_device, data_shards)
