"""`dispatcher init`: create a workspace with an example, or adopt the status file of a lab's own script."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from dispatcher import contract
from dispatcher.base.host import host_name
from dispatcher.cli.common import given_root, json_option
from dispatcher.cli.printing import print_json
from dispatcher.errors import UsageError
from dispatcher.run_state.locked_journal import GITIGNORE
from dispatcher.workspace import Layout, nearest_workspace, usable_layout


@click.command()
@click.argument("directory", required=False, type=click.Path(file_okay=False))
@click.option(
    "--adopt", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Adopt the status file of your own script: its records become the run state. No example is written.",
)  # fmt: skip
@click.option(
    "--skill", is_flag=True,
    help="Write only .claude/skills/dispatcher/SKILL.md, which teaches coding agents these commands.",
)  # fmt: skip
@click.option(
    "--shared", is_flag=True,
    help="Let the group of DIRECTORY read and write the workspace, also one that exists: what you own there.",
)  # fmt: skip
@click.option("--nested", is_flag=True, help="Create it even inside another workspace.")
@json_option
def init(directory: str | None, adopt: Path | None, skill: bool, shared: bool, nested: bool, as_json: bool) -> None:
    """Create a workspace in DIRECTORY.

    It gets dispatcher.yaml, matrix/, run_state/, templates/, scripts/, and an example that needs no GPU. With --adopt
    or --skill, DIRECTORY is the workspace (default: the current one); existing files are not changed.
    """
    if directory == "":
        raise UsageError("the directory '' is empty text, such as that of a variable that is not set: name a directory")
    if skill and (shared or adopt is not None):
        raise UsageError("--skill writes one file only: leave out --adopt and --shared, or use them before it")
    if adopt is not None or skill:
        # Not looked for upwards: what becomes a workspace is not one yet.
        new = usable_layout(directory or given_root() or os.environ.get(contract.ROOT) or ".")
    elif directory is None:
        raise UsageError("name the directory: `dispatcher init DIR`, `dispatcher init --adopt FILE` or `init --skill`")
    else:
        new = usable_layout(directory)
    if skill:
        _print_written(new, [_write_skill(new)], as_json=as_json)
        return
    is_there = new.mark() is not None
    if not nested:
        _refuse_nested(new)
    if adopt is not None:
        from dispatcher.cli.adopt import adopt_file

        adopt_file(new, adopt, as_json=as_json)
    elif not (shared and is_there):
        _create_example(new, as_json=as_json)
    elif as_json:
        _print_written(new, [], as_json=True)
    if shared:
        _share(new.root, silent=as_json)


def _share(root: Path, *, silent: bool) -> None:
    from dispatcher.base import files
    from dispatcher.base.group import group_name, share
    from dispatcher.base.messages import counted

    with files.storing("sharing the workspace", root):
        left = share(root)
        group = group_name(root.stat().st_gid)
    if silent:
        return
    click.echo(f"{root}: members of the group {group} may read and write it (chgrp GROUP {root} chooses another group)")
    if left.private:
        click.echo(f"{counted(left.private, 'file')} that only their owner may read stay so")
    for owner, count in left.by_others.items():
        click.echo(
            f"{counted(count, 'file')} of {owner} cannot be shared by you: {owner} (or root) runs the same command"
        )


def _refuse_nested(new: Layout) -> None:
    """Raise UsageError where `new` would lie in another workspace, which commands in it would no longer find."""
    if new.mark() is not None:
        return
    place = Path(os.path.realpath(new.root))
    outer = nearest_workspace(next(above for above in (place, *place.parents) if above.is_dir()))
    if outer is not None:
        raise UsageError(
            f"{new.root} is inside the workspace {outer.root}, and commands in it would no longer reach that one: "
            "nothing was written. Choose a directory outside of it, or add --nested"
        )


def _write_skill(new: Layout) -> Path:
    """Write the skill file, in the place and the form in which coding agents look for one; an equal one is left."""
    from dispatcher.base import files
    from dispatcher.cli import example

    path = new.root / ".claude" / "skills" / "dispatcher" / "SKILL.md"
    text = example.readme("skill")
    if os.path.lexists(path):
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
            raise UsageError(f"{path} exists and differs: nothing was written. To replace it, remove it (rm) first")
        return path
    with files.storing("writing", path), files.shared_umask(new.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_new(path, text.encode())
    return path


def _print_written(new: Layout, paths: list[Path], *, as_json: bool) -> None:
    if as_json:
        print_json({"workspace": new.root, "files": paths})
    else:
        click.echo("\n".join(f"{path}: written" for path in paths))


def _create_example(new: Layout, *, as_json: bool) -> None:
    from dispatcher.base import files
    from dispatcher.cli import example

    contents = {
        new.config_file: example.CONFIG,
        new.matrix_dir / "sweep.yaml": example.SWEEP,
        new.training_template("example"): example.TEMPLATE,
        new.scripts_dir / "make_matrix.py": example.SCRIPT,
        new.matrix_dir / "README.md": example.readme("matrix"),
        new.run_state / "README.md": example.readme("run_state"),
        new.run_state_ignored: GITIGNORE,
        new.root / ".gitignore": example.GITIGNORE,
    }
    there = [path for path in (*contents, new.default_matrix, new.run_state) if os.path.lexists(path)]
    if there:
        listed = ", ".join(os.path.relpath(path, new.root) for path in there)
        raise UsageError(f"{new.root} already contains {listed}: nothing was written. Choose another directory")
    laying = files.storing("laying the workspace in", new.root)
    with laying, _all_or_nothing(new.root) as made, files.shared_umask(new.root):
        for path, text in contents.items():
            _make_directory(path.parent, made)
            made.append(path)
            files.write_new(path, text.encode())
    if as_json:
        _print_written(new, [*contents], as_json=True)
    else:
        _print_next_steps(new.root)


@contextlib.contextmanager
def _all_or_nothing(root: Path) -> Iterator[list[Path]]:
    """The files and directories that are made; removed when one cannot be: half a workspace would be taken for one."""
    made: list[Path] = []
    try:
        _make_directory(root, made)
        yield made
    except BaseException:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise


def _make_directory(path: Path, made: list[Path]) -> None:
    for place in reversed([path, *path.parents]):
        if not place.is_dir():
            place.mkdir()
            made.append(place)


def _print_next_steps(root: Path) -> None:
    click.echo(f"{root}: a workspace with an example. Next:\n")
    if root != Path.cwd():
        click.echo(f"  cd {shlex.quote(os.path.relpath(root))}")
    pod = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in host_name()) or "pod-0"
    click.echo("  dispatcher matrix make matrix/sweep.yaml")
    click.echo(f"  dispatcher --pod {pod} --slots 2 --until-empty")
