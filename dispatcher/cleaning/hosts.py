"""What attempts have left on the configured hosts: extracted code that was kept after a failure, files of submissions.

On a host behind a scheduler only what its login node sees is found: disks of nodes are out of reach. The disks of a TPU
VM go with it; of Kubernetes pods what is on the volume stays. Trees are in all directories that node.sh may have taken:
see `make_work` there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base import files
from dispatcher.cleaning.blobs import YOUNG_S
from dispatcher.config import Config
from dispatcher.hosts.types import Host, TpuHost
from dispatcher.outlets.batch.identity import read_submission, workspace_id
from dispatcher.outlets.batch.remote_host import greet, layout_there
from dispatcher.outlets.kinds import ask_hosts
from dispatcher.outlets.remote.connection import NoAnswer
from dispatcher.outlets.remote.operations import Failed, Greeting, Operation, Remove, Removed, TreeList, Trees
from dispatcher.run_state.states import IN_FLIGHT, Record
from dispatcher.workspace import Layout

_TIMEOUT_S: Final = 60.0
# A tree may have a million files.
_REMOVE_TIMEOUT_S: Final = 600.0
_WORK: Final = "work"
_OVERRIDE: Final = "DISPATCHER_WORK_OVERRIDE"
# Where node.sh extracts code for hosts without `work`.
_NO_WORK: Final = "/tmp/dispatcher-$UID"


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A directory on a host that nothing needs any more."""

    host: str
    directory: str
    name: str
    bytes: int
    age_s: float

    @property
    def what(self) -> str:
        return f"{self.host}:{posixpath.join(self.directory, self.name)}"


class Leftovers(msgspec.Struct):
    """`problems`: why a host could not be looked at, or what could not be removed: lines for people."""

    found: list[Leftover]
    problems: list[str]


def leftovers(config: Config, records: Mapping[str, Record], older_than_s: float) -> Leftovers:
    """Everything on the hosts that no attempt in flight uses; all hosts are asked at the same time."""
    hosts = [host for host in config.hosts.in_order() if not isinstance(host, TpuHost)]
    result = Leftovers([], [])
    places = _places(config, hosts, result.problems)
    questions = {name: [Trees(directory=directory) for directory in each] for name, each in places.items()}
    used = _in_use(config.layout, records)
    for name, answers in _ask(config, questions, _TIMEOUT_S, result.problems).items():
        for directory, answer in zip(places[name], answers, strict=True):
            if not isinstance(answer, TreeList):
                result.problems.append(f"{name}: {answer.error}")
                continue
            for tree in answer.trees:
                young_s = 0.0 if _has_ended(config.layout, tree.name) else YOUNG_S
                if tree.name not in used and tree.age_s >= max(older_than_s, young_s):
                    result.found.append(
                        Leftover(
                            host=name, directory=directory, name=tree.name, bytes=tree.bytes, age_s=max(0.0, tree.age_s)
                        )
                    )
    return result


def remove(config: Config, found: Sequence[Leftover]) -> list[str]:
    """Remove them; lines on what could not be removed."""
    problems: list[str] = []
    questions: dict[str, list[Operation]] = {}
    for host in dict.fromkeys(one.host for one in found):
        mine = [one for one in found if one.host == host]
        questions[host] = [
            Remove(directory=directory, names=[one.name for one in mine if one.directory == directory])
            for directory in dict.fromkeys(one.directory for one in mine)
        ]
    for name, answers in _ask(config, questions, _REMOVE_TIMEOUT_S, problems).items():
        for answer in answers:
            failed = answer.failed if isinstance(answer, Removed) else [answer.error]
            problems += [f"{name}: {line}" for line in failed]
    return problems


def _places(config: Config, hosts: Sequence[Host], problems: list[str]) -> dict[str, list[str]]:
    """The directories of each host that are looked at."""
    layout, me = config.layout, workspace_id(config.layout)
    hellos: dict[str, list[Operation]] = {}
    for host in hosts:
        hello = greet(layout, host, config.hosts.cluster_of(host))
        hellos[host.name] = [msgspec.structs.replace(hello, directories={**hello.directories, **_works(config, host)})]
    found = {}
    for name, (greeting,) in _ask(config, hellos, _TIMEOUT_S, problems).items():
        if isinstance(greeting, Failed):
            problems.append(f"{name}: {greeting.error}")
            continue
        assert isinstance(greeting, Greeting)
        told = dict(greeting.directories)
        there = layout_there(layout, greeting)
        told.setdefault(_WORK, _NO_WORK)
        # A variable that is not set there stays as it is.
        works = [path for key, path in told.items() if key.startswith(_WORK)]
        works = [path for path in dict.fromkeys(works) if path.startswith("/") and not path.startswith("/$")]
        kept = [path for path in works if config.hosts.hosts[name].keeps(path)]
        found[name] = [posixpath.join(path, "dispatcher-work", me) for path in kept]
        if there is not layout or not any(str(layout.submissions_dir) in each for each in found.values()):
            found[name].append(str(there.submissions_dir))
    return found


def _works(config: Config, host: Host) -> dict[str, str]:
    """The directories in which node.sh may have extracted code, by any name, with the host's variables."""
    cluster = config.hosts.cluster_of(host)
    settings = [cluster.env, host.env, *(method.env for method in config.methods.values())]
    given = dict.fromkeys([*(env[_OVERRIDE] for env in settings if env.get(_OVERRIDE)), f"${_OVERRIDE}", "$TMPDIR"])
    works = {f"{_WORK} {index}": path for index, path in enumerate(given)}
    return {**works, _WORK: cluster.work} if cluster.work else works


def _ask(
    config: Config, questions: Mapping[str, Sequence[Operation]], timeout_s: float, problems: list[str]
) -> dict[str, Sequence[Any]]:
    """The answers of the hosts that answer; why the others do not is added to `problems`."""
    outcomes = ask_hosts(config, questions, "clean", timeout_s)
    problems += [f"{name}: {one.why}" for name, one in outcomes.items() if isinstance(one, NoAnswer)]
    return {name: one for name, one in outcomes.items() if not isinstance(one, NoAnswer)}


def _in_use(layout: Layout, records: Mapping[str, Record]) -> set[str]:
    """The names of trees and of submissions that attempts in flight have."""
    names = set()
    for job, record in records.items():
        if record.state in IN_FLIGHT:
            names.add(f"{job}.{record.attempt}")
            submission = read_submission(layout.attempt(job, record.attempt))
            if submission is not None:
                names.add(submission.name)
    return names


def _has_ended(layout: Layout, name: str) -> bool:
    """Whether a tree is of an attempt whose exit status is known."""
    job, _, number = name.rpartition(".")
    return bool(job) and number.isdecimal() and files.is_there(layout.attempt(job, int(number)).exit)
