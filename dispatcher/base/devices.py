"""Which GPUs a process sees: the variables that decide it, and what `env` of a method or an entry may set them to.

What an attempt sees is decided by its slot: on a CPU slot it sees no GPU, whatever the host has. An `env` may narrow
that, and never widen it: an empty CUDA_VISIBLE_DEVICES hides all GPUs, a list of indices says of which GPUs the slot is
chosen. Every other value is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dispatcher.base import values
from dispatcher.base.values import BadValueError, shown

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
# CUDA's own order is "fastest first": without this, index 2 of NVML may be another GPU than CUDA's 2.
PCI: Final = "PCI_BUS_ID"
# AMD's runtime. Its layer HIP counts what this one leaves, and where it has no variable of its own it goes by CUDA's.
ROCR: Final = "ROCR_VISIBLE_DEVICES"
HIP: Final = "HIP_VISIBLE_DEVICES"
_OF_AMD: Final = (ROCR, HIP, "GPU_DEVICE_ORDINAL")
# Read by the runtimes of containers, which are told on their command lines.
OF_CONTAINERS: Final = "NVIDIA_VISIBLE_DEVICES"
# Those that name GPUs, and all that is decided for an attempt, so that no file of variables may say it too.
NAMING: Final = (VISIBLE, *_OF_AMD)
DECIDED: Final = (*NAMING, ORDER, OF_CONTAINERS)

# The environment in which a process sees no GPU. None removes a variable.
HIDDEN: Final[Mapping[str, str | None]] = MappingProxyType(
    {VISIBLE: "", ROCR: "", ORDER: None, HIP: None, "GPU_DEVICE_ORDINAL": None}
)
HIGHEST_INDEX: Final = 1023

_NONE: Final = frozenset({"", "-1", "none", "void", "nodevfiles"})
_LIST: Final = re.compile(r"[0-9]{1,4}(\s*,\s*[0-9]{1,4})*")


def visible(devices: Sequence[str]) -> Mapping[str, str | None]:
    """The environment that shows a process these devices (indices in PCI order, or UUIDs) and no others."""
    if not devices:
        return HIDDEN
    return {VISIBLE: ",".join(devices), ORDER: PCI, HIP: None, "GPU_DEVICE_ORDINAL": None}


def hides_all(text: str) -> bool:
    """Whether a variable of this value leaves no GPU."""
    return text.strip().lower() in _NONE


def indices(text: str) -> tuple[int, ...] | None:
    """The indices that a variable lists, in its order, none where it hides all; None where it has something else."""
    if hides_all(text):
        return ()
    if not _LIST.fullmatch(text.strip()):
        return None
    found = tuple(int(word) for word in text.split(","))
    return found if len(set(found)) == len(found) and max(found) <= HIGHEST_INDEX else None


def parse_env(value: object) -> Mapping[str, str]:
    """The variables of a method; BadValueError for those that cannot be honoured."""
    return checked(values.parse_env(value))


def checked(env: Mapping[str, str]) -> Mapping[str, str]:
    """The same variables; BadValueError where one of them cannot be honoured."""
    wrong = fault(env)
    if wrong:
        raise BadValueError(wrong)
    return env


def fault(env: Mapping[str, str]) -> str:
    """Which variable would widen what an attempt sees, or would not count; empty when all can be honoured."""
    return next((why for name in DECIDED if name in env and (why := _fault(name, env[name]))), "")


def _fault(name: str, text: str) -> str:
    why = ""
    if name == ORDER:
        why = "" if text == PCI else "GPUs of jobs are numbered in PCI order; remove it"
    elif name == VISIBLE:
        if indices(text) is None:
            why = (
                "expected the indices among which the job's GPUs are chosen (0,1), or '' to hide all; for a UUID or a "
                f"MIG device start a pod that has it: {name}=... dispatcher --gpus all"
            )
    elif name == OF_CONTAINERS or not hides_all(text):
        why = f"{VISIBLE} sets which GPUs a job sees; use that"
    return f"{name} is {shown(text)}: {why}" if why else ""


def named(env: Mapping[str, str]) -> tuple[int, ...]:
    """The indices among which the GPUs of an attempt are chosen; none for any."""
    return indices(env.get(VISIBLE, "")) or ()


def narrowed(given: Mapping[str, str | None], env: Mapping[str, str]) -> Mapping[str, str | None]:
    """What is `given` to an attempt, without the devices that `env` hides."""
    if VISIBLE in env and hides_all(env[VISIBLE]):
        return {**given, **HIDDEN}
    return {**given, ROCR: ""} if any(name in env for name in _OF_AMD) else given


def contradiction(gpus: int | None, only: Sequence[int]) -> str:
    """Why an attempt on so many GPUs cannot have those that it names; empty when it can."""
    if not only or gpus is None or 0 < gpus <= len(only):
        return ""
    listed = ",".join(map(str, only))
    what = "with gpus: 0 it sees none" if not gpus else f"asks for {gpus}"
    return f"env names GPU {listed} ({VISIBLE}), and {what}"
