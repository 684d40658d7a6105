"""The batch size of a job whose configuration leaves it open: remembered, or searched for now."""

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
from dispatcher.runtime.batch_size import key_of, largest_that_fits, remember, remembered
from dispatcher.runtime.configuration import Config, to_dict
from dispatcher.runtime.execution import ExecutionSpec, Topology
from dispatcher.runtime.launching import OUTPUT
from dispatcher.runtime.probe import JobProbe

FOLDER: Final = "batch_sizes"
_NO_MEMORY: Final = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """The most rows that fit on each device, and the file that says so for siblings and later attempts."""

    rows: int
    path: Path

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Run the training in the block; when it runs out of memory all the same, forget the size, and say so.

        Somebody else may use the device too, now or when it was found. Without this every further attempt would fail
        alike.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not _NO_MEMORY.search(str(error)):
                raise
            self.path.unlink(missing_ok=True)
            raise BatchSizeError(
                f"training.per_device_batch_size = -1: {self.rows} rows per device were found to fit, and now they do "
                f"not: {str(error).splitlines()[0][:200]}\nDoes something else use the device? {self.path} is removed: "
                "the next attempt searches again"
            ) from error


def find_batch_size(
    cls: type[Any], config: Config | Mapping[str, Any], spec: ExecutionSpec, topology: Topology, batch_size: int
) -> Fit:
    """The most rows that fit on each device, for the job `cls` with `config`; searched for once by all siblings.

    Of several processes nobody searches: they hold the devices together. They take what one process has found on such
    a device; BatchSizeError when there is nothing to take.
    """
    document = to_dict(config)
    share = max(1, batch_size // topology.data_shards)
    job = f"{cls.__module__}.{cls.__qualname__}"
    chip = topology.devices[0].device_kind
    about = {"chip": chip, "tensor_shards": topology.tensor_shards, "share": share, "jax": jax.__version__}
    key, directory = key_of(job, document, **about), _directory(spec)
    path = directory / f"{key}.json"
    known: int | None = collectives.broadcast_result(lambda: remembered(path))
    if known is not None:
        _log.info("%s: batch size %d per device, as found before (%s)", spec.name, known, path)
        return Fit(known, path)
    if jax.process_count() > 1:
        raise BatchSizeError(
            "training.per_device_batch_size = -1: the processes of one job cannot search together; say a number, or "
            f"run it once with one process whose devices have {share} rows each"
        )
    cluster = spec.hardware.cluster
    probe = JobProbe(cls, document, topology.tensor_shards, share, str(cluster.data), cluster.checkpoints)
    found = largest_that_fits(probe, share, lambda rows: share % rows == 0)
    _log.info("%s: batch size %d per device on %s", spec.name, found, chip)
    try:
        remember(path, found, job=job, **about)
    except OSError as error:
        _log.warning("%s: cannot be written: %s; the next attempt searches again", path, error.strerror)
    return Fit(found, path)


def _directory(spec: ExecutionSpec) -> Path:
    """One folder for all jobs of a workspace; by hand, beside the job's own files."""
    root = os.environ.get(contract.ROOT)
    return Path(root) / OUTPUT / FOLDER if root else spec.hardware.cluster.root / FOLDER
