"""`dispatcher clean --checkpoints`: what is removed, and above all what is not."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from fleet import COMMAND, Fleet, shell, wait_until

from dispatcher import Workspace
from dispatcher.checkpoints import reported
from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.checkpoints.fence import Run
from dispatcher.checkpoints.manifest import MANIFEST, Manifest, decode, encode
from dispatcher.checkpoints.reported import Reported
from dispatcher.checkpoints.retention import Retention
from dispatcher.checkpoints.series import Series
from dispatcher.checkpoints.storage import LATEST, OLD, SCRATCH, TREE
from dispatcher.run_state.states import State

# Saves these steps with these losses, as a job whose processes were killed before their retention.
SAVES = """
import json, os, sys
import numpy as np
from dispatcher.checkpoints.series import Series
from dispatcher.runtime.checkpoint import CheckpointManager, Retention

said = json.loads(sys.argv[1])
if said.get("killed"):
    Series.retain = lambda *_: None
retention = Retention(**said["retention"]) if "retention" in said else None
with CheckpointManager(said["place"], retention=retention) as checkpoints:
    checkpoints.save({"x": np.zeros(2000)}, 0, name="best", resumable=False)
    for step, loss in said["saves"]:
        checkpoints.save({"x": np.full(2000, step)}, step, metrics={"loss": loss})
