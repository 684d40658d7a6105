"""run.json: which run of an attempt this is, on which devices, and whether it is still alive.

`dispatcher show` reads it. The file is replaced atomically, every HEARTBEAT_S seconds and at each change. A disk that
is full or gone does not end the job: the failure is logged, and the next heartbeat tries again.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dispatcher import contract
from dispatcher.base.host import host_name

HEARTBEAT_S: Final = 30.0

_log = logging.getLogger(__name__)


class RunRecord:
    """The record of this process's run in the file `path`; `facts` are further values of it.

    Inside the block a thread keeps the heartbeat. `status` is `running` until the end: then `completed`, `failed` with
    the error, or `preempted`, which is also what it is as soon as a signal has asked the job to stop.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], *, interval_s: float = HEARTBEAT_S) -> None:
        self._path = path
        self._interval_s = interval_s
        self._values: dict[str, Any] = {
            "run_id": uuid.uuid4().hex,
            "status": contract.RUN_RUNNING,
            "error": None,
            "host": host_name(),
            "pid": os.getpid(),
            "started_at": _now(),
            **facts,
        }
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def update(self, **facts: Any) -> None:
        """Change values of the record; they are written at once, by the thread."""
        with self._lock:
            self._values = {**self._values, **facts}
        self._changed.set()

    def preempt(self) -> None:
        """A signal has asked the job to stop. Whether it saves in time is not known yet."""
        self.update(status=contract.RUN_PREEMPTED)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._changed.set()
        # A write on a filesystem that hangs must not keep the job from ending.
        self._thread.join(self._interval_s)
        status, text = _outcome(error)
        self.update(status=status, error=text)
        if not self._thread.is_alive():
            self._write()

    def _beat(self) -> None:
        while not self._closing:
            if self._changed.wait(self._interval_s):
                self._changed.clear()
            if not self._closing:
                self._write()

    def _write(self) -> None:
        try:
            contract.write_json(self._path, {**self._values, "heartbeat_at": _now()})
        except OSError as error:
            _log.warning("%s: the heartbeat cannot be written: %s", self._path, error.strerror)


def _outcome(error: BaseException | None) -> tuple[str, str | None]:
    """The status and the error text of a run that ended with `error`."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, contract.EXIT_DONE)):
        return contract.RUN_COMPLETED, None
    if isinstance(error, SystemExit) and error.code == contract.EXIT_PREEMPTED:
        return contract.RUN_PREEMPTED, None
    text = f"exit status {error.code}" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    return contract.RUN_FAILED, text


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
