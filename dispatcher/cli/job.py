"""`dispatcher job`: jobs outside of a matrix. Another program does it, so that no command here imports JAX."""

from __future__ import annotations

import os
import sys

import click

from dispatcher import contract
from dispatcher.cli.common import layout


class _PassesWordsOn(click.Command):
    """Takes `--root` out of the words, and leaves the rest as they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            # The parser eats one, and the other program needs it: a name may begin with `-`.
            args.insert(args.index("--"), "--")
        return super().parse_args(ctx, args)


@click.command(cls=_PassesWordsOn, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def job(words: tuple[str, ...]) -> None:
    """Make and run jobs in JAX: list, configure, run."""
    os.environ[contract.ROOT] = os.fspath(layout().root)
    sys.stdout.flush()
    # In place of this process, so that signals and the exit status are the job's own.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "dispatcher.runtime", *(words or ("--help",))])
