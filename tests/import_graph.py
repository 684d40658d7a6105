"""Who imports whom, in the package and in its tests: read from the sources, nothing is imported.

Files are named by their paths in the checkout. Imports inside functions count, with the function; those for type
checking are marked.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
# Where `import NAME` finds a module, as pyproject.toml and the scripts have it.
ROOTS = ("tests", "examples/names", "scripts", "")
# Decorators that leave the call of a function to who names it.
PLAIN = ("property", "staticmethod", "classmethod", "cache")
SOURCES = ("dispatcher", "tests", "scripts", "examples/names/jobs")


class Import(NamedTuple):
    """A module and what it imports, both in full; `from a import b` is `a.b`, a module or a name in one."""

    module: str
    name: str
    for_types: bool
    # The function that does it when it is called; empty for what is done at once. See `_function`.
    function: str = ""


@dataclass
class Source:
    """What a file says about others."""

    path: str
    module: str
    imports: list[Import] = field(default_factory=list)
    # Modules whose files it looks for: agent in `agent.__file__`.
    read: set[str] = field(default_factory=set)
    # Every string constant, docstrings and parts of f-strings among them.
    strings: set[str] = field(default_factory=set)
    # The parameters of its functions: a test's fixtures are among them.
    parameters: set[str] = field(default_factory=set)
    # The variables that each of its functions uses, "" for the rest of the file; its attributes and what it imports by
    # name, by which also functions of other files are called.
    variables: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    attributes: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # What `import NAME` has brought, as a whole: what it has is not ours.
    others: set[str] = field(default_factory=set)
    # Keys and values of dicts of which both are string constants.
    entries: dict[str, str] = field(default_factory=dict)

    @cached_property
    def functions(self) -> set[str]:
        """Those that import something when they are called, and what may call them; empty where none does."""
        late = {found.function for found in self.imports} - {""}
        return (late | self.variables.keys() | self.attributes.keys()) - {""} if late else set()

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")


class Sources:
    """The Python files of a checkout by their paths."""

    def __init__(self, checkout: Path = CHECKOUT) -> None:
        found = (path for folder in SOURCES for path in sorted((checkout / folder).rglob("*.py")))
        self.by_path = {(source := read(path, checkout)).path: source for path in found}

    def file_of(self, name: str) -> str | None:
        """The file of a dotted name: that of the longest part of it that is a module.

        A name that a package loads on demand (`dispatcher.Workspace`) is in the module that its table names.
        """
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            for root in ROOTS:
                base = "/".join((*filter(None, (root,)), *parts[:length]))
                if f"{base}.py" in self.by_path:
                    return f"{base}.py"
                package = self.by_path.get(f"{base}/__init__.py")
                if package is not None:
                    lazy = package.entries.get(parts[length]) if length < len(parts) else None
                    return (lazy and self.file_of(lazy)) or package.path
        return None


@cache
def of_checkout() -> Sources:
    return Sources()


def read(path: Path, checkout: Path) -> Source:
    name = path.relative_to(checkout).as_posix()
    root = next(root for root in ROOTS if not root or name.startswith(f"{root}/"))
    parts = path.relative_to(checkout / root).with_suffix("").parts
    source = Source(name, ".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    _collect(ast.parse(path.read_text(encoding="utf-8"), name), source, parts[:-1])
    return source


def _collect(
    node: ast.AST, source: Source, package: tuple[str, ...], *, for_types: bool = False, function: str = ""
) -> None:
    match node:
        case ast.Constant(value=str(text)):
            source.strings.add(text)
        case ast.Name(id=name):
            source.variables[function].add(name)
        case ast.Attribute(value=ast.Name(id=module), attr="__file__"):
            source.read.add(module)
        case ast.Attribute(value=ast.Name(id=module)) if module in source.others:
            pass
        case ast.Attribute(attr=name):
            source.attributes[function].add(name)
        case ast.Import(names=names):
            source.imports += [Import(source.module, alias.name, for_types, function) for alias in names]
            outside = (alias for alias in names if "." not in alias.name and alias.name != "dispatcher")
            source.others.update(alias.asname or alias.name for alias in outside)
        case ast.ImportFrom(module=module, names=names, level=level):
            source.attributes[function].update(alias.name for alias in names)
            above = package[: len(package) - level + 1] if level else ()
            base = (*above, *filter(None, (module,)))
            found = (".".join((*base, one.name)) for one in names)
            source.imports += [Import(source.module, name, for_types, function) for name in found]
        case ast.arg(arg=name):
            source.parameters.add(name)
        case ast.Dict(keys=keys, values=values):
            source.entries.update(_entries(keys, values))
    for_types = for_types or _is_type_checking(node)
    for child in ast.iter_child_nodes(node):
        _collect(child, source, package, for_types=for_types, function=function or _function(child, node))


def _function(node: ast.AST, parent: ast.AST) -> str:
    """The name by which others call a function; empty for what they need not name: a library calls it.

    That is what is decorated, what has a name of Python's, and what a class inherits the name of.
    """
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
        return ""
    is_plain = all(isinstance(one, ast.Name) and one.id in PLAIN for one in node.decorator_list)
    return "" if not is_plain or (isinstance(parent, ast.ClassDef) and parent.bases) else node.name


def _entries(keys: list[ast.expr | None], values: list[ast.expr]) -> Iterator[tuple[str, str]]:
    for key, value in zip(keys, values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
            yield str(key.value), str(value.value)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
