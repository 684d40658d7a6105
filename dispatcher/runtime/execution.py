"""The execution environment of a job: its name, its devices, its directories."""

from __future__ import annotations

import contextlib
import os
import socket
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

import jax

from dispatcher.base import files
from dispatcher.base.storing import storage_error
from dispatcher.errors import UsageError
from dispatcher.runtime import distributed

DATA_AXIS: Final = "data"
TENSOR_AXIS: Final = "tensor"

# The folder of a job without a project or a group.
_DEFAULT_FOLDER: Final = "default"

# Filesystems allow 255; the names of some files are this name and a suffix.
_LONGEST_NAME_BYTES: Final = 200


@dataclass(frozen=True)
class Cluster:
    """The directories of hosts that share a filesystem; `checkpoints` may be a URL (`s3://bucket/...`)."""

    root: Path
    checkpoints: str
    results: Path
    data: Path

    @classmethod
    def at(
        cls,
        root: str | os.PathLike[str],
        *,
        checkpoints: str | None = None,
        results: str | os.PathLike[str] | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> Cluster:
        """`checkpoints/`, `results/` and `data/` below `root`, where no other place is given; nothing is created."""
        top = Path(root).absolute()
        return cls(
            root=top,
            checkpoints=checkpoints or str(top / "checkpoints"),
            results=Path(results).absolute() if results else top / "results",
            data=Path(data).absolute() if data else top / "data",
        )


@dataclass(frozen=True)
class Hardware:
    """The hardware of a job: `devices` over all `processes`, all of one `chip` (such as `NVIDIA H100` or `cpu`)."""

    platform: str
    chip: str
    devices: int
    processes: int
    host: str
    cluster: Cluster

    @classmethod
    def detect(cls, cluster: Cluster) -> Hardware:
        """The devices that JAX sees, in all processes of the job."""
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
    """The devices of a job, and over how many of them its weights are sharded unless its configuration says more
    (`training.placement.make_mesh`)."""

    devices: tuple[jax.Device, ...]
    tensor_shards: int = 1

    def __post_init__(self) -> None:
        count = len(self.devices)
        if self.tensor_shards < 1 or count == 0 or count % self.tensor_shards:
            divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
            expected = f"expected one of {divisors}" if count else "expected at least one device"
            raise UsageError(f"tensor_shards = {self.tensor_shards}: {count} devices: {expected}")

    @classmethod
    def detect(cls, tensor_shards: int = 1) -> Topology:
        """All devices that JAX sees, in all processes of the job."""
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        return cls(tuple(devices), tensor_shards)


@dataclass(frozen=True)
class ExecutionSpec:
    """One run of one job. `name`, `project` and `group` are folder names; project and group default to `default`.

    `topology` is None for a job that uses no devices. `distributed`: the job has several processes.
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
        return PurePosixPath(self.project or _DEFAULT_FOLDER, self.group or _DEFAULT_FOLDER, self.name)

    def result_path(self, name: str) -> Path:
        """The path of the result file `name` (`table.json`, `plots/loss.pdf`) of this job."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UsageError(f"result {name!r}: expected a file name, or a path below the job's results")
        return self.hardware.cluster.results / self.relative_path / path

    @contextlib.contextmanager
    def result(
        self, name: str, main_process_only: bool = True, *, mode: str = "w", encoding: str | None = None
    ) -> Iterator[IO[Any] | None]:
        """Open the result file `name` for writing; it is published atomically when the block ends without an error.

        Only process 0 writes, and the block gets None on the others, unless `main_process_only` is false: then each
        other process writes its own file with its number in the name (`table.1.json`). StorageError when the file
        cannot be written.
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
            # Errors of writes carry no file name; those of other files that the block opens are not ours.
            if error.filename not in (None, str(path.parent), str(temporary)):
                raise
            raise storage_error(error, f"{path}: cannot be written") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _name_problem(value: str) -> str | None:
    """Why `value` cannot be a folder name; None if it can."""
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        return "expected a folder name in UTF-8"
    if value in ("", ".", "..") or "/" in value:
        return "expected a folder name, without '/'"
    if any(unicodedata.category(letter) == "Cc" for letter in value):
        return "expected a folder name, without line breaks and other control characters"
    if length > _LONGEST_NAME_BYTES:
        return f"expected a folder name of at most {_LONGEST_NAME_BYTES} bytes; this one has {length}"
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
    """The specification of a run on all devices of this job's processes, with its files below `root`.

    Initializes `jax.distributed` if the job has several processes.
    """
    return spec_at(Cluster.at(root, checkpoints=checkpoints), name, project, group, tensor_shards)


def spec_at(
    cluster: Cluster, name: str, project: str | None = None, group: str | None = None, tensor_shards: int = 1
) -> ExecutionSpec:
    """As `local`, with the directories of `cluster`."""
    distributed.initialize()
    return ExecutionSpec(
        name=name,
        project=project,
        group=group,
        hardware=Hardware.detect(cluster),
        topology=Topology.detect(tensor_shards),
        distributed=jax.process_count() > 1,
    )
