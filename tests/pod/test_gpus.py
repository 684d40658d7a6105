"""GPUs: real pynvml over a stand-in for the driver's library (fake_nvml.c), real processes as their users."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from nvml_driver import Driver

from dispatcher.errors import PodError, UsageError
from dispatcher.outlets.local import gpu_users
from dispatcher.outlets.local.given import read_given
from dispatcher.outlets.local.gpu_users import foreign_use
from dispatcher.outlets.local.gpus import (
    Gpu,
    GpuProcess,
    GpuReader,
    GpuReading,
    Health,
    parse_gpus,
)

MIB = 1 << 20
H100 = "memory 85520809984 629145600"
TIMEOUT_S = 1.5


@pytest.fixture
def stranger() -> Iterator[int]:
    """The PID of somebody's process, whose command line would clear a terminal."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "train.py", "\x1b[2J"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.01)


def healths(reading: GpuReading) -> list[Health]:
    return [gpu.health for gpu in reading.gpus]


def quickest_s(action: Callable[[], object]) -> float:
    """The shortest of three times: a busy host may delay any one of them."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        action()
        times.append(time.monotonic() - began)
    return min(times)


def unused_pid() -> int:
    return next(pid for pid in range(4_194_303, 0, -1) if not os.path.exists(f"/proc/{pid}"))


def nobody(pid: int) -> bool:
    return False


class TestParse:
    @pytest.mark.parametrize(
        ("text", "indices"),
        [
            ("0,1,2,3", (0, 1, 2, 3)),
            ("0-7", (0, 1, 2, 3, 4, 5, 6, 7)),
            ("6,0-2, 4 - 4", (0, 1, 2, 4, 6)),
            ("3", (3,)),
            (" all ", (0, 1, 2)),
        ],
    )
    def test_takes(self, text: str, indices: tuple[int, ...]) -> None:
        assert parse_gpus(text, lambda: (0, 1, 2)) == indices

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("", "''"),
            ("0,,1", "''"),
            ("0,x", "'x'"),
            ("-1", "'-1'"),
            ("²", "'²'"),
            ("0,all", "'all'"),
            ("7-4", "did you mean 4-7"),
            ("0,2,2", "GPU 2 twice"),
            ("0-3,2-5", "GPU 2 twice"),
            ("0-99999999999", "GPU 99999999999"),
            pytest.param("9" * 5000, "is not a GPU index", id="more digits than Python reads"),
        ],
    )
    def test_refuses_and_names_the_value(self, text: str, named: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_gpus(text, tuple)
        assert named in str(caught.value)
        assert "--gpus" in str(caught.value)


TWO_KINDS = ("count 3", *(f"{n} name {name}\n{n} uuid GPU-{n}{n}ab" for n, name in enumerate(("A", "A", "B"))))
PARTS = ("count 1", "0 mig 1", "8 parent 0", "8 uuid MIG-8", "9 parent 0", "9 uuid MIG-9")


class TestWhatThePodMayUse:
    """By the variables of its own environment."""

    def chosen(self, text: str, **environment: str) -> tuple[int, ...]:
        with GpuReader() as reader:
            return read_given(environment, reader).chosen(text, reader.existing)

    @pytest.mark.parametrize(
        ("environment", "indices"),
        [
            ({}, (0, 1, 2)),
            ({"CUDA_VISIBLE_DEVICES": "1"}, (1,)),
            ({"CUDA_VISIBLE_DEVICES": " 2 , 0"}, (0, 2)),
            ({"CUDA_VISIBLE_DEVICES": "GPU-22ab,1"}, (1, 2)),
            # CUDA stops reading at what is no GPU of the host.
            ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, (1,)),
            ({"CUDA_VISIBLE_DEVICES": "2,-1,0"}, (2,)),
            ({"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (0, 1)),
            ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, (0, 1, 2)),
        ],
    )
    def test_all(self, driver: Driver, environment: dict[str, str], indices: tuple[int, ...]) -> None:
        driver.say(*TWO_KINDS)
        assert self.chosen("all", **environment) == indices
        assert self.chosen(str(indices[0]), **environment) == indices[:1]

    @pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "7", "0,0", "GPU-", "GPU-77"])
    def test_none(self, driver: Driver, value: str) -> None:
        driver.say(*TWO_KINDS)
        with pytest.raises(PodError, match=f"may use no GPU: CUDA_VISIBLE_DEVICES='{value}'"):
            self.chosen("all", CUDA_VISIBLE_DEVICES=value)
        with pytest.raises(UsageError, match="GPU 0 is not among those that this pod may use"):
            self.chosen("0", CUDA_VISIBLE_DEVICES=value)

    def test_a_gpu_of_others_is_refused(self, driver: Driver) -> None:
        driver.say(*TWO_KINDS)
        with pytest.raises(UsageError, match=r"'0-2': GPU 0,2 is not among .* \(1\): CUDA_VISIBLE_DEVICES='1'"):
            self.chosen("0-2", CUDA_VISIBLE_DEVICES="1")

    def test_indices_in_an_order_of_cuda(self, driver: Driver) -> None:
        driver.say(*TWO_KINDS)
        with pytest.raises(PodError, match="use CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            self.chosen("all", CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
        driver.say("count 2", "0 name A", "1 name A")
        assert self.chosen("all", CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="FASTEST_FIRST") == (1,)

    @pytest.mark.parametrize(
        ("environment", "indices"),
        [
            ({"CUDA_VISIBLE_DEVICES": "3,1"}, (1, 3)),
            # HIP counts what ROCm leaves, and its own variable comes first.
            ({"ROCR_VISIBLE_DEVICES": "2,5"}, (0, 1)),
            ({"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "1,5", "CUDA_VISIBLE_DEVICES": "0"}, (1,)),
            ({"HIP_VISIBLE_DEVICES": "4"}, (4,)),
        ],
    )
    def test_without_a_driver_to_ask(
        self, driver: Driver, environment: dict[str, str], indices: tuple[int, ...]
    ) -> None:
        driver.say("init 9")
        assert self.chosen("all", **environment) == indices

    def test_a_uuid_without_a_driver_to_ask(self, driver: Driver) -> None:
        driver.say("init 9")
        with pytest.raises(PodError, match="which GPU GPU-5 is can only be told by a driver"):
            self.chosen("0", CUDA_VISIBLE_DEVICES="GPU-5")

    def test_parts_of_a_gpu_are_counted_as_listed(self, driver: Driver) -> None:
        driver.say(*PARTS, f"9 {H100} {MIB}", "9 name H100 MIG 1g.10gb", "0 ecc 3", "0 busy 50 0")
        with GpuReader() as reader:
            given = read_given({"CUDA_VISIBLE_DEVICES": "MIG-9,MIG-8"}, reader)
            assert given.chosen("all", reader.existing) == (0, 1)
            reader.parts = given.parts
            first, second = reader.read((0, 1)).gpus
            assert reader.read_use(0).busy_percent is None
        assert (first.index, first.uuid, first.name, first.memory_used_mib) == (0, "MIG-9", "H100 MIG 1g.10gb", 1)
        assert (second.index, second.uuid) == (1, "MIG-8")
        assert first.health is Health.ECC, "the faults of the GPU are those of its parts"

    def test_parts_beside_gpus(self, driver: Driver) -> None:
        driver.say(*PARTS)
        with pytest.raises(PodError, match="'0' is no part of a GPU"):
            self.chosen("all", CUDA_VISIBLE_DEVICES="MIG-8,0")


class TestReading:
    def test_everything_about_a_gpu(self, driver: Driver) -> None:
        driver.say(
            "count 2",
            "0 name NVIDIA H100 80GB HBM3",
            "0 uuid GPU-5b2c",
            f"0 {H100} {1000 * MIB}",
            f"0 process 41 {700 * MIB}",
            f"0 graphics 41 {700 * MIB}",
            "0 graphics 42 unknown",
            f"0 mps 43 {300 * MIB}",
            "0 ecc 0",
            "0 rows_failed 0",
            "1 name NVIDIA H100 80GB HBM3",
        )
        with GpuReader() as reader:
            reading = reader.read([1, 0])
            assert reader.existing() == (0, 1)
        assert reading.unavailable is None and reading.warning is None
        assert reading.gpus[1] == Gpu(
            index=0,
            uuid="GPU-5b2c",
            name="NVIDIA H100 80GB HBM3",
            memory_total_mib=81559,
            memory_used_mib=1000,
            memory_reserved_mib=600,
            processes=(GpuProcess(41, 700), GpuProcess(43, 300), GpuProcess(42, None, draws=True)),
        )
        # What a GPU does not have is unknown, not a fault.
        assert reading.gpus[0] == Gpu(index=1, name="NVIDIA H100 80GB HBM3", processes=())

    def test_older_driver_does_not_tell_what_is_reserved(self, driver: Driver) -> None:
        driver.say(
            "count 1",
            f"0 {H100} {MIB}",
            "0 process 41 unknown",
            "0 error nvmlDeviceGetMemoryInfo_v2 13",
            "0 error nvmlDeviceGetComputeRunningProcesses_v3 13",
        )
        with GpuReader() as reader:
            gpu = reader.read([0]).gpus[0]
        assert (gpu.memory_used_mib, gpu.memory_reserved_mib) == (601, None)
        assert gpu.processes == (GpuProcess(41, None),)

    def test_many_readings_start_nvml_once(self, driver: Driver) -> None:
        driver.say("count 1", f"0 {H100} 0")
        with GpuReader() as reader:
            for used in (1, 2, 3):
                driver.say("count 1", f"0 {H100} {used * MIB}")
                assert reader.read([0]).gpus[0].memory_used_mib == used
        assert len(driver.started) == 1

    def test_missing_index_is_named_with_those_that_exist(self, driver: Driver) -> None:
        driver.say("count 4")
        with GpuReader() as reader, pytest.raises(PodError) as caught:
            reader.read([0, 4, 9])
        assert "no GPU 4, 9; GPUs here: 0 to 3" in str(caught.value)

    @pytest.mark.parametrize(
        ("line", "health", "why"),
        [
            ("0 error nvmlDeviceGetHandleByIndex_v2 15", Health.LOST, "GPU is lost"),
            ("0 error nvmlDeviceGetHandleByIndex_v2 999", Health.LOST, "Unknown Error"),
            ("0 error nvmlDeviceGetMemoryInfo_v2 15", Health.LOST, "GPU is lost"),
            ("0 error nvmlDeviceGetComputeRunningProcesses_v3 15", Health.LOST, "GPU is lost"),
            ("0 error nvmlDeviceGetHandleByIndex_v2 7", Health.UNREADABLE, "Insufficient Size"),
            ("0 ecc 3", Health.ECC, "3 uncorrectable ECC errors"),
            ("0 rows_failed 1", Health.ECC, "could not be remapped"),
            ("0 error nvmlDeviceGetMemoryInfo_v2 4", Health.OK, ""),
        ],
    )
    def test_health_of_one_gpu_says_nothing_of_the_others(
        self, driver: Driver, line: str, health: Health, why: str
    ) -> None:
        driver.say("count 2", f"0 {H100} 0", f"1 {H100} 0", line)
        with GpuReader() as reader:
            sick, healthy = reader.read([0, 1]).gpus
        assert sick.health is health
        assert why in sick.why
        assert bool(sick.why) == (health is not Health.OK)
        assert healthy.health is Health.OK and healthy.memory_total_mib == 81559


class TestDriverTrouble:
    @pytest.mark.parametrize(
        ("line", "why"), [("init 9", "not loaded"), ("init 18", "version mismatch"), ("init_hang /nowhere", "0.5 s")]
    )
    def test_driver_that_does_not_start(self, driver: Driver, line: str, why: str) -> None:
        driver.say("count 2", line)
        with GpuReader(start_timeout_s=0.5 if "hang" in line else 60) as reader:
            reading = reader.read([0, 7])
            with pytest.raises(PodError, match="--gpus all needs a driver"):
                reader.existing()
        assert reading.gpus == ()
        assert reading.warning is not None
        assert why in reading.warning and "CUDA_VISIBLE_DEVICES" in reading.warning

    def test_no_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "libnvidia-ml.so.1").write_text("not a library, and first on the path\n" * 100)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        with GpuReader() as reader:
            assert "libnvidia-ml.so.1" in (reader.read([0]).unavailable or "")

    def test_no_gpu_for_all(self, driver: Driver) -> None:
        driver.say("count 0")
        with GpuReader() as reader, pytest.raises(PodError, match="sees no GPU"):
            reader.existing()

    def test_gpu_that_hangs_costs_only_itself_and_comes_back(self, driver: Driver, tmp_path: Path) -> None:
        release = tmp_path / "release"
        gpus = [f"{index} {H100} {index * MIB}" for index in range(3)]
        driver.say("count 3", *gpus)
        with GpuReader(timeout_s=TIMEOUT_S) as reader:
            assert healths(reader.read([0, 1, 2])) == [Health.OK] * 3
            driver.say("count 3", *gpus, f"1 hang {release}")
            wait_until(
                lambda: (
                    [gpu.health for gpu in reader.read([0, 1, 2]).gpus] == [Health.OK, Health.UNREADABLE, Health.OK]
                ),
                "GPUs 0 and 2 are not read beside a GPU that hangs",
            )
            assert quickest_s(lambda: reader.read([1])) < TIMEOUT_S, "a GPU that hangs is waited for again"
            assert "has not answered" in reader.read([1]).gpus[0].why
            driver.say("count 3", *gpus)
            release.touch()
            wait_until(lambda: reader.read([1]).gpus[0].health is Health.OK, "a GPU that answers again stays out")
            assert reader.read([1]).gpus[0].memory_used_mib == 1

    def test_driver_that_hangs_after_a_gpu_is_waited_for_once(self, driver: Driver, tmp_path: Path) -> None:
        driver.say("count 8")
        with GpuReader(timeout_s=TIMEOUT_S) as reader:
            driver.say("count 8", f"0 hang {tmp_path / 'never'}", f"init_hang {tmp_path / 'never'}")
            reader.read(range(8))
            assert quickest_s(lambda: reader.read(range(8))) < TIMEOUT_S
            assert healths(reader.read(range(8))) == [Health.UNREADABLE] * 8

    def test_gpu_that_kills_its_reader_is_left_alone(self, driver: Driver) -> None:
        driver.say("count 2", f"1 {H100} 0")
        with GpuReader(timeout_s=30) as reader:
            driver.say("count 2", f"1 {H100} 0", f"0 crash {signal.SIGSEGV.value}")
            sick, healthy = reader.read([0, 1]).gpus
            assert sick.health is Health.UNREADABLE and f"signal {signal.SIGSEGV.value}" in sick.why
            assert healthy.health is Health.OK
            started = len(driver.started)
            assert healths(reader.read([0, 1])) == [Health.UNREADABLE, Health.OK]
            assert len(driver.started) == started, "the reader was killed again at the next reading"

    def test_gpu_that_killed_its_reader_is_read_again_after_a_rest(self, driver: Driver) -> None:
        driver.say("count 1")
        with GpuReader(timeout_s=30) as reader:
            reader.rest_s = 0.0
            driver.say("count 1", f"0 crash {signal.SIGSEGV.value}")
            assert healths(reader.read([0])) == [Health.UNREADABLE]
            driver.say("count 1")
            assert healths(reader.read([0])) == [Health.OK]

    def test_driver_that_goes_away(self, driver: Driver) -> None:
        driver.say("count 2")
        with GpuReader(timeout_s=30) as reader:
            os.kill(driver.started[0], signal.SIGKILL)
            driver.say("count 2", "init 9")
            gpus = reader.read([0, 1]).gpus
            assert [gpu.health for gpu in gpus] == [Health.UNREADABLE] * 2
            assert all("not loaded" in gpu.why for gpu in gpus)
            assert len(driver.started) == 2, "a driver that is gone was asked for every GPU"

    def test_reader_killed_by_somebody_is_replaced(self, driver: Driver) -> None:
        driver.say("count 1", f"0 {H100} 0")
        with GpuReader(timeout_s=30) as reader:
            os.kill(driver.started[0], signal.SIGKILL)
            assert reader.read([0]).gpus[0].health is Health.OK

    def test_ctrl_c_is_not_for_the_reader(self, driver: Driver) -> None:
        driver.say("count 1")
        with GpuReader():
            assert os.getpgid(driver.started[0]) != os.getpgrp()

    def test_close_leaves_no_process(self, driver: Driver, tmp_path: Path) -> None:
        driver.say("count 2", f"0 hang {tmp_path / 'never'}")
        with GpuReader(timeout_s=0.3) as reader:
            reader.read([0, 1])
            wait_until(lambda: len(driver.started) == 2, "no second reader was started beside the hanging one")
        wait_until(lambda: not any(map(alive, driver.started)), "close leaves a reader behind")

    def test_killed_dispatcher_leaves_no_process(self, driver: Driver) -> None:
        driver.say("count 1")
        program = """
            import time
            from dispatcher.outlets.local.gpus import GpuReader
            reader = GpuReader()
            print("ready", flush=True)
            time.sleep(600)
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as dispatcher:
            assert dispatcher.stdout is not None and dispatcher.stdout.readline() == b"ready\n"
            dispatcher.kill()
        wait_until(lambda: not any(map(alive, driver.started)), "a reader outlives its dispatcher")


