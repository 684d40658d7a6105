"""Orbax, its v1 API: the arrays of a checkpoint, written asynchronously and read onto any devices."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from dispatcher.errors import CheckpointError, StorageError
from dispatcher.runtime.storing import storage_error

ARRAYS: Final = "checkpoint"
# About how large a file of arrays is: the checksums of several can be taken at a time. Orbax's default is 2 GB.
DATA_FILE_BYTES: Final = 256 * 1024 * 1024

_OS_ERROR: Final = re.compile(r"os_error_code='(\d+)'")
# Longer messages carry the whole specification of an array's storage.
_MOST_CHARACTERS: Final = 400


class Writing(Protocol):
    """Arrays on their way to the disk."""

    def result(self) -> None:
        """Wait until all processes have written everything."""


def begin_saving(path: Path, arrays: Mapping[str, Any], *, compress: bool) -> Writing:
    """Copy the arrays off the devices and begin to write them to the new directory `path`; all processes together.

    When it returns, the arrays may be changed, donated or deleted.
    """
    from orbax.checkpoint import v1 as orbax  # type: ignore[import-untyped]  # Orbax publishes no types

    _quieten()
    context = orbax.Context()
    # Weights hardly compress (8 % of float32), and compressing takes longer than all the rest of a save.
    context.array.saving.use_compression = compress
    context.array.saving.ocdbt_target_data_file_size = DATA_FILE_BYTES
    with context:
        writing: Writing = orbax.save_async(str(path), dict(arrays))
    return writing


def load(path: Path, abstract: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    """The arrays that `abstract` describes, each where its sharding says; all processes together."""
    from orbax.checkpoint import v1 as orbax

    _quieten()
    context = orbax.Context()
    context.pytree.loading.partial_load = partial
    with context:
        loaded: dict[str, Any] = orbax.load(str(path), dict(abstract))
    return loaded


def writing_error(error: Exception, doing: str) -> Exception:
    """What a failure of Orbax or TensorStore means, in this project's terms."""
    code = _OS_ERROR.search(str(error))
    if code is not None:
        number = int(code.group(1))
        return storage_error(OSError(number, os.strerror(number)), doing)
    if isinstance(error, OSError):
        return storage_error(error, doing)
    if isinstance(error, StorageError | CheckpointError):
        return error
    return CheckpointError(f"{doing}: {type(error).__name__}: {str(error)[:_MOST_CHARACTERS]}")


class _SaysItTwice(logging.Filter):
    """Drops what Orbax's threads print about an error that the caller gets as an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "_SignalingThread.run() raised an exception" not in record.getMessage()


_filter: Final = _SaysItTwice()


def _quieten() -> None:
    logging.getLogger("absl").addFilter(_filter)
    _leave_out_what_came_too_late()


@cache
def _leave_out_what_came_too_late() -> None:
    """Keep TensorStore from printing a traceback for each array that it wrote after another had failed.

    Nobody waits for those any more; there may be thousands, and they bury what did go wrong.
    """
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error, trace = unraisable.exc_value, unraisable.exc_traceback
        late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (late and trace is not None and trace.tb_frame.f_code.co_name == "call_soon_threadsafe"):
            others(unraisable)

    sys.unraisablehook = hook
