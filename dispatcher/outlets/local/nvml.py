"""Reads GPUs through NVML in a process of its own: an index per line comes in, a JSON line per GPU goes out.

The line `3 use` asks only whether GPU 3 computes. `0=MIG-5b2c` is a part of a GPU, by its UUID, which is called 0.

`gpus.GpuReader` starts this file as a script. A call into a driver whose GPU is dying can hang where no signal reaches
it, and can take the whole process down; here it takes down nothing that matters, and the dispatcher's locks and open
files are not held by a process that cannot be killed. By hand: `echo 0 | python dispatcher/outlets/local/nvml.py`.

The first line out is `{"count": 8, "driver": "580.1"}`, or `{"unavailable": "why"}` and the end where there is no
driver to ask. Nothing of the package is imported, so that the reader stays small.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MIB = 1 << 20


def connect() -> tuple[Any, str | None]:
    """pynvml after nvmlInit, and None; or why there is no GPU to ask about."""
    try:
        import pynvml
    except ImportError as error:
        return None, f"nvidia-ml-py cannot be imported ({error}); install it with: pip install nvidia-ml-py"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None, "libnvidia-ml.so.1, which comes with the NVIDIA driver, cannot be loaded"
    except pynvml.NVMLError_DriverNotLoaded:
        return None, "the NVIDIA driver is not loaded; see nvidia-smi"
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver does not answer ({error}); see nvidia-smi"
    return pynvml, None


def optional(nvml: Any, call: Callable[..., Any], *arguments: object) -> Any:
    """What `call` returns; None when this GPU, driver or user does not have it. Trouble of the GPU itself raises."""
    try:
        return call(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_ArgumentVersionMismatch,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_NoData,
        nvml.NVMLError_NotFound,
    ):
        return None


def memory(nvml: Any, handle: Any) -> dict[str, int]:
    """Total, used and reserved MiB; `used` includes what the driver keeps for itself where `reserved` is missing."""
    info = optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    values = {}
    if info is not None:
        values["memory_reserved_mib"] = info.reserved // MIB
    else:
        info = optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if info is None:
        return {}
    return {"memory_total_mib": info.total // MIB, "memory_used_mib": info.used // MIB, **values}


def listed(nvml: Any, kind: str, handle: Any) -> list[Any] | None:
    """The processes of one kind (Compute, Graphics, MPSCompute); None when the driver has no such list."""
    for version in ("_v3", "_v2"):
        call = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")
        for _ in range(3):
            # Too small: many processes started between the question how many there are and the question which.
            with contextlib.suppress(nvml.NVMLError_InsufficientSize):
                found: list[Any] | None = optional(nvml, call, handle)
                if found is not None:
                    return found
                break
    return None


def processes(nvml: Any, handle: Any) -> list[dict[str, Any]] | None:
    """Who uses the GPU, each process once; None when the driver does not tell."""
    computing = listed(nvml, "Compute", handle)
    if computing is None:
        return None
    computing = [*computing, *(listed(nvml, "MPSCompute", handle) or ())]
    computes = {process.pid for process in computing}
    used: dict[int, int | None] = {}
    for process in [*computing, *(listed(nvml, "Graphics", handle) or ())]:
        size = None if process.usedGpuMemory is None else process.usedGpuMemory // MIB
        # A process that computes and draws is in two lists with the same memory.
        used[process.pid] = max(filter(None, (size, used.get(process.pid))), default=size)
    return [{"pid": pid, "used_mib": size, "draws": pid not in computes} for pid, size in used.items()]


def _memory_faults(nvml: Any, handle: Any) -> str | None:
    """What is wrong with the GPU's memory, as the hardware counts it; None when nothing is or it does not count."""
    uncorrected = optional(
        nvml,
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    if uncorrected:
        return f"{uncorrected} uncorrectable ECC errors since the driver was loaded; reset it (nvidia-smi --gpu-reset)"
    rows = optional(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None and rows[3]:
        return "a faulty memory row could not be remapped; replace the GPU (nvidia-smi -q -d ROW_REMAPPER)"
    return None


def handles(nvml: Any, index: int, uuid: str) -> tuple[Any, Any]:
    """The device, and the GPU that it is or, where it is known by a UUID, a part of."""
    if not uuid:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return handle, handle
    part = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return part, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)


def read(nvml: Any, index: int, uuid: str = "") -> dict[str, Any]:
    """Everything about one GPU as plain data; a GPU that cannot be read says so in `health` and `why`."""
    values: dict[str, Any] = {"index": index}
    try:
        handle, whole = handles(nvml, index, uuid)
        values["uuid"] = optional(nvml, nvml.nvmlDeviceGetUUID, handle)
        values["name"] = optional(nvml, nvml.nvmlDeviceGetName, handle)
        values.update(memory(nvml, handle))
        values["processes"] = processes(nvml, handle)
        fault = _memory_faults(nvml, whole)
    except nvml.NVMLError as error:
        return values | trouble(nvml, error)
    return values if fault is None else values | {"health": "ecc", "why": fault}


def utilisation(nvml: Any, handle: Any) -> dict[str, int]:
    """The greatest and the mean utilisation, in percent, of the last seconds; nothing where the driver does not tell,
    as with MIG.
    """
    mig = optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    rates = optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is None or (mig is not None and mig[0]):
        return {}
    # That figure is of the last second at most; the driver keeps those of some seconds before.
    earlier: list[int] = []
    with contextlib.suppress(nvml.NVMLError):
        samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]
        earlier = [sample.sampleValue.uiVal for sample in samples]
    mean = sum(earlier) / len(earlier) if earlier else rates.gpu
    return {"busy_percent": int(max(rates.gpu, rates.memory, *earlier)), "mean_percent": round(mean)}


