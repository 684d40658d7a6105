"""Which GPUs a process sees, and what an `env` may say of that."""

from __future__ import annotations

import pytest

from dispatcher.base import devices
from dispatcher.base.values import BadValueError


def test_a_process_sees_what_it_is_given() -> None:
    shown = devices.visible(["1", "3"])
    assert shown["CUDA_VISIBLE_DEVICES"] == "1,3" and shown["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert shown["HIP_VISIBLE_DEVICES"] is None, "it would come before CUDA's"
    hidden = devices.visible([])
    assert hidden["CUDA_VISIBLE_DEVICES"] == hidden["ROCR_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("env", "only", "hides"),
    [
        ({}, (), False),
        ({"CUDA_VISIBLE_DEVICES": ""}, (), True),
        ({"CUDA_VISIBLE_DEVICES": -1}, (), True),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, (), True),
        ({"CUDA_VISIBLE_DEVICES": 0}, (0,), False),
        ({"CUDA_VISIBLE_DEVICES": " 2, 1"}, (2, 1), False),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (), False),
    ],
)
def test_what_narrows_is_honoured(env: dict[str, object], only: tuple[int, ...], hides: bool) -> None:
    read = devices.parse_env(env)
    assert devices.named(read) == only
    given = {**devices.visible(["0"]), "OTHER": "x"}
    assert devices.narrowed(given, read) == ({**given, **devices.HIDDEN} if hides else given)


def test_hidden_gpus_of_amd() -> None:
    env = devices.parse_env({"HIP_VISIBLE_DEVICES": "-1"})
    given = devices.visible(["0"])
    assert devices.narrowed(given, env) == {**given, "ROCR_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("CUDA_VISIBLE_DEVICES", "MIG-5b2c", "CUDA_VISIBLE_DEVICES=... dispatcher --gpus all"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5b2c", "expected the indices"),
        ("CUDA_VISIBLE_DEVICES", "all", "expected the indices"),
        ("CUDA_VISIBLE_DEVICES", "1,1", "expected the indices"),
        ("CUDA_VISIBLE_DEVICES", "9999", "expected the indices"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST", "PCI order; remove it"),
        ("ROCR_VISIBLE_DEVICES", "0", "use that"),
        ("HIP_VISIBLE_DEVICES", "0,1", "use that"),
        ("NVIDIA_VISIBLE_DEVICES", "all", "use that"),
        ("NVIDIA_VISIBLE_DEVICES", "void", "use that"),
    ],
)
def test_what_would_not_count_is_refused(name: str, value: str, advice: str) -> None:
    with pytest.raises(BadValueError) as caught:
        devices.parse_env({"A": "1", name: value})
    assert f'{name} is "{value}"' in str(caught.value) and advice in str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "only", "why"),
    [
        (None, (1,), ""),
        (1, (1, 2), ""),
        (2, (1, 2), ""),
        (0, (), ""),
        (8, (), ""),
        (0, (1,), "env names GPU 1 (CUDA_VISIBLE_DEVICES), and with gpus: 0 it sees none"),
        (2, (1,), "and asks for 2"),
    ],
)
def test_contradictions(gpus: int | None, only: tuple[int, ...], why: str) -> None:
    found = devices.contradiction(gpus, only)
    assert why in found and bool(found) == bool(why)
