"""Which Python a command runs, and what that has installed: with real interpreters and environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from origins import recorded

from dispatcher.provenance.interpreters import Interpreters, python_of
from dispatcher.provenance.programs import Deadline, ProgramError
from dispatcher.workspace import Layout

BASE = os.path.realpath(sys.executable)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment without pip."""
    place = tmp_path / "env"
    venv.create(place, with_pip=False)
    return place


def packages_of(python: str, tmp_path: Path, known: Interpreters | None = None) -> list[str]:
    return list((known or Interpreters()).look_at(python, tmp_path, Deadline(30)).packages)


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def install(environment: Path, name: str, origin: object = None) -> None:
    info = site_packages(environment) / f"{name}.dist-info"
    info.mkdir()
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))


def script(path: Path, first: str, rest: str = "") -> str:
    path.write_text(f"{first}\n{rest}")
    path.chmod(0o755)
    return os.fspath(path)


def test_the_first_word_or_the_first_line_of_a_script_tells(tmp_path: Path, environment: Path) -> None:
    python, path = f"{environment}/bin/python", f"{environment}/bin:/usr/bin:/bin"
    assert python_of([python, "train.py"], "", tmp_path) == python
    assert python_of(["env/bin/python"], None, tmp_path) == python
    assert python_of(["python"], path, tmp_path) == python
    assert python_of(["python"], None, tmp_path) is None
    for first in (f"#!{python}", f"#! {python} -u", "#!/usr/bin/env python", "#!/usr/bin/env -S python"):
        assert python_of([script(tmp_path / "run", first)], path, tmp_path) == python, first
    long_way = script(tmp_path / "run", "#!/bin/sh", f"'''exec' '{python}' \"$0\" \"$@\"\n' '''\n")
    assert python_of([long_way], path, tmp_path) == python
    for words in ([], ["bash", "-c", "python"], ["absent"], [script(tmp_path / "run", "#!/bin/bash")], ["/"]):
        assert python_of(words, path, tmp_path) is None, words


def test_packages_are_listed_with_where_they_come_from(tmp_path: Path, environment: Path) -> None:
    install(environment, "Flax_NNX-0.9.1")
    install(environment, "mine-1.0", {"url": "file:///home/ada/mine", "dir_info": {"editable": True}})
    vcs = {"vcs": "git", "commit_id": "abc123"}
    install(environment, "theirs-2.0", {"url": "https://ada:s3cret@host/theirs", "vcs_info": vcs})
    install(environment, "odd-3.0", ["no object"])
    (site_packages(environment) / "old-1.5-py3.11.egg-info").touch()
    (site_packages(environment) / "not a package").mkdir()
    assert packages_of(f"{environment}/bin/python", tmp_path) == [
        "flax-nnx==0.9.1",
        "mine==1.0 (editable: /home/ada/mine)",
        "odd==3.0",
        "old==1.5",
        "theirs==2.0 (git abc123)",
    ]


def test_an_environment_is_asked_again_when_something_was_installed(tmp_path: Path, environment: Path) -> None:
    known = Interpreters()
    install(environment, "jax-1.0")
    python = f"{environment}/bin/python"
    assert packages_of(python, tmp_path, known) == ["jax==1.0"]
    install(environment, "flax-1.0")
    assert packages_of(python, tmp_path, known) == ["flax==1.0", "jax==1.0"]


def test_nothing_of_an_environment_is_run(tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither .pth files nor sitecustomize, PYTHONPATH, PYTHONSTARTUP, or a module in the directory of the job."""
    trap = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n"
    folder = site_packages(environment)
    (folder / "evil.pth").write_text(f"import os; {trap}")
    for place in (folder, tmp_path):
        for name in ("sitecustomize", "usercustomize", "json", "re", "site"):
            (place / f"{name}.py").write_text(trap)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    python = f"{environment}/bin/python"
    assert packages_of(python, tmp_path) == []
    assert not (tmp_path / "ran").exists()
    subprocess.run([python, "-c", ""], env={**os.environ, "PYTHONPATH": ""}, cwd="/", check=False, capture_output=True)
    assert (tmp_path / "ran").exists(), "the trap works"


def test_an_environment_that_sees_the_systems_packages_lists_them(tmp_path: Path) -> None:
    place = tmp_path / "env"
    venv.create(place, with_pip=False, system_site_packages=True)
    install(place, "own-1.0")
    found = packages_of(f"{place}/bin/python", tmp_path)
    assert "own==1.0" in found
    assert set(packages_of(BASE, tmp_path)) <= set(found)


def test_the_own_interpreter_answers_as_when_it_is_asked(tmp_path: Path) -> None:
    own = packages_of(sys.executable, tmp_path)
    asked = packages_of(os.path.join(os.path.dirname(sys.executable), ".", os.path.basename(sys.executable)), tmp_path)
    assert own == asked
    assert any(line.startswith("pytest==") for line in own)


def test_what_is_no_python_is_a_problem(tmp_path: Path, layout: Layout) -> None:
    for content in ("#!/bin/bash\necho no", "#!/bin/bash\nexit 3", "#!/bin/bash\nyes", "#!/absent"):
        fake = script(tmp_path / "python", content)
        with pytest.raises(ProgramError, match="does not tell what it has"):
            Interpreters().look_at(fake, tmp_path, Deadline(5))
    found = recorded(layout, command=(fake, "train.py"))
    assert found is not None
    assert found.python is None
    assert len(found.problems) == 1


def test_a_python_behind_a_setup_or_in_a_container_is_unknown(layout: Layout) -> None:
    found = recorded(layout, command=(sys.executable,), hides_python=True)
    assert found is not None
    assert (found.python, found.packages, found.problems) == (None, None, ())