"""
STEPS = [[10, 1], [20, 5], [30, 4], [40, 3]]
KILLED = {"retention": {"last": 1, "every": 20, "best": 1}, "saves": STEPS, "killed": True}
PLACE = "runs/checkpoints/default/default"


def saving(job: str, **said: Any) -> dict[str, Any]:
    command = [sys.executable, "save.py", json.dumps({"place": f"{PLACE}/{job}", **said})]
    return {"job_id": job, "method": "m", "command": command, "env": {"JAX_PLATFORMS": "cpu"}}


def ran(fleet: Fleet, *entries: dict[str, Any]) -> None:
    (fleet.root / "save.py").write_text(SAVES)
    fleet.write_config("methods: {m: {backoff: 0.01s}}\n")
    fleet.write_manifest(list(entries))
    fleet.run_all("--slots", "2")


def series(fleet: Fleet, job: str) -> Series:
    return Series(DirectoryStorage(fleet.root / PLACE / job), Run("", "", 0, None))


def names(fleet: Fleet, job: str) -> list[str]:
    """The checkpoints of a job. Each is complete."""
    found = series(fleet, job)
    known = found.checkpoints()
    for each in known:
        ref, manifest = found.found(each.name)
        assert found.storage.is_complete(ref.name, manifest), each.name
    return [each.name for each in known]


def firsts(text: str) -> list[str]:
    return [line.split()[0].removeprefix(f"{PLACE}/") for line in text.splitlines() if line.startswith(PLACE)]


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def plant(fleet: Fleet, job: str, source: Path, steps: int = 0, **of: Any) -> Path:
    """The checkpoints of a job as `source` has them; with `steps` so many of the last one. They are reported."""
    place = fleet.root / PLACE / job
    shutil.copytree(source, place)
    storage = DirectoryStorage(place)
    last = max(storage.manifests(), key=lambda each: decode(each[1], "").order)[0]
    for step in range(1, steps + 1):
        shutil.copytree(place / last, place / f"s{step:03d}")
    newest = None
    for name, data in list(storage.manifests()):
        manifest = decode(data, name)
        order = {"sequence": 100 + int(name[1:]), "step": int(name[1:])} if steps and name[1:].isdigit() else {}
        changed = type(manifest)(**{**as_fields(manifest), "job": job, **order, **of})
        (place / name / MANIFEST).write_bytes(encode(changed))
        if newest is None or changed.order > newest[1].order:
            newest = name, changed
    assert newest is not None
    (place / "latest").unlink()
    name, manifest = newest
    seal = decode((place / name / MANIFEST).read_bytes(), name).seal
    directory = fleet.attempt(job).directory
    reported.write(directory, Reported(manifest.step, f"{PLACE}/{job}", name, seal, Retention(last=1)))
    return place


def as_fields(manifest: Any) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in manifest.__struct_fields__}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that a process saved by hand: five, of which three go by a retention of one. They are copied."""
    script = tmp_path_factory.mktemp("source") / "save.py"
    script.write_text(SAVES)
    place = script.with_name("saved")
    words = json.dumps({"place": str(place), "saves": [[10, 1], [20, 2], [30, 3], [40, 4]]})
    subprocess.run([sys.executable, str(script), words], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return place


def small_source(place: Path) -> Path:
    """A checkpoint with as few files as possible."""
    storage = DirectoryStorage(place)
    staged = storage.staging()
    (staged / TREE).write_text("{}")
    order = {"step": 1, "term": 1, "attempt": 1, "sequence": 1}
    about = {"run": "r", "job": "a", "created": "", "parent": None, "resumable": True, "metrics": {}, "processes": 1}
    storage.publish(staged, "step-00000001", Manifest(**order, **about, files=()), lambda _: None)
    storage.close()
    (place / LATEST).touch()
    return place


def over(fleet: Fleet, *jobs: str) -> None:
    """Jobs that have ended, with one attempt."""
    fleet.write_config("methods: {m: {}}\n")
    fleet.write_manifest([shell(job, "exit 0") for job in jobs])
    fleet.run_all("--slots", "2")


def test_what_the_job_itself_would_have_removed(fleet: Fleet) -> None:
    ran(fleet, saving("a", **KILLED), saving("all", saves=STEPS))
    place = fleet.root / PLACE / "a"
    said = json.loads(fleet.attempt("a").checkpoint.read_text())
    assert (said["step"], said["series"], said["name"]) == (40, f"{PLACE}/a", "step-00000040")
    before = content(place)
    dry = fleet.run("clean", "--checkpoints")
    assert content(place) == before
    # The last, the best by its loss, those every 20 steps, and the one that has a name stay; `all` keeps everything.
    assert firsts(dry) == ["a/step-00000030"]
    plan = json.loads(fleet.run("clean", "--checkpoints", "--json"))
    whole = [place / "step-00000030", *(place / "step-00000030").rglob("*")]
    assert plan["bytes"] == 512 * sum(os.lstat(path).st_blocks for path in whole)
    assert plan["files"] == len(whole)
    assert "nothing to remove" in fleet.run("clean", "--checkpoints", "--older-than", "1h")
    done = json.loads(fleet.run("clean", "--checkpoints", "--yes", "--json"))
    assert {**done, "removed": False} == plan and plan["skipped"] == []
    assert names(fleet, "a") == ["best", "step-00000010", "step-00000020", "step-00000040"]
    assert content(place) == {name: data for name, data in before.items() if not name.startswith("step-00000030/")}
    assert "nothing to remove" in fleet.run("clean", "--checkpoints", "--yes")
    two = firsts(fleet.run("clean", "--checkpoints", "--keep", "2", "all"))
    assert two == ["all/step-00000010", "all/step-00000020"]
    fleet.run("clean", "--checkpoints", "--keep", "1", "--periodic", "--yes")
    assert names(fleet, "a") == ["best", "step-00000010", "step-00000040"]
    assert names(fleet, "all") == ["best", "step-00000040"]
    assert "--checkpoints" in fleet.try_("clean", "--periodic").stderr


def test_what_is_left_alone(fleet: Fleet, source: Path) -> None:
    jobs = ("over", "queued", "held", "named", "path", "shared", "moved", "store", "later", "links", "hurt")
    over(fleet, *jobs)
    places = {job: plant(fleet, job, source) for job in jobs}
    fleet.write_manifest(
        [
            *(shell(job, "exit 0") for job in jobs),
            {**shell("child", "exit 0"), "needs": ["queued"], "init_from": "named"},
            shell("reader", f"python\ncat {PLACE}/path/step-00000010/tree.json"),
        ]
    )
    fleet.run("requeue", "queued", "held")
    fleet.run("hold", "held")
    # Another job saves in this directory, too.
    manifest = decode((places["shared"] / "step-00000010" / MANIFEST).read_bytes(), "")
    other = type(manifest)(**{**as_fields(manifest), "job": "other"})
    (places["shared"] / "step-00000010" / MANIFEST).write_bytes(encode(other))
    places["moved"].rename(fleet.root / "elsewhere")
    shutil.copytree(source, places["moved"])
    at_a_store = Reported(40, "s3://bucket/a", "step-00000040", "0")
    reported.write(fleet.attempt("store").directory, at_a_store)
    later = decode((places["later"] / "step-00000040" / MANIFEST).read_bytes(), "")
    copied = places["later"] / "step-00000050"
    shutil.copytree(places["later"] / "step-00000040", copied)
    newer = {**as_fields(later), "attempt": 2, "step": 50}
    (copied / MANIFEST).write_bytes(encode(type(later)(**newer)))
    # What a link names is not in the series.
    (places["links"] / "step-00000010").rename(fleet.root / "linked")
    (places["links"] / "step-00000010").symlink_to(fleet.root / "linked")
    (places["hurt"] / "step-00000040" / "tree.json").unlink()
    before = {job: content(fleet.root / PLACE / job) for job in jobs}
    done = fleet.try_("clean", "--checkpoints", "--yes")
    assert done.returncode == 0, done.stderr
    assert firsts(done.stdout) == [
        "links/step-00000020", "links/step-00000030",
        "over/step-00000010", "over/step-00000020", "over/step-00000030",
    ]  # fmt: skip
    found = re.findall(r"left alone \((.*?)\): (.*?)(?= note:|$)", " ".join(done.stderr.split()))
    said = {job: why for jobs, why in found for job in jobs.split(", ")}
    for job, why in {
        "named": "the entry of a job that has not ended names them",
        "path": "the entry of a job that has not ended names them",
        "shared": "other has saved among their checkpoints",
        "moved": "not at its place here",
        "store": "in an object store",
        "later": "a later attempt than this workspace knows",
        "hurt": "lacks files",
    }.items():
        assert why in said.pop(job)
    assert not said
    assert (fleet.root / "linked" / MANIFEST).exists()
    untouched = set(jobs) - {"over", "links"}
    assert {job: content(fleet.root / PLACE / job) for job in untouched} == {job: before[job] for job in untouched}
    assert names(fleet, "over") == ["best", "step-00000040"]


def test_an_attempt_that_may_be_running(fleet: Fleet, source: Path) -> None:
    over(fleet, "a")
    plant(fleet, "a", source)
    with open(fleet.attempt("a").alive, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = fleet.try_("clean", "--checkpoints", "--yes")
        assert "checkpoints of 1 job left alone (a): may be running" in done.stderr
        assert "nothing to remove" in done.stdout
        assert len(names(fleet, "a")) == 5
    assert len(firsts(fleet.run("clean", "--checkpoints"))) == 3


def test_a_save_that_was_killed_leaves_nothing(fleet: Fleet, source: Path) -> None:
    over(fleet, "a", "b")
    a, b = plant(fleet, "a", source), plant(fleet, "b", source)
    for place in (a, b):
        (place / "ckpt.tmp" / "dead" / "1").mkdir(parents=True)
        (place / "ckpt.tmp" / "dead" / "1" / "half").write_bytes(bytes(100_000))
        (place / "ckpt.tmp" / "dead.lock").touch()
    fd = os.open(b / "ckpt.tmp" / "dead.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not [name for name in firsts(fleet.run("clean", "--checkpoints")) if "ckpt.tmp" in name], "within a day"
    for place in (a, b):
        os.utime(place / "ckpt.tmp" / "dead", (1, 1))
    assert firsts(fleet.run("clean", "--checkpoints", "--yes")) == [
        "a/step-00000010", "a/step-00000020", "a/step-00000030", "a/ckpt.tmp/dead",
        "b/step-00000010", "b/step-00000020", "b/step-00000030",
    ]  # fmt: skip
    assert os.listdir(a / "ckpt.tmp") == []
    assert sorted(os.listdir(b / "ckpt.tmp")) == ["dead", "dead.lock"], "its process lives"
    os.close(fd)


def test_a_cleaner_killed_at_any_moment(fleet: Fleet, source: Path) -> None:
    over(fleet, "a")
    place = plant(fleet, "a", source, steps=40)
    last = names(fleet, "a")[-1]
    kept = content(place / last)
    chance = random.Random(3)
    kills = 0
    for _ in range(20):
        cleaner = commands.Popen(
            [*COMMAND, "clean", "--checkpoints", "--yes", "--json"], cwd=fleet.root, env=fleet.environment(),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        count = len(names(fleet, "a"))
        gone = chance.randint(1, 4)
        while cleaner.poll() is None and len(list(place.glob(f"*/{MANIFEST}"))) > count - gone:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.002))
        kills += cleaner.poll() is None
        cleaner.kill()
        cleaner.wait()
        # Each one that is listed is complete.
        assert names(fleet, "a")[-1] == last
        assert content(place / last) == kept
        for each in place.iterdir():
            assert not each.is_dir() or not any(each.iterdir()) or (each / "tree.json").exists(), each
        if len(names(fleet, "a")) == 2:
            break
    assert kills >= 5
    for path in place.iterdir():
        os.utime(path, (1, 1))
    fleet.run("clean", "--checkpoints", "--yes")
    assert sorted(os.listdir(place)) == ["best", last]


class Saver:
    """Saves again what `template` has, in the attempt that saved it."""

    def __init__(self, place: Path, template: str) -> None:
        self._template = place / template
        self._draft = as_fields(decode((self._template / MANIFEST).read_bytes(), "")) | {"files": ()}
        self.storage = DirectoryStorage(place)

    def save(self, name: str, number: int, guard: Any = lambda _: None) -> None:
        staged = self.storage.staging()
        shutil.copytree(self._template, staged, dirs_exist_ok=True)
        (staged / MANIFEST).unlink()
        self.storage.publish(staged, name, Manifest(**self._draft | {"sequence": 1000 + number}), guard)


def test_two_cleaners_and_a_job_that_saves_again(fleet: Fleet, source: Path) -> None:
    """Both have looked at the job before it was queued again; it saves steps that they are about to remove."""
    over(fleet, "a")
    place = plant(fleet, "a", source, steps=80)
    plans = [Workspace(fleet.root).clean(what=["checkpoints"]) for _ in range(2)]
    assert all(len(plan.checkpoints) == 83 for plan in plans)
    saver = Saver(place, "s080")
    removed: list[Any] = []
    threads = [threading.Thread(target=lambda plan=plan: removed.append(plan.remove())) for plan in plans]
    for thread in threads:
        thread.start()
    for number in range(60):
        # From the last backwards, while they remove from the first on.
        name = f"s{79 - number:03d}"
        saver.save(name, number)
        assert name in dict(saver.storage.manifests()), "what was committed stays"
    for thread in threads:
        thread.join()
    saver.storage.close()
    assert all(each.failed == [] for each in removed), removed
    assert {f"s{79 - number:03d}" for number in range(60)} <= set(names(fleet, "a"))


class Stepwise:
    """A function in a thread, which stops before each of its calls of `os` in `files` after it has called `begin`."""

    def __init__(self, function: Callable[[Callable[..., None]], None], *files: str) -> None:
        self._files = files
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        self._errors: list[Exception] = []
        threading.Thread(target=self._run, args=[function], daemon=True).start()
        self._stopped.acquire()

    def steps(self, most: int) -> int:
        """Make so many of its calls; fewer when it ends before."""
        for made in range(most):
            if self._ended:
                return made
            self._go.release()
            self._stopped.acquire()
        return most

    def end(self) -> None:
        self.steps(1000)
        assert self._ended
        assert not self._errors, self._errors

    def _begin(self, *_: Any) -> None:
        def profile(frame: Any, event: str, called: Any) -> None:
            if event != "c_call" or called.__module__ != "posix" or not frame.f_code.co_filename.endswith(self._files):
                return
            # What it looks at again every second is the whole series.
            if "_still" not in (each.f_code.co_name for each, _ in traceback.walk_stack(frame)):
                self._stopped.release()
                self._go.acquire()

        sys.setprofile(profile)

    def _run(self, function: Callable[[Callable[..., None]], None]) -> None:
        try:
            function(self._begin)
        except Exception as error:  # noqa: BLE001  # the test shows it
            self._errors.append(error)
        finally:
            sys.setprofile(None)
            self._ended = True
            self._stopped.release()


def test_a_removal_and_a_save_of_the_same_name_stopped_before_each_of_their_calls(fleet: Fleet, tmp_path: Path) -> None:
    over(fleet, "a")
    place = plant(fleet, "a", small_source(tmp_path / "small"), steps=400)
    plan = Workspace(fleet.root).clean(what=["checkpoints"])
    superfluous = iter(plan.checkpoints)
    saver = Saver(place, "s400")

    def begun() -> tuple[str, Stepwise, Stepwise]:
        one = next(superfluous)

        def clean(begin: Callable[..., None]) -> None:
            begin()
            plan.checkpoints = [one]
            assert plan.remove().failed == []

        cleaner = Stepwise(clean, "cleaning/checkpoints.py", "cleaning/tree.py")
        saving = Stepwise(lambda begin: saver.save(one.name, 1, begin), "checkpoints/directory.py", "base/files.py")
        return one.name, cleaner, saving

    for removal in itertools.count():
        for save in itertools.count():
            name, cleaner, saving = begun()
            removed, saved = cleaner.steps(removal), saving.steps(save)
            cleaner.end()
            saving.end()
            manifest = decode(saver.storage.manifest(name) or b"", f"{name} ({removal}, {save})")
            assert manifest.sequence == 1001
            assert saver.storage.is_complete(name, manifest)
            if saved < save:
                break
        if removed < removal:
            break
    assert removal > 10
    assert save > 5
    saver.storage.close()
    assert sorted(path.name for path in place.iterdir() if OLD in path.name or path.name == SCRATCH) == []


def test_a_job_that_was_queued_again_keeps_its_checkpoints(fleet: Fleet, source: Path) -> None:
    over(fleet, "a")
    plant(fleet, "a", source)
    workspace = Workspace(fleet.root)
    plan = workspace.clean(what=["checkpoints"])
    assert len(plan.checkpoints) == 3
    fleet.run("requeue", "a")

    done = plan.remove()
    assert workspace.store.records["a"].state is State.QUEUED
    assert (done.size.files, done.failed) == (0, [])
    assert len(names(fleet, "a")) == 5


@pytest.mark.demo
def test_a_training_goes_on_bit_for_bit_after_it(fleet: Fleet, jax_cache: Path) -> None:
    from interrupted_training import FILE, waiting
    from tiny_runs import Attempt, arrays_of_checkpoints, assert_same_bits, environment, tiny_entry
    from tiny_training import made

    words = {"save_every": 4, "keep": 8, "eval_every": 20}
    cancelled = fleet.root / "cancelled"
    entry = tiny_entry(FILE, job="tests/interrupted", **words)
    fleet.write_config("methods: {m: {backoff: 0.01s}}\nkill_grace: 20s\n")
    fleet.write_manifest([{"job_id": "a", "method": "m", **entry, "env": waiting(37, cancelled)}])
    pod = fleet.start("pod", "--slots", "1", **environment(jax_cache))
    wait_until((fleet.root / PLACE / "a" / "step-00000036").exists, "step 36", 240)
    fleet.run("cancel", "a")
    cancelled.touch()
    fleet.wait_for("a", "abandoned")
    pod.stop()
    before = [name for name in names(fleet, "a") if name.startswith("step-")]
    assert len(before) >= 8
    assert firsts(fleet.run("clean", "--checkpoints")) == []
    # The trainer keeps what it saves every so many steps for good.
    fleet.run("clean", "--checkpoints", "--keep", "1", "--yes")
    assert [name for name in names(fleet, "a") if name.startswith("step-")] == before
    fleet.run("clean", "--checkpoints", "--keep", "1", "--periodic", "--yes")
    assert [name for name in names(fleet, "a") if name.startswith("step-")] == before[-1:]
    fleet.run("requeue", "a")
    fleet.run_all("--slots", "1", **environment(jax_cache))
    assert fleet.record("a").state == "done"
    assert "resuming from step" in fleet.output("a", 2)
    assert Attempt(fleet.root / "undisturbed", jax_cache, 1, tiny_entry(**words)).end() == 0
    here = made(fleet.root / "runs", "a", **words)
    undisturbed = made(fleet.root / "undisturbed" / "runs", **words)
    for one, other in zip(arrays_of_checkpoints(here), arrays_of_checkpoints(undisturbed), strict=True):
        assert_same_bits(one, other)
