"""What can go wrong, as one tree; the CLI alone turns these into messages and exit codes.

    DispatcherError                     exit code 1
    ├── UsageError                      exit code 2: an option or an argument that cannot be used
    ├── ConfigError                     dispatcher.yaml, or the configuration of a job, cannot be used
    ├── ManifestError                   a manifest or sweep file cannot be used; lists every fault at once
    ├── TemplateError                   a training or launcher template cannot be rendered
    ├── StateError                      the run state refuses something
    │   ├── TransitionError             a state change that is not in the transition table
    │   ├── FormatError                 a file of a newer version, or of another tool
    │   ├── DamagedJournalError         a line in the middle of the journal cannot be read
    │   └── StatusFileError             matrix_status.json cannot be read (which line, and what to do)
    ├── LockError                       the lock cannot be taken or cannot be trusted
    │   ├── LockTimeoutError            another process has held it for too long
    │   ├── LockLostError               the file server released it while this host held it
    │   └── LockUnsupportedError        locks do not exclude on this filesystem
    ├── StaleViewError                  this host is shown old data by its filesystem
    ├── StorageError                    a write failed: disk full, read-only, directory gone
    ├── CheckpointError                 a checkpoint cannot be saved, found or restored
    │   ├── DamagedCheckpointError      its files are not what was written
    │   ├── CheckpointMismatchError     it does not fit the tree that it is restored into; lists every leaf
    │   └── SupersededError             a newer attempt of the job exists, so this one may not commit
    ├── ModelStateError                 a model has state that cannot be carried from step to step
    ├── BatchSizeError                  no batch size fits, or none could be determined
    ├── RequestError                    a request to an HTTP API was refused, or not answered after all retries
    ├── CodeError                       the project's code cannot be archived or copied (no commit, a missing file)
    ├── PodError                        a pod cannot start (its name is taken, its GPUs are used by another pod ...)
    └── OutletError                     a place where attempts run could not be reached or refused

Each message says what is wrong, where, which value, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from dispatcher.base import messages

# The exit code after Ctrl-C, as shells report it.
INTERRUPTED: Final = 130
# The exit code when the time of `--timeout` is over, as timeout(1) has it.
TIMED_OUT: Final = 124

_MOST_SHOWN = 20


class DispatcherError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class UsageError(DispatcherError):
    """An option or an argument that cannot be used."""

    exit_code = 2


class ConfigError(DispatcherError):
    """dispatcher.yaml, or the configuration or the environment of a job, cannot be used.

    Lists every fault at once where there may be several.
    """

    @classmethod
    def of(cls, where: object, faults: Iterable[str]) -> ConfigError:
        """The error for all `faults` found in `where`, a path or the name of a configuration."""
        return cls(messages.problems(str(where), faults))


class ManifestError(DispatcherError):
    """A manifest or a sweep file cannot be used.

    `problems` holds one line per fault, all faults of the file at once.
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = list(problems)
        super().__init__(messages.problems(where, self.problems))


class TemplateError(DispatcherError):
    """A training or launcher template cannot be rendered."""


class StateError(DispatcherError):
    """The run state refuses something."""


class TransitionError(StateError):
    """A state change that is not in the transition table."""


class FormatError(StateError):
    """A file of a newer version, or of another tool; nothing was changed."""


class DamagedJournalError(StateError):
    """A line in the middle of the journal cannot be read (an unfinished last line is no damage)."""


class StatusFileError(StateError):
    """matrix_status.json cannot be read: the message names the line and what to do."""


class LockError(DispatcherError):
    """The lock cannot be taken or cannot be trusted."""


class LockTimeoutError(LockError):
    """Another process has held the lock for too long."""


class LockLostError(LockError):
    """The file server released the lock while this host held it; the transaction did not happen."""


class LockUnsupportedError(LockError):
    """Locks do not exclude on this filesystem."""


class StaleViewError(DispatcherError):
    """This host is shown old data by its filesystem; nothing was changed."""


class StorageError(DispatcherError):
    """A write failed (disk full, read-only, directory gone); the change did not happen."""


class CheckpointError(DispatcherError):
    """A checkpoint cannot be saved, found or restored; earlier commits are unaffected."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint differs from what was written: a file is missing or has another size or checksum."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint does not fit the tree that it is restored into.

    `problems` holds one line per leaf: its name and both values.
    """

    def __init__(self, where: str, problems: Sequence[str], advice: str) -> None:
        self.where = where
        self.problems = list(problems)
        leaves = messages.counted(len(self.problems), "leaf does", "leaves do")
        listed = messages.indented(f"{where}: {leaves} not fit", self.problems, _MOST_SHOWN)
        super().__init__(f"{listed}\n{advice}")


class SupersededError(CheckpointError):
    """A newer attempt of the job exists: this one must stop, and commits nothing more."""


class ModelStateError(DispatcherError):
    """A model has state that a compiled step cannot carry to the next; `problems` has one line per fault."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        heading = "the model has state that cannot be carried from step to step:"
        super().__init__(messages.indented(heading, self.problems, _MOST_SHOWN))


class BatchSizeError(DispatcherError):
    """No batch size fits into the memory of the device, or none could be determined."""


class RequestError(DispatcherError):
    """A request to an HTTP API was refused, or not answered after all retries; answers so far are kept."""


class CodeError(DispatcherError):
    """The project's code cannot be archived or copied."""


class PodError(DispatcherError):
    """A pod cannot start or continue."""


class OutletError(DispatcherError):
    """A place where attempts run could not be reached or refused."""


def similar(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'queued'?)` for the nearest of the other `known`; empty when none is near."""
    match = difflib.get_close_matches(word, [one for one in known if one != word], n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """What is `similar` among the other `known`, or the list of them when nothing is."""
    choices = [one for one in known if one != word]
    if not choices:
        return ""
    shown = ", ".join(choices[:12]) + (", ..." if len(choices) > 12 else "")
    return similar(word, choices) or f" (known: {shown})"
