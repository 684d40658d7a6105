"""A cloud on this machine, and a VM of two workers in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from beds.tpu import TpuBed
from outlets.tpu.pods import Pod


@pytest.fixture
def pod(tpu: TpuBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    for name, value in tpu.env.items():
        monkeypatch.setenv(name, value)
    made = Pod(tpu)
    yield made
    made.connection.close()
