"""Where and as what a job runs: its name, its devices and their mesh, and where its files go."""

from __future__ import annotations

import contextlib
import os
import socket
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from dispatcher.base import files
from dispatcher.errors import UsageError
from dispatcher.runtime import distributed
from dispatcher.runtime.storing import storage_error

DATA_AXIS: Final = "data"
TENSOR_AXIS: Final = "tensor"

# Where a job without a project or a group stands.
DEFAULT_FOLDER: Final = "default"

# Filesystems take 255; some files beside it carry the name and an ending.
_LONGEST_NAME_BYTES: Final = 200


@dataclass(frozen=True)
class Cluster:
    """The directories of one set of hosts that see the same files; `checkpoints` may be a URL (`s3://bucket/...`)."""

    root: Path
    checkpoints: str
    results: Path
    data: Path

    @classmethod
    def at(cls, root: str | os.PathLike[str], *, checkpoints: str | None = None) -> Cluster:
        """`checkpoints/`, `results/` and `data/` below `root`; nothing is created."""
        top = Path(root).absolute()
        return cls(
            root=top,
            checkpoints=checkpoints or str(top / "checkpoints"),
            results=top / "results",
            data=top / "data",
        )


@dataclass(frozen=True)
class Hardware:
    """What a job was given: `devices` over all `processes`, all of one `chip` (such as `NVIDIA H100` or `cpu`)."""

    platform: str
    chip: str
    devices: int
    processes: int
    host: str
    cluster: Cluster

    @classmethod
    def detect(cls, cluster: Cluster) -> Hardware:
        """The devices that JAX sees now, in all processes of the job."""
        first = jax.devices()[0]
        return cls(
            platform=first.platform,
            chip=first.device_kind,
            devices=jax.device_count(),
            processes=jax.process_count(),
            host=socket.gethostname(),
            cluster=cluster,
        )


@dataclass(frozen=True)
class Topology:
    """Devices as a mesh of data shards by tensor shards: the batch is split along one, weights along the other.

    The devices of one tensor group are neighbours, so that it stays within one process wherever it fits.
    """

    devices: tuple[jax.Device, ...]
    tensor_shards: int = 1

    def __post_init__(self) -> None:
        count = len(self.devices)
        if self.tensor_shards < 1 or count == 0 or count % self.tensor_shards:
            fitting = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
            raise UsageError(
                f"tensor_shards = {self.tensor_shards}: {count} devices can be split into {fitting} shards"
            )

    @classmethod
    def detect(cls, tensor_shards: int = 1) -> Topology:
        """All devices that JAX sees now, in all processes of the job."""
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        return cls(tuple(devices), tensor_shards)

    @property
    def data_shards(self) -> int:
        """Into how many parts a batch is split."""
        return len(self.devices) // self.tensor_shards

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh, of shape (data_shards, tensor_shards), with the axes `data` and `tensor`."""
        grid = np.array(self.devices, dtype=object).reshape(self.data_shards, self.tensor_shards)
        return Mesh(grid, (DATA_AXIS, TENSOR_AXIS), axis_types=(AxisType.Auto, AxisType.Auto))


@dataclass(frozen=True)
class ExecutionSpec:
    """One run of one job. `name`, `project` and `group` are folders' names; without a project or group: `default`.

    `topology` is None for a job that uses no devices. `distributed`: several processes run it together.
    """

    name: str
    hardware: Hardware
    project: str | None = None
    group: str | None = None
    topology: Topology | None = None
    distributed: bool = False

    def __post_init__(self) -> None:
        for word, value in (("name", self.name), ("project", self.project), ("group", self.group)):
            if value is not None and (problem := _name_problem(value)) is not None:
                raise UsageError(f"{word} = {value!r}: {problem}")

    @property
    def relative_path(self) -> PurePosixPath:
        """`project/group/name`, below the checkpoints and below the results."""
        return PurePosixPath(self.project or DEFAULT_FOLDER, self.group or DEFAULT_FOLDER, self.name)

    def result_path(self, name: str) -> Path:
        """Where the result file `name` (`table.json`, `plots/loss.pdf`) of this job stands."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UsageError(f"result {name!r}: expected a file's name, or a path below the job's results")
        return self.hardware.cluster.results / self.relative_path / path

    @contextlib.contextmanager
    def result(
        self, name: str, main_process_only: bool = True, *, mode: str = "w", encoding: str | None = None
    ) -> Iterator[IO[Any] | None]:
        """The result file `name`, open for writing; it appears under its name, whole, when the block ends well.

        On all processes but the first the block gets None, unless `main_process_only` is false: then each of them
        writes a file of its own, with the process's number in its name (`table.1.json`). StorageError when it cannot
        be written.
        """
        number = jax.process_index()
        if number and main_process_only:
            yield None
            return
        path = self.result_path(name)
        if number:
            path = path.with_name(f"{path.stem}.{number}{path.suffix}")
        temporary = files.temporary_name(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open(mode, encoding=encoding or (None if "b" in mode else "utf-8")) as file:
                yield file
                file.flush()
                # Without it a power loss after the rename can leave an empty file under the final name.
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            # Writing names no file; what the block has opened besides is its own affair.
            if error.filename not in (None, str(path.parent), str(temporary)):
                raise
            raise storage_error(error, f"{path}: cannot be written") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _name_problem(value: str) -> str | None:
    """What keeps `value` from being a folder's name, here and in what is written about it; None when nothing does."""
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        return "expected a folder's name in UTF-8"
    if value in ("", ".", "..") or "/" in value:
        return "expected a folder's name, without '/'"
    if any(unicodedata.category(letter) == "Cc" for letter in value):
        return "expected a folder's name, without line breaks and other control characters"
    if length > _LONGEST_NAME_BYTES:
        return f"expected a folder's name of at most {_LONGEST_NAME_BYTES} bytes; this one has {length}"
    return None


def local(
    root: str | os.PathLike[str],
    name: str = "local",
    project: str | None = None,
    group: str | None = None,
    *,
    tensor_shards: int = 1,
    checkpoints: str | None = None,
) -> ExecutionSpec:
    """The specification of a run on the devices that are there, with its files below `root`.

    In a job of several processes, which find each other here, these are the devices of all of them.
    """
    distributed.initialize()
    return ExecutionSpec(
        name=name,
        project=project,
        group=group,
        hardware=Hardware.detect(Cluster.at(root, checkpoints=checkpoints)),
        topology=Topology.detect(tensor_shards),
        distributed=jax.process_count() > 1,
    )
