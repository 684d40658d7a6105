"""The per-device batch size of a job that does not set one: from the cache, or by a search."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from dispatcher.runtime.probe import JobProbe

FOLDER: Final = "batch_sizes"
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
) -> FoundBatchSize:
    """The most rows that fit on each device for the job `cls` with `config`; sibling jobs share one search.

    Rows are spread over `shards` parts of the mesh.

    Jobs of several processes do not search, because a probe cannot use the devices of other processes. They use what a
    single process has found on such a device, or raise a BatchSizeError.
    """
    document = to_dict(config)
    share = max(1, batch_size // shards)
    job = f"{cls.__module__}.{cls.__qualname__}"
    chip = topology.devices[0].device_kind
    about = {"chip": chip, "tensor_shards": topology.tensor_shards, "share": share, "jax": jax.__version__}
    path = _directory(spec) / f"{cache_key(job, document, **about)}.json"
    cached: int | None = collectives.broadcast_result(lambda: read_cache(path))
    if cached is not None:
        _log.info("%s: batch size %d per device, from the cache (%s)", spec.name, cached, path)
        return FoundBatchSize(cached, path)
    if jax.process_count() > 1:
        raise BatchSizeError(
            "training.per_device_batch_size = -1: the processes of one job cannot search together; set a number, or "
            f"run it once with one process whose devices have {share} rows each"
        )
    cluster = spec.hardware.cluster
    probe = JobProbe(cls, document, topology.tensor_shards, share, str(cluster.data), cluster.checkpoints)
    found = largest_that_fits(probe, share, lambda rows: share % rows == 0)
    _log.info("%s: batch size %d per device on %s", spec.name, found, chip)
    try:
        write_cache(path, found, job=job, **about)
    except OSError as error:
        _log.warning("%s: cannot be written: %s; the next attempt searches again", path, error.strerror)
    return FoundBatchSize(found, path)


def _directory(spec: ExecutionSpec) -> Path:
    """One folder for all jobs of a workspace; without a dispatcher, a folder beside the job's own files."""
    root = os.environ.get(contract.ROOT)
    return Path(root) / OUTPUT / FOLDER if root else spec.hardware.cluster.root / FOLDER
