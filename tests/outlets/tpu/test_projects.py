"""In which project a host is that names none, and in which projects something may cost money."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu.projects import known_projects, other_projects, remember_project, settled, with_project
from dispatcher.workspace import Layout

HOST = TpuHost(name="pod", cluster="pod", zone="z", accelerator_type="v4-8")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Of a workspace whose gcloud has the project `own`."""
    gcloud = tmp_path / "bin/gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text("#!/bin/sh\necho own\n")
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gcloud.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "lab").mkdir()
    return Layout(tmp_path / "lab")


def test_gclouds_own_counts_until_the_host_was_used(layout: Layout) -> None:
    assert with_project(HOST, layout).project is None
    assert settled(HOST, layout).project == "own"
    remember_project(layout, "other", "elsewhere")
    assert settled(HOST, layout).project == "own"
    assert other_projects([HOST], layout) == []
    remember_project(layout, "pod", "lab")
    assert settled(HOST, layout).project == with_project(HOST, layout).project == "lab"
    (line,) = other_projects([HOST], layout)
    assert line.startswith("hosts.pod names no project: lab counts, where this workspace has used it, and not")
    named = TpuHost(name="pod", cluster="pod", zone="z", accelerator_type="v4-8", project="named")
    assert settled(named, layout).project == "named"
    assert other_projects([named], layout) == []


def test_the_last_project_of_a_host_counts_and_all_are_known(layout: Layout) -> None:
    for project in ("lab", "own", "own", "lab", "example.org:old"):
        remember_project(layout, "pod", project)
    assert layout.tpu_projects.read_text() == "lab pod\nown pod\nlab pod\nexample.org:old pod\n"
    assert with_project(HOST, layout).project == "example.org:old"
    assert known_projects(layout) == ["lab", "own", "example.org:old"]


def test_what_a_person_has_written_there_is_read_as_far_as_it_can_be(layout: Layout) -> None:
    layout.run_state.mkdir(parents=True)
    layout.tpu_projects.write_text("mine\nx y z\n--zone=a pod\nlab pod\nhalf-a-li")
    assert known_projects(layout) == ["mine", "lab", "half-a-li"]
    assert with_project(HOST, layout).project == "lab"
    remember_project(layout, "pod", "")
    assert known_projects(layout) == ["mine", "lab", "half-a-li"]
