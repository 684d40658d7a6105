"""scripts/test keeps what fails once in CI, and leaves out what is slow, long or unchanged; scripts/bench measures."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "scripts" / "test"
FLAKY = """
import pathlib, pytest

@pytest.mark.quiet
@pytest.mark.parametrize("what", ["a b", "c"])
def test_flaky(what):
    marker = pathlib.Path(f"tried {what}")
    again = marker.exists()
    marker.touch()
    assert again

def test_good():
    pass
"""
SLOW = """
import pytest

@pytest.mark.slow
def test_slow():
    assert False

@pytest.mark.nfs
def test_on_a_bed():
    assert False

def test_quick():
    pass
"""
LONG = """
import pytest

@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_calls(every):
    pass
"""
BAD = """
def test_bad():
    assert False
"""
# More than one worker takes at once, so that tests without a group are spread.
GROUPED = """
import os, pathlib, pytest

@pytest.mark.quiet
@pytest.mark.parametrize("number", range(20))
def test_quiet(number):
    pathlib.Path("workers").open("a").write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with this script, this configuration of pytest, nothing to install, and a virtual environment."""
    for name in ("scripts", "tests/beds", "tests/runtime", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    # The conftest.py, and whatever it imports.
    for helper in (*TESTS.glob("*.py"), *(TESTS / "beds").glob("*.py")):
        if not helper.name.startswith("test_") and helper != TESTS / "beds" / "conftest.py":
            shutil.copy(helper, tmp_path / helper.relative_to(TESTS.parent))
    shutil.copytree(TESTS / "beds" / "kubernetes", tmp_path / "tests" / "beds" / "kubernetes")
    shutil.copytree(TESTS / "fakes", tmp_path / "tests" / "fakes")
    shutil.copy(SCRIPT, tmp_path / "scripts" / "test")
    for name in ("install", "install-beds"):
        executable(tmp_path / "scripts" / name, "true")
    executable(tmp_path / ".venv/bin/python", f'exec {shlex.quote(sys.executable)} "$@"')
    # Two workers are enough here.
    executable(tmp_path / ".venv/bin/nproc", "echo -1")
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)
    return tmp_path


def executable(path: Path, words: str) -> None:
    path.write_text(f"#!/bin/bash\n{words}\n")
    path.chmod(0o755)


def run(checkout: Path, *words: str, shown: int = 2) -> tuple[int, list[str]]:
    """The exit status and the last lines."""
    path = f"{checkout}/.venv/bin:{os.environ['PATH']}"
    environment = {**os.environ, "CI": "true", "PATH": path, "XDG_CACHE_HOME": f"{checkout}/cache"}
    done = subprocess.run(
        [checkout / "scripts" / "test", *words], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()[-shown:]


@pytest.mark.slow
def test_what_passes_on_the_second_try_is_named_last(checkout: Path) -> None:
    (checkout / "tests" / "test_flaky.py").write_text(FLAKY)
    record = checkout / "cache" / "dispatcher-tests" / "second-tries.tsv"
    record.parent.mkdir(parents=True)
    # As it was written before it said how they failed.
    record.write_text("2026-01-01 00:00\tabcdef01\ttests/test_x.py::test_before\n")
    status, (result, last) = run(checkout)
    assert status == 0
    assert "2 passed" in result
    flaky = "tests/test_flaky.py::test_flaky"
    assert last == f"failed at first, passed on the second try: {flaky}[a b], {flaky}[c]"
    listed = [line.split(maxsplit=4) for line in run(checkout, "--second-tries", shown=6)[1]]
    tests = [f"{flaky}[a b]", f"{flaky}[c]", "tests/test_x.py::test_before"]
    assert [(line[0], line[-1]) for line in listed[::2]] == [("1", test) for test in tests]
    assert [line[0] for line in listed[1::2]] == ["assert", "assert", "?"]
    assert (checkout / "build" / "junit.xml").exists()
    assert "3 passed in" in run(checkout)[1][-1], "pytest's own line is the last one otherwise"


@pytest.mark.slow
def test_what_fails_twice_fails(checkout: Path) -> None:
    (checkout / "tests" / "test_bad.py").write_text(BAD)
    status, lines = run(checkout)
    assert status == 1
    assert "1 failed in" in lines[-1]
    (checkout / "tests" / "test_flaky.py").write_text(FLAKY)
    status, (result, last) = run(checkout, "-q")
    assert status == 1
    assert "1 failed, 2 passed" in result
    assert "test_bad" not in last
    assert last.count("test_flaky[") == 2


@pytest.mark.slow
def test_the_fast_tests_need_neither_beds_nor_jax(checkout: Path) -> None:
    (checkout / "tests" / "test_some.py").write_text(SLOW)
    (checkout / "tests" / "runtime" / "test_training.py").write_text("raise ImportError('no JAX here')")
    executable(checkout / "scripts" / "install-beds", "exit 1")
    status, lines = run(checkout, "--fast")
    assert status == 0
    assert "1 passed in" in lines[-1]
    assert run(checkout)[0] != 0


@pytest.mark.slow
def test_long_repetitions_run_when_asked_for(checkout: Path) -> None:
    (checkout / "tests" / "test_some.py").write_text(LONG)
    assert "1 passed in" in run(checkout)[1][-1]
    assert "2 passed in" in run(checkout, "--long")[1][-1]


@pytest.mark.slow
def test_what_depends_on_a_change_is_run_and_the_reason_told(checkout: Path) -> None:
    (checkout / "tests" / "helper.py").write_text("")
    (checkout / "tests" / "test_good.py").write_text("import helper\n\ndef test_good(): pass\n")
    (checkout / "tests" / "test_bad.py").write_text(BAD)
    (checkout / ".gitignore").write_text("/build\n/cache\n.pytest_cache\n__pycache__\n")
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    (checkout / "tests" / "helper.py").write_text("1\n")
    status, lines = run(checkout, "--changed", shown=1000)
    assert status == 0, lines
    assert "1 passed in" in lines[-1]
    assert "tests/test_good.py: tests/helper" in lines
    status, lines = run(checkout, "--changed", "none", shown=1000)
    assert status != 0
    assert "no test ran" not in lines


@pytest.mark.slow
def test_the_tests_of_a_group_share_a_worker(checkout: Path) -> None:
    (checkout / "tests" / "test_grouped.py").write_text(GROUPED)
    status, lines = run(checkout)
    assert status == 0
    assert "20 passed in" in lines[-1]
    workers = (checkout / "workers").read_text().splitlines()
    assert len(workers) == 20
    assert len(set(workers)) == 1


def bench(*words: str) -> str:
    """What a Python with the benchmarks prints."""
    done = subprocess.run(
        [sys.executable, "-P", *words], env={**os.environ, "PYTHONPATH": str(SCRIPT.parent)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_measurement_of_the_bench_can_be_asked_for() -> None:
    assert "--quick" in bench("-m", "benchmarks", "--help")


def test_the_bench_claims_as_a_dispatcher_does(tmp_path: Path) -> None:
    program = f"""
from benchmarks import claims, workspaces
layout = workspaces.make_workspace({str(tmp_path)!r}, 3)
workspaces.queue_all(layout, 3)
claims.contender({str(tmp_path)!r}, "pod")(1)
print(*claims.written(layout))
print(*workspaces.job_ids(3))
"""
    claimed, expected = bench("-c", program).splitlines()
    assert claimed == expected
