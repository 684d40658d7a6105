"""Where attempts' files are on a host: in this workspace, if the host sees it, else in a directory there."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.variables import PLACES
from dispatcher.checkpoints.storage import is_url
from dispatcher.errors import OutletError
from dispatcher.hosts.types import Cluster, Host, Location
from dispatcher.outlets.base import WORKSPACE, Bundle, Request
from dispatcher.outlets.batch.agent_session import Step
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.batch.scheduler import Limits, LocationQuery, Scheduler
from dispatcher.outlets.node.setup import Gpus, NodeSetup, node_setup
from dispatcher.outlets.remote.operations import Confirm, Failed, Greeting, Hello
from dispatcher.templates.shell import quoted
from dispatcher.workspace import Layout

_BASE: Final = "base"
_HOME: Final = "~/.dispatcher"
# The cluster's directories that are expanded on the host.
_EXPANDED: Final = ("root", "work", "log", "share", "data", "checkpoints", "results", "uv_dir", "cache_dir")
# Those that job classes use; below `root` each workspace has a directory of its own.
_OF_JOBS: Final = ("data", "checkpoints", "results")
# After a host was reached on which something is missing.
_TRY_AGAIN_S: Final = 60.0
# After its scheduler gave no answer.
_ASK_AGAIN_S: Final = 5.0


def base_of(host: Host, cluster: Cluster) -> str:
    """The configured directory for what is kept on a host: files of attempts, one directory for each workspace."""
    return next((path for path in (cluster.work, cluster.root) if path is not None and host.keeps(path)), _HOME)


def greet(layout: Layout, host: Host, cluster: Cluster) -> Hello:
    """What finds out where the host keeps files of this workspace, by `layout_there`."""
    return Hello(directories={_BASE: base_of(host, cluster)}, probe=os.fspath(layout.id_file))


def sees_workspace(layout: Layout, greeting: Greeting) -> bool:
    """Whether a host that was asked by `greet` sees this workspace under the same path."""
    return greeting.probe is not None and greeting.probe.encode() == files.read_fresh_small(layout.id_file)


def layout_there(layout: Layout, greeting: Greeting) -> Layout:
    """The workspace as a host has it that has answered to `greet`: this one, where it sees it, else its copy."""
    if sees_workspace(layout, greeting):
        return layout
    return Layout(f"{greeting.directories[_BASE]}/{workspace_id(layout)}")


class RemoteHost:
    """What the first call finds out about a host. `problem` is why nothing can run there, empty when it can.

    `is_shared`: the host sees the workspace under the same path. `limits` None: not known yet. `cluster` is the host's,
    with directories as they are there once the host was reached.
    """

    def __init__(self, layout: Layout, pod: str, host: Host, cluster: Cluster, scheduler: Scheduler) -> None:
        self._layout = layout
        self._host = host
        self._scheduler = scheduler
        self.cluster = self._configured = cluster
        # Read once: every attempt that is claimed asks for it.
        self.workspace_id = workspace_id(layout)
        self._probe = layout.pod_probe(pod, host.name)
        self._token = ""
        self._there: Layout | None = None
        self._base = ""
        self._next_s = 0.0
        self.problem = ""
        self.is_shared = False
        # Where archives of code are kept: the cluster's share, else the directory for all that is kept there.
        self.share = ""
        self.limits: Limits | None = None
        # Where attempts are submitted to; without what the host itself has to tell before it was reached.
        self.location = host.location
        # The question which cluster answers, with its first answer; None where every call names it.
        self.confirm: Confirm | None = None

    @property
    def is_reached(self) -> bool:
        return self._there is not None

    @property
    def place(self) -> str:
        """Where attempts keep their checkpoints (see OutletOffer); empty before the host was reached."""
        if not self.is_reached:
            return ""
        variables = {**self.cluster.env, **self._host.env}
        store = variables.get(PLACES["checkpoints"]) or self.cluster.checkpoints or ""
        if is_url(store):
            return store
        return WORKSPACE if self.is_shared else f"cluster {self._host.cluster} {self._host.volume}".rstrip()

    def leads_to(self, location: Location) -> bool:
        """Whether attempts that were submitted to this location are found here, as far as is known."""
        return location.has(self.location) if self.confirm else location.is_reached_as(self.location)

    def elsewhere(self, location: Location) -> str:
        """Why nothing is known here of attempts that were submitted to this location; empty when they are found here.

        What it was reached by is told too, because a configuration that says so finds them again.
        """
        if self.leads_to(location):
            return ""
        return f"it was submitted to {location.text()}, and {self._host.name} leads to {self.location.text()} now"

    def moved(self, found: str) -> str:
        """Why a call was not carried out that would have gone elsewhere: this is where it would have gone to."""
        other = self._located(found)
        return f"it leads to {other.text()} now, and attempts were submitted to {self.location.text()}"

    def layout(self) -> Layout:
        """The paths that attempts see; OutletError before the host was reached."""
        if self._there is None:
            raise OutletError(f"{self._host.name}: {self.problem or 'not reached yet'}")
        return self._there

    def directories(self) -> dict[str, str]:
        """The cluster's directories as job classes are told of them."""
        found = {name: path for name in _OF_JOBS if (path := getattr(self.cluster, name)) is not None}
        root = self.cluster.root
        return {**found, "root": posixpath.join(root, self.workspace_id)} if root is not None else found

    def node(self, request: Request) -> NodeSetup:
        """What is set up on every node before a command; OutletError before the host was reached."""
        self.layout()
        kind = self._scheduler.gpu_kind(request)
        gpus: Gpus = "" if kind == "cpu" else kind
        return node_setup(self.cluster, self._host, work_id=self.workspace_id, base=self._base, gpus=gpus)

    def due_in_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def steps(self) -> list[Step]:
        """The call that finds it out; the one before it asks which cluster answers, because it may be the wrong one."""
        if self.due_in_s() > 0:
            return []
        where = self._scheduler.where()
        if where is not None and self.confirm is None:
            return [Step([where.question], lambda answers: self._take_in_location(where, answers[0]))]
        if not self._token:
            self._token = os.urandom(16).hex()
            with files.storing("writing", self._probe), files.shared_umask(self._layout.root):
                self._probe.parent.mkdir(parents=True, exist_ok=True)
                files.replace_file(self._probe, self._token.encode(), durable=False)
        programs = tuple(self._scheduler.programs)
        configured = {name: getattr(self.cluster, name) for name in _EXPANDED}
        # An object store is no directory.
        given = {name: path for name, path in configured.items() if path is not None and not is_url(path)}
        base = base_of(self._host, self.cluster)
        hello = Hello(programs=programs, directories={**given, _BASE: base}, probe=os.fspath(self._probe))
        return [Step([hello, *self._scheduler.limits_query()], self._take_in)]

    def start_over(self) -> None:
        """The host is another one: nothing is known of it."""
        self._there = None
        self._base = self.share = self.problem = ""
        self.is_shared = False
        self.limits = None
        self.location, self.confirm = self._host.location, None
        self.cluster = self._configured
        self._next_s = 0.0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._probe.unlink()

    def with_launcher(self, bundle: Bundle, directory: str, name: str) -> Bundle:
        """The bundle with the scripts between its wrapper and its command."""
        words = [*self._scheduler.launcher(bundle.request), "bash", posixpath.join(directory, contract.NODE_FILE)]
        launcher = f'#!/bin/bash\nexec {quoted(words)} "$@"\n'
        contents = {**bundle.files, name: launcher.encode("utf-8", "surrogateescape")}
        return msgspec.structs.replace(bundle, files=contents)

    def _located(self, found: str) -> Location:
        """The location that is told so (see Confirm), with what the host itself says."""
        where = self._scheduler.where()
        named = zip(where.parts if where is not None else (), found.split(), strict=False)
        told = {name: word for name, word in named if word != "-"}
        return Location({**self._host.location.parts, **told}, self._host.location.via)

    def _kept(self, path: str | None) -> str:
        """The directory, if files of attempts can be there."""
        return path if path is not None and self._host.keeps(path) else ""

    def _take_in(self, answers: Sequence[Any]) -> None:
        greeting, *limits = answers
        self._next_s = time.monotonic() + _TRY_AGAIN_S
        if isinstance(greeting, Failed):
            self.problem = greeting.error
            return
        assert isinstance(greeting, Greeting)
        missing = [name for name in self._scheduler.programs if name not in greeting.programs]
        if missing:
            self.problem = f"no {' and no '.join(missing)} on PATH of {greeting.user}@{greeting.host}"
            return
        self.problem = ""
        with contextlib.suppress(OutletError):
            # Without its limits a site refuses what is too much, and says so.
            self.limits = self._scheduler.limits(limits)
        self.is_shared = greeting.probe == self._token
        found = dict(greeting.directories)
        base = self._base = found.pop(_BASE)
        self.share = found.get("share", base) if self._kept(self.cluster.share) else base
        self.cluster = msgspec.structs.replace(self.cluster, **found)
        self._there = self._layout if self.is_shared else Layout(f"{base}/{self.workspace_id}")

    def _take_in_location(self, where: LocationQuery, answer: Any) -> None:
        """Nothing is submitted before this is known: it could not be found again."""
        found = where.question.found(answer)
        if not found:
            why = answer.error if isinstance(answer, Failed) else "the programs there do not tell it"
            self.problem = f"its {where.parts[0]} is unknown: {why}"
            self._next_s = time.monotonic() + _ASK_AGAIN_S
            return
        self.problem = ""
        self.location = self._located(found)
        self.confirm = msgspec.structs.replace(where.question, wanted=found)
