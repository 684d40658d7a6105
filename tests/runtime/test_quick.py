"""Jobs in notebooks, and the files that they leave for the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime import registry
from dispatcher.runtime.configuration import configuration, current_config, field
from dispatcher.runtime.execution import ExecutionSpec
from dispatcher.runtime.job_file import read_job_file
from dispatcher.runtime.jobs.basic import BasicJob
from dispatcher.runtime.quick import quick


@dataclass(frozen=True)
class Training:
    lr: float = field("training/lr", default=1e-3)
    steps: int = field("training/steps")


class Train(BasicJob[Training]):
    @classmethod
    def config(cls) -> type[Training]:
        return Training

    def run(self) -> dict[str, float | str]:
        return {"lr": self.args.lr, "steps": self.args.steps}


class Resumed(Train):
    restored: Any = None

    @classmethod
    def from_checkpoint_path(cls, rel_path: str, spec: ExecutionSpec, runtime_cfg: dict[str, Any]) -> Resumed:
        with configuration({"training": {"lr": 0.5, "steps": 7, **runtime_cfg.get("training", {})}}):
            job = cls(spec)
        job.restored = (rel_path, runtime_cfg)
        return job


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {"demo/train": Train, "demo/resumed": Resumed})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield


def test_a_job_is_set_up_and_run(tmp_path: Path) -> None:
    with quick("demo/train", "first", out_path=tmp_path / "out", project="p") as j:
        with pytest.raises(ConfigError, match=r'training\.lr = "fast"'):
            j.config.training.lr = "fast"
        with pytest.raises(ConfigError, match=r"training\.steps: required"):
            j()
        j.config.training.lr = 1e-4
        j.config.training.steps = 3
        assert j() == {"lr": 1e-4, "steps": 3}
    assert (tmp_path / "out" / "results" / "p" / "default" / "first" / "result.json").is_file()


def test_files_go_to_runs_unless_said(tmp_path: Path) -> None:
    with quick(Train, "first") as j:
        j.config.training.steps = 1
        j()
    assert (tmp_path / "runs" / "results" / "default" / "default" / "first").is_dir()


def test_a_restored_job_takes_from_its_checkpoint_what_was_not_assigned(tmp_path: Path) -> None:
    with quick("demo/resumed", "next", out_path=tmp_path) as j:
        j.config.training.lr = 1e-3
        j.restore("default/default/first/best")
        job = j.create()
        assert j() == {"lr": 1e-3, "steps": 7}
        with pytest.raises(UsageError, match="the job already exists"):
            j.restore("other")
    assert isinstance(job, Resumed)
    # The default was assigned on purpose, and so it is said.
    assert job.restored == ("default/default/first/best", {"training": {"lr": 1e-3}})


def test_a_job_that_cannot_be_restored_says_so(tmp_path: Path) -> None:
    with quick("demo/train", "next", out_path=tmp_path) as j:
        j.restore("x")
        with pytest.raises(UsageError, match="Train cannot start from 'x': it is not a RestoreableJob"):
            j()


def test_a_saved_job_is_read_back(tmp_path: Path) -> None:
    with quick("demo/train", "first", out_path=tmp_path) as j:
        j.config.training.lr = 1e-05
        path = j.save(tmp_path / "new" / "config.yaml", chip="h100", n_chips=8, n_shards=2)
    assert path.read_text() == (
        "job: demo/train\nrequest:\n  chip: h100\n  min_chips: 8\n  tensor_shards: 2\n"
        "training:\n  lr: 1.0e-05\n  steps: '...'\n"
    )
    file = read_job_file(path)
    assert (file.job, file.request.chip, file.request.min_chips) == ("demo/train", "h100", 8)
    assert file.config == {"training": {"lr": 1e-05, "steps": "..."}}


def test_a_class_without_a_key_is_not_saved(tmp_path: Path) -> None:
    class Unnamed(Train):
        pass

    with quick(Unnamed, "x", out_path=tmp_path) as j, pytest.raises(UsageError, match="has no key"):
        j.save(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("training: {}", r"job = null: expected the key of a job"),
        (
            "job: a\nrequest: {chip: 3, chips: 8}",
            r"(?s)2 problems.*request.chips: unknown key.*request.chip = 3: expected text",
        ),
        ("job: a\nrequest: h100", r'request = "h100": expected keys'),
        ("- a", r"expected keys and values"),
        ("job: a\njob: b", r"line 2, column 1: duplicate key 'job'"),
    ],
)
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_job_file(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_job_file(tmp_path / "missing.yaml")


def test_a_job_lasts_over_several_cells(tmp_path: Path) -> None:
    j = quick("demo/train", "cells", out_path=tmp_path).init()
    j.config.training.steps = 3
    assert current_config() is j.config
    assert j() == {"lr": 1e-3, "steps": 3}
    j.close()
    assert current_config() is None
