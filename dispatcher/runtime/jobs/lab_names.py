"""The job classes with the names that a lab's own classes use, so that these move over by changing an import.

    from dispatcher.runtime.jobs.lab_names import CheckpointedJob, InferenceJob, RestoreableJob, Trainer

`LabNames` is the mixin that has the names; the classes here are those of the package with it. New classes inherit from
the package's own, whose saves run in the background: those of `LabNames` return when the checkpoint is committed.

`restore_from_path`, `from_checkpoint_path`, `register` and `latest` have the same names in both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
from flax import nnx
from jax.sharding import Mesh

from dispatcher.errors import CheckpointError, DamagedCheckpointError, UsageError
from dispatcher.runtime.checkpoint import Contents, RandomState
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.jobs import checkpointed, inference, restoreable
from dispatcher.runtime.parameters import Arrays
from dispatcher.runtime.training import trainer
from dispatcher.runtime.training.data import local_rows
from dispatcher.runtime.training.placement import batch_shards, make_mesh

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)

Path = str | os.PathLike[str]

# Where a configuration may have the length of rows, in this order.
_BLOCK_SIZES = (("architecture", "block_size"), ("data", "seq_len"), ("model", "max_seq_len"))
_PER_DEVICE = ("training", "per_device_batch_size")


class LabNames(checkpointed.CheckpointedJob[C], Generic[C]):
    """The names. A `suffix` is a checkpoint of this job, a `rel_path` of `..._from_path` one of any job.

    Saves and loads carry the random state: Python's, NumPy's, and `key`. All are collective.
    """

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.key: jax.Array = jax.random.PRNGKey(0)

    def save_tree_and_metadata(self, suffix: Path, tree: Any, metadata: Mapping[str, Any]) -> None:
        self.save_tree_and_metadata_from_path(self.path_of(os.fspath(suffix)), tree, metadata)

    def save_tree_and_metadata_from_path(self, rel_path: Path, tree: Any, metadata: Mapping[str, Any]) -> None:
        beside = Contents(random=RandomState.capture(self.key))
        self.save_from_path(os.fspath(rel_path), tree, metadata=metadata, beside=beside)
        self.wait()

    def get_tree_and_metadata(
        self, suffix: Path, template_tree: Any, partial: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        return self.get_tree_and_metadata_from_path(self.path_of(os.fspath(suffix)), template_tree, partial)

    def get_tree_and_metadata_from_path(
        self, rel_path: Path, template_tree: Any, partial: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """The tree with the structure and on the devices of `template_tree`, and the metadata.

        With `partial` the checkpoint may have more than the template.
        """
        restored = self.load_from_path(os.fspath(rel_path), template_tree, partial=partial)
        random = restored.contents.random
        key = None if random is None else random.restore()
        self.key = self.key if key is None else key
        return restored.tree, dict(restored.contents.metadata)

    def save_tree(self, suffix: Path, tree: Any) -> None:
        self.save_tree_from_path(self.path_of(os.fspath(suffix)), tree)

    def save_tree_from_path(self, rel_path: Path, tree: Any) -> None:
        self.save_tree_and_metadata_from_path(rel_path, tree, {})

    def get_tree(self, suffix: Path, template_tree: Any, partial: bool = False) -> Any:
        return self.get_tree_from_path(self.path_of(os.fspath(suffix)), template_tree, partial)

    def get_tree_from_path(self, rel_path: Path, template_tree: Any, partial: bool = False) -> Any:
        return self.get_tree_and_metadata_from_path(rel_path, template_tree, partial)[0]

    def save_metadata(self, suffix: Path, metadata: Mapping[str, Any]) -> None:
        self.save_metadata_from_path(self.path_of(os.fspath(suffix)), metadata)

    def save_metadata_from_path(self, rel_path: Path, metadata: Mapping[str, Any]) -> None:
        """Save a checkpoint that has no tree; UsageError where there is one with a tree, which would be lost."""
        path = os.fspath(rel_path)
        if self._has_tree(path):
            raise UsageError(
                f"checkpoint {path!r} has a tree, which metadata alone would replace: save both at once with "
                "save_tree_and_metadata, or choose another name"
            )
        self.save_tree_and_metadata_from_path(path, {}, metadata)

    def _has_tree(self, path: str) -> bool:
        try:
            return bool(self.leaves_from_path(path))
        except DamagedCheckpointError:
            raise
        except CheckpointError:
            # There is no such checkpoint yet.
            return False

    def get_metadata(self, suffix: Path) -> dict[str, Any]:
        return self.get_metadata_from_path(self.path_of(os.fspath(suffix)))

    def get_metadata_from_path(self, rel_path: Path) -> dict[str, Any]:
        return dict(self.metadata_from_path(os.fspath(rel_path)))

    @property
    def mesh(self) -> Mesh:
        """The mesh of the job's devices."""
        topology: Topology = self.spec.topology or Topology.detect()
        return make_mesh(topology, {})

    @property
    def replicas(self) -> int:
        """Into how many parts the rows of a batch are split, over all processes."""
        return batch_shards(self.mesh)

    @property
    def local_replicas(self) -> int:
        """How many of these parts the devices of this process compute."""
        return len(local_rows(self.replicas, self.mesh))

    @property
    def per_device_batch_size(self) -> int:
        """How many rows a device computes at once."""
        return self._setting("per_device_batch_size", [_PER_DEVICE])

    @property
    def block_size(self) -> int:
        """The length of a row, in tokens."""
        return self._setting("block_size", _BLOCK_SIZES)

    def _setting(self, name: str, places: Any) -> int:
        """The first number that `args` or the configuration has for this name; -1 is none yet."""
        document: Any = self._config or {}
        given = [getattr(self.args, name, None)]
        given += [document[group][key] for group, key in places if group in document and key in document[group]]
        for value in given:
            if isinstance(value, int) and value > 0:
                return value
        expected = ", ".join(f"{group}.{key}" for group, key in places)
        raise UsageError(f"{name}: the configuration has no such number: expected it as {expected}")


@dataclass(frozen=True)
class ModelState:
    """The arrays of a model by name: `params` are its nnx.Params, `variables` all others."""

    params: Arrays
    variables: Arrays


class CheckpointedJob(LabNames[C], Generic[C]):
    """As in the package, with LabNames."""


class RestoreableJob(LabNames[C], restoreable.RestoreableJob[C], Generic[C]):
    """As in the package, with LabNames."""


class Trainer(LabNames[C], trainer.Trainer[C, M], Generic[C, M]):
    """As in the package, with LabNames; `state` is the training state."""

    @property
    def mesh(self) -> Mesh:
        return self.setup.mesh

    @property
    def state_sharding(self) -> Any:
        """The shardings of `state`, in its structure."""
        return self.setup.layout.shardings

    @property
    def per_device_batch_size(self) -> int:
        return self.setup.microbatching.microbatch_size // self.replicas


class InferenceJob(LabNames[C], inference.InferenceJob[C, M], Generic[C, M]):
    """As in the package, with LabNames."""

    @property
    def mesh(self) -> Mesh:
        return self.setup.mesh

    @property
    def state(self) -> ModelState:
        """The model's arrays."""
        return self._split(self.arrays)

    @property
    def state_sharding(self) -> ModelState:
        """The shardings of `state`, in its structure."""
        shardings: dict[str, Any] = self.setup.placement.shardings(self.setup.model.variables)
        return self._split(shardings)

    def _split(self, named: dict[str, Any]) -> ModelState:
        names = self.setup.parameters
        params = {name: each for name, each in named.items() if name in names}
        return ModelState(params, {name: each for name, each in named.items() if name not in names})
