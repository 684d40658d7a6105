"""A library that this Python lacks, in one line that says what to install. Imports nothing that could be missing."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Final

# The modules that this package's dependencies install, each with the extra that has it; see pyproject.toml.
EXTRA_OF: Final = {
    "click": "", "filelock": "", "jinja2": "", "msgspec": "", "portalocker": "", "psutil": "", "pynvml": "",
    "tabulate": "", "yaml": "",
    "anyio": "web", "h11": "web", "starlette": "web", "uvicorn": "web",
    "flax": "jax", "httpx": "jax", "jax": "jax", "obstore": "jax", "optax": "jax", "orbax": "jax", "xxhash": "jax",
    "optuna": "tune", "scipy": "tune",
}  # fmt: skip

# The directory that this package is imported from: a checkout, or where packages are installed.
PACKAGES: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@contextlib.contextmanager
def missing_libraries_named() -> Iterator[None]:
    """Exit with status 1 and one line when a module of this package's dependencies cannot be found."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        cure = f"install what dispatcher needs: {install_command(EXTRA_OF[module])}"
        sys.exit(f"dispatcher: error: {sys.executable} has no module {module}; {cure}")


def install_command(extra: str = "", python: str = "", flags: Sequence[str] = ()) -> str:
    """What installs this package, with the dependencies of `extra`, for `python` (default: this one).

    From where this one comes: package registries have other packages under its name.
    """
    source = _checkout() or _installed_from() or "THE_CHECKOUT_OF_DISPATCHER"
    return shlex.join(
        [python or sys.executable, "-m", "pip", "install", *flags, f"{source}[{extra}]" if extra else source]
    )


def _checkout() -> str:
    """The checkout that this file is in; empty when it is installed."""
    return PACKAGES if os.path.exists(os.path.join(PACKAGES, "pyproject.toml")) else ""


def _installed_from() -> str:
    """The directory or repository that pip has installed this from, as it records it (PEP 610); empty when unknown."""
    import json
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        (record,) = Path(PACKAGES).glob("dispatcher-*.dist-info/direct_url.json")
        recorded = json.loads(record.read_bytes())
        url = recorded["url"]
        if "vcs_info" in recorded:
            return f"{recorded['vcs_info']['vcs']}+{url}"
        path = unquote(urlsplit(url).path)
    except (OSError, ValueError, KeyError):
        return ""
    return path if url.startswith("file:") and os.path.exists(path) else ""
