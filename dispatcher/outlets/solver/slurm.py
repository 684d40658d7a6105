"""The partitions of SLURM: one row of `sinfo` for every node of every partition, and `squeue` for what waits."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.hosts.types import SlurmHost
from dispatcher.outlets.remote.operations import Operation, Run
from dispatcher.outlets.slurm.gres import parse_gres, used_partitions
from dispatcher.outlets.slurm.questions import in_cluster
from dispatcher.outlets.solver.answers import output
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node, Queue

# A colon without a number: no width, so nothing is cut off.
_FIELDS: Final = (
    *("Partition", "Available", "NodeList", "StateComplete", "CPUsState", "Memory", "AllocMem"),
    *("Gres", "GresUsed", "Features"),
)
_FORMAT: Final = ",".join(f"{field}:|" for field in _FIELDS)
# The words of a node's state, joined by `+`, that keep new jobs off it, and those that do so for a while.
_UNUSABLE: Final = (
    *("down", "drain", "fail", "error", "future", "unknown", "inval", "maint", "no_respond", "not_respond"),
    *("reboot", "blocked"),
)
_TAKEN: Final = frozenset({"reserved", "planned"})
_NODE_RANGES: Final = re.compile(r"([^\[\],]*)(?:\[([^\]]*)\])?([^,\[\]]*)")


def questions(host: SlurmHost, timeout_s: float, root: Path) -> list[Operation]:
    """What to ask: about the configured partitions alone, because a cluster may have thousands of nodes."""
    del root
    chosen = used_partitions(host)
    nodes = ["sinfo", "--noheader", "--Node", *chosen, f"--Format={_FORMAT}"]
    waiting = ["squeue", "--noheader", "--states=PENDING", *chosen, "--format=%P"]
    return [in_cluster(Run(words=words, timeout_s=timeout_s), host.clusters) for words in (nodes, waiting)]


def report(answers: Sequence[Any]) -> BatchReport:
    """What the answers tell; OutletError when SLURM did not answer."""
    nodes, waiting = answers
    return parse_report(output("sinfo", nodes), output("squeue", waiting))


def parse_report(nodes: str, waiting: str) -> BatchReport:
    """The partitions in the output of sinfo and squeue."""
    # A job may ask for several partitions.
    pending = Counter(name for line in waiting.splitlines() for name in line.strip().split(","))
    queues: dict[str, Queue] = {}
    members: dict[str, list[Node]] = {}
    for row in _rows(nodes):
        name = row["Partition"].removesuffix("*")
        is_default = row["Partition"].endswith("*")
        closed = "" if row["Available"] == "up" else f"it is {row['Available']}"
        queues[name] = Queue(name=name, is_default=is_default, closed=closed, pending=pending[name])
        members.setdefault(name, [])
        if row["NodeList"]:
            members[name].append(_node(row))
    return BatchReport(
        {name: msgspec.structs.replace(queue, nodes=tuple(members[name])) for name, queue in queues.items()}
    )


def _rows(text: str) -> Iterator[Mapping[str, str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.rstrip().split("|")]
        if len(cells) != len(_FIELDS) + 1:
            raise OutletError(f"sinfo printed a line that cannot be read: {line[:200]!r}")
        # A partition without nodes has one row with an empty name of a node.
        yield dict(zip(_FIELDS, cells, strict=False))


def _node(row: Mapping[str, str]) -> Node:
    try:
        _, idle, _, total = (int(number) for number in row["CPUsState"].split("/"))
        memory_mib, used_mib = int(row["Memory"]), int(row["AllocMem"])
    except ValueError:
        raise OutletError(f"sinfo printed numbers of {row['NodeList']} that cannot be read: {dict(row)}") from None
    flags = row["StateComplete"].lower().rstrip("*~#!%$@^-").split("+")
    return Node(
        name=row["NodeList"],
        cpus=total,
        free_cpus=idle,
        memory_mib=memory_mib,
        free_mib=max(memory_mib - used_mib, 0),
        gpus=_gpus(row["Gres"], row["GresUsed"]),
        features=frozenset(row["Features"].split(",")) - {"(null)"},
        unusable=row["StateComplete"] if any(flag.startswith(_UNUSABLE) for flag in flags) else "",
        is_taken=not _TAKEN.isdisjoint(flags),
    )


def _gpus(gres: str, used: str) -> dict[str, Gpus]:
    total, in_use = parse_gres(gres), parse_gres(used)
    # GPUs in use whose type is not told may be of any type.
    untyped = in_use.pop("", 0) if "" not in total else 0
    return {kind: Gpus(number, min(number, in_use.get(kind, 0) + untyped)) for kind, number in total.items()}


def expand_nodes(names: Sequence[str]) -> set[str]:
    """The nodes in names such as `n1`, `n[2-4,7]` and `rack[01-02]n3,n9`; what is no such name stays as it is."""
    return set(itertools.chain.from_iterable(_expand(name) for name in names)) - {""}


def _expand(text: str) -> Iterator[str]:
    for before, ranges, after in _NODE_RANGES.findall(text):
        if not before and not ranges and not after:
            continue
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            if first.isdecimal() and last.isdecimal():
                for number in range(int(first), min(int(last), int(first) + 100_000) + 1):
                    yield f"{before}{number:0{len(first)}d}{after}"
            else:
                yield f"{before}{part}{after}"


def has_features(constraint: str | None, features: frozenset[str]) -> bool:
    """Whether a node may fit a constraint. Of `a&b` and `a|b` it is known; what is more complex may fit every node."""
    if not constraint or re.search(r"[\[\]()*,]", constraint):
        return True
    return any(features.issuperset(word.strip() for word in choice.split("&")) for choice in constraint.split("|"))
