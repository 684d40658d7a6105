"""The files of pods that end at once: removed when nothing needs them any more."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dispatcher.pod.registration import Registration
from dispatcher.pod.short_lived import remove_ended, unique_name
from dispatcher.run_state import liveness
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout


def ended_pod(layout: Layout, name: str, *, is_short_lived: bool = True, phase: str = "ended") -> None:
    layout.pods_dir.mkdir(parents=True, exist_ok=True)
    info = Registration(layout, name, 2.0).info
    liveness.write_pod(layout, msgspec.structs.replace(info, phase=phase, is_short_lived=is_short_lived))
    layout.pod_lock(name).touch()


def test_only_those_that_no_attempt_in_flight_names(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for name in ("named", "done", "nameless"):
        ended_pod(layout, name)
    ended_pod(layout, "running", phase="running")
    ended_pod(layout, "own", is_short_lived=False)
    remove_ended(layout, [Record(state=State.SUBMITTED, pod="named"), Record(state=State.DONE, pod="done")])
    assert sorted(liveness.pod_names(layout)) == ["named", "own", "running"]
    assert sorted(path.stem for path in layout.pods_dir.glob("*.lock")) == ["named", "own", "running"]


def test_names_are_never_used_twice() -> None:
    names = {unique_name("submit") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("submit-") for name in names)
