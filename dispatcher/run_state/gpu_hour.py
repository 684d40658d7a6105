"""The last hour of a pod's GPUs, in a file beside the pod's: a value for each minute, and who else uses them.

The pod writes it once a minute. It does not grow, and only those who look at pods read it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.workspace import Layout

MINUTES: Final = 60
Series = list[int | None]


class GpuUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process on a GPU that is of no attempt of the pod. What cannot be found out is empty or None."""

    pid: int
    user: str = ""
    program: str = ""
    used_mib: int | None = None


class GpuHour(msgspec.Struct, omit_defaults=True):
    """One GPU. `percent` is the mean utilisation and `memory_mib` the used memory, the last minute last.

    None in a list: not known (the pod did not run, the driver does not tell, as with MIG). `unnamed` processes are on
    the GPU, too, and cannot be told from here, as in a container. `users` None: the driver lists no processes.
    """

    percent: Series
    memory_mib: Series
    users: list[GpuUser] | None = None
    unnamed: int = 0


class PodGpus(msgspec.Struct):
    """The GPUs of a pod by the names of their slots. `minute`: of the last values, in minutes since 1970."""

    minute: int
    gpus: dict[str, GpuHour] = {}

    def ending(self, minute: int) -> dict[str, GpuHour]:
        """The hour that ends with another minute; what is not known of it is None."""
        shift = minute - self.minute
        return {
            name: GpuHour(_ending(gpu.percent, shift), _ending(gpu.memory_mib, shift), gpu.users, gpu.unnamed)
            for name, gpu in self.gpus.items()
        }


def _ending(values: Series, shift: int) -> Series:
    known = [None] * max(0, MINUTES - len(values)) + values
    if shift >= 0:
        return (known + [None] * min(shift, MINUTES))[-MINUTES:]
    return ([None] * min(-shift, MINUTES) + known)[:MINUTES]


_decode = msgspec.json.Decoder(PodGpus)


def read_gpus(layout: Layout, pod: str) -> PodGpus | None:
    """What a pod has written of its GPUs; None when there is nothing, or nothing that can be read."""
    data = files.read_fresh(layout.pod_gpus(pod))
    try:
        return _decode.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_gpus(layout: Layout, pod: str, found: PodGpus) -> None:
    """Raises OSError."""
    files.replace_file(layout.pod_gpus(pod), msgspec.json.encode(found) + b"\n", durable=False)
