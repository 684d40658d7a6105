"""The batch size of a job whose configuration leaves it open: remembered, or searched for now."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax

from dispatcher import contract
from dispatcher.errors import BatchSizeError
from dispatcher.runtime.batch_size import key_of, largest_that_fits, remember, remembered
from dispatcher.runtime.checkpoint import processes
from dispatcher.runtime.configuration import Config, to_dict
from dispatcher.runtime.execution import ExecutionSpec, Topology
from dispatcher.runtime.launching import OUTPUT
from dispatcher.runtime.probe import JobProbe

FOLDER: Final = "batch_sizes"

_log = logging.getLogger(__name__)


def find_batch_size(
    cls: type[Any], config: Config | Mapping[str, Any], spec: ExecutionSpec, topology: Topology, batch_size: int
) -> int:
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
    known: int | None = processes.decide(lambda: remembered(directory, key))
    if known is not None:
        _log.info("%s: batch size %d per device, as found before (%s/%s.json)", spec.name, known, directory, key)
        return known
    if jax.process_count() > 1:
        raise BatchSizeError(
            "training.per_device_batch_size = -1: the processes of one job cannot search together; say a number, or "
            f"run it once with one process whose devices have {share} rows each"
        )
    data = str(spec.hardware.cluster.data)
    found = largest_that_fits(JobProbe(cls, document, topology.tensor_shards, share, data), share)
    remember(directory, key, found, job=job, **about)
    _log.info("%s: batch size %d per device on %s", spec.name, found, chip)
    return found


def _directory(spec: ExecutionSpec) -> Path:
    """One folder for all jobs of a workspace; by hand, beside the job's own files."""
    root = os.environ.get(contract.ROOT)
    return Path(root) / OUTPUT / FOLDER if root else spec.hardware.cluster.root / FOLDER
