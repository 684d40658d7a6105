"""What costs time at the start of a command is made when it is first used: imports (PEP 562), regular expressions."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `package`, whose public names are in the `modules` given for each."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """The regular expression `text`, compiled when one of its methods is first used; re.error is raised only then."""
    return cast("re.Pattern[str]", _Pattern(text, flags))


class _Pattern:
    def __init__(self, text: str, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._given), name)
        # The next use costs as much as one of the expression itself.
        setattr(self, name, value)
        return value
