"""`dispatcher job`: run jobs by hand. Executes another program, so that no command here imports JAX."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dispatcher import contract
from dispatcher.cli.common import given_root
from dispatcher.workspace import nearest_workspace


class _PassesArgumentsOn(click.Command):
    """Parses `--root` and passes all other arguments on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            # The parser removes one `--`, which the other program needs: a name may begin with `-`.
            args.insert(args.index("--"), "--")
        return super().parse_args(ctx, args)


@click.command(cls=_PassesArgumentsOn, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def job(ctx: click.Context, words: tuple[str, ...]) -> Any:
    """List, configure, run and submit job classes (JAX)."""
    if words[:1] == ("submit",):
        from dispatcher.cli.job_submit import job_submit

        with job_submit.make_context("submit", list(words[1:]), parent=ctx) as inner:
            return job_submit.invoke(inner)
    run_runtime(words)
    return None


def _root() -> Path:
    """Where jobs/ and runs/ are. Unlike all other commands, these also work outside of a workspace."""
    named = given_root() or os.environ.get(contract.ROOT)
    if named:
        return Path(named).absolute()
    here = Path.cwd()
    workspace = nearest_workspace(here)
    return here if workspace is None else workspace.root


def run_runtime(words: Sequence[str]) -> None:
    """Become the runtime's own program: signals and the exit status are the job's."""
    os.environ[contract.ROOT] = os.fspath(_root())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "dispatcher.runtime", *(words or ("--help",))])
