"""Imports go one way only, without cycles, and light commands load no heavy module."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from import_graph import Import, of_checkout

import dispatcher
from dispatcher.matrix.needs import find_cycles
from dispatcher.outlets.kinds import OUTLET_KINDS

PACKAGE = Path(dispatcher.__file__).parent
# As the architecture page has them, lowest first: a module imports from its own layer and from those below.
LAYERS = (
    ("errors", "contract", "base"),
    ("checkpoints",),
    ("workspace", "hosts", "topics", "notify_config", "config"),
    ("matrix", "run_state", "templates", "provenance"),
    ("outlets", "notify"),
    ("pod", "doctor"),
    ("query",),
    ("cleaning",),
    ("api", "submitting"),
    ("tuning",),
    ("web",),
    ("cli",),
    ("__main__",),
)
# Within a layer, and where less is allowed than the layers say: who imports nothing of what.
FORBIDDEN = (
    ("errors", "contract"),
    ("contract", "errors"),
    ("contract", "base"),
    ("errors", "base.files"),
    ("workspace", "config"),
    ("hosts", "config"),
    ("matrix", "run_state"),
    ("matrix", "templates"),
    ("run_state", "templates"),
    ("templates", "run_state"),
    # Packages that read what attempts ran from depend on nothing else of the run state.
    ("provenance", "matrix"),
    ("provenance", "run_state"),
    ("provenance", "templates"),
    ("doctor", "pod"),
    # Telling people depends on what the journal says, not on where jobs run.
    ("notify", "outlets"),
    ("outlets", "notify"),
    # Outlets know liveness locks and pauses; only the loop writes the journal.
    ("outlets", "run_state.store"),
    ("outlets", "run_state.journal"),
    ("outlets", "run_state.transaction"),
    # The loop knows outlets by the seam alone.
    ("pod", "outlets.local"),
)
# What a job's process may import besides its own package: it must not pay for the dispatcher, nor depend on it.
RUNTIME_MAY_IMPORT = ("runtime", "checkpoints", "contract", "errors", "base")
HEAVY = (
    "optuna",
    "jax",
    "flax",
    "optax",
    "orbax",
    "numpy",
    "pandas",
    "polars",
    "matplotlib",
    "tensorboard",
    "wandb",
    "jinja2",
    "yaml",
    "psutil",
    "pynvml",
    "filelock",
    "portalocker",
    "starlette",
    "uvicorn",
)


@cache
def imports() -> tuple[Import, ...]:
    """Every import within the package, without the leading `dispatcher.` of both names."""
    return tuple(
        Import(_inner(found.module), _inner(_module(found.name)), found.for_types)
        for source in of_checkout().by_path.values()
        for found in source.imports
        if found.name.startswith("dispatcher.") and source.path.startswith("dispatcher/")
    )


def _inner(module: str) -> str:
    return module.partition(".")[2]


def _module(name: str) -> str:
    path = PACKAGE.parent / Path(*name.split("."))
    return name if path.with_suffix(".py").exists() or path.is_dir() else name.rpartition(".")[0]


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def layer(module: str) -> int:
    found = [number for number, packages in enumerate(LAYERS) if module.partition(".")[0] in packages]
    assert found, f"dispatcher.{module} is in no layer of this test: give it one"
    return found[0]


def fault(found: Import) -> str:
    """Why an import is not allowed; empty when it is."""
    module, name = found.module, found.name
    if is_within(module, "runtime"):
        allowed = any(is_within(name, package) for package in RUNTIME_MAY_IMPORT)
        return "" if allowed else f"the runtime may import {', '.join(RUNTIME_MAY_IMPORT)} only"
    if is_within(name, "runtime"):
        return "nothing imports the runtime"
    if layer(name) > layer(module):
        return "it is in a higher layer"
    if any(is_within(module, above) and is_within(name, below) for above, below in FORBIDDEN):
        return "FORBIDDEN lists this pair"
    return ""


def test_imports_follow_the_layers() -> None:
    within = [found for found in imports() if found.module not in ("__init__", "") and found.name]
    assert len(within) > 500
    faults = {f"{found.module} imports {found.name}: {why}" for found in within if (why := fault(found))}
    assert not faults, "\n".join(sorted(faults))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("base.files", "workspace"),
        ("matrix.sweep", "run_state.states"),
        ("outlets.base", "pod.run"),
        ("pod.run", "query.overview"),
        ("pod.run", "outlets.local.outlet"),
        ("run_state.store", "outlets.base"),
        ("runtime.training.step", "config"),
        ("cli.status", "runtime.training.step"),
    ],
)
def test_an_import_against_the_layers_is_found(module: str, name: str) -> None:
    assert fault(Import(module, name, for_types=False))


def test_no_cycles() -> None:
    """Imports inside functions count: they would only hide a cycle. Those for type checking do not."""
    graph: dict[str, list[str]] = {}
    for found in imports():
        if not found.for_types and found.name != found.module:
            graph.setdefault(found.module, []).append(found.name)
    assert find_cycles({"a": ["b"], "b": ["a"]}), "cycles are found"
    cycles = find_cycles(graph)
    assert not cycles, "\n".join(" -> ".join(cycle) for cycle in cycles)


def test_the_loop_and_the_run_state_name_no_outlet() -> None:
    """A branch on an outlet's name would have to be found again for every outlet that is added."""
    paths = [path for package in ("pod", "run_state") for path in sorted((PACKAGE / package).rglob("*.py"))]
    assert len(paths) > 30
    texts = [(path, constant) for path in paths for constant in strings(path.read_text(encoding="utf-8"))]
    named = [f"{path.relative_to(PACKAGE)}: {text!r}" for path, text in texts if text in OUTLET_KINDS]
    assert not named, "\n".join(named)


def strings(source: str) -> list[str]:
    """The string constants of a module."""
    constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


COMMANDS = ("--help", "status", "results", "history", "pods", "show a", "matrix show")
# Runs in one process, lightest first; prints what has been loaded after each.
PROBE = """
import json, sys
heavy, root, commands = json.loads(sys.argv[1])
def loaded(): return sorted(set(heavy) & set(sys.modules))
import dispatcher, dispatcher.contract, dispatcher.errors, dispatcher.base.values, dispatcher.base.files
found = {"import dispatcher": loaded()}
from dispatcher.cli.main import main
for command in commands:
    assert main(["--root", root, *command.split()]) == 0, command
    found[command] = loaded()
print(json.dumps(found))
"""


def test_light_commands_load_no_heavy_module(tmp_path: Path) -> None:
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "matrix.json").write_text('[{"job_id": "a", "method": "fft"}]')
    words = json.dumps([HEAVY, str(tmp_path), COMMANDS])
    run = subprocess.run([sys.executable, "-c", PROBE, words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found == {step: [] for step in ("import dispatcher", *COMMANDS)}


def test_public_names() -> None:
    assert dispatcher.__all__ == ["DispatcherError", "Workspace"]
    for name in dispatcher.__all__:
        assert getattr(dispatcher, name).__name__ == name
