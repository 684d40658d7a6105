"""A command group that imports a command's module only when that command is called.

`dispatcher status` is typed all day, and must not pay for what `dispatcher edit` or a pod need.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from dispatcher.cli.common import add_root_option
from dispatcher.errors import nearest


class LazyGroup(click.Group):
    """`commands_in` names, for every command, the module that holds it; the attribute bears the command's name."""

    def __init__(self, *args: Any, commands_in: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = dict(commands_in)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module_name = self._modules.get(cmd_name)
        if module_name is None:
            return None
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # An installation may come without a command's module; what such a module itself lacks is a fault.
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
            ctx.fail(f"there is no command {word!r}{nearest(word, self._modules)}")
        return super().resolve_command(ctx, args)
