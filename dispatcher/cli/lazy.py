"""A command group that imports a command's module only when that command is called.

`dispatcher status` is typed all day and must not pay for what `dispatcher edit` or a pod imports.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from dispatcher.cli.common import add_root_option
from dispatcher.errors import nearest


class LazyGroup(click.Group):
    """`commands_in` names the module of every command, by headings; the module's attribute has the command's name.

    `hints` maps words of other tools to the command that does the same here.
    """

    def __init__(
        self, *args: Any, commands_in: Mapping[str, Mapping[str, str]], hints: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._headings = commands_in
        self._modules = {name: module for commands in commands_in.values() for name, module in commands.items()}
        self._hints = dict(hints)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # What is left beside the longest name, in all sections alike.
        longest = max(map(len, self._modules))
        for heading, names in self._headings.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            rows = [
                (name.ljust(longest), command.get_short_help_str(formatter.width - longest - 6))
                for name, command in commands
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module_name = self._modules.get(cmd_name)
        if module_name is None:
            return None
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # An installation may leave out a command's module. A module that it imports must be there.
            if error.name == module_name:
                return None
            raise
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        add_root_option(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            hint = f" (did you mean {self._hints[word]!r}?)" if word in self._hints else nearest(word, self._modules)
            ctx.fail(f"no such command {word!r}{hint}")
        return super().resolve_command(ctx, args)
