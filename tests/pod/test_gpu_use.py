"""What samples of GPUs prove of the attempts on them."""

from __future__ import annotations

import pytest
from nvml_driver import Driver

from dispatcher.outlets.base import Key
from dispatcher.outlets.idle_times import IdleTimes
from dispatcher.outlets.local.gpu_use import used
from dispatcher.outlets.local.gpus import Gpu, GpuReader, Health

A, B = Key("a", 1), Key("b", 3)
PIDS = {41: A, 42: B}


class TestReading:
    @pytest.mark.parametrize(
        ("lines", "percent"),
        [
            (["0 busy 0 0"], 0),
            (["0 busy 97 12"], 97),
            (["0 busy 0 3"], 3),
            # A burst between two samples is seen all the same.
            (["0 busy 0 0", "0 sample 0", "0 sample 40", "0 sample 0"], 40),
            (["0 busy 0 0", "0 sample 0"], 0),
            (["0 busy 0 0", "0 mig 0"], 0),
            # With MIG the figure is that of no instance, if there is any.
            (["0 busy 0 0", "0 mig 1"], None),
            ([], None),
            (["0 busy 0 0", "0 error nvmlDeviceGetUtilizationRates 3"], None),
        ],
    )
    def test_utilisation(self, driver: Driver, lines: list[str], percent: int | None) -> None:
        driver.say("count 1", *lines)
        with GpuReader() as reader:
            gpu = reader.read_use(0)
        assert (gpu.health, gpu.busy_percent) == (Health.OK, percent)

    def test_who_computes(self, driver: Driver) -> None:
        driver.say("count 2", "0 busy 50 1", "0 computes 41 30", "0 computes 41 20", "0 computes 42 0", "1 busy 50 1")
        with GpuReader() as reader:
            assert reader.read_use(0).computing == (41,)
            assert reader.read_use(1).computing is None

    def test_a_gpu_in_trouble_tells_nothing(self, driver: Driver) -> None:
        driver.say("count 1", "0 busy 0 0", "0 error nvmlDeviceGetUtilizationRates 15")
        with GpuReader() as reader:
            gpu = reader.read_use(0)
        assert gpu.health is Health.LOST
        assert used({A: (0,)}, [gpu], PIDS.get) == {A: None}


def gpu(index: int, percent: int | None, *pids: int) -> Gpu:
    return Gpu(index=index, busy_percent=percent, computing=pids or None)


class TestWhoUses:
    def test_an_attempt_alone_on_its_gpu(self) -> None:
        assert used({A: (0,)}, [gpu(0, 0)], PIDS.get) == {A: False}
        # Whoever it is that computes there, such as a container of the job.
        assert used({A: (0,)}, [gpu(0, 1, 99)], PIDS.get) == {A: True}
        assert used({A: (0,)}, [gpu(0, None)], PIDS.get) == {A: None}
        assert used({A: (0,)}, [], PIDS.get) == {A: None}

    def test_several_gpus_are_idle_together_or_not_at_all(self) -> None:
        assert used({A: (0, 1)}, [gpu(0, 0), gpu(1, 0)], PIDS.get) == {A: False}
        assert used({A: (0, 1)}, [gpu(0, 0), gpu(1, 7)], PIDS.get) == {A: True}
        assert used({A: (0, 1)}, [gpu(0, 0), gpu(1, None)], PIDS.get) == {A: None}
        assert used({A: (0, 1)}, [gpu(0, 0)], PIDS.get) == {A: None}

    @pytest.mark.parametrize(
        ("sample", "a", "b"),
        [
            (gpu(0, 0), False, False),
            (gpu(0, 60, 41), True, False),
            (gpu(0, 60, 41, 42), True, True),
            # Who computes is not told, or is somebody who may work for one of them.
            (gpu(0, 60), None, None),
            (gpu(0, 60, 99), None, None),
            (gpu(0, 60, 41, 99), True, None),
        ],
    )
    def test_attempts_that_share_a_gpu(self, sample: Gpu, a: bool | None, b: bool | None) -> None:
        assert used({A: (0,), B: (0,)}, [sample], PIDS.get) == {A: a, B: b}


class TestIdleTimes:
    def test_grows_while_all_samples_are_zero(self) -> None:
        times = IdleTimes(15.0)
        assert times.idle_s(A, 100.0) is None
        for now_s in (100.0, 115.0, 130.0):
            times.note(A, False, now_s)
        assert times.idle_s(A, 131.0) == 31.0
        times.note(A, True, 145.0)
        assert times.idle_s(A, 146.0) == 0.0
        times.note(A, False, 160.0)
        assert times.idle_s(A, 160.0) == 1.0

    def test_one_lost_sample_neither_proves_nor_refutes(self) -> None:
        times = IdleTimes(15.0)
        times.note(A, False, 0.0)
        times.note(A, None, 15.0)
        times.note(A, False, 30.0)
        assert times.idle_s(A, 30.0) == 31.0

    def test_two_lost_samples_start_over(self) -> None:
        times = IdleTimes(15.0)
        times.note(A, False, 0.0)
        assert times.idle_s(A, 45.0) is None, "a claim without a recent sample"
        times.note(A, False, 45.0)
        assert times.idle_s(A, 45.0) == 1.0

    def test_a_host_that_slept_starts_over(self) -> None:
        times = IdleTimes(15.0)
        times.note(A, False, 0.0)
        times.note(A, False, 8 * 3600.0)
        assert times.idle_s(A, 8 * 3600.0) == 1.0

    def test_attempts_that_ended_are_forgotten(self) -> None:
        times = IdleTimes(15.0)
        times.note(A, False, 0.0)
        times.keep([B])
        assert times.idle_s(A, 0.0) is None
