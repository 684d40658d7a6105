"""Which GPUs two pods of one machine share, by what they publish of their slots, and which chips their GPUs are."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.outlets.base import Request
from dispatcher.outlets.local.offer import Free, LocalOffer, is_chip, refused_by_all, shared_hardware
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


def offer(*gib: int, free: Free | None = None, **rest: Any) -> LocalOffer:
    memory = {index: size * 1024 for index, size in enumerate(gib)}
    return LocalOffer(tuple(range(len(gib))), 1, gpu_memory_mib=memory, free=free, **rest)


LARGE = Request(1, gpu_memory_mib=90 * 1024)


def test_what_no_gpu_is_large_enough_for_is_refused() -> None:
    assert offer(24, 80).refuses(LARGE) == "asks for 90G of GPU memory, the largest GPU of this pod has 80G for jobs"
    pair = Request(2, gpu_memory_mib=40 * 1024)
    assert (
        offer(24, 80).refuses(pair) == "asks for 40G of GPU memory each, the largest GPU of this pod has 80G for jobs"
    )
    assert not LocalOffer((0,)).refuses(LARGE), "its memory is not known"
    all_of = [offer(24, 80), offer(40)]
    assert (
        refused_by_all(LARGE, all_of) == "asks for 90G of GPU memory, no GPU of a live pod has more than 80G for jobs"
    )


def test_what_no_host_has_enough_of_is_refused() -> None:
    request = Request(0, cpus=64, memory_mib=1024)
    small, odd = offer(cpus=16, memory_mib=512), offer(cpus=128, memory_mib=512)
    assert small.refuses(request) == "asks for 64 CPUs, this pod has 16 CPUs (--cpus)"
    assert refused_by_all(request, [small, small]) == "asks for 64 CPUs, no live pod has more than 16 CPUs (--cpus)"
    assert "no live pod has more than 512M of memory" in refused_by_all(request, [small, odd])
    slow = offer(cpus=1, memory_mib=4096)
    assert refused_by_all(request, [slow, odd]) == (
        "asks for 64 CPUs, this pod has 1 CPU (--cpus); asks for 1G of memory, this pod has 512M of memory (--memory)"
    )
    assert not LocalOffer((), 1).refuses(request), "a pod of an older release does not count"


def test_what_is_missing_at_the_moment_is_named() -> None:
    now = offer(24, 80, free=Free(cpus=3, memory_mib=100, gpu_memory_mib={0: 5 * 1024, 1: 12 * 1024}))
    assert now.lacks(Request(1, gpu_memory_mib=30 * 1024)) == "asks for 30G of GPU memory, at most 12G free"
    assert now.lacks(Request(1, gpu_memory_mib=12 * 1024)) == ""
    assert now.lacks(Request(0, cpus=8, memory_mib=2048)) == (
        "asks for 8 CPUs, 3 CPUs free and 2G of memory, 100M of memory free"
    )
    assert now.lacks(Request(2)) == ""
    assert offer(24).lacks(LARGE) == "", "nothing is known of a pod that does not tell"
