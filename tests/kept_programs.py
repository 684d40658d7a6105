"""JAX's compilation cache, kept between the test runs of a user.

JAX writes a program in place, so what a killed process has cut short stays so. A run therefore has a directory of its
own: it begins with links to the programs of earlier runs, and what is complete at its end is kept for later ones.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from beds.needs import CACHE

KEPT = Path(CACHE).with_name("dispatcher-jax")
MAX_BYTES = 500_000_000
# Compile in a quarter of the time what runs for a second. Runs whose bits are compared all have these flags; single
# steps and blocks of steps are compared without them, because with them their bits differ.
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def environment(directory: Path) -> dict[str, str]:
    """What makes JAX compile quickly and use the cache in `directory`, also for small programs."""
    return {
        "XLA_FLAGS": FLAGS,
        "JAX_COMPILATION_CACHE_DIR": str(directory),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # Another cache, of GPUs: its path would be part of a program's key, and differs from run to run.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def kept_here() -> Path:
    """Where the programs for this JAX and this processor are kept: a home may be shared by different machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    digest = hashlib.sha256("\n".join(processor).encode()).hexdigest()[:12]
    return KEPT / f"jax-{version('jax')}-{version('jaxlib')}-{digest}"


@contextlib.contextmanager
def kept(directory: Path, store: Path, max_bytes: int = MAX_BYTES) -> Iterator[Path]:
    """As `shared`; what `store` and those beside it have beyond `max_bytes` is deleted in the end."""
    store.mkdir(parents=True, exist_ok=True)
    with shared(directory, store):
        yield directory
    _evict(store.parent, max_bytes)


@contextlib.contextmanager
def shared(directory: Path, store: Path) -> Iterator[None]:
    """`directory` has the programs of `store`, to which complete new ones are added in the end."""
    directory.mkdir(exist_ok=True)
    _add(store, directory, sorted(_names(store) - _names(directory)))
    yield
    _add(directory, store, [name for name in _names(directory) - _names(store) if _is_complete(directory / name)])


def _names(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if name.endswith("-cache")}


def _add(source: Path, target: Path, names: list[str]) -> None:
    """Atomically; another run may add or evict the same at the same time."""
    for name in names:
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            try:
                os.link(source / name, target / name)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                content = (source / name).read_bytes()
                with tempfile.NamedTemporaryFile(dir=target, delete=False) as copy:
                    copy.write(content)
                shutil.copystat(source / name, copy.name)
                os.replace(copy.name, target / name)


def _is_complete(path: Path) -> bool:
    from jax._src.compilation_cache import decompress_executable

    try:
        decompress_executable(path.read_bytes())
    except Exception:  # noqa: BLE001 - of one of three libraries
        return False
    return True


def _evict(folder: Path, max_bytes: int) -> None:
    """The oldest programs, whatever JAX they were for."""
    files = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            files.append((found.st_mtime_ns, found.st_size, path))
    files.sort()
    excess = sum(size for _, size, _ in files) - max_bytes
    for _, size, path in files:
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size
