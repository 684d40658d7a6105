"""The outlets of a pod."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.hosts.types import Hosts, Location, PlainHost, VolcanoHost
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.identity import SubmissionFile, write_submission
from dispatcher.outlets.context import PodContext
from dispatcher.pod import pod_outlets
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import Layout

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


def test_a_host_whose_template_cannot_be_used_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    layout.templates_dir.mkdir()
    (layout.templates_dir / "volcano.yaml").write_text("kind: Pod")
    host = VolcanoHost(name="k8s", cluster="k8s", image="jax", pvc_name="data", pvc_mount_path="/data")
    config = Config(layout=layout, matrix=tmp_path / "m.json", hosts=Hosts(hosts={"k8s": host}))
    monkeypatch.setattr(pod_outlets, "make_outlets", lambda _: {})
    outlets = PodOutlets(PodContext(pod="p", config=config, observer=Observer(layout, 60.0, lambda: True), log=print))
    assert outlets.for_orphans("k8s") is None
    (note,) = outlets.notes()
    assert "k8s cannot be looked after here" in note
    assert "volcano.yaml: kind" in note


LAB = Location({"namespace": "lab", "cluster": "uid-1"}, {"context": "lab"})


@pytest.mark.parametrize(
    ("location", "outlet"),
    [
        (LAB, "k8s"),
        (Location({**LAB.parts, "namespace": "team"}, LAB.via), "k8s@namespace team, cluster uid-1 (context lab)"),
        (Location(LAB.parts, {"context": "prod"}), "k8s@namespace lab, cluster uid-1 (context prod)"),
        # Of an attempt that was not submitted nothing is to be found.
        (None, "k8s"),
    ],
)
def test_attempts_are_looked_for_where_they_were_submitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: Location | None, outlet: str
) -> None:
    """The configuration says `lab` by now, or again."""
    layout = Layout(tmp_path)
    host = VolcanoHost(
        name="k8s", cluster="k8s", image="i", pvc_name="p", pvc_mount_path="/p", namespace="lab", context="lab"
    )
    plain = PlainHost(name="w", cluster="w", ssh="w")
    config = Config(layout=layout, matrix=tmp_path / "m.json", hosts=Hosts(hosts={"k8s": host, "w": plain}))
    paths = layout.attempt("a", 1)
    paths.directory.mkdir(parents=True)
    if location is not None:
        file = SubmissionFile(outlet="k8s", name="d-1", index=0, directory="/p/a", location=location)
        write_submission(paths, file, durable=False)
    monkeypatch.setattr(pod_outlets, "make_outlets", lambda _: {})
    outlets = PodOutlets(PodContext(pod="p", config=config, observer=Observer(layout, 60.0, lambda: True), log=print))
    assert outlets.name_for_orphan(Key("a", 1), "k8s") == outlet
    assert outlets.name_for_orphan(Key("a", 2), "w") == "w"
    assert outlets.name_for_orphan(Key("a", 2), "local") == "local"
