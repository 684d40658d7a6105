"""What takes up the space of a workspace: `dispatcher usage --disk`."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dispatcher.base.values import is_name
from dispatcher.cleaning import tree
from dispatcher.cleaning.attempts import KEPT
from dispatcher.cleaning.tree import Links, Size
from dispatcher.query.snapshot import Snapshot
from dispatcher.workspace import Layout

# What the content of an attempt is, by the names that are directly in its directory.
LOGS, CHECKPOINTS, OTHER, RECORDS = "logs", "checkpoints", "other", "records"
OF_ATTEMPTS: Final = (LOGS, CHECKPOINTS, OTHER, RECORDS)
_LOG: Final = re.compile(r"output(\.\d+)?\.log")
_CHECKPOINT: Final = re.compile(r"(?:checkpoint|ckpt).*|.*\.(?:pt|pth|ckpt|safetensors)", re.I)
# Directories below run_state/, and what they hold; what is there besides is OTHER_STATE.
_FOLDERS: Final = {
    "journal": "journal",
    "code": "code: archives and copies",
    "provenance": "provenance: differences and packages",
    "submissions": "submissions to schedulers",
}
_OTHER_STATE: Final = "other files of run_state/"
_OF_JOB_CLASSES: Final = "checkpoints/ of job classes"

Sizes = dict[str, Size]


class Disk:
    """Bytes by what they are. Each file counts once, however many names it has; links are not followed.

    `unreadable` are the paths that could not be read, and why.
    """

    def __init__(self, layout: Layout, on_job: Callable[[int], None] = lambda _: None) -> None:
        self.unreadable: list[str] = []
        self._layout = layout
        self._links = Links()
        self._on_job = on_job

    def of_jobs(self) -> Iterator[tuple[str, Sizes]]:
        """The sizes of all attempts of each job that has a directory."""
        with contextlib.suppress(FileNotFoundError), tree.opened_root(self._layout.jobs_dir) as root:
            jobs = ((name, what) for name, what in tree.entries(root) if is_name(name) and stat.S_ISDIR(what.st_mode))
            for number, (job, _) in enumerate(jobs):
                self._on_job(number)
                with self._readable(f"jobs/{job}"), tree.opened(job, root) as within:
                    yield job, self._of_attempts(job, within)

    def of_workspace(self) -> Sizes:
        """The sizes of what belongs to no single job; nothing where no command has written yet."""
        found: Sizes = {}
        rest = Size()
        with contextlib.suppress(FileNotFoundError), tree.opened_root(self._layout.run_state) as fd:
            rest = rest + Size(1, self._links.bytes_of(os.fstat(fd)))
            for name, what in tree.entries(fd, {self._layout.jobs_dir.name}):
                size = self._measured(fd, name, what, name)
                if name in _FOLDERS:
                    found[_FOLDERS[name]] = size
                else:
                    rest = rest + size
        with contextlib.suppress(FileNotFoundError), tree.opened_root(self._layout.jobs_dir) as fd:
            rest = rest + Size(1, self._links.bytes_of(os.fstat(fd)))
            for name, what in tree.entries(fd):
                if not (is_name(name) and stat.S_ISDIR(what.st_mode)):
                    rest = rest + self._measured(fd, name, what, f"jobs/{name}")
        if rest.files:
            found[_OTHER_STATE] = rest
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), contextlib.ExitStack() as stack:
            root = stack.enter_context(tree.opened_root(self._layout.root))
            fd = stack.enter_context(tree.opened(CHECKPOINTS, root))
            found[_OF_JOB_CLASSES] = tree.measure(fd, self._links, self._failed(CHECKPOINTS))
        return found

    def _of_attempts(self, job: str, within: int) -> Sizes:
        found: Sizes = {RECORDS: Size(1, self._links.bytes_of(os.fstat(within)))}
        for number, what in tree.entries(within):
            if not (stat.S_ISDIR(what.st_mode) and number.isdigit()):
                found[OTHER] = found.get(OTHER, Size()) + self._measured(within, number, what, f"jobs/{job}/{number}")
                continue
            found[RECORDS] = found[RECORDS] + Size(1, self._links.bytes_of(what))
            with self._readable(f"jobs/{job}/{number}"), tree.opened(number, within) as fd:
                for name, inner in tree.entries(fd):
                    size = self._measured(fd, name, inner, f"jobs/{job}/{number}/{name}")
                    found[_kind(name)] = found.get(_kind(name), Size()) + size
        return found

    def _measured(self, fd: int, name: str, what: Any, path: str) -> Size:
        size = Size(1, self._links.bytes_of(what))
        if stat.S_ISDIR(what.st_mode):
            with self._readable(path), tree.opened(name, fd) as inner:
                size = size + tree.measure(inner, self._links, self._failed(path))
        return size

    def _failed(self, where: str) -> tree.OnError:
        return lambda path, error: self.unreadable.append(f"{where}/{path}: {error.strerror}")

    @contextlib.contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            # A pod or a cleaner has removed it meanwhile.
            pass
        except OSError as error:
            self.unreadable.append(f"{path}: {error.strerror}")


def rows(snapshot: Snapshot, disk: Disk, by: Sequence[str]) -> list[dict[str, Any]]:
    """Bytes of the attempts by these keys, the greatest first; without keys by what they are, with all the rest."""
    groups: dict[tuple[Any, ...], Sizes] = {}
    for job, sizes in disk.of_jobs():
        # A job whose record was deleted has no values.
        key = tuple(snapshot.value(job, name) if job in snapshot.records else None for name in by)
        group = groups.setdefault(key, {})
        for kind, size in sizes.items():
            group[kind] = group.get(kind, Size()) + size
    if by:
        found = [{**dict(zip(by, key, strict=True)), **_columns(group)} for key, group in groups.items()]
        return sorted(found, key=lambda row: -row["bytes"])
    jobs = groups.get((), {})
    whole = {f"attempts: {kind}": jobs[kind] for kind in OF_ATTEMPTS if kind in jobs} | disk.of_workspace()
    listed = [{"what": what, "files": size.files, "bytes": size.bytes} for what, size in whole.items()]
    return sorted(listed, key=lambda row: -row["bytes"])


def _columns(sizes: Mapping[str, Size]) -> dict[str, int]:
    bytes_of = {kind: sizes.get(kind, Size()).bytes for kind in OF_ATTEMPTS}
    return {"files": sum(size.files for size in sizes.values()), **bytes_of, "bytes": sum(bytes_of.values())}


def _kind(name: str) -> str:
    if _LOG.fullmatch(name):
        return LOGS
    if name in KEPT:
        return RECORDS
    return CHECKPOINTS if _CHECKPOINT.fullmatch(name) else OTHER
