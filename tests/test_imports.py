"""Imports go one way only, and light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dispatcher

PACKAGE = Path(dispatcher.__file__).parent
# Lowest first; a module may import from its own layer and from those below.
LAYERS = (
    ("errors", "contract", "base"),
    ("workspace", "config"),
    ("matrix", "run_state.states"),
    ("run_state", "templates"),
    ("outlets",),
    ("doctor",),
    ("pod",),
    ("report",),
    ("api",),
    ("cli",),
    ("__main__",),
)
# `outlets` know liveness locks and pauses, and never touch the journal.
FORBIDDEN = (
    ("outlets", "run_state.store"),
    ("outlets", "run_state.journal"),
    ("outlets", "run_state.transaction"),
    ("run_state", "templates"),
    ("templates", "run_state"),
    ("matrix", "run_state"),
)


def layer(module: str) -> int:
    """The layer of `dispatcher.<module>`, by the longest name that matches."""
    names = [(name, number) for number, names in enumerate(LAYERS) for name in names]
    matching = [(name, number) for name, number in names if module == name or module.startswith(f"{name}.")]
    assert matching, f"dispatcher.{module} stands in no layer of this test: give it one"
    return max(matching, key=lambda pair: len(pair[0]))[1]


def imports() -> list[tuple[str, str]]:
    """Pairs of module and imported module, both below `dispatcher.`."""
    pairs = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dispatcher"):
                base = node.module.removeprefix("dispatcher").removeprefix(".")
                for alias in node.names:
                    name = f"{base}.{alias.name}" if base else alias.name
                    known = (PACKAGE / Path(*name.split("."))).with_suffix(".py").exists()
                    package = (PACKAGE / Path(*name.split("."))).is_dir()
                    pairs.append((module, name if known or package else base))
    return [(module, name) for module, name in pairs if name and module not in ("__init__",)]


def test_no_import_runs_back() -> None:
    found = imports()
    assert len(found) > 100
    wrong = []
    for module, name in found:
        if module.startswith("runtime"):
            if not name.startswith(("runtime", "contract", "errors", "base")):
                wrong.append(f"{module} imports {name}: runtime may use contract, errors and base only")
        elif name.startswith("runtime"):
            wrong.append(f"{module} imports {name}: nothing imports runtime")
        elif layer(name) > layer(module):
            wrong.append(f"{module} imports {name}, which stands above it")
        elif any(module.startswith(f"{a}.") and name.startswith(b) for a, b in FORBIDDEN):
            wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys; from dispatcher.cli.main import main; "
        "import dispatcher.cli.status; "
        "heavy = {'jax', 'flax', 'optax', 'numpy', 'jinja2', 'yaml', 'psutil', 'pynvml', 'filelock'}; "
        "print(' '.join(sorted(heavy & set(sys.modules))))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == "", f"`dispatcher status` loads {loaded}"


def test_public_names() -> None:
    assert dispatcher.__all__ == ["DispatcherError", "Workspace"]
    for name in dispatcher.__all__:
        assert getattr(dispatcher, name).__name__ == name
