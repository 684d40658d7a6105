"""Several options of a command as one argument, a struct."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def one_argument(name: str, kind: type[msgspec.Struct], options: Sequence[Decorator]) -> Decorator:
    """A decorator that adds `options` to a command, which gets their values as its argument `name`, a `kind`.

    The options pass a value for each field of `kind`, under the field's name.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **given: Any) -> Any:
            fields = {field: given.pop(field) for field in kind.__struct_fields__}
            return function(*args, **{name: kind(**fields)}, **given)

        decorated: Callable[..., Any] = command
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
