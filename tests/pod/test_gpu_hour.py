"""The last hour of a pod's GPUs: gathered by the minute, published by real pods, shown by `dispatcher pods`."""

from __future__ import annotations

import getpass
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet, shell, wait_until
from nvml_driver import Driver

from dispatcher.outlets.base import Key
from dispatcher.outlets.local import gpu_users
from dispatcher.outlets.local.gpu_minutes import MOST_USERS, GpuMinutes
from dispatcher.outlets.local.gpu_monitor import GpuMonitor
from dispatcher.outlets.local.gpu_sampler import Publisher
from dispatcher.outlets.local.gpu_users import others_on
from dispatcher.outlets.local.gpus import Gpu, GpuProcess
from dispatcher.run_state.gpu_hour import MINUTES, GpuHour, GpuUser, PodGpus, read_gpus, write_gpus
from dispatcher.workspace import Layout

NOW = 29_000_000
QUICK = "gpu_idle: {after: 2s}\nheartbeat: 0.2s\nkill_grace: 2s\n"
GIB = 1 << 30


def sampled(*samples: tuple[int, int | None]) -> GpuMinutes:
    """Samples of GPU 0: minutes before now, and percent."""
    minutes = GpuMinutes()
    for before, percent in samples:
        minutes.note_use(NOW - before, Gpu(index=0, mean_percent=percent))
    return minutes


