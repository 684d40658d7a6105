"""The queues of PBS and the nodes that they use, from the JSON of `pbsnodes` and `qstat` (OpenPBS 19 and later)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import OutletError
from dispatcher.hosts.types import PbsHost
from dispatcher.outlets.remote.operations import Operation, Run
from dispatcher.outlets.solver.answers import output
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node, Queue

_COMMANDS: Final = (
    ("pbsnodes", "-a", "-F", "json"),
    ("qstat", "-Q", "-f", "-F", "json"),
    ("qstat", "-B", "-f", "-F", "json"),
)
# A node that runs jobs on all its processors, or for one job alone, is free again later.
_TAKEN: Final = frozenset({"job-busy", "job-exclusive", "busy", "resv-exclusive"})
_USABLE: Final = _TAKEN | {"free"}
_SIZE: Final = re.compile(r"(\d+)([kmgt]?)([bw]?)")
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def questions(host: PbsHost, timeout_s: float, root: Path) -> list[Operation]:
    """What to ask: the nodes, the queues, and which queue is the default."""
    del host, root
    return [Run(words=words, timeout_s=timeout_s) for words in _COMMANDS]


def report(answers: Sequence[Any]) -> BatchReport:
    """What the answers tell; OutletError when PBS did not answer."""
    nodes, queues, server = (
        _json(" ".join(command), output(" ".join(command[:2]), answer))
        for command, answer in zip(_COMMANDS, answers, strict=True)
    )
    try:
        return parse_report(nodes, queues, server)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OutletError(f"pbsnodes and qstat printed JSON that is not as expected: {error!r}") from None


def _json(command: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OutletError(f"{command} printed what is no JSON ({error}): {text[:200]!r}") from None


def parse_report(nodes: Mapping[str, Any], queues: Mapping[str, Any], server: Mapping[str, Any]) -> BatchReport:
    """The queues that run jobs, each with the nodes that serve it."""
    defaults = {described.get("default_queue") for described in server.get("Server", {}).values()}
    all_nodes = [(_queues_of(described), _node(name, described)) for name, described in nodes["nodes"].items()]
    found = {}
    for name, described in queues.get("Queue", {}).items():
        if described.get("queue_type", "Execution") != "Execution":
            continue
        found[name] = Queue(
            name=name,
            nodes=tuple(node for serves, node in all_nodes if serves is None or name in serves),
            is_default=name in defaults,
            closed=_closed(described),
            pending=_queued(described),
        )
    return BatchReport(found)


def _closed(described: Mapping[str, Any]) -> str:
    # Of a queue where it was never set, PBS does not show it.
    words = {"enabled": "it takes no jobs (enabled = False)", "started": "it starts no jobs (started = False)"}
    return next((why for key, why in words.items() if str(described.get(key)) != "True"), "")


def _queued(described: Mapping[str, Any]) -> int:
    counted = re.search(r"Queued:(\d+)", str(described.get("state_count", "")))
    return int(counted[1]) if counted else 0


def _queues_of(described: Mapping[str, Any]) -> frozenset[str] | None:
    """The queues that a node belongs to; None: it serves all of them."""
    named = described.get("queue") or described.get("resources_available", {}).get("Qlist")
    return frozenset(str(named).split(",")) if named else None


def _node(name: str, described: Mapping[str, Any]) -> Node:
    states = [state.strip() for state in str(described["state"]).split(",")]
    there = described.get("resources_available", {})
    used = described.get("resources_assigned", {})
    cpus, memory_mib = int(there.get("ncpus", 0)), _mib(there.get("mem", 0))
    gpus = int(there.get("ngpus", 0))
    return Node(
        name=name,
        cpus=cpus,
        free_cpus=max(cpus - int(used.get("ncpus", 0)), 0),
        memory_mib=memory_mib,
        free_mib=max(memory_mib - _mib(used.get("mem", 0)), 0),
        gpus={_gpu_type(there): Gpus(gpus, min(int(used.get("ngpus", 0)), gpus))} if gpus else {},
        unusable=",".join(state for state in states if state not in _USABLE),
        is_taken=not _TAKEN.isdisjoint(states),
    )


def _gpu_type(resources: Mapping[str, Any]) -> str:
    """What the site calls the node's GPUs. PBS has no resource for it; sites have `gputype`, `gpu_model` and others."""
    for key, value in resources.items():
        if re.search(r"gpu|accel", key.lower()) and isinstance(value, str) and not _SIZE.fullmatch(value.lower()):
            return value
    return ""


def _mib(value: object) -> int:
    """`527672488kb` in MiB; a number alone is bytes. Words are taken to have 8 bytes."""
    size = _SIZE.fullmatch(str(value).lower())
    if size is None:
        raise ValueError(f"a size such as 4096kb, not {value!r}")
    return (int(size[1]) << _SHIFTS[size[2]]) * (8 if size[3] == "w" else 1) >> 20
