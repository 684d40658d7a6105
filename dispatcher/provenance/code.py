"""The code of a workspace as git has it at this moment; what has not changed since the last look costs two calls."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base.file_identity import SERVER_TICK_S, ExactIdentity
from dispatcher.base.messages import first_names, readable
from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.difference import take_difference
from dispatcher.provenance.git import SafeGit
from dispatcher.provenance.programs import Deadline, ProgramError, TooSlowError
from dispatcher.provenance.record import GitState
from dispatcher.provenance.remotes import without_secrets
from dispatcher.provenance.status import StatusOutput
from dispatcher.provenance.untracked import digests, stamp_of
from dispatcher.workspace import Layout

# The part of the deadline after which untracked files are given up, because listing them may be what takes so long.
_FOR_ALL: Final = 0.6
_MOST_SUBMODULES: Final = 20
# Names on a command line.
_MOST_EXCLUDED: Final = 200


class Code(msgspec.Struct, frozen=True):
    """What a look has found. `state` None: unknown, and `problems` say why."""

    state: GitState | None
    problems: tuple[str, ...] = ()


class _Look(msgspec.Struct, frozen=True):
    """What the last look went by, and what it has found."""

    status: bytes
    remote: str | None
    top: Path
    stamps: Mapping[str, ExactIdentity | None]
    code: Code


class CodeReader:
    """Looks at the code of one workspace. Not for several threads."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.root
        self._blobs = Blobs(layout)
        self._last: _Look | None = None
        # What dispatchers write while jobs run is not code.
        paths = (layout.run_state, layout.status_file, layout.submitted_manifest)
        inside = (os.path.relpath(path, layout.root) for path in paths)
        self._pathspecs = [":(top)", *(f":(exclude,literal){path}" for path in inside if not path.startswith(".."))]

    def read(self, deadline_s: float) -> Code:
        """The code as it is now. Raises TooSlowError when the deadline is over before anything is known."""
        deadline = Deadline(deadline_s)
        try:
            git = SafeGit(self._root, deadline)
            status, problems = self._status(git, deadline_s)
            remote = git.config.remote_of(status.branch)
            last = self._last
            if last is not None and self._is_unchanged(git, last, status, remote, deadline):
                return last.code
            self._last = None
            return self._read(git, status, remote, problems, deadline)
        except TooSlowError:
            raise
        except (ProgramError, ValueError) as error:
            return Code(None, (_in_brief(str(error)),))

    def _status(self, git: SafeGit, deadline_s: float) -> tuple[StatusOutput, list[str]]:
        words = ["status", "--porcelain=v2", "--branch", "-z", "--ignore-submodules=dirty"]
        paths = ["--", *self._pathspecs]
        status = StatusOutput()
        try:
            git.feed([*words, "--untracked-files=all", *paths], status.take, Deadline(deadline_s * _FOR_ALL))
        except TooSlowError:
            status = StatusOutput()
            git.feed([*words, "--untracked-files=no", *paths], status.take)
            return status, ["git: too slow to list the untracked files, which are not recorded"]
        return status, []

    def _is_unchanged(
        self, git: SafeGit, last: _Look, status: StatusOutput, remote: str | None, deadline: Deadline
    ) -> bool:
        if (status.digest, remote) != (last.status, last.remote):
            return False
        if any(stamp_of(last.top / name) != stamp for name, stamp in last.stamps.items()):
            return False
        state = last.code.state
        # The status of a repository does not tell which files of its submodules were changed.
        return state is None or (
            self._is_kept(state) and self._submodules(git, last.top, deadline, []) == state.submodules
        )

    def _is_kept(self, state: GitState) -> bool:
        """Whether the difference is still there: `dispatcher clean` may have removed it."""
        return state.diff is None or state.diff_omitted or self._blobs.has_diff(state.diff)

    def _read(
        self, git: SafeGit, status: StatusOutput, remote: str | None, problems: list[str], deadline: Deadline
    ) -> Code:
        begun_s = time.time()
        problems_of_status = list(problems)
        top = Path(git.text("rev-parse", "--show-toplevel"))
        names = [*status.changed, *status.untracked]
        stamps = {name: stamp_of(top / name) for name in names}
        unchecked = _filtered(git, top, status.changed)
        changed = [name for name in status.changed if name not in unchecked]
        state = GitState(
            commit=status.commit,
            branch=None if status.branch is None else readable(status.branch),
            remote=without_secrets(remote) if remote else None,
            is_dirty=bool(changed or status.changed_more),
            unchecked=tuple(map(readable, sorted(unchecked))),
            submodules=self._submodules(git, top, deadline, problems),
        )
        if remote and state.remote is None:
            problems.append("git: the remote's address has a form in which a secret may hide, and is left out")
        if status.commit is None:
            problems.append("git: the repository has no commit yet")
        elif state.is_dirty:
            size = sum(stamp[1] for name in changed if (stamp := stamps[name]) is not None)
            state = self._with_difference(git, state, status.commit, sorted(unchecked), size, problems)
        untracked, unread = digests(top, status.untracked, deadline)
        problems += [f"git: {text}" for text in unread]
        more = status.untracked_more
        state = msgspec.structs.replace(
            state, untracked=untracked, untracked_more=more, untracked_unknown=bool(problems_of_status)
        )
        moved = [name for name in status.changed if stamp_of(top / name) != stamps[name]]
        if moved:
            problems.append(f"git: changed while this was recorded: {first_names(list(map(readable, moved)))}")
            # Which of its contents the difference has cannot be told.
            state = msgspec.structs.replace(state, diff=None, diff_stat=None, diff_bytes=0, diff_omitted=False)
        code = Code(state, tuple(problems))
        youngest_s = max((stamp[2] / 1e9 for stamp in stamps.values() if stamp is not None), default=0.0)
        is_lasting = not (moved or problems_of_status or status.changed_more or (state.is_dirty and state.diff is None))
        if is_lasting and deadline.left_s and youngest_s < begun_s - SERVER_TICK_S:
            self._last = _Look(status.digest, remote, top, stamps, code)
        return code

    def _with_difference(
        self, git: SafeGit, state: GitState, commit: str, unchecked: Sequence[str], size: int, problems: list[str]
    ) -> GitState:
        if len(unchecked) > _MOST_EXCLUDED:
            problems.append(f"git: no difference was taken, because a filter has {len(unchecked)} files")
            return state
        excluded = [f":(top,exclude,literal){name}" for name in unchecked]
        try:
            # A commit may be made meanwhile: the difference is that from the commit that is recorded.
            found = take_difference(git, [*self._pathspecs, *excluded], size, (commit,))
        except (ProgramError, OSError) as error:
            problems.append(_in_brief(str(error)))
            return state
        if found is None:
            return state
        kept = found.data is not None
        if found.data is not None:
            try:
                self._blobs.add_diff(found.data)
            except OSError as error:
                problems.append(f"the difference cannot be kept: {error.strerror}")
                kept = False
        return msgspec.structs.replace(
            state, diff=found.digest, diff_stat=found.stat, diff_bytes=found.size, diff_omitted=not kept
        )

    def _submodules(self, git: SafeGit, top: Path, deadline: Deadline, problems: list[str]) -> dict[str, str]:
        """The commits of the submodules that are checked out."""
        if not (top / ".gitmodules").is_file():
            return {}
        words = ["config", "-z", "--file", os.fspath(top / ".gitmodules"), "--get-regexp", r"^submodule\..*\.path$"]
        listed = os.fsdecode(git.output(words, most_bytes=1 << 20, good=(0, 1))).split("\0")
        paths = sorted(filter(None, (item.partition("\n")[2] for item in listed)))
        if len(paths) > _MOST_SUBMODULES:
            problems.append(f"git: the files of {len(paths) - _MOST_SUBMODULES} further submodules were not looked at")
        found = {}
        for path in paths[:_MOST_SUBMODULES]:
            place = top / path
            # Of one that is not checked out git would tell the repository around it; links may lead anywhere.
            if os.path.realpath(place) == os.fspath(place) and os.path.exists(place / ".git"):
                found[readable(path)] = _submodule(place, deadline, problems)
        return found


