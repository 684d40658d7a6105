"""The structs of an attempt's provenance.json and provenance-host.json. Unknown keys are ignored, so versions mix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

# What stands in place of the digest of an untracked file that could not be read, or is no file.
UNREAD: Final = ""


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """The template of a training script: its path relative to the workspace, and the SHA-256 of its content."""

    path: str
    sha256: str


class GitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The code as git had it. Paths are relative to the top of the repository.

    `commit` None: there is none yet. `branch` None: HEAD is detached. `remote` is without user information and query.
    `is_dirty`: tracked files differ from the commit. `diff` is the digest of the difference, None when there is none or
    it could not be taken (a problem says why); Blobs have it, unless it is beyond the limit (`diff_omitted`).
    `diff_bytes` is its size. `untracked` are files that are not ignored with the SHA-256 of their content,
    UNREAD where that is unknown; `untracked_more` is how many further ones there are; `untracked_unknown`: they could
    not be listed. `submodules` are their commits
    by path, with `+dirty` where their files differ from it. `unchecked` are files that seem changed, and only a filter
    of the repository's configuration, which is not run, could tell. `shipped` is the digest of the archive that the
    attempt runs, where it does not run in the workspace: commit and `is_dirty` are those of the archive then.
    """

    commit: str | None = None
    branch: str | None = None
    remote: str | None = None
    is_dirty: bool = False
    diff: str | None = None
    diff_stat: str | None = None
    diff_bytes: int = 0
    diff_omitted: bool = False
    untracked: Mapping[str, str] = {}
    untracked_more: int = 0
    untracked_unknown: bool = False
    submodules: Mapping[str, str] = {}
    unchecked: tuple[str, ...] = ()
    shipped: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether commit, difference and untracked files tell the code apart from any other: equal means the same."""
        if self.commit is None:
            return False
        if self.shipped is not None:
            return True
        has_diff = self.diff is not None or not self.is_dirty
        if self.untracked_unknown or self.untracked_more or UNREAD in self.untracked.values():
            return False
        has_submodules = not any(commit.endswith("+dirty") for commit in self.submodules.values())
        return has_diff and has_submodules and not self.unchecked


class Interpreter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Python that the command runs."""

    executable: str
    version: str | None = None


class GpuName(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of the attempt, with its index on the host."""

    index: int | None = None
    name: str | None = None
    uuid: str | None = None


class HostFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What only the host knows where the attempt runs; provenance-host.json is one of these.

    `git` is the code that was shipped to it. `packages` is the digest of the list (see Blobs), `package_lines` the list
    itself where it has not come home yet.
    """

    host: str | None = None
    driver: str | None = None
    gpus: tuple[GpuName, ...] = ()
    python: Interpreter | None = None
    packages: str | None = None
    package_lines: tuple[str, ...] | None = None
    git: GitState | None = None
    environment: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt ran from. `collected_at` (a journal time) is when git was asked, beside the start.

    `command` is the command line as run. `script_sha256` is of the rendered training script, None where the command
    uses none. `git` None: unknown, or not in a repository. `packages` is the digest of the list (see Blobs).
    `environment` are the variables of the allow-list that are set, `env_names` the names of those that the entry and
    its method set. `problems` say what could not be found out.
    """

    collected_at: str
    command: tuple[str, ...] = ()
    template: Template | None = None
    script_sha256: str | None = None
    git: GitState | None = None
    python: Interpreter | None = None
    packages: str | None = None
    host: str | None = None
    driver: str | None = None
    gpus: tuple[GpuName, ...] = ()
    environment: Mapping[str, str] = {}
    env_names: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
