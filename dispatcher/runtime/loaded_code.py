"""A digest of the code that this process runs, apart from what is installed."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent


def code_digest() -> str:
    """The SHA-256 of the files of all modules that are loaded and not installed, and of `dispatcher.runtime`.

    Installed packages count by their versions, which the caller adds.
    """
    found = hashlib.sha256()
    own = [path for path in _HERE.rglob("*.py") if "tutorials" not in path.parts]
    # By content alone: the same project may lie elsewhere on another host.
    for digest in sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in {*own, *_project_files()}):
        found.update(digest.encode())
    return found.hexdigest()


def _project_files() -> set[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = {Path(sysconfig.get_path(name)).resolve() for name in names} | {_HERE.parent}
    files = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        path = Path(name).resolve() if isinstance(name, str) else None
        if path is None or not path.is_file() or {"site-packages", "dist-packages"} & set(path.parts):
            continue
        if not any(path.is_relative_to(place) for place in installed):
            files.add(path)
    return files
