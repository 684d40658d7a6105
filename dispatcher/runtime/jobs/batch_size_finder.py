"""The per-device batch size of a job that does not set one: from the cache, or by a search."""

from __future__ import annotations

import logging
import os
import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax

from dispatcher import contract
from dispatcher.errors import BatchSizeError
from dispatcher.runtime import collectives
from dispatcher.runtime.batch_size import cache_key, largest_that_fits, read_cache, write_cache
from dispatcher.runtime.configuration import Config, to_dict
from dispatcher.runtime.execution import ExecutionSpec, Topology
from dispatcher.runtime.launching import OUTPUT
from dispatcher.runtime.loaded_code import code_digest
from dispatcher.runtime.probe import JobProbe

FOLDER: Final = "batch_sizes"
_VARIABLES: Final = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")
_PREFIXES: Final = ("XLA_PYTHON_CLIENT_", "XLA_CLIENT_")
_NO_MEMORY: Final = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundBatchSize:
    """The largest number of `rows` that fits on each device, and the cache file that has it for other attempts."""

    rows: int
    path: Path

    @contextmanager
    def forget_on_oom(self) -> Iterator[None]:
        """Delete the cache file and raise a BatchSizeError when the block runs out of device memory.

        Another program may use the device, now or during the search; without this every attempt would fail alike.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not _NO_MEMORY.search(str(error)):
                raise
            self.path.unlink(missing_ok=True)
            raise BatchSizeError(
                f"training.per_device_batch_size = -1: {self.rows} rows per device were found to fit, and now they do "
                f"not: {str(error).splitlines()[0][:200]}\nDoes another program use the device? {self.path} was "
                "deleted: the next attempt searches again"
            ) from error


def find_batch_size(
    cls: type[Any],
    config: Config | Mapping[str, Any],
    spec: ExecutionSpec,
    topology: Topology,
    *,
    shards: int,
    batch_size: int,
    shapes: Mapping[str, Any],
) -> FoundBatchSize:
    """The most rows that fit on each device for the job `cls` with `config`.

    Rows are spread over `shards` parts of the mesh; `shapes` are those of a row and of what a device holds of the
    state. Jobs share a result if all that it depends on is equal: the code, the settings that affect memory, these
    shapes, the mesh, the devices, the versions of libraries.

    Jobs of several processes do not search, because a probe cannot use the devices of other processes. They use what a
    single process has found on as many such devices, or raise a BatchSizeError.
    """
    document = to_dict(config)
    share = max(1, batch_size // shards)
    job = f"{cls.__module__}.{cls.__qualname__}"
    device = topology.devices[0]
    about = {
        **{"chip": device.device_kind, "devices": len(topology.devices), "tensor_shards": topology.tensor_shards},
        **{"share": share, "memory": _memory(device), "versions": _versions(device), "code": code_digest()},
    }
    path = _directory(spec) / f"{cache_key(job, document, shapes=shapes, compiler=_compiler(), **about)}.json"
    cached: int | None = collectives.broadcast_result(lambda: read_cache(path))
    if cached is not None:
        _log.info("%s: batch size %d per device, from the cache (%s)", spec.name, cached, path)
        return FoundBatchSize(cached, path)
    if jax.process_count() > 1:
        raise BatchSizeError(
            "training.per_device_batch_size = -1: the processes of one job cannot search together, and no single "
            f"process has searched, with this code and these shapes, on {len(topology.devices)} {device.device_kind} "
            f"with {share} rows each: set a number"
        )
    cluster = spec.hardware.cluster
    probe = JobProbe(cls, document, topology.tensor_shards, share, str(cluster.data), cluster.checkpoints)
    found = largest_that_fits(probe, share, lambda rows: share % rows == 0)
    _log.info("%s: batch size %d per device on %s", spec.name, found, device.device_kind)
    try:
        write_cache(path, found, job=job, **about)
    except OSError as error:
        _log.warning("%s: cannot be written: %s; the next attempt searches again", path, error.strerror)
    return FoundBatchSize(found, path)


def _versions(device: jax.Device) -> dict[str, str]:
    """What compiles the job: the libraries, the platform and its driver."""
    found = {name: version(name) for name in ("jax", "jaxlib", "flax", "optax")}
    return {**found, "platform": str(device.client.platform_version)}


def _compiler() -> dict[str, str]:
    """The environment that changes what is compiled, and how much memory a process takes of its device."""
    return {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)}


def _memory(device: jax.Device) -> int | None:
    """The bytes that this process may use on a device; of a CPU those of the host, or the process's limit."""
    if device.platform != "cpu":
        limit = (device.memory_stats() or {}).get("bytes_limit")
        return None if limit is None else int(limit)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def _directory(spec: ExecutionSpec) -> Path:
    """One folder for all jobs of a workspace; without a dispatcher, a folder beside the job's own files."""
    root = os.environ.get(contract.ROOT)
    return Path(root) / OUTPUT / FOLDER if root else spec.hardware.cluster.root / FOLDER
