"""Runs the job of one attempt from inside the project's code, on a host that does not see the workspace.

The file is complete in itself: `PARAMS` holds the job's entry, the hardware that it was given and the attempt's
identity. Rendering replaces that one dict (see dispatcher/templates/training.py). Run it with the Python of the job's
environment, anywhere inside the project's directory. `dispatcher.runtime` does the work; it is taken from that
environment, or from the project's directory if it contains the package `dispatcher`.

The syntax is that of Python 3.6, so that an older Python can say what is wrong.
"""

import importlib
import importlib.util
import os
import sys
from typing import Any

PARAMS = {
    # The entry of the manifest as it was claimed.
    "entry": ...,
    # What was asked for: `gpus` (None: not given), `chip`; the cluster's directories: `root`, `data`, `checkpoints`,
    # `results`.
    "hardware": {},
    # `job_id`, `attempt`, `pod`.
    "identity": ...,
}

# What marks the top of a project: see `dispatcher init`.
MARKS = ("dispatcher.yaml", "pyproject.toml", "matrix", "jobs")
NEEDED = (
    "a job class needs the package dispatcher with its JAX libraries: add `dispatcher[jax]` to the project's "
    "dependencies (`uv add 'dispatcher[jax]'`), or install it into this environment (`pip install 'dispatcher[jax]'`)"
)


def project() -> str:
    """The top of the project that contains the working directory; the working directory itself without one."""
    here = place = os.getcwd()
    while not any(os.path.exists(os.path.join(place, mark)) for mark in MARKS):
        place, before = os.path.dirname(place), place
        if place == before:
            return here
    return place


def make_importable(tree: str) -> None:
    """Put the project's directory on the path if the environment has no package dispatcher."""
    # Files beside this one must not shadow libraries.
    own = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or os.curdir) != own]
    if importlib.util.find_spec("dispatcher") is None:
        sys.path.append(tree)
        # For the processes that the job starts.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), tree]))


def main() -> int:
    """Run the job; exit status 0: done, 75: preempted."""
    if sys.version_info < (3, 11):  # noqa: UP036  # the host's Python may be any
        version = ".".join(str(number) for number in sys.version_info[:3])
        sys.exit(f"dispatcher: error: {sys.executable} is Python {version}, and 3.11 or newer is needed: {NEEDED}")
    tree = project()
    make_importable(tree)
    # From then on a SIGTERM is a preemption, also while JAX is being imported.
    with needed("dispatcher.runtime.preemption").Preemption():
        needed("dispatcher.runtime.execution")
        return int(needed("dispatcher.runtime.bootstrap").main(PARAMS, tree))


def needed(name: str) -> Any:
    """Import a module of the runtime; when it or a library is missing, say what to install and exit."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        sys.exit(f"dispatcher: error: {error} ({sys.executable}): {NEEDED}")


if __name__ == "__main__":
    sys.exit(main())
