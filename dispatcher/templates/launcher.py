"""Launcher scripts: bash rendered by Jinja2, in which every value is quoted.

Every `{{ value }}` becomes one quoted word, a list becomes quoted words; quoting cannot be switched off. Undefined
names are errors. A template with a value inside its own quotes is refused, because the value would lose its quoting
(see `shell.py`). Comments are `{{# ... #}}`. A launcher in the workspace's `templates/` overrides the packaged one of
the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.errors import TemplateError
from dispatcher.templates import shell
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    import jinja2

_PACKAGED = Path(__file__).parent


def render_launcher(layout: Layout, name: str, values: Mapping[str, Any]) -> str:
    """The launcher `name` (`wrapper.sh.j2`) filled with `values`: text, numbers, booleans, paths and lists of them."""
    import jinja2

    path, template = _load(layout, name)
    try:
        return template.render(values)
    except jinja2.UndefinedError as error:
        known = ", ".join(sorted(values))
        raise TemplateError(f"{path}: {error.message}; this launcher is given: {known}") from None
    except (jinja2.TemplateError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise TemplateError(f"{path}: {error}") from None


def _load(layout: Layout, name: str) -> tuple[Path, jinja2.Template]:
    for folder in (layout.templates_dir, _PACKAGED):
        path = folder / name
        try:
            status = os.stat(path)
            return path, _compile(path, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TemplateError(f"{path}: the launcher cannot be read: {error.strerror}") from None
    raise TemplateError(f"{layout.templates_dir / name}: there is no such launcher, in the package neither")


@lru_cache(maxsize=64)
def _compile(path: Path, mtime_ns: int, size: int) -> jinja2.Template:
    """Compile a launcher. `mtime_ns` and `size` are keys of the cache: attempts share a launcher until it changes."""
    import jinja2

    try:
        source = path.read_text(encoding="utf-8")
        shell.check_template(_environment().lex(source))
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{path}, line {error.lineno}: {error.message}") from None
    except ValueError as error:
        raise TemplateError(f"{path}: {error}") from None


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    def finalize(value: object) -> str:
        if isinstance(value, jinja2.Undefined):
            # Raises an error with the missing name.
            return str(value)
        return shell.quoted(value)

    return jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Jinja's default `{#` occurs in `${#array[@]}`.
        comment_start_string="{{#",
        comment_end_string="#}}",
    )
