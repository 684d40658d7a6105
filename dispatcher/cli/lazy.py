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
    """`commands_in` names the module of every command; the module's attribute has the command's name.

    `hints` maps words of other tools to the command that does the same here.
    """

    def __init__(self, *args: Any, commands_in: Mapping[str, str], hints: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = dict(commands_in)
        self._hints = dict(hints)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

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
