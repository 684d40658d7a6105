"""A Python that lacks libraries: one line says what to install."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from dispatcher.base.libraries import EXTRA_OF, install_command, missing_libraries_named

CHECKOUT = Path(__file__).parents[2]


def modules(requirements: list[str]) -> set[str]:
    """The modules that these distributions install, private ones and such that are not imported by name left out."""
    names = {re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}
    owners = importlib.metadata.packages_distributions()
    return {
        module
        for module, distributions in owners.items()
        if not module.startswith("_") and names & {one.lower().replace("_", "-") for one in distributions}
    }


def test_every_dependency_is_known() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    for extra, requirements in (("", project["dependencies"]), ("jax", project["optional-dependencies"]["jax"])):
        known = {module for module, of in EXTRA_OF.items() if of == extra}
        assert known <= modules(requirements)
        # Each distribution has one.
        assert len(known) == len(requirements)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any library."""
    place = tmp_path_factory.mktemp("bare") / "an env"
    venv.create(place, symlinks=True)
    return place / "bin" / "python"


@pytest.mark.parametrize(
    "words", [[str(CHECKOUT / "dispatcher.py")], ["-m", "dispatcher"], ["-P", "-m", "dispatcher.runtime"]]
)
def test_without_libraries_one_line_says_what_to_install(bare_python: Path, tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        [bare_python, *words, "status"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"dispatcher: error: {bare_python} has no module click; install what dispatcher needs: "
        f"'{bare_python}' -m pip install {shlex.quote(str(CHECKOUT))}\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_jobs_in_jax() -> None:
    says = rf"has no module flax; .* -m pip install '{CHECKOUT}\[jax\]'$"
    with pytest.raises(SystemExit, match=says), missing_libraries_named():
        raise ModuleNotFoundError("No module named 'flax.nnx'", name="flax.nnx")


def test_a_module_of_the_user_is_not_taken_for_one() -> None:
    with pytest.raises(ModuleNotFoundError), missing_libraries_named():
        raise ModuleNotFoundError("No module named 'my_models'", name="my_models")


@pytest.mark.parametrize(
    ("recorded", "source"),
    [
        (None, "THE_CHECKOUT_OF_DISPATCHER[jax]"),
        ("not JSON", "THE_CHECKOUT_OF_DISPATCHER[jax]"),
        ({"url": f"file://{CHECKOUT}", "dir_info": {}}, f"{CHECKOUT}[jax]"),
        ({"url": "file:///removed/since", "dir_info": {}}, "THE_CHECKOUT_OF_DISPATCHER[jax]"),
        ({"url": "https://host/d.git", "vcs_info": {"vcs": "git"}}, "git+https://host/d.git[jax]"),
    ],
)
def test_what_is_installed_comes_from_where_this_does(tmp_path: Path, recorded: object, source: str) -> None:
    """Registries have other packages of this name."""
    copy = tmp_path / "dispatcher" / "base"
    copy.mkdir(parents=True)
    (copy / "libraries.py").write_bytes((CHECKOUT / "dispatcher" / "base" / "libraries.py").read_bytes())
    if recorded is not None:
        record = tmp_path / "dispatcher-1.0.dist-info" / "direct_url.json"
        record.parent.mkdir()
        record.write_text(recorded if isinstance(recorded, str) else json.dumps(recorded))
    program = "from libraries import install_command; print(install_command('jax', '/a/python'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=copy, capture_output=True, text=True, check=True)
    assert done.stdout == f"/a/python -m pip install '{source}'\n"
    assert install_command(python="/a/python") == f"/a/python -m pip install {shlex.quote(str(CHECKOUT))}"
