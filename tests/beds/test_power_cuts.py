"""The power of a host with an ext4 disk is cut at random moments: what was acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from .bed import plain_directory
from .fixtures import skip_without
from .guest import run_in_guest
from .needs import SEARCH_PATH

T = TypeVar("T")
TRIAL = Path(__file__).with_name("power_trial.py")
KEPT = "kept"
# A boot takes seconds. Nothing waits so long unless something is wrong.
PATIENCE_S = 250.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kernel's command line cannot carry blanks."""
    skip_without("guest")
    with tempfile.TemporaryDirectory(prefix="power-", dir=plain_directory()) as made:
        yield Path(made)


class Step(NamedTuple):
    """A command that a person has typed."""

    what: str
    name: str
    is_acknowledged: bool


class Boot:
    """One boot of the host: what it has passed on until its power was cut, or all was done."""

    def __init__(self, folder: Path, number: int, jobs: int, cuts: int) -> None:
        self.folder = folder / f"boot-{number}"
        for name in ("asked", "acknowledged", "done", "ran"):
            (self.folder / name).mkdir(parents=True)
        in_manifest = jobs // 2
        # How many jobs are submitted at least in each boot, and how many are done at most when the power goes.
        self.submissions, self.most = (jobs - in_manifest) // (cuts + 1), jobs // (2 * cuts)
        plan = {"round": number, "jobs": jobs, "manifest": in_manifest, "is_last": number == cuts}
        (self.folder / "plan.json").write_text(json.dumps({**plan, "submissions": self.submissions}))

    def names(self, kind: str) -> list[str]:
        return sorted(path.name for path in (self.folder / kind).iterdir())

    def runs(self, what: str) -> Counter[str]:
        """How often jobs have begun, or ended."""
        names = [name.split("~") for name in self.names("ran")]
        return Counter(job for job, _, _, happened in names if happened == what)

    def steps(self) -> list[Step]:
        """What a person has asked for, in its order."""
        acknowledged = set(self.names("acknowledged"))
        return [
            Step(what, about, name in acknowledged)
            for name in self.names("asked")
            for _, what, about in [name.split("~")]
        ]

    def found(self, name: str = "found.json") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / name).read_text())
        return found


class Cut:
    """When the power goes: after so many jobs are done, have begun or ended, or commands; at once or a moment later."""

    def __init__(self, boot: Boot, chosen: random.Random) -> None:
        self.boot = boot
        kinds = {"done": boot.most, "ran": 2 * boot.most, "acknowledged": boot.submissions}
        self.kind, most = chosen.choice([*kinds.items()])
        self.count = chosen.randint(1, most)
        self.delay_s = chosen.choice([0.0, chosen.uniform(0.0, 0.8)])
        self.at_s = float("inf")

    def __call__(self) -> bool:
        if self.at_s == float("inf") and len(self.boot.names(self.kind)) >= self.count:
            self.at_s = time.monotonic() + self.delay_s
        return time.monotonic() >= self.at_s

    def __str__(self) -> str:
        return f"{self.delay_s:.2f} s after {self.count} {self.kind}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("jobs", "cuts"), [(40, 3), pytest.param(200, 12, marks=pytest.mark.long)])
def test_what_was_acknowledged_is_there_after_power_cuts(
    folder: Path, jobs: int, cuts: int, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.getoption("--chaos-seed") or random.randrange(1 << 32)
    print(f"--chaos-seed {seed} repeats these cuts")
    chosen = random.Random(seed)
    disk = new_disk(folder)
    boots: list[Boot] = []
    for number in range(cuts):
        boot = Boot(folder, number, jobs, cuts)
        cut = Cut(boot, chosen)
        finished = run_in_guest(TRIAL, limit_s=PATIENCE_S, disk=disk, shared=boot.folder, is_cut=cut)
        print(f"boot {number}: cut {cut}, {len(boot.names('done'))} jobs done")
        assert finished.status is None and cut(), finished.log
        boots.append(boot)
        check(boots[:-1], boot.found())
    boots.append(Boot(folder, cuts, jobs, cuts))
    finished = run_in_guest(TRIAL, limit_s=PATIENCE_S, disk=disk, shared=boots[-1].folder)
    assert finished.status == 0, finished.log
    check(boots[:-1], boots[-1].found())
    after = boots[-1].found("after.json")
    check(boots, after)
    assert Counter(one["state"] for one in after["jobs"].values()) == {"done": jobs}
    ended = sum((boot.runs("ended") for boot in boots), Counter[str]())
    assert ended.keys() == after["jobs"].keys(), "done is what has run to its end"
    print(f"{jobs} jobs, {cuts} cuts; {sum(ended.values()) - jobs} runs had ended and were not yet recorded at a cut")


def new_disk(folder: Path) -> Path:
    disk = folder / "disk"
    disk.touch()
    os.truncate(disk, 256 << 20)
    subprocess.run(["mkfs.ext4", "-q", disk], env={"PATH": SEARCH_PATH}, check=True)
    return disk


def check(before: list[Boot], found: dict[str, Any]) -> None:
    """What the host has found on its disk against what it had acknowledged in these boots."""
    jobs = found["jobs"]
    done = done_in(found)
    wrong = {job: jobs[job]["files"] for job in done if not is_right(job, jobs[job]["files"])}
    assert not wrong, "done, but this is what its files say"
    for boot in before:
        assert done >= set(boot.names("done")), "a pod has said that they are done"
        assert not done_in(boot.found()) & boot.runs("began").keys(), "done, and run again"
        assert max(boot.runs("ended").values(), default=1) == 1, "run again without a cut"
    steps = [step for boot in before for step in boot.steps()]
    submitted = {step.name for step in steps if step.what == "submit" and step.is_acknowledged}
    assert jobs.keys() >= submitted
    assert {decoded(line).get("job_id") for line in (found["submitted"] or "").splitlines()} >= submitted
    is_held = possible(False, [(step, step.what == "hold") for step in steps if step.name == KEPT])
    assert (jobs[KEPT]["state"] == "held") in is_held
    assert made_in(found) in possible("", [(step, step.name) for step in steps if step.what == "make"])


def possible(first: T, steps: list[tuple[Step, T]]) -> set[T]:
    """What may be the case after these steps, of which those that were not acknowledged may not have been taken."""
    found = {first}
    for step, after in steps:
        found = {after} if step.is_acknowledged else found | {after}
    return found


def done_in(found: dict[str, Any]) -> set[str]:
    return {job for job, one in found["jobs"].items() if one["state"] == "done"}


def made_in(found: dict[str, Any]) -> str:
    """What the manifest was made of; empty where there is none."""
    if found["made"] is None:
        return ""
    made = {entry["made"] for entry in json.loads(found["made"])}
    return str(*made)


def is_right(job: str, files: dict[str, str | None]) -> bool:
    entry, status, result = (decoded(files[name]) for name in ("entry.json", "exit.json", "result.json"))
    return (
        entry.get("job_id") == job
        and status.get("exit_code") == 0
        and result == {"value": job}
        and files["output.log"] == f"log of {job}\n"
    )


def decoded(text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        found = json.loads(text or "{}")
    return found
