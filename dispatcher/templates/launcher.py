"""Launcher scripts: bash rendered by Jinja2, in which every value is quoted.

Every `{{ value }}` becomes one quoted word, a list becomes quoted words; quoting cannot be switched off. Undefined
names are errors. A template with a value inside its own quotes is refused, because the value would lose its quoting
(see `shell.py`). Comments are `{{# ... #}}`. A long launcher includes its parts (`{% include "node_uv.sh.j2" %}`). A
file in the workspace's `templates/` overrides the packaged one of the same name, parts included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.base.file_identity import Identity, identity_of
from dispatcher.errors import TemplateError
from dispatcher.templates import shell
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    import jinja2

_PACKAGED = Path(__file__).parent


def render_launcher(layout: Layout, name: str, values: Mapping[str, Any]) -> str:
    """The launcher `name` (`wrapper.sh.j2`) filled with `values`: text, numbers, booleans, paths and lists of them."""
    import jinja2

    environment = _environment(layout.templates_dir)
    path: object = name
    try:
        template = environment.get_template(name)
        path = template.filename
        return template.render(values)
    except jinja2.UndefinedError as error:
        known = ", ".join(sorted(values))
        raise TemplateError(f"{path}: {error.message}; this launcher is given: {known}") from None
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{error.filename or path}, line {error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise TemplateError(f"{path}: {error}") from None


@lru_cache(maxsize=64)
def _environment(templates_dir: Path) -> jinja2.Environment:
    """One for each workspace. It keeps compiled launchers until their files change: attempts share them."""
    import jinja2

    def load(name: str) -> tuple[str, str, Callable[[], bool]]:
        path, source, stamp = _read(templates_dir, name)
        try:
            shell.check_template(environment.lex(source))
        except ValueError as error:
            raise TemplateError(f"{path}: {error}") from None
        # A launcher that a project adds may take the place of this one, so it is looked for anew.
        return source, os.fspath(path), lambda: _found(templates_dir, name) == (path, stamp)

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Jinja's default `{#` occurs in `${#array[@]}`.
        comment_start_string="{{#",
        comment_end_string="#}}",
    )
    return environment


def _finalize(value: object) -> str:
    import jinja2

    if isinstance(value, jinja2.Undefined):
        # Raises an error with the missing name.
        return str(value)
    return shell.quoted(value)


def _read(templates_dir: Path, name: str) -> tuple[Path, str, Identity]:
    """The file of a launcher, its text, and what changes with it."""
    path, stamp = _found(templates_dir, name)
    try:
        return path, path.read_text(encoding="utf-8"), stamp
    except (OSError, ValueError) as error:
        raise TemplateError(f"{path}: the launcher cannot be read: {error}") from error


def _found(templates_dir: Path, name: str) -> tuple[Path, Identity]:
    for folder in (templates_dir, _PACKAGED):
        path = folder / name
        try:
            return path, identity_of(os.stat(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TemplateError(f"{path}: the launcher cannot be read: {error.strerror}") from error
    raise TemplateError(f"{templates_dir / name}: there is no such launcher, in the package neither")
