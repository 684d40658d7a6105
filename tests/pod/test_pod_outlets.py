"""The outlets of a pod."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dispatcher.pod import pod_outlets
from dispatcher.pod.pod_outlets import PodOutlets

PATIENCE_S = 10.0


class Hanging:
    """An outlet that cannot be closed before all others of its pod are being closed too."""

    def __init__(self, together: threading.Barrier) -> None:
        self.together = together

    def close(self) -> None:
        self.together.wait(PATIENCE_S)


def test_hosts_that_hang_are_waited_for_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)
    made: Any = {name: Hanging(together) for name in ("a", "b", "c")}
    monkeypatch.setattr(pod_outlets, "make_outlets", lambda _: made)
    context: Any = None
    PodOutlets(context).close()
    assert not together.broken


def test_what_fails_when_an_outlet_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Barrier(2)
    broken.abort()
    made: Any = {"a": Hanging(threading.Barrier(1)), "b": Hanging(broken)}
    monkeypatch.setattr(pod_outlets, "make_outlets", lambda _: made)
    context: Any = None
    with pytest.raises(threading.BrokenBarrierError):
        PodOutlets(context).close()
