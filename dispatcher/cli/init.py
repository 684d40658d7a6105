"""`dispatcher init DIR`: a workspace with a small example that runs."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import click

from dispatcher.errors import UsageError
from dispatcher.workspace import Layout


@click.command()
@click.argument("directory", type=click.Path(file_okay=False))
def init(directory: str) -> None:
    """Lay matrix/, run_state/, templates/ and scripts/ in DIRECTORY, with an example that runs without a GPU."""
    from dispatcher.cli import example
    from dispatcher.run_state import files

    layout = Layout(directory)
    contents = {
        layout.matrix_dir / "sweep.yaml": example.SWEEP,
        layout.training_template("example"): example.TEMPLATE,
        layout.scripts_dir / "make_matrix.py": example.SCRIPT,
        layout.root / ".gitignore": example.GITIGNORE,
    }
    there = [path for path in (*contents, layout.default_matrix, layout.run_state) if os.path.lexists(path)]
    if there:
        listed = ", ".join(os.path.relpath(path, layout.root) for path in there)
        raise UsageError(f"{layout.root} holds {listed} already: nothing was written. Choose another directory")
    with files.storing("laying the workspace in", layout.root):
        os.makedirs(layout.root, exist_ok=True)
        with files.shared_umask(layout.root):
            for path, text in contents.items():
                os.makedirs(path.parent, exist_ok=True)
                files.write_new(path, text.encode())
            os.makedirs(layout.run_state)
    _say_next(layout.root)


def _say_next(root: Path) -> None:
    click.echo(f"{root}: a workspace with an example. Next:\n")
    if root != Path.cwd():
        click.echo(f"  cd {shlex.quote(os.path.relpath(root))}")
    pod = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in socket.gethostname()) or "pod-0"
    click.echo("  dispatcher matrix make matrix/sweep.yaml")
    click.echo(f"  dispatcher --pod {pod} --slots 2 --until-empty")
