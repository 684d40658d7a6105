"""`dispatcher job`: run jobs by hand. Executes another program, so that no command here imports JAX."""

from __future__ import annotations

import os
import sys

import click

from dispatcher import contract
from dispatcher.cli.common import layout


class _PassesArgumentsOn(click.Command):
    """Parses `--root` and passes all other arguments on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            # The parser removes one `--`, which the other program needs: a name may begin with `-`.
            args.insert(args.index("--"), "--")
        return super().parse_args(ctx, args)


@click.command(cls=_PassesArgumentsOn, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def job(words: tuple[str, ...]) -> None:
    """List, configure and run job classes (JAX)."""
    os.environ[contract.ROOT] = os.fspath(layout().root)
    sys.stdout.flush()
    # exec, so that signals and the exit status are the job's.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "dispatcher.runtime", *(words or ("--help",))])