def computing(nvml: Any, handle: Any) -> list[int] | None:
    """The pids that have used the GPU in the last seconds; None where the driver does not tell."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except nvml.NVMLError:
        return None
    return sorted({each.pid for each in samples if each.smUtil or each.memUtil})


def read_use(nvml: Any, index: int, uuid: str = "") -> dict[str, Any]:
    """How busy one GPU is, and by whom; a GPU that cannot be read says so in `health` and `why`."""
    values: dict[str, Any] = {"index": index}
    try:
        _, whole = handles(nvml, index, uuid)
        values |= utilisation(nvml, whole)
        if values.get("busy_percent"):
            values["computing"] = computing(nvml, whole)
    except nvml.NVMLError as error:
        return values | trouble(nvml, error)
    return values


def trouble(nvml: Any, error: Any) -> dict[str, str]:
    """The health of a GPU whose reading ended in `error`."""
    # Drivers differ in what they call a GPU that has fallen off the bus: some no longer know it, to some it is just
    # an unknown error.
    gone = (
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_GPU_NOT_FOUND,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_UNKNOWN,
    )
    if error.value in gone:
        return {"health": "lost", "why": f"lost to the driver (NVML: {error}); see dmesg for Xid messages"}
    return {"health": "unreadable", "why": f"cannot be read (NVML: {error}); see nvidia-smi"}


def answers() -> Callable[[dict[str, Any]], None]:
    """The function that writes one line; what a library prints goes elsewhere and not between the lines."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    return say


def main() -> None:
    say = answers()
    nvml, unavailable = connect()
    if unavailable is not None:
        say({"unavailable": unavailable})
        return
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        say({"unavailable": f"the NVIDIA driver cannot list its GPUs ({error}); see nvidia-smi"})
        return
    try:
        driver = optional(nvml, nvml.nvmlSystemGetDriverVersion)
    except nvml.NVMLError:
        driver = None
    say({"count": count, "driver": driver})
    # The end of the input is the end of the dispatcher, however it died.
    for line in sys.stdin:
        device, _, what = line.strip().partition(" ")
        index, _, uuid = device.partition("=")
        say((read_use if what == "use" else read)(nvml, int(index), uuid))


if __name__ == "__main__":
    main()
