"""The GPUs of this host: what `--gpus` means, and their health.

Indices are NVML's, in PCI order; a job sees the same ones because CUDA_DEVICE_ORDER=PCI_BUS_ID goes with them.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.base.devices import HIGHEST_INDEX
from dispatcher.errors import PodError, UsageError

_HELPER = Path(__file__).with_name("nvml.py")


class Health(enum.StrEnum):
    """Whether a GPU can be used."""

    OK = "ok"
    LOST = "lost"
    ECC = "ecc"
    UNREADABLE = "unreadable"


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a GPU. `used_mib` is None where the driver does not tell. In a container the pid may be foreign.

    `draws`: it draws and does not compute, as a desktop does.
    """

    pid: int
    used_mib: int | None
    draws: bool = False


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as it was read. A field is None where the driver does not tell.

    `why` explains a health other than ok. `memory_used_mib` includes what the driver keeps for itself where
    `memory_reserved_mib` is None (drivers before 510), and only there. `busy_percent` is the greatest utilisation of
    the last seconds, `mean_percent` the mean, and `computing` the pids behind it: `GpuReader.read_use` asks for them,
    and for nothing else.
    """

    index: int
    health: Health = Health.OK
    why: str = ""
    uuid: str | None = None
    name: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    busy_percent: int | None = None
    mean_percent: int | None = None
    computing: tuple[int, ...] | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs that were asked for, in that order; none when `unavailable` says why they cannot be read."""

    gpus: tuple[Gpu, ...] = ()
    unavailable: str | None = None

    @property
    def warning(self) -> str | None:
        """One line for a person when GPUs cannot be read; None when they can."""
        if self.unavailable is None:
            return None
        return (
            f"GPUs cannot be read: {self.unavailable}. --gpus still sets CUDA_VISIBLE_DEVICES, but it is not "
            "checked whether these GPUs exist, are healthy or are used by other processes"
        )


def parse_gpus(text: str, existing: Callable[[], Sequence[int]]) -> tuple[int, ...]:
    """The indices that `--gpus` names, ascending: `0,1,2,3`, `0-7`, or `all` (those that `existing` gives).

    Raises UsageError with the part that cannot be used.
    """
    if text.strip() == "all":
        return tuple(existing())
    indices: list[int] = []
    for part in text.split(","):
        found = _index_range(part.strip(), text)
        again = sorted(set(found) & set(indices))
        if again:
            raise UsageError(
                f"--gpus {text!r} names GPU {again[0]} twice; for several jobs on a GPU use --jobs-per-gpu"
            )
        indices.extend(found)
    return tuple(sorted(indices))


def _index_range(part: str, text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,20})(?:\s*-\s*([0-9]{1,20}))?", part)
    if match is None:
        raise UsageError(f"--gpus {text!r}: {part!r} is not a GPU index; use a list (0,1,2,3), a range (0-7) or all")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(f"--gpus {text!r}: the range {part!r} runs backwards; did you mean {last}-{first}?")
    if last > HIGHEST_INDEX:
        raise UsageError(f"--gpus {text!r}: no host has a GPU {last}; the highest index is {HIGHEST_INDEX}")
    return range(first, last + 1)


class _Hello(msgspec.Struct, frozen=True):
    """The first line of a helper."""

    count: int = 0
    unavailable: str | None = None
    driver: str | None = None


class _HelperDiedError(PodError):
    """The process that reads the GPUs has ended by itself."""


