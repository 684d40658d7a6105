"""git beside the loop: it only reads, never waits, and runs no program that a repository's configuration names.

Such programs are filters, external differences and their converters, hooks, the monitor of the filesystem, pagers,
and the transports by which missing objects are fetched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.base import temporary
from dispatcher.provenance.programs import Deadline, ProgramError, output, run

# The person's own choice of configuration; any other GIT_* is a hook's or a shell's for another repository.
_KEPT: Final = re.compile(r"GIT_(CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|CEILING_DIRECTORIES)")
_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PAGER": "cat",
}
_SETTINGS: Final = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.splitIndex=false",
    "core.sshCommand=false",
    "protocol.allow=never",
    "status.renames=false",
    "color.ui=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.suppressBlankEmpty=false",
    "diff.submodule=short",
    "submodule.recurse=false",
)
_CONFIG: Final = r"^(filter\..*|remote\..*\.url|branch\..*\.remote)$"
_FILTER_KEYS: Final = ("clean", "smudge", "process")
_MOST_CONFIG: Final = 4 << 20


class RepositoryConfig(NamedTuple):
    """What of git's configuration matters: the names of its filters, and where branches and remotes are."""

    filters: tuple[str, ...]
    remotes: Mapping[str, str]
    upstreams: Mapping[str, str]

    def remote_of(self, branch: str | None) -> str | None:
        """The address of the branch's remote, else of `origin`, else of the only one there is, as it is configured."""
        name = self.upstreams.get(branch or "", "origin")
        if name in self.remotes:
            return self.remotes[name]
        return next(iter(self.remotes.values())) if len(self.remotes) == 1 else None


@contextlib.contextmanager
def index_copy(index: Path) -> Iterator[Path]:
    """Where git may write in place of a repository's index: a copy of it, or nothing yet where it has none."""
    with temporary.directory("index") as directory:
        copy = directory / "index"
        with contextlib.suppress(FileNotFoundError):
            # With its time: git compares files that are not older than their index by their contents.
            shutil.copy2(index, copy)
        yield copy


class SafeGit:
    """git in one directory until a deadline. Made anew for each look, because filters may have been configured."""

    def __init__(self, directory: Path, deadline: Deadline) -> None:
        self.directory = directory
        self._deadline = deadline
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("GIT_") or _KEPT.fullmatch(name)
            },
            **_ENVIRONMENT,
        }
        self._settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        self.config = self._read_config()
        self._settings += [word for setting in self._without_filters() for word in ("-c", setting)]

    def text(self, *words: str) -> str:
        """The line that git prints; raises ProgramError."""
        return os.fsdecode(self.output(words, most_bytes=1 << 16)).rstrip("\n")

    def output(self, words: Sequence[str], *, most_bytes: int, given: bytes = b"", good: Sequence[int] = (0,)) -> bytes:
        """What git prints; raises ProgramError."""
        return output(
            ["git", *self._settings, *words],
            cwd=self.directory,
            environment=self._environment,
            deadline=self._deadline,
            most_bytes=most_bytes,
            given=given,
            good=good,
        )

    def feed(self, words: Iterable[str], take: Callable[[bytes], object], deadline: Deadline | None = None) -> None:
        """Give `take` what git prints, piece by piece, until a shorter deadline if need be. Raises ProgramError."""
        run(
            ["git", *self._settings, *words],
            cwd=self.directory,
            environment=self._environment,
            deadline=deadline or self._deadline,
            take=take,
        )

    @contextlib.contextmanager
    def index_copied(self) -> Iterator[None]:
        """For `git diff`, which writes the index where only the times of files differ, despite GIT_OPTIONAL_LOCKS."""
        with index_copy(self.directory / self.text("rev-parse", "--git-path", "index")) as copy:
            self._environment["GIT_INDEX_FILE"] = os.fspath(copy)
            try:
                yield
            finally:
                del self._environment["GIT_INDEX_FILE"]

    def _read_config(self) -> RepositoryConfig:
        # Reading the configuration runs nothing. Status 1: nothing matches.
        found = self.output(["config", "-z", "--get-regexp", _CONFIG], most_bytes=_MOST_CONFIG, good=(0, 1))
        filters: dict[str, None] = {}
        remotes: dict[str, str] = {}
        upstreams: dict[str, str] = {}
        for item in os.fsdecode(found).split("\0"):
            key, _, value = item.partition("\n")
            section, _, rest = key.partition(".")
            name, _, variable = rest.rpartition(".")
            if section == "filter":
                filters[name] = None
            elif section == "remote":
                remotes.setdefault(name, value)
            elif section == "branch" and variable == "remote":
                upstreams[name] = value
        return RepositoryConfig(tuple(filters), remotes, upstreams)

    def _without_filters(self) -> Iterable[str]:
        """Settings that switch off every filter there is: an empty command is none."""
        for name in self.config.filters:
            if "=" in name or "\n" in name:
                raise ProgramError(f"git: the configured filter {name!r} cannot be switched off, so git was not asked")
            yield from (f"filter.{name}.{key}=" for key in _FILTER_KEYS)
            yield f"filter.{name}.required=false"
