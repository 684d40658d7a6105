"""Training scripts: a template is a runnable Python script whose `PARAMS` an entry replaces.

    PARAMS = {
        "lang": ...,       # required: the entry must have it
        "lr": 3e-4,        # a default
        "job_id": "demo",  # reserved keys are available, too
    }

Only the source of that one dict is replaced. Defaults that the entry does not override keep their source text.
"""

from __future__ import annotations

import ast
import hashlib
import io
import math
import os
import re
import tokenize
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from dispatcher.base import files
from dispatcher.base.file_identity import Identity, identity_of
from dispatcher.base.schema import reading
from dispatcher.base.values import shown
from dispatcher.config import Method
from dispatcher.errors import TemplateError
from dispatcher.job_keys import JobKeys
from dispatcher.matrix.entry import Entry

_NAME = "PARAMS"
# For scripts that take their parameters as arguments.
_OR_COMMAND = "or give the method a `command` in dispatcher.yaml"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class SplitTemplate(NamedTuple):
    """A template split at its `PARAMS`: the text before the dict, each default's source (None: required), the rest."""

    head: str
    defaults: Mapping[str, str | None]
    tail: str
    newline: str
    encoding: str
    imports: frozenset[str]
    sha256: str


def render_training(template_path: str | os.PathLike[str], entry: Entry, method: Method) -> str:
    """The script that trains `entry`, to be written with `write_script`; line ends are those of the template.

    A parameter's value comes from the entry, else from the keys that its method sets (`env`, `gpus` ...), else from the
    template's default. TemplateError names template, entry and key.
    """
    given = {**_method_words(method), **entry.document()}
    if method.env or entry.env:
        given["env"] = {**method.env, **entry.env}
    return render_params(template_path, given, entry.job_id)


def render_params(template_path: str | os.PathLike[str], given: Mapping[str, Any], job_id: str) -> str:
    """The template with the values `given`; other keys keep their defaults. TemplateError names template, job and key.

    Keys that the template does not have are ignored.
    """
    template = _load(template_path)
    lines = []
    missing = []
    for key, default in template.defaults.items():
        if key in given:
            try:
                source = _literal(given[key], template.encoding)
            except ValueError as error:
                raise TemplateError(f"{template_path}: {job_id}: {key} = {shown(given[key])}: {error}") from None
        elif default is None:
            missing.append(key)
            continue
        else:
            source = default
        lines.append(f"    {_literal(key, template.encoding)}: {source},{template.newline}")
    if missing:
        keys = ", ".join(missing)
        raise TemplateError(f"{template_path}: {job_id} has no {keys}, which the template requires ('...')")
    return f"{template.head}{{{template.newline}{''.join(lines)}}}{template.tail}"


def parameters(template_path: str | os.PathLike[str]) -> dict[str, bool]:
    """The parameters that the template reads, each with whether it is required; TemplateError for an unusable one."""
    return {key: default is None for key, default in _load(template_path).defaults.items()}


def imported_packages(template_path: str | os.PathLike[str]) -> frozenset[str]:
    """The packages that the template imports at its top level, outside of `try` and `if`."""
    return _load(template_path).imports


def template_digest(template_path: str | os.PathLike[str]) -> str:
    """The SHA-256 of the template from which scripts are rendered now; TemplateError for an unusable one."""
    return _load(template_path).sha256


def missing(required: Iterable[str], entry: Entry, method: Method) -> list[str]:
    """The `required` parameters that neither the entry nor its method has."""
    words = _method_words(method)
    if method.env or entry.env:
        words["env"] = {}
    return [key for key in required if not entry.has(key) and key not in words]


