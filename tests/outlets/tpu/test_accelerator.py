"""Names of TPUs, and requests that a VM can never run."""

from __future__ import annotations

import pytest

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.tpu.accelerator import Accelerator, accelerator_of, refusal


def host(accelerator_type: str = "v4-32") -> TpuHost:
    return TpuHost(name="t", cluster="t", zone="us-central2-b", accelerator_type=accelerator_type)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v4-32", Accelerator("tpu-v4", 32)),
        ("v2-8", Accelerator("tpu-v2", 8)),
        ("v5litepod-16", Accelerator("tpu-v5litepod", 16)),
        ("v5p-128", Accelerator("tpu-v5p", 128)),
        ("v6e-4", Accelerator("tpu-v6e", 4)),
    ],
)
def test_names(name: str, expected: Accelerator) -> None:
    assert accelerator_of(host(name)) == expected


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(gpus=0),
        Request(gpus=1),
        Request(gpus=32, chip="tpu-v4"),
        Request(gpus=8, nodes=2),
        Request(gpus=0, chip="h100"),
    ],
)
def test_what_it_may_run(request_: Request) -> None:
    assert refusal(host(), request_) == ""


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(gpus=1, chip="h100"), "t has no h100, but tpu-v4"),
        (Request(gpus=1, chip="v4"), "t has no v4, but tpu-v4"),
        (Request(gpus=33), "33 chips are asked for, and t has 32 tpu-v4"),
    ],
)
def test_what_it_never_can(request_: Request, why: str) -> None:
    assert refusal(host(), request_) == why