def alive(pid: int) -> bool:
    """A process that has ended may stay a zombie where nobody collects orphans."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def reading(*processes: tuple[int, int | None], used: int | None = 0, reserved: int | None = 600) -> GpuReading:
    listed = tuple(GpuProcess(pid, size) for pid, size in processes)
    return GpuReading(
        gpus=(
            Gpu(index=5, processes=listed, memory_total_mib=80_000, memory_used_mib=used, memory_reserved_mib=reserved),
        )
    )


class TestForeignUseOnTheHost:
    def test_names_who_uses_it(self, stranger: int) -> None:
        why = foreign_use(reading((stranger, 250), used=250), nobody, (), contained=False)[5]
        assert why.startswith(f"250 MiB used by pid {stranger} ({psutil.Process().username()}: ")
        assert os.path.basename(sys.executable) in why
        assert "\x1b" not in why

    def test_is_counted_per_gpu_and_from_100_mib(self, stranger: int) -> None:
        mine = os.getpid()
        assert 5 in foreign_use(reading((stranger, 60), (os.getpid(), 40), used=100), nobody, (), contained=False)
        assert foreign_use(reading((stranger, 99), used=99), nobody, (), contained=False) == {}
        assert (
            foreign_use(reading((mine, 900), (stranger, 99), used=999), {mine}.__contains__, [5], contained=False) == {}
        )
        assert 5 in foreign_use(
            reading((mine, 900), (stranger, 100), used=1000), {mine}.__contains__, [5], contained=False
        )

    def test_long_lists_are_cut(self, stranger: int) -> None:
        many = [(pid, 50) for pid in (stranger, os.getpid(), os.getppid(), 1)]
        why = foreign_use(reading(*many), nobody, (), contained=False)[5]
        assert why.count("pid ") == 3 and why.endswith("and 1 more")

    def test_unknown_size_is_bounded_by_what_is_in_use(self, stranger: int) -> None:
        mine = os.getpid()
        ours = {mine}.__contains__
        why = foreign_use(reading((mine, 500), (stranger, None), used=700), ours, [5], contained=False)[5]
        assert why.startswith(f"200 MiB in use, an unknown part of it by pid {stranger} ")
        assert foreign_use(reading((mine, 500), (stranger, None), used=590), ours, [5], contained=False) == {}
        # Both unknown: nothing is proved, and it may all be ours.
        assert foreign_use(reading((mine, None), (stranger, None), used=700), ours, [5], contained=False) == {}

    @pytest.mark.parametrize(
        ("used_mib", "in_use", "is_used"),
        [(900, 900, False), (1024, 1100, True), (None, 900, False), (None, 1100, True)],
    )
    def test_a_desktop_keeps_no_job_away(self, stranger: int, used_mib: int | None, in_use: int, is_used: bool) -> None:
        desktop = GpuProcess(stranger, used_mib, draws=True)
        for known in (in_use, None):
            gpu = msgspec.structs.replace(reading(used=known).gpus[0], processes=(desktop,))
            found = foreign_use(GpuReading(gpus=(gpu,)), nobody, (), contained=False)
            assert (5 in found) == (is_used and (known is not None or used_mib is not None))

    def test_a_process_of_others_where_no_memory_is_told(self, stranger: int) -> None:
        unknown = reading((stranger, None), (os.getpid(), None), used=None)
        why = foreign_use(unknown, {os.getpid()}.__contains__, [5], contained=False)[5]
        assert why.startswith(f"in use by pid {stranger} ") and why.endswith(", how much of it is not told")
        assert foreign_use(unknown, lambda pid: True, [5], contained=False) == {}

    def test_memory_without_processes_blames_nobody(self) -> None:
        assert foreign_use(reading(used=700), nobody, (), contained=False) == {}

    def test_sick_gpus_are_left_out(self, stranger: int) -> None:
        sick = Gpu(index=5, health=Health.ECC, why="x", processes=(GpuProcess(stranger, 900),))
        assert foreign_use(GpuReading(gpus=(sick,)), nobody, (), contained=False) == {}

    def test_nothing_is_known_without_a_driver(self) -> None:
        assert foreign_use(GpuReading(unavailable="no driver"), nobody, ()) == {}


class TestForeignUseInAContainer:
    def test_pid_that_does_not_exist_here_falls_back_to_memory(self) -> None:
        outside = reading((unused_pid(), 900), used=950)
        why = foreign_use(outside, nobody, (), contained=True)[5]
        assert why.startswith("950 MiB in use") and "pid" not in why
        assert foreign_use(reading((unused_pid(), 900), used=99), nobody, (), contained=True) == {}

    def test_same_number_is_not_the_same_process(self, stranger: int) -> None:
        """A PID of the host that exists here by chance: nobody is blamed, and it does not pass for ours either."""
        alias = reading((stranger, 900), used=950)
        assert "pid" not in foreign_use(alias, nobody, (), contained=True)[5]
        assert 5 in foreign_use(alias, {stranger}.__contains__, (), contained=True)

    def test_memory_proves_nothing_where_our_attempt_runs(self) -> None:
        assert foreign_use(reading((unused_pid(), 900), used=950), nobody, [5], contained=True) == {}

    @pytest.mark.parametrize("processes", [(), None])
    def test_hidden_processes(self, processes: tuple[GpuProcess, ...] | None) -> None:
        gpu = Gpu(index=5, processes=processes, memory_total_mib=80_000, memory_used_mib=950, memory_reserved_mib=600)
        assert 5 in foreign_use(GpuReading(gpus=(gpu,)), nobody, (), contained=True)
        assert foreign_use(GpuReading(gpus=(gpu,)), nobody, [5], contained=True) == {}

    def test_what_an_older_driver_keeps_for_itself_is_not_foreign(self) -> None:
        assert foreign_use(reading(used=700, reserved=None), nobody, (), contained=True) == {}
        assert 5 in foreign_use(reading(used=1000, reserved=None), nobody, (), contained=True)

    def test_unknown_memory_says_nothing(self) -> None:
        assert foreign_use(reading(used=None), nobody, (), contained=True) == {}

    def test_process_that_has_a_gpu_open_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        device = tmp_path / "nvidia0"
        device.touch()
        monkeypatch.setattr(gpu_users, "GPU_DEVICES", (str(device),))
        with (
            device.open() as opened,
            subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[opened.fileno()]) as user,
        ):
            why = foreign_use(reading((user.pid, 900), used=900), nobody, (), contained=True)[5]
            ours = foreign_use(reading((user.pid, 900), used=900), {user.pid}.__contains__, [5], contained=True)
            user.kill()
        assert why == f"900 MiB used by pid {user.pid} ({psutil.Process().username()}: cat)"
        assert ours == {}
