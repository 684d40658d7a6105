"""The dead man's timer of a TPU VM: how it gets there, how it is renewed, and what it tells. dead_man.py runs there.

It is the VM's startup script, so that it runs also where the dispatcher dies before the VM is READY, and where a queued
resource brings the VM when none is left.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dispatcher.base.times import duration_text
from dispatcher.hosts.types import RENEWALS, TpuHost
from dispatcher.outlets.remote.operations import Failed, Operation, Tail, TailRead, Write
from dispatcher.outlets.tpu import dead_man, merging

# On worker 0, and empty after each start of the machine.
DIRECTORY: Final = "/run/dispatcher-tpu"
STARTUP: Final = "startup-script"
_ARMED: Final = "armed"
_ENDPOINT: Final = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
_GOOGLE: Final = "https://tpu.googleapis.com/"
RENEWED_WITHIN_S: Final = 900.0
# Until it is known to be armed: it asks Google first.
_SOON_S: Final = 30.0
# So often it is asked until the VM counts as one without a timer.
_ASKED: Final = 10
_UNABLE: Final = "unable: "
# A renewal that the timer has not taken in may be that of another dispatcher, a moment ago; so many in a row are not.
_IGNORED: Final = 3
_ENDED: Final = "its timer has ended: renewals stay where they were written"
_NOT_STARTED: Final = "its startup script has not started the timer"


def metadata(host: TpuHost) -> Mapping[str, str]:
    """The metadata that the VM is created with: the host's own, and the timer before its startup script."""
    if host.dead_after_s is None:
        return host.metadata
    source = Path(dead_man.__file__).read_text(encoding="utf-8")
    words = ["python3", "-", DIRECTORY, str(math.ceil(host.dead_after_s)), os.environ.get(_ENDPOINT) or _GOOGLE]
    lines = [
        "#!/bin/bash",
        f"printf %s {shlex.quote(source)} | setsid {shlex.join(words)} >/dev/null 2>&1 &",
    ]
    own = host.metadata.get(STARTUP)
    if own:
        # As a file of its own, because it may be for another interpreter.
        lines += [
            f'own=$(mktemp) && printf %s {shlex.quote(own)} >"$own" && chmod 700 "$own" || exit 1',
            'case $(head -c 2 "$own") in "#!") "$own" ;; *) bash "$own" ;; esac',
            's=$?; rm -f "$own"; exit $s',
        ]
    return {**host.metadata, STARTUP: "\n".join(lines) + "\n"}


def renewal(seconds: float | None, *, is_last: bool = False) -> Sequence[Operation]:
    """The VM deletes itself when it is not renewed for so long (None: it never does). `is_last`: none follows."""
    path = f"{DIRECTORY}/{dead_man.RENEWALS[1] if is_last else dead_man.RENEWALS[0]}"
    return [Write(path=path, content=f"{math.ceil(seconds or 0)}".encode()), *state()]


def state() -> Sequence[Operation]:
    return [Tail(path=f"{DIRECTORY}/state")]


def read_state(answers: Sequence[Any]) -> str:
    """What the timer tells; empty where none has told anything yet."""
    last = answers[-1]
    return (last.content or b"").decode(errors="replace").strip() if isinstance(last, TailRead) else ""


def text(host: TpuHost, told: str) -> str:
    """For people: when the VM deletes itself, or that it cannot. `told` is its state."""
    if host.dead_after_s is None:
        return f"{host.name} does not delete itself when no dispatcher is left (dead_after: never)"
    limit = duration_text(host.dead_after_s)
    if told.startswith(_ARMED):
        return f"{host.name} deletes itself after {limit} without a dispatcher"
    why = told.partition(_UNABLE)[2] or _NOT_STARTED
    cure = "The VM's service account needs the permission tpu.nodes.delete, as roles/tpu.admin has it"
    if why in (_NOT_STARTED, _ENDED):
        cure = "On worker 0 `sudo journalctl -u google-startup-scripts` tells more"
    return (
        f"warning: {host.name} cannot delete itself after {limit} without a dispatcher, and costs money then: "
        f"{why}. {cure}"
    )


class Timer:
    """The timer of one VM, as a dispatcher renews it. `log` is told whether the VM can delete itself.

    It is renewed at least every `within_s`.
    """

    def __init__(self, host: TpuHost, log: Callable[[str], None], within_s: float = RENEWED_WITHIN_S) -> None:
        self._host = host
        self._within_s = within_s
        self._log = log
        self.start_over()

    def start_over(self) -> None:
        """It is another VM."""
        self._told = ""
        self._asked_s: float | None = None
        self._asked = 0
        self._renewed_s: float | None = None
        # Why the last renewals have not got there, and how many.
        self._why = ""
        self._failures = self._ignored = 0

    @property
    def is_armed(self) -> bool:
        return self._told.startswith(_ARMED)

    @property
    def problem(self) -> str:
        """When and why the VM deletes itself although a dispatcher lives; empty while renewals get there."""
        if not (self._why and self.is_armed):
            return ""
        limit_s = self._host.dead_after_s
        if self._renewed_s is None:
            when = "when its timer is over, which no dispatcher has renewed that is known here"
        elif limit_s is None:
            return ""
        else:
            at_s = time.time() + self._renewed_s + limit_s - time.monotonic()
            when = f"at {time.strftime('%H:%M', time.localtime(at_s))} (dead_after: {duration_text(limit_s)})"
        return (
            f"the TPU VM {self._host.name} does not hear that a dispatcher lives: {self._why}. It deletes itself "
            f"{when} unless a renewal gets there before; that is tried until then"
        )

    def due_in_s(self) -> float:
        if self._asked_s is None:
            return 0.0
        period_s = min(self._within_s, (self._host.dead_after_s or math.inf) / RENEWALS)
        if self.is_armed and self._failures:
            period_s = min(period_s, _SOON_S * 2.0 ** (self._failures - 1))
        elif not (self.is_armed or self._asked >= _ASKED):
            period_s = min(period_s, _SOON_S)
        return max(0.0, self._asked_s + period_s - time.monotonic())

    def questions(self) -> Sequence[Operation]:
        return renewal(self._host.dead_after_s)

    def missed(self, why: str) -> None:
        """The call that was to renew it has failed."""
        self._why = why

    def take_in(self, answers: Sequence[Any]) -> None:
        written, read = answers
        before = self._told
        if isinstance(read, TailRead):
            self._told = read_state(answers)
        self._note_renewal(written)
        self._asked_s = time.monotonic()
        self._asked += 1
        is_new = self._told != before if self._told else self._asked == _ASKED
        if is_new and self._host.dead_after_s is not None:
            self._log(self.text())

    def _note_renewal(self, written: Any) -> None:
        if isinstance(written, Failed) and not merging.is_done_on_first(written):
            self._why = written.error
            self._failures += 1
            return
        if not isinstance(written, Failed) and written.existed:
            # The timer removes what it has taken in.
            self._ignored += 1
            self._failures += 1
            if self._ignored >= _IGNORED:
                self._told = _UNABLE + _ENDED
            return
        self._renewed_s = time.monotonic()
        self._why = ""
        self._failures = self._ignored = 0

    def text(self) -> str:
        return text(self._host, self._told)
