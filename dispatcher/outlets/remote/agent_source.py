"""The modules of the agent as one program, which needs no file on the host: they are registered and then run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from dispatcher.outlets.remote import agent

# An import finds what is registered under its full name and looks no further, so the package itself is not needed.
_PROGRAM: Final = """
import sys, types
for name, source in {modules!r}:
    sys.modules[name] = module = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


@functools.cache
def agent_source() -> str:
    """The source of the program, which runs on Python 3.6."""
    folder = Path(agent.__file__).parent
    sources = [(f"{agent.__name__}.{name}", _read(folder / f"{name}.py")) for name in agent.MODULES]
    return _PROGRAM.format(modules=sources)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
