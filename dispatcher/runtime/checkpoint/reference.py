"""CheckpointRef: which checkpoint is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatcher.runtime.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class CheckpointRef:
    """One checkpoint of a series: `name` below `series`, a directory or a URL.

    Those of one series compare by `order`; the greatest is the newest. One that `save` returned is committed once
    `wait` or the next `save` has returned.
    """

    series: str
    name: str
    step: int
    order: tuple[int, int, int]
    job: str = ""
    created: str = ""
    parent: str | None = None
    resumable: bool = True
    metrics: Mapping[str, float | None] = field(default_factory=dict, hash=False)

    @property
    def url(self) -> str:
        """The directory, or the URL, of the checkpoint itself."""
        return f"{self.series}/{self.name}"

    @property
    def attempt(self) -> int:
        """Which attempt of its entry saved it; 0 when it was started by hand."""
        return self.order[1]

    @classmethod
    def of(cls, series: str, name: str, manifest: Manifest) -> CheckpointRef:
        """The checkpoint that `manifest`, found under `name`, describes."""
        return cls(
            series=series,
            name=name,
            step=manifest.step,
            order=manifest.order,
            job=manifest.job,
            created=manifest.created,
            parent=manifest.parent,
            resumable=manifest.resumable,
            metrics=manifest.metrics,
        )
