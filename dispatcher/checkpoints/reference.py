"""CheckpointRef: a reference to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatcher.checkpoints.manifest import Manifest


@dataclass(frozen=True)
class CheckpointRef:
    """One checkpoint of a series: `name` below `series`, a directory or a URL.

    Within a series the one with the greatest `order` is the newest. A checkpoint that `save` returned is committed once
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
        """The attempt of its job that saved it; 0 for a run started by hand."""
        return self.order[1]

    @classmethod
    def of(cls, series: str, name: str, manifest: Manifest) -> CheckpointRef:
        """The checkpoint `name` with this manifest."""
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
