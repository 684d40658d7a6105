"""Job classes by key: `@job("gpt/train/pretrain")` registers a class, `find_job` returns it.

Jobs come from:

- the package itself; a module is imported when its key is requested (`_SHIPPED`);
- every Python file in the workspace's `jobs/` folder, imported as `jobs.<name>`, so that files can import each other;
  files whose name begins with `_` or `.` are helpers, and only imported by others;
- the modules and .py files that `--import` on the command line or `import` in a matrix entry names.

A file that cannot be imported is an error only for jobs that are found nowhere else.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from dispatcher.errors import UsageError, nearest

J = TypeVar("J", bound=type)

FOLDER: Final = "jobs"

# The package's own jobs: key to module.
_SHIPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "api/rollout": "dispatcher.runtime.jobs.api_prompts",
        "gpt/sample": "dispatcher.runtime.jobs.sample",
        "gpt/train/pretrain": "dispatcher.runtime.jobs.pretrain",
    }
)

_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_log = logging.getLogger(__name__)

_registered: dict[str, type] = {}
# Messages of failed imports, for the error about a missing job.
_failures: dict[str, str] = {}


def job(key: str) -> Callable[[J], J]:
    """Register a class under `key`: words separated by `/`, such as `gpt/train/pretrain`.

    The same class again (a notebook cell run twice, a reloaded module) replaces the old one; another class with the
    same key is a TypeError.
    """
    if not _KEY.fullmatch(key):
        raise TypeError(
            f"@job({key!r}): expected words of letters, digits, '_', '.', '-', such as 'gpt/train/pretrain'"
        )

    def register(cls: J) -> J:
        before = _registered.get(key)
        is_other = before is not None and name_of(before) != name_of(cls)
        if is_other or cls.__module__ != _SHIPPED.get(key, cls.__module__):
            owner = name_of(before) if before is not None else f"a job in {_SHIPPED[key]}"
            raise TypeError(f"@job({key!r}) on {name_of(cls)}: the key belongs to {owner}: choose another")
        _registered[key] = cls
        return cls

    return register


def find_job(key: str) -> Any:
    """The class registered under `key`; UsageError with the nearest key and the files that could not be imported."""
    if key not in _registered and key in _SHIPPED:
        importlib.import_module(_SHIPPED[key])
    if key in _registered:
        return _registered[key]
    lines = [f"there is no job {key!r}{nearest(key, job_keys())}", *_failures.values()]
    if not _registered:
        lines.append(f"jobs are classes with @job(key) in {FOLDER}/*.py of the workspace, or in what --import names")
    raise UsageError("\n".join(lines))


def job_keys() -> list[str]:
    """All known keys, in alphabetical order."""
    return sorted({*_registered, *_SHIPPED})


def summary(key: str) -> str:
    """The first line of a job's docstring. The package's own jobs are parsed, not imported: that would load JAX."""
    if key in _registered or key not in _SHIPPED:
        text = find_job(key).__doc__
    else:
        found = importlib.util.find_spec(_SHIPPED[key])
        assert found is not None and found.origin is not None
        classes = ast.walk(ast.parse(Path(found.origin).read_text(encoding="utf-8")))
        text = next(
            ast.get_docstring(node)
            for node in classes
            if isinstance(node, ast.ClassDef) and f"job({key!r})" in map(ast.unparse, node.decorator_list)
        )
    return (text or "").strip().partition("\n")[0]


def key_of(cls: type) -> str | None:
    """The key of `cls`; None if it is not registered."""
    return next((key for key, known in _registered.items() if known is cls), None)


def import_jobs(root: Path, names: Iterable[str] = ()) -> list[str]:
    """Import the workspace's `jobs/*.py` and the modules or files `names`; one message per failed import of a job file.

    A failed import of one of `names` is a UsageError.
    """
    root = root.absolute()
    if str(root) not in sys.path:
        # Last, so that no file of a workspace shadows a library.
        sys.path.append(str(root))
    for name in names:
        problem = _try(lambda name=name: _import_named(name), name)  # type: ignore[misc]
        if problem:
            raise UsageError(problem)
    for path in sorted((root / FOLDER).glob("*.py")):
        if not path.name.startswith(("_", ".")):
            problem = _try(lambda path=path: _import_file(f"{FOLDER}.{path.stem}", path), str(path))  # type: ignore[misc]
            if problem:
                _log.warning("%s", problem)
                _failures[str(path)] = problem
    return list(_failures.values())


def _import_named(name: str) -> None:
    if name.endswith(".py"):
        path = Path(name).absolute()
        _import_file(path.stem, path)
    else:
        importlib.import_module(name)


def _import_file(name: str, path: Path) -> None:
    """Import the file `path` as the module `name`, once."""
    known = sys.modules.get(name)
    if known is not None:
        place = getattr(known, "__file__", None)
        if place is None or Path(place).resolve() != path.resolve():
            raise ImportError(f"the module {name} already exists ({place}): rename the file")
        return
    if not path.is_file():
        raise ImportError("no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _try(load: Callable[[], None], what: str) -> str:
    """Run an import; the message of its failure, empty if it succeeds."""
    try:
        load()
    except Exception as error:  # noqa: BLE001  # a user's module may raise anything; it is reported
        line = ""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == what:
                line = f", line {trace.tb_lineno}"
            trace = trace.tb_next
        if isinstance(error, SyntaxError) and error.lineno:
            line = f", line {error.lineno}"
        return f"{what}{line}: cannot be imported: {type(error).__name__}: {error}"
    return ""


def name_of(cls: type) -> str:
    """The fully qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"
