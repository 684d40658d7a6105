"""`dispatcher edit` where this user cannot write: it says so before the editor opens, not after the work was done."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from dispatcher.base.users import user_name

READ_ONLY_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
# What lets root ignore permissions.
BYPASS = "-dac_override,-dac_read_search"


@pytest.fixture
def read_only_mount(lab):
    """The words before a command that runs it where the workspace is mounted read-only."""
    words = ["unshare", "--mount", "sh", "-c", READ_ONLY_MOUNT, str(lab.root)]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here: that needs root")
    return words


def obeying_permissions():
    """The words before a command that runs it as a user whom permissions bind, also if that is root."""
    return ["setpriv", f"--bounding-set={BYPASS}"] if os.getuid() == 0 else []


def refused_edit(lab, prefix, tmp_path):
    """What `edit` says in place of opening the editor."""
    opened = tmp_path / "opened"
    editor = f"sh -c 'touch \"{opened}\"; false'"
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "dispatcher", "--root", str(lab.root), "edit"],
        env={**os.environ, "EDITOR": editor}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, opened.exists()) == (1, "", False), done.stderr
    return done.stderr


def test_edit_on_a_read_only_mount(lab, read_only_mount, tmp_path):
    lab.put("base", "failed")
    before = lab.snapshot()
    said = refused_edit(lab, read_only_mount, tmp_path)
    assert said.startswith("dispatcher: the records of jobs cannot be changed: ")
    assert said.endswith("cannot be written: Read-only file system; mount it with write access\n")
    assert lab.snapshot() == before


@pytest.mark.parametrize("name", ["run_state", "journal_dir", "lock_file"])
def test_edit_of_what_this_user_may_not_write(lab, tmp_path, name):
    lab.put("base", "failed")
    path = getattr(lab.layout, name)
    mode = path.stat().st_mode
    path.chmod(mode & ~0o222)
    try:
        said = refused_edit(lab, obeying_permissions(), tmp_path)
    finally:
        path.chmod(mode)
    assert f"this user (uid {os.getuid()}) cannot read and write {path} (of {user_name()}); " in said
    assert f"dispatcher init --shared {shlex.quote(str(lab.root))}" in said


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
def test_edit_in_the_workspace_of_another_user(lab, tmp_path):
    lab.put("base", "failed")
    for path in [lab.root, *lab.root.rglob("*")]:
        os.chown(path, 65534, 65534)
        path.chmod(path.stat().st_mode & ~0o022)
    assert "cannot read and write" in refused_edit(lab, obeying_permissions(), tmp_path)
    # With write access for the group and a user of that group it opens the editor.
    for path in [lab.root, *lab.root.rglob("*")]:
        path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o700) >> 3)
    words = [*obeying_permissions(), "--groups=65534"]
    done = subprocess.run(
        [*words, sys.executable, "-m", "dispatcher", "--root", str(lab.root), "edit"],
        env={**os.environ, "EDITOR": "true"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "nothing was changed\n"), done.stderr
