"""Which tests a change concerns: `scripts/test --changed [REV]`.

A file depends on what it imports. An import inside a function of the package is a dependency only of the files that
name that function and depend on its file, also for types alone. A file of the tests also depends on

- what Python code in its strings imports: programs that it starts;
- the commands, outlets and job classes that it names; beds have names of outlets too, and name themselves. A table that
  loads modules by name (`cli/main.py: _COMMANDS`) leads from those who name a key to that module, and not from the
  table itself to all of them;
- the modules of its fixtures: `fleet` is in tests/fleet.py, `start_slurm` in tests/beds/slurm.py.

What a program is only given at run time is not seen. All of it that is fast is run. Beds and trainings are run where
the change is in what they are about (ABOUT), or for the outlet that has changed.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import PurePosixPath

from import_graph import CHECKOUT, Source, Sources, of_checkout

PACKAGE, TESTS, INIT = "dispatcher", "tests", "/__init__.py"
# Folders of slow tests and the packages that they are about; others have the name of theirs.
ABOUT = {"beds": "run_state", "chaos": "pod", "examples": "runtime", "browser": "web"}
# What every test depends on.
EVERYTHING = ("pyproject.toml", "constraints.txt", "scripts/test", "scripts/install", "scripts/install-beds")
# Here fixtures, and what commands may need, are listed; a test depends on the modules of those that it uses.
LISTS = ("tests/conftest.py", "tests/beds/fixtures.py", "tests/beds/conftest.py", "tests/fork_server.py")
# Here the names of outlets are those of marks and of beds.
OTHER_NAMES = re.compile(r"tests/(?:groups|beds/(?!test_).*)\.py")
_CODE = re.compile(
    r"\b(?:from\s+(dispatcher[\w.]*)\s+import\s+(\w+)|import\s+(dispatcher[\w.]*)|-m\s+(dispatcher[\w.]*))"
)
_COMMAND = re.compile(r"\bdispatcher ([a-z]+)")
_TYPE = re.compile(r"\btype: ([a-z]+)")


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


class Dependents:
    """Which file depends on which, backwards. PATH:FUNCTION stands for a call of a function of that file."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        for source in sources.by_path.values():
            for used in self._used(source):
                self._users[used].add(source.path)
        late = [source for source in sources.by_path.values() if source.path.startswith(PACKAGE) and source.functions]
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for source in sources.by_path.values():
            for found in source.imports:
                if path := sources.file_of(found.name):
                    importers[path].add(source.path)
        for source in late:
            self._add_functions(source, importers[source.path])
        # Who depends on a file has objects of it, also without importing it, and each call may bring further ones.
        while sum([self._add_callers(source, _all_users(source.path, self._users)) for source in late]):
            pass

    def _add_functions(self, source: Source, importers: set[str]) -> None:
        """What the functions of a file import when they are called, and who calls them: in it, or by importing it."""
        for function in source.functions:
            call = f"{source.path}:{function}"
            names = (found.name for found in source.imports if found.function == function and not found.for_types)
            for path in self._files(names):
                self._users[path].add(call)
            for used in (source.variables, source.attributes):
                callers = (caller for caller, names in used.items() if function in names and caller != function)
                self._users[call].update(f"{source.path}:{caller}" if caller else source.path for caller in callers)
        self._add_callers(source, importers)

    def _add_callers(self, source: Source, users: set[str]) -> bool:
        """Those of `users` that name a function of a file may call it; whether one of them is new."""
        before = sum(len(self._users[f"{source.path}:{function}"]) for function in source.functions)
        for function in source.functions:
            self._users[f"{source.path}:{function}"] |= self._naming.get(function, set()) & users
        return before < sum(len(self._users[f"{source.path}:{function}"]) for function in source.functions)

    @cached_property
    def _naming(self) -> dict[str, set[str]]:
        """The files in which a name is an attribute, or imported."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for source in self._sources.by_path.values():
            in_strings = {name for text in source.strings for _, name, *_ in _CODE.findall(text)}
            for name in in_strings.union(*source.attributes.values()):
                found[name].add(source.path)
        return dict(found)

    @cached_property
    def named(self) -> dict[str, set[str]]:
        """Keys of the tables that load modules by name, and the files that each brings."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for source in self._sources.by_path.values():
            if source.path.startswith(PACKAGE) and not source.is_package:
                for key, value in source.entries.items():
                    if value.startswith(f"{PACKAGE}.") and (path := self._sources.file_of(value)):
                        found[key].update(self._folder(path))
        return dict(found)

    def of(self, changed: Iterable[str]) -> dict[str, str | None]:
        """Every file and call that depends on one of these, with what it depends on by; None for these themselves."""
        found: dict[str, str | None] = dict.fromkeys(changed)
        waiting = list(found)
        for path in waiting:
            for user in sorted((self._users[path] | self._readers(path)) - found.keys()):
                found[user] = path
                waiting.append(user)
        return found

    def _used(self, source: Source) -> Iterator[str]:
        if source.path.startswith(PACKAGE):
            yield from self._files(found.name for found in source.imports if not found.for_types and not found.function)
            yield from self._by_name(source)
            return
        names = [found.name for found in source.imports if not found.for_types]
        for folder in PurePosixPath(source.path).parents:
            yield f"{folder}/conftest.py"
        if source.path in LISTS:
            return
        for text in source.strings:
            names += [".".join(filter(None, found)) for found in _CODE.findall(text)]
            names += [text] if text.startswith(f"{PACKAGE}.") else []
            words = {text.partition(" ")[0], *_COMMAND.findall(text), *_TYPE.findall(text)} & self.named.keys()
            for word in () if OTHER_NAMES.fullmatch(source.path) else words:
                yield from self.named[word]
        yield from self._files(names)
        if not is_test(source.path) and PurePosixPath(source.path).name != "conftest.py":
            return
        for name in source.parameters | source.strings:
            module = name.removeprefix("start_")
            paths = (f"{TESTS}/{place}.py" for place in (module, f"{module}s", f"beds/{module}", f"beds/{module}d"))
            yield from (path for path in paths if path in self._sources.by_path)

    def _by_name(self, source: Source) -> Iterator[str]:
        """What a file of the package loads or starts by a name in a string, and packages whose sources it reads."""
        for text in source.strings - set(source.entries.values()):
            names = [".".join(filter(None, found)) for found in _CODE.findall(text) if text.startswith("import ")]
            path = self._sources.file_of(text) if text.startswith(f"{PACKAGE}.") else None
            if path and self._sources.by_path[path].module == text:
                names.append(text)
                yield path.replace("__init__", "__main__")
            yield from self._files(names)
        for found in source.imports:
            path = self._sources.file_of(found.name)
            if path and path.endswith(INIT) and found.name.rpartition(".")[2] in source.read:
                yield from self._folder(path)

    def _folder(self, path: str) -> Iterator[str]:
        """All files of a package, or the one of a module."""
        start = path.removesuffix("__init__.py")
        return (one for one in self._sources.by_path if one.startswith(start))

    def _files(self, names: Iterable[str]) -> Iterator[str]:
        """The files of modules, and the packages around them, which are imported first."""
        for name in names:
            path = self._sources.file_of(name)
            if path is not None:
                yield path
                for folder in PurePosixPath(path).parents:
                    yield f"{folder}{INIT}"

    def _readers(self, path: str) -> set[str]:
        """Who reads a file of data: the modules beside it, or tests that name it or its folder."""
        if path.partition(":")[0].endswith(".py"):
            return set()
        where = PurePosixPath(path)
        if where.parts[0] == PACKAGE:
            package = next(one for one in where.parents if f"{one}{INIT}" in self._sources.by_path)
            return {one for one in self._sources.by_path if PurePosixPath(one).parent == package}
        words = {where.name, *where.parent.parts} - {TESTS}
        tests = (one for one in self._sources.by_path.values() if one.path.startswith(f"{TESTS}/"))
        return {one.path for one in tests if words & one.strings}


@cache
def graph_of(sources: Sources) -> Dependents:
    return Dependents(sources)


def _all_users(path: str, users: Mapping[str, set[str]]) -> set[str]:
    """What uses a file, directly or not."""
    found, waiting = {path}, [path]
    for used in waiting:
        new = users.get(used, set()) - found
        found |= new
        waiting.extend(new)
    return found - {path}


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
    named = {key: bool(paths & set(changed)) for key, paths in graph.named.items()}
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


def is_test(path: str) -> bool:
    return path.startswith(f"{TESTS}/") and PurePosixPath(path).name.startswith("test_")