def _submodule(place: Path, deadline: Deadline, problems: list[str]) -> str:
    """Its commit, with `+dirty` where its files differ from it, or may."""
    try:
        status = StatusOutput()
        words = ["status", "--porcelain=v2", "--branch", "-z", "--ignore-submodules=dirty", "--untracked-files=normal"]
        SafeGit(place, deadline).feed(words, status.take)
    except ProgramError as error:
        problems.append(f"submodule {place.name}: {_in_brief(str(error))}")
        return "+dirty"
    return f"{status.commit or ''}{'+dirty' if status.changed or status.untracked else ''}"


def _filtered(git: SafeGit, top: Path, changed: Sequence[str]) -> set[str]:
    """Those of the changed files that only a filter can compare with the commit."""
    if not (git.config.filters and changed):
        return set()
    names = b"\0".join(map(os.fsencode, changed))
    words = ["-C", os.fspath(top), "check-attr", "-z", "--stdin", "filter"]
    fields = os.fsdecode(git.output(words, most_bytes=16 << 20, given=names)).split("\0")
    return {name for name, value in zip(fields[0::3], fields[2::3], strict=False) if value in git.config.filters}


def _in_brief(text: str) -> str:
    """What git says, in one line that says what to do."""
    if "not a git repository" in text:
        return "git: not in a repository"
    if "dubious ownership" in text:
        place = text.partition(" at '")[2].partition("'")[0]
        return (
            f"git: the repository {place} belongs to another user: "
            f"`git config --global --add safe.directory {place}` makes git read it"
        )
    first = next(iter(text.splitlines()), "")
    return first[:300]