def encode_script(script: str) -> bytes:
    """A rendered script in the encoding that it declares."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(script.encode(errors="surrogateescape")).readline)
    # The byte-order mark of utf-8-sig is in the text already.
    return script.encode("utf-8" if encoding == "utf-8-sig" else encoding)


def _method_words(method: Method) -> dict[str, Any]:
    """The keys that the method sets of those that an entry may have too, as files have them."""
    common = reading.fields(JobKeys)
    return {key: value for key, value in reading.written(Method, method).items() if key in common}


def _literal(value: object, encoding: str) -> str:
    _check_literal(value)
    text = repr(value)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        # The template's encoding does not have these characters.
        return ascii(value)
    return text


def _check_literal(value: object) -> None:
    """ValueError unless `value` is JSON data: only that has a literal that evaluates to the same value."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            _check_literal(key)
            _check_literal(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            _check_literal(member)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ValueError(f"a {type(value).__name__} cannot be written as a Python literal")


def _load(path: str | os.PathLike[str]) -> SplitTemplate:
    try:
        return _parse(os.fspath(path), identity_of(os.stat(path)))
    except FileNotFoundError:
        raise TemplateError(f"{path}: there is no such template; write it, {_OR_COMMAND}") from None
    except OSError as error:
        raise TemplateError(f"{path}: the template cannot be read: {error.strerror}") from error


@lru_cache(maxsize=64)
def _parse(path: str, identity: Identity) -> SplitTemplate:
    """Parse a template. `identity` is a key of the cache: entries share a template until it changes."""
    data = files.read_plain(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode("utf-8" if encoding == "utf-8-sig" else encoding)
        tree = ast.parse(text.removeprefix("\ufeff"), path)
        compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise TemplateError(f"{path}{place}: the template is not valid Python: {error.msg}") from None
    except ValueError as error:
        raise TemplateError(f"{path}: the template is not valid Python: {error}") from None
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines = _LINE.findall(text.removeprefix("\ufeff"))
    params = _params(path, tree)
    start = _offset(lines, params.lineno, params.col_offset)
    end = _offset(lines, params.end_lineno or 0, params.end_col_offset or 0)
    source = "".join(lines)
    newline = next((ending for ending in ("\r\n", "\n", "\r") if lines and lines[0].endswith(ending)), "\n")
    defaults = _defaults(path, params, lines)
    digest = hashlib.sha256(data).hexdigest()
    return SplitTemplate(mark + source[:start], defaults, source[end:], newline, encoding, _imports(tree), digest)


def _imports(tree: ast.Module) -> frozenset[str]:
    modules = {name.name for one in tree.body if isinstance(one, ast.Import) for name in one.names}
    modules |= {one.module for one in tree.body if isinstance(one, ast.ImportFrom) and one.module and not one.level}
    return frozenset(module.partition(".")[0] for module in modules)


def _offset(lines: list[str], line: int, column: int) -> int:
    """The index in the text of a position in the syntax tree, whose columns count bytes of UTF-8."""
    before = lines[line - 1].encode()[:column].decode()
    return sum(map(len, lines[: line - 1])) + len(before)


def _params(path: str, tree: ast.Module) -> ast.Dict:
    assigned = [
        (statement.lineno, statement.value)
        for statement in tree.body
        if (isinstance(statement, ast.Assign) and any(_is_params(target) for target in statement.targets))
        or (isinstance(statement, ast.AnnAssign) and _is_params(statement.target))
        or (isinstance(statement, ast.AugAssign) and _is_params(statement.target))
    ]
    if not assigned:
        problem = f"has no {_NAME} = {{...}} at module level: write one with the parameters and their defaults"
        raise TemplateError(f"{path}: the template {problem}, {_OR_COMMAND}")
    if len(assigned) > 1:
        places = " and ".join(str(line) for line, _ in assigned)
        raise TemplateError(f"{path}: the template assigns {_NAME} {len(assigned)} times, in lines {places}: keep one")
    line, value = assigned[0]
    if not isinstance(value, ast.Dict):
        raise TemplateError(f'{path}, line {line}: {_NAME} is not a dict display: write {_NAME} = {{"lr": 3e-4, ...}}')
    return value


def _is_params(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == _NAME


def _defaults(path: str, params: ast.Dict, lines: list[str]) -> dict[str, str | None]:
    source = "".join(lines)
    defaults: dict[str, str | None] = {}
    for key, value in zip(params.keys, params.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            place = key or value
            raise TemplateError(f"{path}, line {place.lineno}: every key of {_NAME} must be a text in quotes")
        if key.value in defaults:
            raise TemplateError(f"{path}, line {key.lineno}: {_NAME} has the key {key.value!r} twice: remove one")
        required = isinstance(value, ast.Constant) and value.value is ...
        start = _offset(lines, value.lineno, value.col_offset)
        end = _offset(lines, value.end_lineno or 0, value.end_col_offset or 0)
        text = source[start:end]
        if "\n" in text or "\r" in text or isinstance(value, ast.NamedExpr):
            # The source range does not include the parentheses that such a default needs.
            text = f"({text})"
        defaults[key.value] = None if required else text
    return defaults
