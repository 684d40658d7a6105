"""Which tests a change concerns: `scripts/test --changed [REV]`.

Whatever depends on it (dependents.py) and is fast is run. Beds and trainings are run where the change is in what they
are about (ABOUT), or for the outlet that has changed.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from dependents import PACKAGE, TESTS, graph_of, is_test
from import_graph import CHECKOUT, Sources, of_checkout

# Folders of slow tests and the packages that they are about; others have the name of theirs.
ABOUT = {"beds": "run_state", "chaos": "pod", "examples": "runtime", "browser": "web"}
# What every test depends on.
EVERYTHING = ("pyproject.toml", "constraints.txt", "scripts/test", "scripts/install", "scripts/install-beds")


class ChangedError(Exception):
    """Why it cannot be told what has changed."""


def changed_files(revision: str) -> list[str]:
    """What differs from where this branch left the revision, committed or not; raises ChangedError."""
    base = _git("merge-base", revision, "HEAD").strip()
    listed = _git("diff", "--name-only", "--no-renames", "-z", base) + _git("ls-files", "-zo", "--exclude-standard")
    return sorted(set(filter(None, listed.split("\0"))))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChangedError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Selection:
    """The tests of a change."""

    changed: list[str]
    # Every file that depends on the change, with the one that it depends on by.
    dependents: dict[str, str | None] = field(default_factory=dict)
    # Keys of commands, outlets and job classes, and whether what they name has changed itself.
    named: dict[str, bool] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        return any(path in EVERYTHING for path in self.changed)

    def has(self, path: str) -> bool:
        """Whether a file of tests depends on the change."""
        return self.is_everything or path in self.dependents

    def is_about(self, path: str) -> bool:
        """Whether a file of tests is about what has changed, so that also its slow tests are run."""
        return self.is_everything or path in self.changed or any(path.startswith(one) for one in self._folders)

    def is_about_one_of(self, values: Iterable[object]) -> bool:
        """Whether one of a test's parameters is an outlet, command or job class that has changed."""
        return any(isinstance(value, str) and self.named.get(value, False) for value in values)

    @cached_property
    def _folders(self) -> set[str]:
        found = set()
        for path in self.changed:
            folder = PurePosixPath(path).parent
            if folder.parts[:1] == (PACKAGE,) and folder.parts[1:]:
                inner = "/".join(folder.parts[1:])
                names = (name for name, what in ABOUT.items() if what == folder.parts[1])
                found |= {f"{TESTS}/{inner}/", *(f"{TESTS}/{name}/" for name in names)}
            elif folder.parts[:1] == (TESTS,) and not path.endswith(".py"):
                found.add(f"{folder.parent if len(folder.parts) > 2 else folder}/")
            elif PurePosixPath(path).name == "conftest.py":
                found.add(f"{folder}/")
        return found

    def reason(self, path: str) -> str:
        """How a file depends on the change: the files in between, at most two of them."""
        chain = [path]
        while (by := self.dependents.get(chain[-1])) is not None:
            chain.append(by)
        between = [_short(one) for one in chain[1:]]
        return " <- ".join(between if len(between) <= 3 else [*between[:2], "...", between[-1]]) or "changed"


def _short(path: str) -> str:
    path, _, function = path.partition(":")
    short = path.removeprefix(f"{PACKAGE}/").removesuffix(".py").removesuffix("/__init__")
    return f"{short}:{function}" if function else short


def select(revision: str) -> Selection:
    """The tests of what differs from a revision; raises ChangedError."""
    return selection_of(changed_files(revision))


def selection_of(changed: list[str], sources: Sources | None = None) -> Selection:
    graph = graph_of(sources or of_checkout())
    named = {key: bool(paths & set(changed)) for key, paths in graph.modules_by_key.items()}
    return Selection(changed, graph.of(changed), named)


def describe(selection: Selection, sources: Sources | None = None) -> Iterator[str]:
    """What is run and why, in lines."""
    yield f"changed: {', '.join(selection.changed) or 'nothing'}"
    sources = sources or of_checkout()
    files = [path for path in selection.dependents if path in sources.by_path]
    users = [path for path in files if path.startswith(PACKAGE) and path not in selection.changed]
    if users:
        yield f"{len(users)} modules depend on it: {', '.join(_short(path) for path in users)}"
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for path in sources.by_path:
        if is_test(path) and selection.has(path):
            by_reason[selection.reason(path)].append(path)
    for reason, paths in by_reason.items():
        yield f"{' '.join(paths)}: {reason}"
    about = [path for paths in by_reason.values() for path in paths if selection.is_about(path)]
    if by_reason:
        yield f"slow tests and beds too in {len(about)} of these files; the others' are left to scripts/test"
