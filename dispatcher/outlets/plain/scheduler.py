"""A host without a scheduler, as the engine of batch outlets sees it.

A submission is a launch: the agent starts the wrapper, which then runs without a connection. A query tells for each
attempt whether a process of it lives. Attempts that ask for GPUs get unused ones; while there are too few, they
wait, and the agent is asked again.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dispatcher.hosts.types import Cluster, PlainHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import LocationQuery, Submission
from dispatcher.outlets.plain.launched import LaunchingScheduler
from dispatcher.outlets.plain.resources import refusal
from dispatcher.outlets.remote.operations import Confirm, Launch, Operation

# The longest part of a log's name; a file name has 255 bytes at most.
_LONGEST_LABEL: Final = 60


class PlainScheduler(LaunchingScheduler):
    """One host. `root` is the workspace's root on this machine: where the host sees it too, logs stay in it."""

    programs: Sequence[str] = ("bash",)

    def __init__(self, host: PlainHost, cluster: Cluster, root: Path) -> None:
        super().__init__(host.name)
        self._host = host
        self._cluster = cluster
        self._root = root

    def default_gpus(self, request: Request) -> int:
        """An entry that does not say gets a GPU where there are some."""
        return 1 if self._host.chips else 0

    def where(self) -> LocationQuery:
        """An alias of ssh may lead to another machine by now."""
        return LocationQuery(("machine",), Confirm(words=("uname", "-n")))

    def refuses(self, request: Request) -> str:
        return refusal(self._host, request)

    def submit(self, submission: Submission) -> Operation:
        """The launch of its attempt: without arrays a submission has one."""
        (bundle,), (directory,) = submission.bundles, submission.directories
        root = submission.layout.root
        return Launch(
            directory=directory,
            root=str(root),
            environment=bundle.environment,
            gpus=self.default_gpus(submission.request) if submission.request.gpus is None else submission.request.gpus,
            only=self._host.visible_gpus,
            chip=submission.request.chip,
            chips=tuple(self._host.chips),
            log=self._log(bundle.labels),
            needs_shared_log=root == self._root,
        )

    def _log(self, labels: Mapping[str, str]) -> str:
        """Where its log is to be: `LOG_DIR/{project}_{group}_{name}`, to which the agent adds the time."""
        if self._cluster.log is None:
            return ""
        words = [_as_file_name(labels[word]) for word in ("project", "group", "name") if word in labels]
        return posixpath.join(self._cluster.log, "_".join(words))


def _as_file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", label)[:_LONGEST_LABEL].lstrip(".-") or "_"
