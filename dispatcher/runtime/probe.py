"""One try of a batch size in a process of its own: `python -m dispatcher.runtime.probe`, the job on its input."""

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
from dispatcher.runtime.batch_size import Outcome

# What a device, a compiler or a kernel says when it has no more memory. INTERNAL is how some drivers say so.
TOO_LARGE: Final = re.compile(
    r"RESOURCE_EXHAUSTED|JaxRuntimeError: INTERNAL|[Oo]ut of memory|std::bad_alloc|MemoryError|Cannot allocate memory"
)
# The kernel's own answer to a process that has taken too much.
_KILLED: Final = (-signal.SIGKILL, 128 + signal.SIGKILL)
_SHOWN_LINES: Final = 15


@dataclass(frozen=True)
class JobProbe:
    """Tries batch sizes of the job class `cls` with `config`, on the devices that a fresh process sees."""

    cls: type[Any]
    config: Mapping[str, Any]
    tensor_shards: int
    # Rows that a device is given for one update: fewer at once mean that gradients are summed up, which takes memory.
    share: int
    # What the job reads: the directory of its data, and the directory or URL of the checkpoints.
    data: str
    checkpoints: str

    def __call__(self, rows: int, limit_s: float) -> Outcome:
        """Run two updates with `rows` rows per device; BatchSizeError when they fail for another reason than size."""
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="probe-") as folder:
            words = {**self._words(), "rows": rows, "parts": 1 if rows >= self.share else 2, "folder": folder}
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
                _, said = process.communicate(json.dumps(words), timeout=limit_s)
            except subprocess.TimeoutExpired:
                return Outcome(False, time.monotonic() - began_s, f"not ready after {limit_s:.0f} s")
            finally:
                # Also when this process is told to end meanwhile: nothing may go on using the device.
                process.kill()
                process.wait()
        return _outcome(process.returncode, said, time.monotonic() - began_s, rows)

    def _words(self) -> dict[str, Any]:
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


def _outcome(code: int, said: str, seconds: float, rows: int) -> Outcome:
    if code == 0:
        return Outcome(True, seconds)
    matching = next((line.strip() for line in said.splitlines() if TOO_LARGE.search(line)), None)
    if matching is not None or code in _KILLED:
        return Outcome(False, seconds, (matching or "killed by the kernel")[:200])
    shown = "\n".join(said.rstrip().splitlines()[-_SHOWN_LINES:])
    raise BatchSizeError(f"the probe of batch size {rows} failed with {code}, and not for its size:\n{shown}")


def _environment() -> dict[str, str]:
    """Without what makes a process part of the attempt or of a group of processes, and silent."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISPATCHER_", "SLURM_", "VC_"))}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _find_class(words: Mapping[str, Any]) -> Any:
    sys.path[:] = words["path"]
    name, file = words["module"], words["file"]
    module = None
    if name != "__main__":
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(name)
    if module is None:
        # A script, or a file that was imported under a name of its own. Not as __main__: it must not run.
        alias = "__probed__" if name == "__main__" else name
        spec = importlib.util.spec_from_file_location(alias, file)
        assert spec is not None and spec.loader is not None, f"{file}: cannot be imported"
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module
        spec.loader.exec_module(module)
    found: Any = module
    for part in words["class"].split("."):
        found = getattr(found, part)
    return found


def main() -> None:
    """Try the batch size that the standard input says; the exit status is 0 when it fits."""
    words = json.load(sys.stdin)
    cls = _find_class(words)

    from dispatcher.runtime.configuration import configuration
    from dispatcher.runtime.execution import local

    spec = local(words["folder"], "probe", tensor_shards=words["tensor_shards"])
    # Its files go nowhere, but what it reads is where the job has it.
    cluster = replace(spec.hardware.cluster, data=Path(words["data"]), checkpoints=words["checkpoints"])
    with configuration(words["config"]):
        job = cls(replace(spec, hardware=replace(spec.hardware, cluster=cluster)))
    job.try_portions(words["rows"], words["parts"])


if __name__ == "__main__":
    main()
