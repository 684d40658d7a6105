"""Which GPUs two pods of one machine share, by what they publish of their slots, and which chips their GPUs are."""

from __future__ import annotations

import pytest

from dispatcher.outlets.base import Request
from dispatcher.outlets.local.offer import LocalOffer, is_chip, refused_by_all, shared_hardware
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


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("chip", "name", "fits"),
    [
        ("h100", H100, True),
        ("H100", "NVIDIA H100 PCIe", True),
        ("h100-80gb", H100, True),
        ("a100", A100, True),
        ("A100 SXM4", A100, True),
        ("a100_40gb", A100, True),
        ("rtx4090", "NVIDIA GeForce RTX 4090", True),
        ("rtx 4090", "NVIDIA GeForce RTX 4090", True),
        ("v100", "Tesla V100-SXM2-16GB", True),
        ("a100", "", True),
        ("", A100, True),
        ("h100", A100, False),
        ("a10", A100, False),
        ("l40", "NVIDIA L40S", False),
        ("l40s", "NVIDIA L40", False),
        ("a100-80gb", A100, False),
        ("h100", "NVIDIA GH200 480GB", False),
        ("4090ti", "NVIDIA GeForce RTX 4090", False),
    ],
)
def test_which_chip_a_name_is(chip: str, name: str, fits: bool) -> None:
    assert is_chip(chip, name) is fits


def test_another_chip_is_refused_with_both_names() -> None:
    offer = LocalOffer(gpus=(0, 1), names={0: A100, 1: A100})
    text = "asks for 1 h100, this pod has 2 NVIDIA A100-SXM4-40GB (did you mean 'a100'?)"
    assert offer.refuses(Request(1, chip="h100")) == text
    assert offer.refuses(Request(None, chip="h100")) == text
    assert offer.refuses(Request(3, chip="h100")) == "asks for 3 GPUs, this pod has 2"
    assert offer.refuses(Request(2, chip="a100")) == ""
    assert LocalOffer(gpus=(0, 1)).refuses(Request(2, chip="h100")) == "", "nobody knows what they are"
    one_of_two = LocalOffer(gpus=(0, 1), names={0: A100, 1: H100})
    assert one_of_two.refuses(Request(2, chip="h100")) == (
        "asks for 2 h100, this pod has 1 NVIDIA A100-SXM4-40GB, 1 NVIDIA H100 80GB HBM3"
    )
    assert refused_by_all(Request(1, chip="h100"), [offer, offer]) == (
        "asks for 1 h100, and live pods have 4 NVIDIA A100-SXM4-40GB (did you mean 'a100'?)"
    )
    ill = LocalOffer(gpus=(0, 1), names={0: A100, 1: H100}, unusable={1: "ECC"})
    assert ill.refuses_now(Request(1, chip="h100")) == "asks for 1 h100, but 1 of 1 cannot be used now: GPU 1: ECC"
    assert ill.refuses_now(Request(1, chip="a100")) == ""
