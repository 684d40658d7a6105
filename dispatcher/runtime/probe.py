"""Try a batch size in a process of its own: `python -m dispatcher.runtime.probe`, with the job as JSON on its input."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import BatchSizeError
from dispatcher.runtime.batch_size import ProbeResult

# Errors of devices, compilers and the kernel that are out of memory. Some drivers report it as INTERNAL.
_TOO_LARGE: Final = re.compile(
    r"RESOURCE_EXHAUSTED|JaxRuntimeError: INTERNAL|[Oo]ut of memory|std::bad_alloc|MemoryError|Cannot allocate memory"
)
# The kernel's out-of-memory killer.
_KILLED: Final = (-signal.SIGKILL, 128 + signal.SIGKILL)
_SHOWN_LINES: Final = 15
# A driver takes a moment to free the memory of a process that has ended; the next probe must not miss it.
_PAUSE_S: Final = 1.0


@dataclass(frozen=True)
class JobProbe:
    """Tries batch sizes of the job class `cls` with `config`, on the devices that a fresh process sees."""

    cls: type[Any]
    config: Mapping[str, Any]
    tensor_shards: int
    # A device's rows of one update. With fewer at once gradients are accumulated, which takes memory.
    share: int
    # Where the job reads: the directory of its data, and the directory or URL of the checkpoints.
    data: str
    checkpoints: str

    def __call__(self, rows: int, timeout_s: float) -> ProbeResult:
        """Make two updates with `rows` rows per device; BatchSizeError when they fail, but not for lack of memory."""
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="probe-") as folder:
            steps = 1 if rows >= self.share else 2
            request = {**self._request(), "rows": rows, "accumulation_steps": steps, "folder": folder}
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dispatcher.runtime.probe"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_environment(),
                text=True,
                errors="replace",
            )
            try:
                _, stderr = process.communicate(json.dumps(request), timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return ProbeResult(False, time.monotonic() - began_s, f"not finished after {timeout_s:.0f} s")
            finally:
                # Also when this process is interrupted: no probe may keep using the device.
                process.kill()
                process.wait()
                time.sleep(_PAUSE_S)
        return _result(process.returncode, stderr, time.monotonic() - began_s, rows)

    def _request(self) -> dict[str, Any]:
        module = sys.modules[self.cls.__module__]
        return {
            "module": self.cls.__module__,
            "file": getattr(module, "__file__", None),
            "class": self.cls.__qualname__,
            "path": sys.path,
            "config": self.config,
            "tensor_shards": self.tensor_shards,
            "data": self.data,
            "checkpoints": self.checkpoints,
        }


def _result(code: int, stderr: str, seconds: float, rows: int) -> ProbeResult:
    if code == 0:
        return ProbeResult(True, seconds)
    matching = next((line.strip() for line in stderr.splitlines() if _TOO_LARGE.search(line)), None)
    if matching is not None or code in _KILLED:
        return ProbeResult(False, seconds, (matching or "killed by the kernel")[:200])
    shown = "\n".join(stderr.rstrip().splitlines()[-_SHOWN_LINES:])
    raise BatchSizeError(
        f"the probe of batch size {rows} failed with exit status {code}, not for lack of memory:\n{shown}"
    )


def _environment() -> dict[str, str]:
    """The environment without the variables that make a process part of an attempt or of a distributed job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISPATCHER_", "SLURM_", "VC_"))}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _find_class(request: Mapping[str, Any]) -> Any:
    sys.path[:] = request["path"]
    name, file = request["module"], request["file"]
    module = None
    if name != "__main__":
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(name)
    if module is None:
        # A script, or a file that is not on sys.path. Not as __main__: the script must not run.
        alias = "__probed__" if name == "__main__" else name
        spec = importlib.util.spec_from_file_location(alias, file)
        assert spec is not None and spec.loader is not None, f"{file}: cannot be imported"
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module
        spec.loader.exec_module(module)
    found: Any = module
    for part in request["class"].split("."):
        found = getattr(found, part)
    return found


def main() -> None:
    """Try the batch size on the standard input; the exit status is 0 when it fits."""
    request = json.load(sys.stdin)
    cls = _find_class(request)

    from dispatcher.runtime.configuration import configuration
    from dispatcher.runtime.execution import local

    spec = local(request["folder"], "probe", tensor_shards=request["tensor_shards"])
    # It writes to a temporary directory, but reads the job's own data and checkpoints.
    cluster = replace(spec.hardware.cluster, data=Path(request["data"]), checkpoints=request["checkpoints"])
    with configuration(request["config"]):
        job = cls(replace(spec, hardware=replace(spec.hardware, cluster=cluster)))
    job.probe_batch_size(request["rows"], request["accumulation_steps"])


if __name__ == "__main__":
    main()
