"""The loop beside a sampler whose driver call hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fleet import wait_until

from dispatcher.outlets.base import Key
from dispatcher.outlets.local import gpu_monitor
from dispatcher.outlets.local.gpu_monitor import GpuMonitor
from dispatcher.outlets.local.gpus import Gpu, GpuReading


class Hanging:
    """A reader whose `read_use` hangs until `release`."""

    driver = None
    count = 1

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.release = threading.Event()
        self.returned = threading.Event()
        self.reads = 0

    def existing(self) -> tuple[int, ...]:
        return (0,)

    def read(self, indices: Sequence[int]) -> GpuReading:
        self.reads += 1
        return GpuReading(gpus=tuple(Gpu(index=index, name=f"read {self.reads}") for index in indices))

    def read_use(self, index: int) -> Gpu:
        self.asked.set()
        self.release.wait(600)
        self.returned.set()
        return Gpu(index=index)

    def close(self) -> None:
        self.reads = -1


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    reader = Hanging()
    monkeypatch.setattr(gpu_monitor, "GpuReader", lambda: reader)
    yield reader
    reader.release.set()


def test_a_pod_without_gpus_on_a_host_that_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(gpu_monitor, "GPU_FILES", (f"{tmp_path}/nvidia[0-9]*",))
    GpuMonitor("", 1, 1, said.append)
    assert said == []
    (tmp_path / "nvidia0").touch()
    GpuMonitor("", 0, 1, said.append)
    assert said == [], "it has no slots at all"
    GpuMonitor("", 1, 1, said.append)
    assert said == ["note: jobs on CPU slots see none of this host's GPUs; --gpus all gives jobs GPUs"]


def test_the_loop_does_not_wait_for_a_sample_that_hangs(reader: Hanging) -> None:
    monitor = GpuMonitor("0", 0, 1, print, sample_s=0.01)
    monitor.watch({Key("a", 1): (0,)})
    assert reader.asked.wait(10)
    monitor.refresh(lambda pid: True)
    assert monitor.slot_infos({})[0].gpu_name == "read 1", "it was read beside the call that hangs"
    monitor.close()
    assert not reader.returned.is_set()
    assert reader.reads == 1


def test_gpus_are_read_again_when_the_call_has_returned(reader: Hanging) -> None:
    monitor = GpuMonitor("0", 0, 1, print, sample_s=0.01)
    monitor.watch({Key("a", 1): (0,)})
    assert reader.asked.wait(10)
    monitor.refresh(lambda pid: True)
    reader.release.set()
    wait_until(lambda: monitor.refresh(lambda pid: True) or reader.reads > 1, "GPUs are read again")
    monitor.close()
    wait_until(lambda: reader.reads == -1, "closed")
