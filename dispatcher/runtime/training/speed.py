"""How fast a training runs: step time, rows per second, time waited for data, and the use of the devices (MFU)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from dispatcher.contract import SPEED

# Dense FLOP/s with bfloat16 inputs of one device, from the vendors' data sheets; by JAX's `device_kind`.
PEAK_FLOPS: Final[Mapping[str, float]] = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


class Stopwatch:
    """Measures the steps between two logged ones; evaluations and saves are left out by `pause` and `go_on`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0
        self._waited_s = 0.0
        self._spent_s = 0.0
        self._began_s: float | None = None

    def go_on(self) -> None:
        """Begin to measure, or measure again after a pause."""
        if self._began_s is None:
            self._began_s = self._clock()

    def pause(self) -> None:
        if self._began_s is not None:
            self._spent_s += self._clock() - self._began_s
            self._began_s = None

    def counted(self, steps: int) -> None:
        """Count steps that were begun."""
        self._steps += steps

    def waited(self, seconds: float) -> None:
        """Count how long data had to be waited for."""
        self._waited_s += seconds

    def read(self, *, rows: int, units: float, unit: str, flops: float | None, peak: float | None) -> dict[str, float]:
        """The metrics of the steps since the last call, and start anew.

        `rows` and `units` are those of one step, `flops` the operations of one, `peak` those per second of all devices.
        """
        running, waited_s, steps = self._began_s is not None, self._waited_s, self._steps
        self.pause()
        spent_s = self._spent_s
        self._steps, self._waited_s, self._spent_s = 0, 0.0, 0.0
        if running:
            self.go_on()
        if not steps or spent_s <= 0:
            return {}
        step_s = spent_s / steps
        found = {"step_s": step_s, "rows_per_s": rows / step_s, "data_wait": min(1.0, waited_s / spent_s)}
        if unit != "rows":
            found[f"{unit}_per_s"] = units / step_s
        if flops is not None and peak is not None:
            found["mfu"] = flops / step_s / peak
        return {f"{SPEED}{name}": value for name, value in found.items()}
