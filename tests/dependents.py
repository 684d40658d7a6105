"""Which file depends on which: what `scripts/test --changed` goes by.

A file depends on what it imports. An import inside a function of the package is a dependency only of the files that
name that function and depend on its file, also for types alone. What only a string names counts where a file of the
package loads it, or starts it as a program. A file of the tests also depends on

- what Python code in its strings imports: programs that it starts;
- the commands, outlets and job classes that it names; beds have names of outlets too, and name themselves. A table that
  loads modules by name (`cli/main.py: _COMMANDS`) leads from those who name a key to that module, and not from the
  table itself to all of them;
- the modules of its fixtures: `fleet` is in tests/fleet.py, `start_slurm` in tests/beds/slurm.py.

What a program is only given at run time is not seen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import PurePosixPath

from import_graph import Source, Sources

PACKAGE, TESTS, INIT = "dispatcher", "tests", "/__init__.py"
# Here fixtures, and what commands may need, are listed; a test depends on the modules of those that it uses.
LISTS = ("tests/conftest.py", "tests/beds/fixtures.py", "tests/beds/conftest.py", "tests/fork_server.py")
# Here the names of outlets are those of marks and of beds.
_OTHER_NAMES = re.compile(r"tests/(?:groups|beds/(?!test_).*)\.py")
_CODE = re.compile(
    r"\b(?:from\s+(dispatcher[\w.]*)\s+import\s+(\w+)|import\s+(dispatcher[\w.]*)|-m\s+(dispatcher[\w.]*))"
)
_COMMAND = re.compile(r"\bdispatcher ([a-z]+)")
_TYPE = re.compile(r"\btype: ([a-z]+)")


def is_test(path: str) -> bool:
    return path.startswith(f"{TESTS}/") and PurePosixPath(path).name.startswith("test_")


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
        is_one_new = False
        for function in source.functions:
            known = self._users[f"{source.path}:{function}"]
            new = (self._files_naming.get(function, set()) & users) - known
            known |= new
            is_one_new |= bool(new)
        return is_one_new

    @cached_property
    def _files_naming(self) -> dict[str, set[str]]:
        """The files in which a name is an attribute, or imported."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for source in self._sources.by_path.values():
            in_strings = {name for text in source.strings for _, name, *_ in _CODE.findall(text)}
            for name in in_strings.union(*source.attributes.values()):
                found[name].add(source.path)
        return dict(found)

    @cached_property
    def modules_by_key(self) -> dict[str, set[str]]:
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
            words = {text.partition(" ")[0], *_COMMAND.findall(text), *_TYPE.findall(text)} & self.modules_by_key.keys()
            for word in () if _OTHER_NAMES.fullmatch(source.path) else words:
                yield from self.modules_by_key[word]
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
