"""The arrays of a checkpoint, through the v1 API of Orbax: written asynchronously, read onto any devices."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from dispatcher.base.storing import storage_error
from dispatcher.errors import CheckpointError, StorageError

ARRAYS: Final = "checkpoint"
# The target size of a file of arrays: small enough for several checksums in parallel. Orbax's default is 2 GB.
DATA_FILE_BYTES: Final = 256 * 1024 * 1024

_OS_ERROR: Final = re.compile(r"os_error_code='(\d+)'")
# Longer messages contain the whole specification of an array's storage.
_MOST_CHARACTERS: Final = 400


class Writing(Protocol):
    """A save of arrays in progress."""

    def result(self) -> None:
        """Wait until all processes have written everything."""


def begin_saving(path: Path, arrays: Mapping[str, Any], *, compress: bool) -> Writing:
    """Copy the arrays off the devices and begin to write them to the new directory `path`. Collective.

    When it returns, the arrays may be changed, donated or deleted.
    """
    from orbax.checkpoint import v1 as orbax  # type: ignore[import-untyped]  # Orbax publishes no types

    _quieten()
    context = orbax.Context()
    # Weights hardly compress (by 8 % for float32), and compression takes longer than the rest of a save.
    context.array.saving.use_compression = compress
    context.array.saving.ocdbt_target_data_file_size = DATA_FILE_BYTES
    with context:
        writing: Writing = orbax.save_async(str(path), dict(arrays))
    return writing


def load(path: Path, abstract: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    """The arrays that `abstract` describes, each with its sharding. Collective."""
    from orbax.checkpoint import v1 as orbax

    _quieten()
    context = orbax.Context()
    context.pytree.loading.partial_load = partial
    with context:
        loaded: dict[str, Any] = orbax.load(str(path), dict(abstract))
    return loaded


def writing_error(error: Exception, doing: str) -> Exception:
    """The error of this package for a failure of Orbax or TensorStore."""
    code = _OS_ERROR.search(str(error))
    if code is not None:
        number = int(code.group(1))
        return storage_error(OSError(number, os.strerror(number)), doing)
    if isinstance(error, OSError):
        return storage_error(error, doing)
    if isinstance(error, StorageError | CheckpointError):
        return error
    return CheckpointError(f"{doing}: {type(error).__name__}: {str(error)[:_MOST_CHARACTERS]}")


class _RepeatedErrors(logging.Filter):
    """Drops the log records of Orbax's threads for errors that the caller gets as exceptions."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "_SignalingThread.run() raised an exception" not in record.getMessage()


_filter: Final = _RepeatedErrors()


def _quieten() -> None:
    logging.getLogger("absl").addFilter(_filter)
    _silence_late_writes()


@cache
def _silence_late_writes() -> None:
    """Keep TensorStore from printing a traceback for each array that it writes after another one has failed.

    Nothing waits for those writes; their tracebacks, perhaps thousands, would hide the actual error.
    """
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error, trace = unraisable.exc_value, unraisable.exc_traceback
        late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (late and trace is not None and trace.tb_frame.f_code.co_name == "call_soon_threadsafe"):
            others(unraisable)

    sys.unraisablehook = hook
