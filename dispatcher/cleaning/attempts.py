"""The content of attempts that is no longer needed; the package's page says which are never touched."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.kernel_locks import CANNOT_LOCK, is_flocked
from dispatcher.base.mounts import mount_points
from dispatcher.base.users import user_name
from dispatcher.base.values import is_name
from dispatcher.cleaning import tree
from dispatcher.cleaning.tree import Links, OnError, Size
from dispatcher.outlets.base import Ended
from dispatcher.outlets.wrapper import read_exit
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import ENDED, PRUNED, Record, State
from dispatcher.workspace import Layout, attempt_numbers

# What stays of an attempt: what it was, how it ended, and what keeps a late wrapper from running.
KEPT: Final = frozenset(
    {
        contract.ENTRY_FILE, contract.PROGRESS_FILE, contract.CHECKPOINT_FILE, contract.RESULT_FILE, contract.EXIT_FILE,
        contract.PROVENANCE_FILE, contract.PROVENANCE_HOST_FILE, contract.RUN_FILE, contract.ALIVE_FILE,
        contract.SUPERSEDED_FILE, contract.TAKEN_FILE, contract.STOP_FILE, contract.TOLD_FILE,
        contract.SUBMISSION_FILE, contract.CLEANED_FILE,
    }
)  # fmt: skip
# One that left no exit status counts as over when nothing of it was written for so long.
SILENT_S: Final = 86400.0
# How an entry names another attempt's directory, in any of its values.
_NAMED: Final = re.compile(r"jobs/([A-Za-z0-9_][A-Za-z0-9._-]{0,199})/([1-9][0-9]{0,8})(?![0-9])")


class OldAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt whose content can go, and since when it is over (seconds since 1970, by the file server's clock)."""

    job: str
    number: int
    over_at_s: float
    size: Size


def named_attempts(documents: Iterable[bytes]) -> set[tuple[str, int]]:
    """The attempts whose directories these entries, as JSON, name: their jobs may read them."""
    found: set[tuple[str, int]] = set()
    for document in documents:
        found.update((job, int(number)) for job, number in _NAMED.findall(document.decode(errors="replace")))
    return found


