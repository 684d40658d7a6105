"""What `dispatcher init` lays, and what git sees of a workspace."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import click
import pytest

from dispatcher.base.users import name_of
from dispatcher.cli import example
from dispatcher.cli.main import cli, main
from dispatcher.runtime.launching import OUTPUT

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("matrix", "run_state")
JOBS = '[{"job_id": "a", "method": "m", "command": "true"}, {"job_id": "b", "method": "m", "command": "true"}]'


def git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    done = subprocess.run(["git", *identity, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_explained(tmp_path: Path, folder: str) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    page = (tmp_path / "new" / folder / "README.md").read_text()
    assert page.startswith(f"# {folder}\n")
    # The repository is a workspace of its own tool, with the same pages.
    assert (REPOSITORY / folder / "README.md").resolve() == Path(example.__file__).parent / "readmes" / f"{folder}.md"
    assert (REPOSITORY / folder / "README.md").read_text() == page


def test_git_sees_nothing_of_what_a_dispatcher_writes(lab, tmp_path: Path) -> None:
    root = tmp_path / "project"
    assert main(["init", str(root)]) == 0
    (root / "matrix" / "matrix.json").write_text(JOBS)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "A project")
    assert "run_state/README.md" in git(root, "ls-files").splitlines()
    git(tmp_path, "clone", "--quiet", str(root), "clone")
    clone = tmp_path / "clone"
    # Nothing takes the page for the state of jobs.
    assert main(["--root", str(clone), "status"]) == 0
    assert lab.start("--root", str(clone), "--pod", "p", "--slots", "1", "--until-empty").wait(timeout=60) == 0
    assert main(["--root", str(clone), "status"]) == 0
    assert (clone / "run_state" / "matrix_status.json").exists()
    assert git(clone, "status", "--porcelain") == ""


def test_git_sees_nothing_of_a_run_state_in_a_project_that_init_has_not_made(lab) -> None:
    git(lab.root, "init", "--quiet")
    (lab.layout.run_state / "README.md").parent.mkdir()
    (lab.layout.run_state / "README.md").write_text("ours\n")
    git(lab.root, "add", "--all")
    git(lab.root, "commit", "--quiet", "--message", "A project")
    lab.put("base", "queued")
    assert lab.layout.status_file.exists()
    assert git(lab.root, "status", "--porcelain") == ""
    # Whoever wants other files of it in git says so once.
    lab.layout.run_state_ignored.write_text("*\n!matrix_status.json\n")
    lab.put("base", "held")
    assert git(lab.root, "status", "--porcelain").split() == ["??", "run_state/matrix_status.json"]


def test_help_lists_the_commands_by_what_they_are_for(lab) -> None:
    text = lab.run("--help").out
    sections = re.findall(r"^(\S.*):\n((?:  \w+ .*\n)+)", text, re.M)
    listed = [line.split()[0] for _, lines in sections for line in lines.splitlines()]
    assert listed == cli.list_commands(click.Context(cli))
    assert len(sections) > 3
    assert len({line.index(line.split(maxsplit=1)[1]) for _, lines in sections for line in lines.splitlines()}) == 1


def test_git_sees_nothing_of_what_jobs_in_jax_write(tmp_path: Path) -> None:
    root = tmp_path / "project"
    assert main(["init", str(root)]) == 0
    git(root, "init", "--quiet")
    for folder in (OUTPUT, "jobs"):
        (root / folder).mkdir()
        (root / folder / "file").touch()
    git(root, "add", "--all")
    tracked = git(root, "ls-files").splitlines()
    assert "jobs/file" in tracked and f"{OUTPUT}/file" not in tracked


def test_no_workspace_is_made_inside_another_one_by_mistake(tmp_path: Path, monkeypatch, capsys) -> None:
    root = tmp_path / "lab"
    assert main(["init", str(root)]) == 0
    (root / "matrix" / "matrix.json").write_text(JOBS)
    file = root / "matrix" / "matrix_status.json"
    file.write_text('{"a": {"state": "done"}}')
    monkeypatch.chdir(root / "matrix")
    (tmp_path / "link").symlink_to(root / "templates")
    before = sorted(root.rglob("*"))
    capsys.readouterr()
    # The last two would adopt into matrix/ and templates/, where nobody looks for a run state.
    for words in (["new"], ["new/deeper"], [str(tmp_path / "link" / "new")], ["--adopt", file.name],
                  [str(root / "templates"), "--adopt", file.name]):  # fmt: skip
        assert main(["init", *words]) == 2, words
        assert f"is inside the workspace {root}, " in capsys.readouterr().err
    assert sorted(root.rglob("*")) == before
    # In the workspace itself the file is adopted; and inside of it, if that is wanted.
    assert main(["init", "..", "--adopt", file.name]) == 0
    assert (root / "run_state" / "matrix_status.json").exists()
    assert main(["init", "--nested", "new"]) == 0
    # Beside it there is nothing to shadow.
    assert main(["init", str(tmp_path / "other")]) == 0


def all_paths(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def open_to_group(path: Path) -> bool:
    mode = path.stat().st_mode
    return mode & 0o060 == 0o060 and (not path.is_dir() or mode & 0o2010 == 0o2010)


def test_a_shared_workspace_is_open_to_its_group_whatever_the_umask(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    umask = os.umask(0o077)
    try:
        assert main(["init", "--nested", "--shared", str(root)]) == 0
        assert main(["--root", str(root), "matrix", "make", str(root / "matrix" / "sweep.yaml")]) == 0
        pod = ("--root", str(root), "--pod", "p", "--slots", "1", "--max-jobs", "1")
        assert main(pod) == 0
    finally:
        os.umask(umask)
    run_state = all_paths(root / "run_state")
    assert [path for path in (*run_state, root, root / "matrix") if not open_to_group(path)] == []
    assert not any(path.stat().st_mode & 0o002 for path in all_paths(root))


def test_an_existing_workspace_becomes_shared_and_what_is_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lab"
    assert main(["init", str(root)]) == 0
    secret = root / "secret.env"
    secret.touch(0o600)
    assert main(["init", "--shared", str(root)]) == 0
    assert "1 file that only their owner may read stay" in capsys.readouterr().out
    assert [path for path in all_paths(root) if not open_to_group(path)] == [secret]
    (root / "dispatcher.yaml").chmod(0o644)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 12345)
    assert main(["init", "--shared", str(root)]) == 0
    owner = name_of(os.getuid())
    assert f"2 files of {owner} cannot be shared by you: {owner} (or root) runs" in capsys.readouterr().out