def test_a_process_may_call_itself_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has 15 bytes at most, which may end in the middle of a letter."""
    monkeypatch.setattr(gpu_users, "in_container", lambda: False)
    script = r"printf '\033[2Jtrain\303' >/proc/$$/comm; echo; read _"
    words = ["bash", "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        gpu = Gpu(index=0, processes=(GpuProcess(pid=other.pid, used_mib=7),))
        users, _ = others_on(gpu, lambda pid: False)
        other.communicate()
    layout = Layout(tmp_path)
    layout.pods_dir.mkdir(parents=True)
    write_gpus(layout, "pod", PodGpus(NOW, {"gpu0": GpuHour([], [], users)}))
    found = read_gpus(layout, "pod")
    assert found is not None
    assert [user.program for user in found.gpus["gpu0"].users or ()] == ["?[2Jtrain?"]


class TestMinutes:
    def test_a_minute_is_the_mean_of_its_samples_and_one_without_is_unknown(self) -> None:
        hour = sampled((2, 100), (2, 50), (1, None), (0, 10)).hour(NOW, (0,)).gpus["gpu0"]
        assert hour.percent == [None] * 57 + [75, None, 10]

    def test_an_hour_is_kept_and_no_more(self) -> None:
        minutes = sampled(*((before, before) for before in range(100, -1, -1)))
        assert minutes.hour(NOW, (0,)).gpus["gpu0"].percent == list(range(59, -1, -1))
        assert minutes.hour(NOW + 58, (0,)).gpus["gpu0"].percent == [1, 0] + [None] * 58
        # A clock that was set back.
        assert minutes.hour(NOW - 2, (0,)).gpus["gpu0"].percent == [None] * MINUTES

    def test_the_latest_is_of_this_minute_or_the_one_before(self) -> None:
        assert sampled((1, 30), (0, 40)).latest(NOW, 0) == 40
        assert sampled((1, 30)).latest(NOW, 0) == 30
        assert sampled((2, 30)).latest(NOW, 0) is None

    def test_it_goes_on_with_what_an_earlier_dispatcher_has_written(self) -> None:
        earlier = sampled((9, 90), (4, 40)).hour(NOW - 4, (0,))
        minutes = sampled((0, 10))
        minutes.resume((0, 1), earlier)
        found = minutes.hour(NOW, (0, 1))
        assert found.gpus["gpu0"].percent == [None] * 50 + [90] + [None] * 4 + [40] + [None] * 3 + [10]
        assert found.gpus["gpu1"].percent == [None] * MINUTES

    def test_users_with_the_most_memory_are_named_and_the_others_counted(self) -> None:
        minutes = GpuMinutes()
        users = [GpuUser(pid, "bob", used_mib=pid) for pid in range(1, 12)]
        minutes.note_state(NOW, Gpu(index=0, memory_used_mib=700), users, 2)
        hour = minutes.hour(NOW, (0,)).gpus["gpu0"]
        assert [user.pid for user in hour.users or ()] == list(range(11, 11 - MOST_USERS, -1))
        assert hour.unnamed == 2 + 11 - MOST_USERS and hour.memory_mib[-1] == 700

    @pytest.mark.parametrize(
        ("shift", "ends"), [(0, [1, 2]), (3, [2, None, None, None]), (70, [None]), (-1, [None, 1])]
    )
    def test_an_hour_that_ends_at_another_minute(self, shift: int, ends: list[int | None]) -> None:
        found = sampled((1, 1), (0, 2)).hour(NOW, (0,)).ending(NOW + shift)["gpu0"].percent
        assert len(found) == MINUTES and found[-len(ends) :] == ends


@pytest.fixture
def bob() -> Iterator[int]:
    """A process that is of no attempt."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_pods_shows_use_and_who_else_is_on_a_gpu(fleet: Fleet, driver: Driver, bob: int) -> None:
    fleet.write_config(QUICK)
    fleet.write_manifest([shell("a", "exec sleep 600", gpus=1)])
    described = [f"{n} name NVIDIA H100 80GB HBM3" for n in (0, 1)]
    memory = [f"{n} memory {80 * GIB} {GIB} {30 * GIB}" for n in (0, 1)]
    use = ["0 busy 90 40", "0 sample 60", "0 sample 80", f"0 process {bob} {2 * GIB}", f"1 process {bob} 5242880"]
    # With MIG the driver does not tell how busy the GPU is.
    driver.say("count 2", *described, *memory, *use, "1 busy 0 0", "1 mig 1")
    # What an earlier dispatcher of this pod has left.
    earlier = sampled((5, 33)).hour(NOW, (0, 1))
    earlier.minute = int(time.time() // 60) - 1
    fleet.layout.pods_dir.mkdir(parents=True)
    write_gpus(fleet.layout, "pod", earlier)
    fleet.start("pod", "--gpus", "0,1")

    def published() -> PodGpus | None:
        found = read_gpus(fleet.layout, "pod")
        return found if found is not None and found.minute > earlier.minute else None

    found = wait_until(published, "the pod has published its GPUs")
    # The minute may be over meanwhile.
    assert 33 in found.gpus["gpu0"].percent[-9:-5]
    assert found.gpus["gpu0"].percent[-1] == 70 and found.gpus["gpu0"].memory_mib[-1] == 30 * 1024
    assert found.gpus["gpu1"].percent == [None] * MINUTES
    assert found.gpus["gpu0"].users == [GpuUser(bob, getpass.getuser(), "sleep", 2048)]

    def slots() -> list[dict[str, object]]:
        [status] = json.loads(fleet.run("pods", "--json"))
        listed: list[dict[str, object]] = status["slots"]
        return listed

    first, second = wait_until(lambda: (found := slots())[0]["gpu_percent"] is not None and found, "the use is shown")
    assert (first["gpu_percent"], first["memory_used_mib"]) == (70, 30 * 1024)
    hour = (51, 52, 58)
    assert first["gpu_percent_hour"] in hour, "the mean of 33 and of one or two minutes with 70"
    assert (second["gpu_percent"], second["gpu_percent_hour"]) == (None, None)
    assert second["others"] == [{"pid": bob, "user": getpass.getuser(), "program": "sleep", "used_mib": 5}]
    text = fleet.run("pods")
    # Another minute may have begun since.
    assert any(f"70% (1h {mean}%)" in text for mean in hour), text
    assert " ?" in text and f"0.0 GiB (sleep, pid {bob})" in text, text
    fleet.run("cancel", "a")
    fleet.wait_for("a", "abandoned")


def test_the_loop_does_not_wait_for_a_file_server(driver: Driver) -> None:
    driver.say("count 1", "0 busy 50 1", "0 memory 8589934592 0 1048576")
    saving, released, saved = threading.Event(), threading.Event(), threading.Event()

    def save(_: PodGpus) -> None:
        saving.set()
        released.wait(600)
        saved.set()

    monitor = GpuMonitor("0", 0, 1, print, sample_s=0.01, publisher=Publisher(lambda: None, save))
    monitor.watch({Key("a", 1): (0,)})
    assert saving.wait(10)
    monitor.refresh(lambda pid: True)
    assert monitor.slot_infos({})[0].busy_percent == 50
    monitor.close()
    assert not saved.is_set()
    released.set()