class OldAttempts:
    """Finds and cleans the old attempts of one workspace. `skipped`: why some were left alone, and which."""

    def __init__(
        self,
        layout: Layout,
        *,
        keep: int,
        older_than_s: float,
        named: Collection[tuple[str, int]],
        now_s: float | None = None,
    ) -> None:
        self.skipped: dict[str, list[str]] = {}
        self._layout = layout
        self._keep = keep
        now_s = files.server_now_s(layout.run_state) if now_s is None else now_s
        self._before_s = now_s - older_than_s
        self._silent_before_s = now_s - SILENT_S
        self._named = named
        # Container engines and jobs may mount something into the directory of an attempt.
        root = os.path.realpath(layout.jobs_dir)
        self._mounts = [point for point in mount_points() if point.startswith(f"{root}/")]
        self._root = root

    def of_job(self, job: str, record: Record | None, links: Links) -> Iterator[OldAttempt]:
        """The old attempts of a job, which has this record; None: its record was deleted."""
        try:
            numbers = self._old_numbers(job, record)
        except OSError as error:
            self._skip(f"their job's directory cannot be read ({error.strerror})", f"jobs/{job}")
            return
        for number in sorted(numbers):
            found = self._examined(job, number, links)
            if found is not None:
                yield found

    def clean(self, attempt: OldAttempt, record: Record | None, by: str, links: Links, on_error: OnError) -> Size:
        """Remove the content of an attempt; what was removed. `record` is the job's at this moment."""
        job, number = attempt.job, attempt.number
        if number not in self._old_numbers(job, record):
            return Size()
        with contextlib.suppress(FileNotFoundError), self._opened(job, number) as fd:
            why, _ = self._why_not(job, number, fd)
            if why:
                self._skip(why, f"jobs/{job}/{number}")
                return Size()
            size = attempt.size
            told = {"cleaned_at": now_text(time.time()), "by": by, "files": size.files, "bytes": size.bytes}
            note = msgspec.json.encode(told)
            mode = 0o666 & ~files.umask_of(self._layout.root)
            is_noted = _write_note(fd, note, mode)
            removed = tree.remove(fd, links, on_error, KEPT)
            if not is_noted:
                # On a full disk there was no room for it before.
                _write_note(fd, note, mode)
            return removed
        return Size()

    def why_not_over(self, job: str) -> str:
        """Why some attempt of the job may still be running; empty when all are over."""
        for number in self.numbers(job):
            with contextlib.suppress(FileNotFoundError), self._opened(job, number) as fd:
                why, _ = self._why_not(job, number, fd)
                if why:
                    return why
        return ""

    def _old_numbers(self, job: str, record: Record | None) -> list[int]:
        """The attempts of a job that are none of its last, as far as their numbers tell."""
        if record is not None and (record.state not in ENDED or record.external):
            return []
        numbers = self.numbers(job)
        if record is None:
            return [number for number in numbers if (job, number) not in self._named]
        numbers = [number for number in numbers if number <= record.attempt]
        last = {record.attempt, *numbers[: self._keep]}
        older = [number for number in numbers if number not in last]
        if older:
            last.add(self._last_success(job, numbers))
            if record.state is not State.DONE or record.reason == PRUNED:
                last.add(self._last_checkpoint(job, numbers))
        return [number for number in older if number not in last and (job, number) not in self._named]

    def numbers(self, job: str) -> list[int]:
        """The numbers of the attempts that have a directory, the newest first."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), contextlib.ExitStack() as stack:
            root = stack.enter_context(tree.opened_root(self._layout.jobs_dir))
            fd = stack.enter_context(tree.opened(job, root))
            return attempt_numbers(tree.names(fd))
        return []

    def _last_success(self, job: str, numbers: Iterable[int]) -> int:
        for number in numbers:
            found = read_exit(self._layout.attempt(job, number).directory)
            if isinstance(found, Ended) and found.is_done:
                return number
        return 0

    def _last_checkpoint(self, job: str, numbers: Iterable[int]) -> int:
        """The newest attempt that reported a checkpoint: later ones may have failed before their first."""
        return next((number for number in numbers if self._layout.attempt(job, number).checkpoint.exists()), 0)

    def _examined(self, job: str, number: int, links: Links) -> OldAttempt | None:
        with contextlib.suppress(FileNotFoundError):
            try:
                with self._opened(job, number) as fd:
                    why, over_at_s = self._why_not(job, number, fd)
                    size = tree.measure(fd, links, _ignore, KEPT) if not why and over_at_s <= self._before_s else Size()
            except OSError as error:
                why, over_at_s, size = f"cannot be read ({error.strerror})", 0.0, Size()
            if why:
                self._skip(why, f"jobs/{job}/{number}")
            elif size.files:
                return OldAttempt(job=job, number=number, over_at_s=over_at_s, size=size)
        return None

    @contextlib.contextmanager
    def _opened(self, job: str, number: int) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            root = stack.enter_context(tree.opened_root(self._layout.jobs_dir))
            within = stack.enter_context(tree.opened(job, root))
            yield stack.enter_context(tree.opened(str(number), within))

    def _why_not(self, job: str, number: int, fd: int) -> tuple[str, float]:
        """Why the attempt must be left alone, empty when it is over; and since when it is."""
        place = f"{self._root}/{job}/{number}"
        if any(point == place or point.startswith(f"{place}/") for point in self._mounts):
            return "something is mounted in them", 0.0
        times = {name: found.st_mtime for name, found in tree.entries(fd)}
        if not _is_free(fd):
            return _not_free_text(fd), 0.0
        if contract.EXIT_FILE in times:
            return "", times[contract.EXIT_FILE]
        last_s = max(times.values(), default=os.fstat(fd).st_mtime)
        if last_s > self._silent_before_s:
            return "no exit status, and written to within a day", last_s
        return "", last_s

    def _skip(self, why: str, what: str) -> None:
        self.skipped.setdefault(why, []).append(what)


def jobs_with_directories(layout: Layout) -> list[str]:
    """The names in run_state/jobs that can be those of jobs."""
    try:
        with tree.opened_root(layout.jobs_dir) as fd:
            return [name for name in tree.names(fd) if is_name(name)]
    except FileNotFoundError:
        return []


def _is_free(fd: int) -> bool:
    """Whether no process holds the attempt's liveness lock; in doubt one does."""
    try:
        lock = os.open(contract.ALIVE_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    except FileNotFoundError:
        # Every claim makes it. An attempt that has lost it can prove nothing, unless its end was recorded.
        return os.access(contract.EXIT_FILE, os.F_OK, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    try:
        return not is_flocked(lock)
    except OSError as error:
        # Where flock does not work, the exit status tells.
        known = os.access(contract.EXIT_FILE, os.F_OK, dir_fd=fd, follow_symlinks=False)
        return error.errno in CANNOT_LOCK and known
    finally:
        os.close(lock)


def _not_free_text(fd: int) -> str:
    """Why the lock of an attempt proves nothing."""
    # The effective user, as the kernel decides.
    may_open = os.access(contract.ALIVE_FILE, os.R_OK | os.W_OK, dir_fd=fd, effective_ids=True)
    if may_open or not os.access(contract.ALIVE_FILE, os.F_OK, dir_fd=fd, effective_ids=True):
        return "may be running"
    return f"{user_name()} may not open their locks, which would tell whether they run: ask their owner"


def _write_note(fd: int, data: bytes, mode: int) -> bool:
    """Write `cleaned.json`, unless it is there; False when the disk is full."""
    try:
        note = os.open(
            contract.CLEANED_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=fd
        )
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno in files.STORAGE_IS_FULL:
            return False
        raise
    try:
        os.fchmod(note, mode)
        os.write(note, data + b"\n")
    except OSError as error:
        if error.errno not in files.STORAGE_IS_FULL:
            raise
        os.unlink(contract.CLEANED_FILE, dir_fd=fd)
        return False
    finally:
        os.close(note)
    return True


def _ignore(_path: str, _error: OSError) -> None:
    return None
