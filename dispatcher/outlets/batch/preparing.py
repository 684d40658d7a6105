"""From bundles to submissions: their names, their files in the workspace, and what has to be written on the host."""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.errors import OutletError, StorageError
from dispatcher.hosts.types import Host
from dispatcher.outlets.base import Bundle, Key, cannot_start
from dispatcher.outlets.batch.grouping import jobs_of
from dispatcher.outlets.batch.identity import (
    SubmissionFile,
    read_submission,
    submission_name,
    write_submission,
)
from dispatcher.outlets.batch.remote_host import RemoteHost
from dispatcher.outlets.batch.scheduler import Submission
from dispatcher.outlets.batch.tracked import Tracked
from dispatcher.outlets.bundle import deliver
from dispatcher.outlets.remote.operations import Deliver, Operation
from dispatcher.workspace import AttemptPaths, Layout

# What is run between an attempt's wrapper and its command.
LAUNCHER: Final = "launch.sh"


@functools.cache
def _contract_package() -> dict[str, bytes]:
    """What a script needs for `from dispatcher.contract import ...` on a host without this package, by relative path.

    node.sh puts the directory on PYTHONPATH where the command's interpreter finds no dispatcher.contract.
    """
    assert contract.__file__ is not None
    folder = posixpath.join("run_state", "python", "dispatcher")
    note = b'"""dispatcher.contract alone, for scripts: the rest of the package is not installed on this host."""\n'
    return {f"{folder}/__init__.py": note, f"{folder}/contract.py": Path(contract.__file__).read_bytes()}


class Preparer:
    """Prepares attempts for one outlet. Nothing has been sent to the host before an attempt is prepared."""

    def __init__(self, host: Host, layout: Layout, remote: RemoteHost) -> None:
        self._outlet = host.name
        self._layout = layout
        self._remote = remote

    def paths(self, key: Key) -> AttemptPaths:
        return self._layout.attempt(key.job_id, key.number)

    def found(self, key: Key) -> Tracked | None:
        """An attempt that was prepared before, by any dispatcher; None when none was. Raises StorageError."""
        paths = self.paths(key)
        file = read_submission(paths)
        if file is None:
            return None
        one = Tracked(key, file.name, file.index, file.directory, paths)
        one.location = file.location
        one.elsewhere = self._remote.elsewhere(file.location)
        one.code = file.code or None
        one.is_packed = file.is_packed
        return one

    def record(self, one: Tracked) -> None:
        """Write down under which name the attempt is submitted, and with which code; raises StorageError."""
        file = SubmissionFile(
            outlet=self._outlet,
            name=one.name,
            index=one.index,
            directory=one.directory,
            code=one.code or "",
            is_packed=one.is_packed,
            location=self._remote.location,
        )
        # A network filesystem, as hosts share one, has had it on disk when the file was closed.
        write_submission(one.paths, file, durable=not self._remote.is_shared)

    def prepare(self, group: Sequence[Bundle]) -> tuple[Submission, list[Tracked], list[Operation]]:
        """One submission of these bundles, its attempts, and the deliveries that come first.

        Attempts whose files cannot be written have ended; then nothing must be sent. Raises OutletError.
        """
        keys = [bundle.key for bundle in group]
        layout = self._remote.layout()
        directories = [os.fspath(layout.attempt(key.job_id, key.number).directory) for key in keys]
        jobs = jobs_of(group)
        submission = Submission(
            name=submission_name(self._remote.workspace_id, keys),
            bundles=tuple(group),
            directories=tuple(directories),
            layout=layout,
            request=group[0].request,
            time_limit_s=group[0].time_limit_s,
            groups=jobs,
        )
        job_of = {member: job for job, members in enumerate(jobs) for member in members}
        attempts = [
            Tracked(key, submission.name, job_of[member], directories[member], self.paths(key))
            for member, key in enumerate(keys)
        ]
        for member, one in enumerate(attempts):
            one.request = group[member].request
            code = group[member].code
            one.code = None if code is None else code.label
            one.is_packed = len(jobs[job_of[member]]) > 1
        deliveries = self._for_all(submission)
        for one, bundle in zip(attempts, group, strict=True):
            try:
                deliveries += self._write(one, bundle)
            except (StorageError, OutletError) as error:
                one.end(cannot_start(error))
        return submission, attempts, deliveries

    def add_code(self, one: Tracked, content: bytes, label: str) -> list[Operation]:
        """Write down which code an attempt runs; what has to be written on the host besides. Raises StorageError."""
        one.code = label
        with files.storing("preparing", one.paths.directory), files.shared_umask(self._layout.root):
            files.write_new(one.paths.code, content)
        self.record(one)
        if self._remote.is_shared:
            return []
        return [Deliver(directory=one.directory, files={contract.CODE_FILE: content})]

    def _for_all(self, submission: Submission) -> list[Operation]:
        """What has to be written on the host once, however many attempts are submitted."""
        if self._remote.is_shared:
            return []
        root, directory = submission.layout.root, submission.layout.submission_script(submission.name).parent
        shared = {posixpath.join(root, name): content for name, content in _contract_package().items()}
        return [Deliver(directory=os.fspath(directory), files={}, shared=shared)]

    def _write(self, one: Tracked, bundle: Bundle) -> list[Operation]:
        whole = self._remote.with_launcher(bundle, one.directory, LAUNCHER)
        is_shared = self._remote.is_shared
        deliver(whole if is_shared else msgspec.structs.replace(whole, private_files={}), self._layout)
        self.record(one)
        if is_shared:
            return []
        root = os.fspath(self._remote.layout().root)
        fence = {contract.SUPERSEDED_FILE: b"superseded\n"} if files.is_there(one.paths.superseded) else {}
        delivered = Deliver(
            directory=one.directory,
            files={**whole.files, **fence},
            shared={posixpath.join(root, name): content for name, content in whole.shared_files.items()},
            executable=[contract.WRAPPER_FILE],
        )
        if not whole.private_files:
            return [delivered]
        return [delivered, Deliver(directory=one.directory, files=whole.private_files, umask=0o077)]
