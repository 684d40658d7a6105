"""The copy in the workspace of an attempt's directory on a host that does not see the workspace.

Each poll brings what is new: small files whole, the log and the metrics from where their copies end. The exit status is
written last, when these copies are complete, because it tells readers that nothing more will come.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from pathlib import Path
from typing import Final

from dispatcher import contract
from dispatcher.base import files, outputs
from dispatcher.errors import StorageError
from dispatcher.outlets.remote.operations import KNOWN_END, AttemptFiles, AttemptRead, Grown
from dispatcher.outlets.wrapper import sync_end
from dispatcher.provenance.read import with_shared_packages
from dispatcher.workspace import AttemptPaths, Layout

NAMES: Final = (
    contract.TAKEN_FILE,
    contract.TOLD_FILE,
    contract.PROGRESS_FILE,
    contract.CHECKPOINT_FILE,
    contract.RESULT_FILE,
    contract.RUN_FILE,
    contract.PROVENANCE_HOST_FILE,
    contract.GPU_USE_FILE,
    contract.EXIT_FILE,
)


# A wrapper writes its exit status in one go: one that takes longer waits for something.
_WRITING_S: Final = 3.0


class Mirror:
    """What of one attempt has been brought home. A new one continues where an earlier dispatcher's copy ends.

    `problem` is why the copy may lack something, empty when it does not. `is_alive`: a process of the attempt holds its
    liveness lock, as far as the host can tell. `unwritten`: it has ended, and why its exit status could not be written
    since `unwritten_since_s` (of the monotonic clock).
    """

    def __init__(self, paths: AttemptPaths, directory: str) -> None:
        self._paths = paths
        self._directory = directory
        self._have: dict[str, tuple[int, int]] = {}
        # The files of the job's script. None: not read yet.
        self._own: outputs.Outputs | None = None
        # An exit status that waits for the rest of the log and of the metrics.
        self._exit: bytes | None = None
        # Of the copies of growing files, as they were last asked for: their sizes, and the checksums of their ends.
        self._known: dict[str, tuple[int, int]] = {}
        self.problem = ""
        self.is_alive: bool | None = None
        self.unwritten = ""
        self.unwritten_since_s = 0.0
        self.is_complete = files.is_there(paths.exit)

    @property
    def is_waiting(self) -> bool:
        """Whether the exit status is here and the rest of a growing file is not, or something could not be copied."""
        return not self.is_complete and (self._exit is not None or bool(self.problem))

    def look(self) -> AttemptRead:
        """What to ask for next."""
        own = self._script_files()
        whole = () if own.result is None else (own.result.path,)
        growing = (contract.LOG_FILE, contract.METRICS_FILE, *(name for name in own.names if name not in whole))
        self._known = {name: self._known_of(name) for name in growing}
        return AttemptRead(directory=self._directory, have=self._have, growing=self._known, paths=whole)

    def take_in(self, seen: AttemptFiles) -> bool:
        """Write what is new into the workspace; whether there is more to fetch at once."""
        self.is_alive, self.problem = seen.is_alive, seen.error
        if seen.error:
            return False
        if seen.is_alive:
            now = time.monotonic()
            self.unwritten_since_s = (self.unwritten_since_s or now) if seen.unwritten else 0.0
            is_stuck = seen.unwritten and now - self.unwritten_since_s >= _WRITING_S
            self.unwritten = f"ended, its status cannot be written: {seen.unwritten}" if is_stuck else ""
        try:
            return self._copy(seen)
        except StorageError as error:
            self.problem = str(error)
            return False

    def settle(self) -> None:
        """Nothing more will come: an exit status that is here counts without the rest of growing files."""
        if self._exit is None or self.is_complete:
            return
        with contextlib.suppress(OSError):
            try:
                self._complete(self._exit)
            except OSError:
                # Its files are put on the disk before its end is recorded, in any case.
                files.replace_file(self._paths.exit, self._exit, durable=False)
                self.is_complete = True

    def _copy(self, seen: AttemptFiles) -> bool:
        with files.storing("copying what a host reports to", self._paths.directory):
            contents, stamps = dict(seen.files), dict(seen.stamps)
            ended = contents.pop(contract.EXIT_FILE, None)
            if ended is not None and not ended.endswith(b"\n") and seen.is_alive is not False:
                # Its wrapper is writing it, or waits for room on a full disk.
                stamps.pop(contract.EXIT_FILE, None)
            elif ended is not None:
                self._exit = ended
            for name, content in contents.items():
                if name == contract.PROVENANCE_HOST_FILE:
                    layout = Layout.of_attempt(os.fspath(self._paths.directory))
                    contents[name] = with_shared_packages(layout, content)
                self._make_folders(name)
                files.replace_file(self._paths.directory / name, contents[name], durable=False)
            result = self._script_files().result
            if result is not None and result.path in stamps and result.path not in contents:
                # It has become too long: what it was before is not the result.
                (self._paths.directory / result.path).unlink(missing_ok=True)
            lacking = [name for name, grown in seen.grown.items() if not self._append(name, grown)]
            self._have |= stamps
            if self._exit is not None and not lacking and not self.is_complete:
                self._complete(self._exit)
        return bool(lacking)

    def _script_files(self) -> outputs.Outputs:
        """Those in which the job's script leaves its result and metrics."""
        if self._own is None:
            with contextlib.suppress(OSError):
                self._own = outputs.read_outputs(self._paths.directory)
        return self._own or outputs.Outputs()

    def _complete(self, status: bytes) -> None:
        # One that has printed nothing has a log all the same.
        self._paths.log.touch()
        # With an exit status nothing more is fetched, also by a dispatcher that begins after a power cut.
        own = self._own or outputs.read_outputs(self._paths.directory)
        sync_end(self._paths.directory, own.names)
        files.replace_file(self._paths.exit, status)
        self.is_complete = True

    def _append(self, name: str, grown: Grown) -> bool:
        """Write what a file has grown by; whether the copy is complete."""
        has_begun_anew = grown.at < self._known.pop(name)[0]
        if grown.content or has_begun_anew:
            self._make_folders(name)
            fd = os.open(self._paths.directory / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                files.write_all(fd, grown.content, grown.at)
                # Never otherwise: another dispatcher may have copied more of it meanwhile.
                if has_begun_anew:
                    os.truncate(fd, len(grown.content))
            finally:
                os.close(fd)
        return grown.at + len(grown.content) >= grown.size

    def _known_of(self, name: str) -> tuple[int, int]:
        """How much of a growing file is here, and the checksum of the end of that."""
        try:
            with open(self._paths.directory / name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == self._known.get(name, (None,))[0]:
                    return self._known[name]
                file.seek(max(0, size - KNOWN_END))
                return size, zlib.crc32(file.read(min(size, KNOWN_END)))
        except OSError:
            # All of it is fetched, and written over what is there.
            return 0, 0

    def _make_folders(self, name: str) -> None:
        # Not the attempt's own directory: where that was removed, it stays so.
        for folder in reversed(Path(name).parents[:-1]):
            (self._paths.directory / folder).mkdir(exist_ok=True)