class _Helper:
    """One process that asks NVML (nvml.py). No method waits longer than its `timeout_s`."""

    def __init__(self) -> None:
        # Its own process group: Ctrl-C is for the dispatcher, which continues to read GPUs while it drains.
        # -P: the folder of the script must not be first on the module path.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_HELPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            raise _HelperDiedError(f"the process that reads the GPUs cannot be started: {error}") from None
        self._received = b""
        self.hello: _Hello | None = None

    def start(self, timeout_s: float) -> bool:
        """Whether it has connected to the driver, or knows that there is none, within `timeout_s`."""
        if self.hello is None:
            line = self._line(timeout_s)
            self.hello = None if line is None else msgspec.json.decode(line, type=_Hello)
        return self.hello is not None

    def ask(self, device: str, what: str = "") -> None:
        """Send the question for one GPU; `answer` has what comes back."""
        stdin: Any = self._process.stdin
        try:
            stdin.write(f"{device} {what}\n".encode())
        except BrokenPipeError:
            raise self._death() from None

    def answer(self, timeout_s: float) -> Gpu | None:
        """The GPU that was asked for; None when no answer has come within `timeout_s`."""
        line = self._line(timeout_s)
        return None if line is None else msgspec.json.decode(line, type=Gpu)

    def close(self) -> None:
        """End it; one that hangs in the driver ends when the driver returns."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.2)

    def _line(self, timeout_s: float) -> bytes | None:
        stdout: Any = self._process.stdout
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                raise self._death()
            self._received += piece
        line, self._received = self._received.split(b"\n", 1)
        return line

    def _death(self) -> _HelperDiedError:
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(timeout=1)
        how = f"signal {-status}" if status is not None and status < 0 else f"exit {status}"
        return _HelperDiedError(f"the process that reads the GPUs died ({how}); by hand: echo 0 | python {_HELPER}")


class GpuReader:
    """Reads GPUs as often as the loop likes: NVML is started once, a reading then takes about a millisecond per GPU.

    A GPU whose driver call hangs costs `timeout_s` once; afterwards the others are read as before, and it is read again
    when its call returns. `start_timeout_s` is long because a driver without persistence mode takes seconds per GPU.
    Close it at the end; a dispatcher that is killed leaves nothing behind either.
    """

    # How long a GPU (or the driver) that kills its reader is left alone.
    rest_s = 60.0

    def __init__(self, *, timeout_s: float = 5.0, start_timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._helper: _Helper | None = None
        self._count = 0
        self._unavailable: str | None = None
        # The UUIDs of those that are parts of a GPU (MIG), by what they are called here.
        self.parts: Mapping[int, str] = {}
        # The version of the driver, None where it does not tell.
        self.driver: str | None = None
        self._hanging: dict[int, _Helper] = {}
        self._resting: dict[int | None, tuple[float, str]] = {}
        self._connect(start_timeout_s)

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for helper in [self._helper, *self._hanging.values()]:
            if helper is not None:
                helper.close()
        self._helper = None
        self._hanging.clear()

    @property
    def count(self) -> int | None:
        """How many GPUs this host has; None where there is no driver to ask."""
        return None if self._unavailable is not None else self._count

    def existing(self) -> tuple[int, ...]:
        """The indices of this host's GPUs, for `--gpus all`; PodError where there is no driver to ask."""
        if self._unavailable is not None:
            raise PodError(f"--gpus all needs a driver to ask: {self._unavailable}. Name the GPUs instead: --gpus 0,1")
        if self._count == 0:
            raise PodError("--gpus all: the NVIDIA driver sees no GPU on this host; use --slots N for CPU slots")
        return tuple(range(self._count))

    def read(self, indices: Sequence[int]) -> GpuReading:
        """These GPUs as they are now. Raises PodError for an index that this host does not have."""
        if self._unavailable is not None:
            return GpuReading(unavailable=self._unavailable)
        missing = [index for index in indices if not 0 <= index < self._count and index not in self.parts]
        if missing:
            named = ", ".join(map(str, missing))
            there = f"0 to {self._count - 1}" if self._count > 1 else "0" if self._count else "none"
            raise PodError(
                f"this host has no GPU {named}; GPUs here: {there} (nvidia-smi -L lists them); change --gpus"
            )
        return GpuReading(gpus=tuple(self._read(index) for index in indices))

    def read_use(self, index: int) -> Gpu:
        """How busy a GPU is that `read` has read before."""
        return self._read(index, "use")

    def _connect(self, timeout_s: float) -> None:
        try:
            self._helper = _Helper()
            self._helper.start(timeout_s)
        except _HelperDiedError as death:
            self._unavailable = str(death)
        else:
            hello = self._helper.hello
            if hello is None:
                self._unavailable = f"the NVIDIA driver has not answered for {timeout_s:g} s; see nvidia-smi and dmesg"
            else:
                self._unavailable, self._count, self.driver = hello.unavailable, hello.count, hello.driver
        if self._unavailable is not None:
            self._drop_helper()

    def _read(self, index: int, what: str = "") -> Gpu:
        for unit in (None, index):
            until, why = self._resting.get(unit, (0.0, ""))
            if time.monotonic() < until:
                return Gpu(index=index, health=Health.UNREADABLE, why=why)
        if index in self._hanging and not self._has_come_back(index):
            return self._hangs(index)
        # One death may have any cause (an OOM killer, an administrator); a second one is caused by this GPU.
        for last in (False, True):
            try:
                return self._ask(index, what)
            except _HelperDiedError as death:
                self._drop_helper()
                if last:
                    self._resting[index] = (time.monotonic() + self.rest_s, str(death))
        return Gpu(index=index, health=Health.UNREADABLE, why=self._resting[index][1])

    def _ask(self, index: int, what: str) -> Gpu:
        wait_s = 0.0
        if self._helper is None:
            # Only the first GPU waits for its start: a driver that hangs must not cost that time once per GPU and pass.
            self._helper, wait_s = _Helper(), self._timeout_s
        helper = self._helper
        if not helper.start(wait_s):
            return Gpu(index=index, health=Health.UNREADABLE, why="the NVIDIA driver does not answer; see dmesg")
        if helper.hello is not None and helper.hello.unavailable is not None:
            why = helper.hello.unavailable
            self._drop_helper()
            self._resting[None] = (time.monotonic() + self.rest_s, why)
            return Gpu(index=index, health=Health.UNREADABLE, why=why)
        uuid = self.parts.get(index, "")
        helper.ask(f"{index}={uuid}" if uuid else str(index), what)
        gpu = helper.answer(self._timeout_s)
        if gpu is None:
            self._hanging[index], self._helper = helper, None
            return self._hangs(index)
        return gpu

    def _has_come_back(self, index: int) -> bool:
        """Whether a GPU that did not answer has done so by now, or its reader has died; what it said is old."""
        helper = self._hanging[index]
        with contextlib.suppress(_HelperDiedError):
            if helper.answer(0) is None:
                return False
        del self._hanging[index]
        helper.close()
        return True

    def _hangs(self, index: int) -> Gpu:
        why = f"the driver has not answered for {self._timeout_s:g} s and more; see dmesg for Xid messages"
        return Gpu(index=index, health=Health.UNREADABLE, why=why)

    def _drop_helper(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None
