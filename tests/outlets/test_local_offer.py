"""Which GPUs two pods of one machine share, by what they publish of their slots."""

from __future__ import annotations

import pytest

from dispatcher.outlets.local.offer import shared_hardware
from dispatcher.run_state.liveness import SlotInfo


def gpus(*uuids: str) -> list[SlotInfo]:
    slots = [SlotInfo(name=f"gpu{index}", gpu_uuid=uuid) for index, uuid in enumerate(uuids)]
    return [*slots, SlotInfo(name="cpu0")]


@pytest.mark.parametrize(
    ("mine", "theirs", "same_host_name", "shared"),
    [
        (gpus("A", "B"), gpus("C", "D"), True, ""),
        (gpus("A", "B"), gpus("B", "A"), False, "--gpus: 0, 1"),
        (gpus("A", "B"), gpus("B"), False, "--gpus: 1"),
        (gpus("", ""), gpus(""), True, "--gpus: 0"),
        (gpus("", ""), gpus(""), False, ""),
        (gpus("A"), gpus(""), True, "--gpus: 0"),
        (gpus(), gpus(), True, ""),
    ],
)
def test_shared_gpus(mine: list[SlotInfo], theirs: list[SlotInfo], same_host_name: bool, shared: str) -> None:
    assert shared_hardware(mine, theirs, same_host_name) == shared
