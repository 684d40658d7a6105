"""CheckpointedJob and RestoreableJob: both forms of every operation, and a job restored from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from dispatcher import contract
from dispatcher.base import yaml_text
from dispatcher.checkpoints.checksum import of_bytes
from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.checkpoints.manifest import FileRecord, decode, encode
from dispatcher.errors import CheckpointError, ConfigError, StorageError, UsageError
from dispatcher.runtime.checkpoint import Contents
from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.execution import local
from dispatcher.runtime.job_file import read_job_file
from dispatcher.runtime.jobs.checkpointed import CheckpointedJob
from dispatcher.runtime.jobs.restoreable import RestoreableJob
from dispatcher.runtime.registry import job


@dataclass(frozen=True)
class Sums:
    start: int = field("sum/start")
    steps: int = field("sum/steps", default=3)


@dataclass(frozen=True)
class Shift:
    by: float = field("shift/by", default=0.5)


class Keeping(CheckpointedJob[Sums]):
    """Saves what it adds up."""

    @classmethod
    def config(cls) -> type[Any]:
        return Sums

    def run(self) -> Mapping[str, float]:
        total = jnp.asarray(float(self.args.start))
        for step in range(self.args.steps):
            total += step
            self.save(f"step/{step}", {"total": total}, step=step, metadata={"step": step})
        return {"total": float(total)}


@job("tests/adding")
class Adding(RestoreableJob[Sums]):
    """Goes on adding from a checkpoint."""

    total: Any = None

    @classmethod
    def config(cls) -> type[Any]:
        return Sums

    def run(self) -> Mapping[str, float]:
        total = jnp.zeros(()) + self.args.start if self.total is None else self.total
        for step in range(self.args.steps):
            total = total + 1
            self.save(f"at-{step}", {"total": total}, step=step)
        self.register(f"at-{self.args.steps - 1}")
        return {"total": float(total)}

    def restore_from_path(self, rel_path: str) -> None:
        self.total = self.load_from_path(rel_path, {"total": jnp.zeros(())}).tree["total"]


@job("tests/adding/more")
class AddingMore(Adding):
    """A job of its own that inherits."""


@job("tests/shifting")
class Shifting(RestoreableJob[Shift]):
    """Goes on from what another job saved."""

    @classmethod
    def config(cls) -> type[Any]:
        return Shift

    def run(self) -> Mapping[str, float]:
        return {"total": float(self.total) + self.args.by}

    def restore_from_path(self, rel_path: str) -> None:
        self.total = self.load_from_path(rel_path, {"total": jnp.zeros(())}).tree["total"]


class Resumable(Keeping):
    """Saves what it could go on from, and then something that it could not."""

    def run(self) -> Mapping[str, float]:
        for step in range(self.args.steps):
            self.save(f"step-{step}", {"total": jnp.zeros(())}, step=step, resumable=True)
        self.save("aside", {"total": jnp.zeros(())}, step=99)
        return {}


def make(cls: type[Any], root: Any, name: str = "run", **said: Any) -> Any:
    with configuration(cls.checked_config({"sum": {"start": 10, **said}})):
        return cls(local(root, name, "lab", "night"))


def test_the_attempt_tells_what_is_committed_once_it_is(tmp_path, attempt, monkeypatch):
    told = attempt(1) / contract.CHECKPOINT_FILE
    publish, before, after = DirectoryStorage.publish, [], []

    def step_told() -> int | None:
        return json.loads(told.read_text())["step"] if told.exists() else None

    def watched(self, staged, name, draft, guard):
        before.append(step_told())
        manifest = publish(self, staged, name, draft, guard)
        after.append(step_told())
        return manifest

    monkeypatch.setattr(DirectoryStorage, "publish", watched)
    make(Resumable, tmp_path)()
    assert before == [None, 0, 1, 2]
    assert after == before
    assert step_told() == 2
    assert [path.name for path in told.parent.iterdir()] == [told.name]


def test_a_training_goes_on_where_nobody_can_be_told(tmp_path, attempt, caplog):
    told = attempt(1) / contract.CHECKPOINT_FILE
    told.mkdir()
    make(Resumable, tmp_path)()
    assert "step-2 is saved, but:" in caplog.text
    assert "cannot report to the dispatcher that step 2 is saved" in caplog.text


def test_a_commit_that_fails_is_not_told(tmp_path, attempt, monkeypatch):
    directory = attempt(1)

    def full(self, staged, name, draft, guard):
        raise StorageError("no space left")

    monkeypatch.setattr(DirectoryStorage, "publish", full)
    with pytest.raises(StorageError):
        make(Resumable, tmp_path)()
    assert not (directory / contract.CHECKPOINT_FILE).exists()


def test_a_call_ends_when_everything_is_committed(tmp_path):
    keeping = make(Keeping, tmp_path)
    assert keeping() == {"total": 13.0}
    folder = tmp_path / "checkpoints" / "lab" / "night" / "run"
    assert sorted(path.name for path in (folder / "step").iterdir()) == ["0", "1", "2"]
    assert not (folder / "ckpt.tmp").exists()


def test_no_row_speaks_of_what_could_not_be_saved(tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(DirectoryStorage, "publish", refuse)
    job = make(Keeping, tmp_path)
    with pytest.raises(StorageError, match="the disk is full"):
        job()
    assert not job.spec.result_path("result.json").exists()


def test_both_forms(tmp_path, same):
    keeping = make(Keeping, tmp_path)
    tree = {"w": jnp.arange(3.0)}
    ref = keeping.save("best", tree, step=7, metadata={"loss": 1.5}, beside=Contents(position=[4]))
    assert (ref.name, ref.step) == ("best", 7)
    for found in (keeping.load("best", tree), keeping.load_from_path("lab/night/run/best", tree)):
        same(found.tree, tree)
        assert found.contents.position == [4]
    for metadata in (keeping.metadata("best"), keeping.metadata_from_path("lab/night/run/best")):
        assert metadata == {"loss": 1.5}
    assert keeping.contents("best").config == keeping.contents_from_path("lab/night/run/best").config

    keeping.save_from_path("shared/base", {"w": jnp.zeros(2)})
    keeping.wait()
    other = make(Keeping, tmp_path, "other")
    same(other.load_from_path("shared/base", {"w": jnp.ones(2)}).tree, {"w": jnp.zeros(2)})
    same(
        other.load_from_path("lab/night/run/best", {"w": np.zeros(3, np.float32)}).tree, {"w": np.arange(3, dtype="f")}
    )
    with pytest.raises(CheckpointError, match="lab/night/other/best: no such checkpoint"):
        other.load("best", tree)


def test_a_job_and_its_configuration_lie_beside_it(tmp_path):
    adding = make(Adding, tmp_path, steps=1)
    adding()
    folder = tmp_path / "checkpoints" / "lab" / "night" / "run" / "at-0"
    said = json.loads((folder / "job.json").read_text())
    assert said["job"] == "tests/adding"
    assert (said["name"], said["project"], said["group"]) == ("run", "lab", "night")
    assert said["hardware"]["devices"] == 1
    assert yaml_text.load((folder / "config.yaml").read_text()) == {
        "job": "tests/adding",
        "sum": {"start": 10, "steps": 1},
    }
    assert read_job_file(folder / "config.yaml").job == "tests/adding", "dispatcher job run takes it as it is"


@pytest.mark.parametrize("path", ["/etc/x", "a/../../b", "alone", "../x/y"])
def test_paths_that_lead_elsewhere(tmp_path, path):
    keeping = make(Keeping, tmp_path)
    with pytest.raises(UsageError, match="expected a path below"):
        keeping.save_from_path(path, {"x": 1})


def test_an_error_of_the_job_is_not_covered(tmp_path):
    class Failing(Keeping):
        def run(self) -> Mapping[str, float]:
            self.save("last", {"x": 3})
            raise RuntimeError("the job's own")

    failing = make(Failing, tmp_path)
    with pytest.raises(RuntimeError, match="the job's own"):
        failing()
    assert make(Failing, tmp_path).load("last", {"x": 0}).tree == {"x": 3}


def test_latest_and_register(tmp_path):
    adding = make(Adding, tmp_path)
    assert Adding.latest(adding.spec) is None
    assert Adding.checkpoints(adding.spec) == []
    adding()
    assert [ref.name for ref in Adding.checkpoints(adding.spec)] == ["at-0", "at-1", "at-2"]
    assert Adding.latest(adding.spec).name == "at-2"
    adding.register("at-0")
    assert Adding.latest(adding.spec).name == "at-0"
    adding.save("newer", {"total": jnp.zeros(())}, resumable=True)
    adding.wait()
    assert Adding.latest(adding.spec).name == "newer"


def test_a_job_is_made_again_from_its_checkpoint(tmp_path):
    make(Adding, tmp_path)()
    spec = local(tmp_path, "run", "lab", "night")
    again = RestoreableJob.from_checkpoint(Adding.latest(spec).name, spec)
    assert type(again) is Adding
    assert (again.args, float(again.total)) == (Sums(start=10, steps=3), 13.0)
    assert again() == {"total": 16.0}


def test_what_is_said_at_the_start_counts_more(tmp_path):
    make(AddingMore, tmp_path)()
    spec = local(tmp_path, "second", "lab", "night")
    again = Adding.from_checkpoint_path("lab/night/run/at-1", spec, {"sum": {"steps": 1}})
    assert type(again) is AddingMore, "the class that saved it, which is one of Adding"
    assert (again.args, float(again.total)) == (Sums(start=10, steps=1), 12.0)
    assert again() == {"total": 13.0}
    assert (tmp_path / "checkpoints/lab/night/second/at-0/manifest.json").exists()


def test_a_job_goes_on_from_another_jobs_checkpoint(tmp_path):
    make(Adding, tmp_path)()
    spec = local(tmp_path, "shift")
    shifting = Shifting.from_checkpoint_path("lab/night/run/at-0", spec, {"shift": {"by": 2.0}})
    assert shifting() == {"total": 13.0}


def test_what_is_wrong_is_said(tmp_path):
    make(Adding, tmp_path)()
    spec = local(tmp_path, "x")
    with pytest.raises(ConfigError, match=r"sum.step = 3: unknown key \(did you mean 'sum.steps'\?\)"):
        Adding.from_checkpoint_path("lab/night/run/at-0", spec, {"sum": {"step": 3}})
    with pytest.raises(CheckpointError, match=r"at-9: no such checkpoint \(known: at-0, at-1, at-2\)"):
        RestoreableJob.from_checkpoint_path("lab/night/run/at-9", spec)
    make(Keeping, tmp_path, "keep")()
    with pytest.raises(UsageError, match=r"step/0/job.json names no job"):
        RestoreableJob.from_checkpoint_path("lab/night/keep/step/0", spec)


def resealed(place: Path, name: str, data: bytes) -> None:
    """Exchange a file of a checkpoint and correct its manifest, as somebody who edits one would."""
    (place / name).write_bytes(data)
    manifest = decode((place / "manifest.json").read_bytes(), "manifest")
    kept = [each for each in manifest.files if each.path != name]
    record = FileRecord(name, len(data), of_bytes(data))
    (place / "manifest.json").write_bytes(encode(msgspec.structs.replace(manifest, files=(*kept, record))))


BOMB = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, x]\n" for n in range(3))


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("config.yaml", BOMB.encode(), r"line 1, column 4: expected no anchors \(&\) and aliases"),
        ("config.yaml", b"sum: *nowhere\n", r"line 1, column 6: expected no anchors \(&\) and aliases"),
        ("config.yaml", b"- sum\n", "holds .*expected the configuration's keys and values"),
        ("config.yaml", b"sum: [1]\n", "sum"),
        ("config.yaml", b"1: 2\n", "the key 1 is not text"),
        ("config.yaml", b"sum: {start: 1}\n# caf\xe9\n", "expected UTF-8"),
        ("job.json", b"[1]", r"holds \[1\]: expected names and values"),
        ("job.json", b"[" * 100_000, "not JSON"),
        ("job.json", b'{"job": 3}', "job = 3: expected the key of a job"),
        ("config.json", b"[1]", r"holds \[1\]: expected names and values"),
        ("position.json", b"[3]", r"holds \[3\]: expected .*a position for each process"),
        ("position.json", b'{"processes": []}', "expected .*a position for each process"),
        ("position.json", b'{"processes": 2}', "expected .*a position for each process"),
    ],
)
def test_a_file_that_is_odd_but_sealed_is_named(tmp_path, name, data, problem):
    make(Adding, tmp_path)()
    place = tmp_path / "checkpoints/lab/night/run/at-1"
    resealed(place, name, data)
    with pytest.raises((CheckpointError, ConfigError), match=problem) as caught:
        Adding.from_checkpoint_path("lab/night/run/at-1", local(tmp_path, "x"))
    assert f"{place}/{name}" in str(caught.value)


def test_a_misspelt_run_is_told_from_a_missing_checkpoint(tmp_path):
    make(Adding, tmp_path)()
    spec = local(tmp_path, "shift")
    with pytest.raises(CheckpointError, match=r"lab/night/rum: no checkpoints there \(did you mean 'run'"):
        Shifting.from_checkpoint_path("lab/night/rum/at-0", spec)
    with pytest.raises(CheckpointError, match=r"no such checkpoint \(known: at-0, at-1, at-2\)"):
        Shifting.from_checkpoint_path("lab/night/run/at-9", spec)
    with pytest.raises(CheckpointError, match=r"lab/night/run is a run: add .*, such as lab/night/run/latest$"):
        Shifting.from_checkpoint_path("lab/night/run", spec)
    with pytest.raises(CheckpointError, match=rf"no checkpoints there.*: expected a path below {tmp_path}/checkpoints"):
        Shifting.from_checkpoint_path("checkpoints/lab/night/run/at-0", spec)
    assert float(Shifting.from_checkpoint_path("lab/night/run/latest", spec).total) == 13
    make(Adding, tmp_path).register("at-0")
    assert float(Shifting.from_checkpoint_path("lab/night/run/latest", spec).total) == 11
    assert [path.name for path in (tmp_path / "checkpoints/lab/night").iterdir()] == ["run"]


def test_a_job_goes_on_where_it_was_and_keeps_the_last_ones(tmp_path):
    class Lasting(Keeping):
        """Adds one in each step; breaks off in `broken_at`, before that one is saved."""

        broken_at: int | None = None

        def run(self) -> Mapping[str, float]:
            total, step = jnp.asarray(float(self.args.start)), 0
            resumed = self.resume(total)
            if resumed is not None:
                total, step = resumed.tree, resumed.ref.step
            begun_at = step
            while step < self.args.steps:
                total, step = total + 1, step + 1
                if step == 1:
                    self.save("named", total)
                if step == self.broken_at:
                    raise RuntimeError("broken off")
                self.save(f"step-{step}", total, step=step, resumable=True)
            return {"total": float(total), "begun_at": begun_at}

    first = make(Lasting, tmp_path, steps=9)
    first.broken_at = 6
    with pytest.raises(RuntimeError, match="broken off"):
        first()
    assert make(Lasting, tmp_path, steps=9)() == {"total": 19.0, "begun_at": 5}
    folder = tmp_path / "checkpoints" / "lab" / "night" / "run"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"named", "step-7", "step-8", "step-9"}
