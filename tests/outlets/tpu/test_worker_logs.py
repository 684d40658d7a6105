"""The logs of all workers as one stream: each line with its worker, none lost and none twice."""

from __future__ import annotations

import threading

from fleet import wait_until
from outlets.tpu.pods import Pod

from dispatcher.cli.remote_log import RemoteLog, several_logs
from dispatcher.cli.worker_logs import follow_several
from dispatcher.outlets.tpu.workers import WorkersTransport


class Screen:
    """What was printed so far."""

    def __init__(self) -> None:
        self.text = b""

    def write(self, block: bytes) -> None:
        self.text += block

    def flush(self) -> None:
        """It is shown at once."""

    def of(self, worker: int) -> list[str]:
        """The lines of a worker."""
        prefix = f"[{worker}] "
        return [line.removeprefix(prefix) for line in self.text.decode().splitlines() if line.startswith(prefix)]


def elsewhere(pod: Pod) -> RemoteLog:
    return RemoteLog("pod", WorkersTransport(pod.host()), pod.directory("a"))


def write(pod: Pod, worker: int, text: str) -> None:
    with (pod.workers[worker].path(pod.name("a")) / "output.log").open("a") as log:
        log.write(text)


def test_all_logs_are_followed_over_broken_connections(pod: Pod) -> None:
    pod.begin("a")
    for worker in (0, 1):
        write(pod, worker, f"one of {worker}\n" * 3)
    screen, ended = Screen(), threading.Event()
    logs = several_logs(elsewhere(pod))
    assert [log.host for log in logs.values()] == ["pod, worker 0", "pod, worker 1"]
    follower = threading.Thread(target=follow_several, args=(logs, screen, None, ended.is_set))
    follower.start()
    try:
        expected = [[f"{pod.workers[worker].name} has begun", *[f"one of {worker}"] * 3] for worker in (0, 1)]
        wait_until(lambda: [screen.of(0), screen.of(1)] == expected, "both logs are shown")
        pod.break_connections(pod.workers[1])
        write(pod, 1, "two of 1\nthree")
        wait_until(lambda: screen.of(1) == [*expected[1], "two of 1"], "it goes on where it was")
        write(pod, 1, " of 1\nno end")
        for worker in pod.workers:
            pod.end(worker, "a", 0)
        follower.join(120)
        assert not follower.is_alive()
        assert screen.of(1) == [*expected[1], "two of 1", "three of 1", "no end"]
        assert screen.of(0) == expected[0]
    finally:
        ended.set()
        follower.join()


def test_the_last_lines_of_each_worker(pod: Pod) -> None:
    pod.begin("a")
    for worker in (0, 1):
        write(pod, worker, "".join(f"{number}\n" for number in range(5)) + "rest")
        pod.end(pod.workers[worker], "a", 0)
    wait_until(lambda: all(pod.file(worker, "a", "exit.json") for worker in pod.workers), "it has ended")
    screen = Screen()
    follow_several(several_logs(elsewhere(pod)), screen, 2, lambda: True)
    assert screen.of(0) == screen.of(1) == ["3", "4", "rest"]
    screen = Screen()
    follow_several({1: several_logs(elsewhere(pod))[1]}, screen, 1, lambda: True)
    assert screen.text == b"[1] 4\n[1] rest\n"
