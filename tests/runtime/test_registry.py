"""Jobs by their keys, and files with jobs in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.errors import UsageError
from dispatcher.runtime import registry
from dispatcher.runtime.registry import find_job, import_jobs, job, job_keys, key_of

GOOD = """
from dispatcher.runtime.registry import job
from jobs._shared import NAME

@job("files/good")
class Good:
    name = NAME
"""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No job of another test is known, and what is imported here is forgotten."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_failures", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_class_is_found_by_its_key() -> None:
    @job("lab/train/base")
    class Pretrain:
        pass

    assert find_job("lab/train/base") is Pretrain
    assert key_of(Pretrain) == "lab/train/base" and key_of(int) is None
    with pytest.raises(UsageError, match=r"no job 'lab/train/bsae' \(did you mean 'lab/train/base'\?\)"):
        find_job("lab/train/bsae")


def test_a_key_has_one_class() -> None:
    def cell() -> type:
        @job("a")
        class First:
            pass

        return First

    cell()
    again = cell()
    assert find_job("a") is again
    with pytest.raises(TypeError, match=r"on .*Second: the key belongs to .*First"):

        @job("a")
        class Second:
            pass

    with pytest.raises(TypeError, match=r"the key belongs to a job in dispatcher\.runtime\.jobs\.pretrain: choose"):

        @job("gpt/train/pretrain")
        class Third:
            pass


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a b", "../a", "a\n"])
def test_a_key_is_made_of_words(key: str) -> None:
    with pytest.raises(TypeError, match="expected words of letters"):
        job(key)


def test_every_file_in_the_jobs_folder_is_imported_once(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "good.py", GOOD)
    write(tmp_path / "jobs" / "_shared.py", "NAME = 'shared'\n")
    assert import_jobs(tmp_path) == []
    assert "files/good" in job_keys()
    found = find_job("files/good")
    assert found.name == "shared" and found.__module__ == "jobs.good"
    assert import_jobs(tmp_path) == [] and find_job("files/good") is found


def test_a_broken_file_stops_only_those_who_miss_its_jobs(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "good.py", GOOD)
    write(tmp_path / "jobs" / "_shared.py", "NAME = 1\n")
    write(tmp_path / "jobs" / "broken.py", "x = 1\ny = x / 0\n")
    write(tmp_path / "jobs" / "unfinished.py", "def f(:\n")
    problems = import_jobs(tmp_path)
    broken, unfinished = tmp_path / "jobs" / "broken.py", tmp_path / "jobs" / "unfinished.py"
    assert problems[0] == f"{broken}, line 2: cannot be imported: ZeroDivisionError: division by zero"
    assert problems[1].startswith(f"{unfinished}, line 1: cannot be imported: SyntaxError: ")
    assert find_job("files/good").name == 1
    with pytest.raises(UsageError) as caught:
        find_job("files/broken")
    assert str(caught.value).splitlines()[1:] == problems


def test_modules_and_files_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "elsewhere" / "mine.py",
        "from dispatcher.runtime.registry import job\njob('mine')(type('Mine', (), {}))",
    )
    write(
        tmp_path / "package_of_jobs.py",
        "from dispatcher.runtime.registry import job\njob('theirs')(type('Theirs', (), {}))",
    )
    monkeypatch.chdir(tmp_path)
    import_jobs(tmp_path, ["elsewhere/mine.py", "package_of_jobs"])
    assert {"mine", "theirs"} < set(job_keys())
    with pytest.raises(UsageError, match=r"nowhere: cannot be imported: ModuleNotFoundError"):
        import_jobs(tmp_path, ["nowhere"])
    with pytest.raises(UsageError, match=r"nowhere\.py: cannot be imported: ImportError: no such file"):
        import_jobs(tmp_path, ["nowhere.py"])


def test_a_file_never_passes_for_another_module(tmp_path: Path) -> None:
    write(tmp_path / "json.py", "")
    with pytest.raises(UsageError, match="the module json already exists"):
        import_jobs(tmp_path, [str(tmp_path / "json.py")])
