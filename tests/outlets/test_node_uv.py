"""`uv sync` of the shipped code, with the real uv where it can be had without a network, and its installation."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from node_trials import archive_of

PROJECT = """[project]
name = "shipped"
version = "1"
requires-python = ">=3.9"
dependencies = []

[dependency-groups]
gpu = []
"it-s" = []
"""
UV = shutil.which("uv")
INSTALLER = """#!/bin/sh
[ -n "$UV_INSTALL_DIR" ] && [ "$UV_NO_MODIFY_PATH" = 1 ] || exit 9
mkdir -p "$UV_INSTALL_DIR"
cp "$FAKE_UV" "$UV_INSTALL_DIR/uv"
echo installed >>"$FAKE_LOG"
"""
# What this version of node.sh may ask of uv, and nothing else.
STRICT_UV = """#!/bin/bash
[[ $1 == sync && $2 == --no-progress ]] || { echo "error: unrecognized subcommand '$*'" >&2; exit 2; }
shift 2
groups=()
while (($#)); do
    [[ $1 == --group && -n $2 ]] || { echo "error: unexpected argument '$1'" >&2; exit 2; }
    groups+=("$2")
    shift 2
done
[[ -f pyproject.toml ]] || { echo "error: No pyproject.toml found" >&2; exit 2; }
[[ -z ${VIRTUAL_ENV-} ]] || { echo "warning: VIRTUAL_ENV does not match" >&2; exit 2; }
[[ $(<pyproject.toml) != *absent-package* ]] || { echo "  x No solution found: absent-package" >&2; exit 1; }
mkdir -p .venv/bin
printf '#!/bin/sh\\nexec %s "$@"\\n' "$REAL_PYTHON" >.venv/bin/python
chmod +x .venv/bin/python
echo "sync ${groups[*]} cache=${UV_CACHE_DIR-}" >>"$FAKE_LOG"
"""


@pytest.fixture
def shipped(node, tmp_path):
    """A node without uv but for the strict stand-in, which an installer brings."""
    fake = tmp_path / "uv.sh"
    fake.write_text(STRICT_UV)
    fake.chmod(0o755)
    (tmp_path / "home").mkdir()
    directories = [path for path in node.environment["PATH"].split(os.pathsep) if not os.path.exists(f"{path}/uv")]
    node.environment |= {
        "PATH": os.pathsep.join(directories),
        "HOME": f"{tmp_path}/home",
        "FAKE_UV": os.fspath(fake),
        "FAKE_LOG": f"{tmp_path}/uv.log",
        "REAL_PYTHON": sys.executable,
        "VIRTUAL_ENV": "/of/the/dispatcher",
    }
    node.configure(uv_groups=("gpu", "it-s"), uv_dir=f"{tmp_path}/uv 'dir'")
    return node


def put_uv(node, directory) -> None:
    directory.mkdir(parents=True)
    shutil.copy(node.environment["FAKE_UV"], directory / "uv")


def test_the_environment_comes_first_on_path(shipped, tmp_path):
    put_uv(shipped, tmp_path / "uv 'dir'" / "bin")
    one = shipped.run('type -P python; echo "$VIRTUAL_ENV"', code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
    assert one.status == 0, one.output
    path, environment = one.output.splitlines()[-2:]
    assert path == f"{environment}/bin/python"
    assert environment.endswith("/tree/.venv")
    assert (tmp_path / "uv.log").read_text() == f"sync gpu it-s cache={tmp_path}/uv 'dir'\n"


@pytest.mark.parametrize("place", [".local/bin", ".cargo/bin"])
def test_uv_is_found_where_it_is_installed_by_hand(shipped, tmp_path, place):
    put_uv(shipped, tmp_path / "home" / place)
    one = shipped.run("true", code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
    assert one.status == 0, one.output


def test_no_uv_and_no_installer(shipped):
    one = shipped.run("echo ran", code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
    assert (one.status, one.has_failed_setup) == (1, True)
    assert "uv is needed for pyproject.toml and is not on PATH=" in one.output.splitlines()[-1]


def test_uv_is_installed_once(shipped, tmp_path):
    installer = tmp_path / "it's installer.sh"
    installer.write_text(INSTALLER)
    shipped.configure(uv_installer=os.fspath(installer))
    for number in (1, 2):
        one = shipped.run("true", number=number, code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
        assert one.status == 0, one.output
    assert (tmp_path / "uv.log").read_text().splitlines() == [
        "installed",
        *[f"sync gpu it-s cache={tmp_path}/uv 'dir'"] * 2,
    ]


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_installs_uv_is_checked_before_it_runs(shipped, tmp_path):
    installer = tmp_path / "installer.sh"
    installer.write_text(INSTALLER)
    shipped.configure(uv_installer=f"{installer}#sha256={'0' * 64}")
    one = shipped.run("echo ran", code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
    assert one.has_failed_setup
    *_, said, last = one.output.splitlines()
    assert said == f"{installer}: its SHA-256 is {digest_of(installer)}, expected {'0' * 64}"
    assert last.endswith(f"uv could not be installed with uv_installer: {installer}")
    assert not (tmp_path / "uv.log").exists()
    shipped.configure(uv_installer=f"{installer}#sha256={digest_of(installer)}")
    one = shipped.run("true", number=2, code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
    assert one.status == 0, one.output


def test_uv_comes_in_an_archive_from_an_address(shipped, tmp_path):
    """As its releases are: a tar.gz with a directory in it."""
    served = tmp_path / "served"
    served.mkdir()
    archive = served / "uv-x86_64.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(shipped.environment["FAKE_UV"], "uv-x86_64/uvx")
        file.add(shipped.environment["FAKE_UV"], "uv-x86_64/uv")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=served)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        shipped.configure(uv_installer=f"{address}#sha256={digest_of(archive)}")
        one = shipped.run("true", code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
        server.shutdown()
    assert one.status == 0, one.output
    assert (tmp_path / "uv 'dir'" / "bin" / "uv").stat().st_mode & 0o777 == 0o755


def test_an_installer_that_fails(shipped, tmp_path):
    installer = tmp_path / "installer.sh"
    installer.write_text("echo no such release >&2; exit 1\n")
    shipped.configure(uv_installer=os.fspath(installer))
    one = shipped.run("echo ran", code=archive_of({"pyproject.toml": PROJECT}), syncs=True)
    assert one.has_failed_setup
    *_, said, last = one.output.splitlines()
    assert said == "no such release"
    assert last.endswith(f"uv could not be installed with uv_installer: {installer}")


def test_an_environment_that_cannot_be_made(shipped, tmp_path):
    put_uv(shipped, tmp_path / "home/.local/bin")
    project = PROJECT.replace("dependencies = []", 'dependencies = ["absent-package"]')
    one = shipped.run("echo ran", code=archive_of({"pyproject.toml": project}), syncs=True)
    assert (one.status, one.has_failed_setup) == (1, True)
    assert "No solution found: absent-package" in one.output
    assert "ran" not in one.output.splitlines()


@pytest.mark.parametrize("files", [{"x": ""}, {"pyproject.toml": "[tool.ruff]\nline-length = 120\n"}])
def test_code_without_a_project_needs_no_uv(shipped, files):
    one = shipped.run("echo ${VIRTUAL_ENV-none}", code=archive_of(files), syncs=True)
    assert one.status == 0
    assert one.output.splitlines()[-1] == "/of/the/dispatcher"


def test_a_method_with_an_interpreter_of_its_own_needs_no_uv(shipped):
    assert shipped.run("true", code=archive_of({"pyproject.toml": PROJECT}), syncs=False).status == 0


@pytest.mark.skipif(UV is None, reason="needs uv on PATH (pip install uv)")
def test_the_real_uv(node, tmp_path):
    """A project without dependencies needs no network."""
    assert UV is not None
    node.path.append(type(tmp_path)(UV).parent)
    cache = tmp_path / "uv cache"
    node.configure(uv_groups=("gpu",), uv_dir=os.fspath(cache))
    node.environment |= {"UV_PYTHON": sys.executable, "UV_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never"}
    script = "import os, sys; print(sys.prefix == os.environ['VIRTUAL_ENV'])"
    code = archive_of({"pyproject.toml": PROJECT})
    one = node.run("", arguments=["python", "-c", script], code=code, syncs=True)
    assert one.status == 0, one.output
    assert one.output.splitlines()[-1] == "True"
    assert cache.is_dir()
    assert node.leftovers() == []
    one = node.run("", number=2, arguments=["uv", "run", "python", "-c", script], code=code, syncs=True)
    assert one.output.splitlines()[-1] == "True"
