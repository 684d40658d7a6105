"""GPUs as SLURM knows them: generic resources with a type (`gpu:h100:4`) or without one (`gpu:4`). Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec

from dispatcher.hosts.types import Hosts, SlurmHost
from dispatcher.outlets.remote.operations import Ran, Run


def query(host: SlurmHost) -> Run:
    """The call that says which GPUs the nodes have."""
    return Run(words=("sinfo", "--noheader", *used_partitions(host), "--format=%G"))


def used_partitions(host: SlurmHost) -> list[str]:
    """The option that limits sinfo and squeue to the configured partitions, if there are any."""
    names = configured_partitions(host)
    return [f"--partition={','.join(names)}"] if names else []


def configured_partitions(host: SlurmHost) -> list[str]:
    """Those of the host: an entry may name another one."""
    return list(dict.fromkeys([*(partition.name for partition in host.partitions), *host.cpu_partitions]))


def read_types(answer: Any) -> frozenset[str]:
    """The types of GPUs that there are, in lower case; '' for GPUs without a type; none when SLURM did not answer."""
    lines = answer.out.splitlines() if isinstance(answer, Ran) and answer.exit_code == 0 else []
    return frozenset(kind.lower() for line in lines for kind in parse_gres(line))


def parse_gres(text: str) -> dict[str, int]:
    """The GPUs by type in `gpu:h100:4(S:0-1),gpu:2,shard:8`; '' is the type of those without one."""
    found: Counter[str] = Counter()
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = item.strip().split(":")
        if name == "gpu":
            number = rest.pop() if rest and rest[-1].isdecimal() else "1"
            found[":".join(rest)] += int(number)
    return dict(found)


def existing_first(hosts: Hosts, types: Collection[str]) -> Hosts:
    """The same with those GRES types of each chip first that a site has: a job can ask for one type only."""
    ordered = {
        chip: tuple(sorted(names, key=lambda name: name.lower() not in types))
        for chip, names in hosts.gres_mapping.items()
    }
    return msgspec.structs.replace(hosts, gres_mapping=ordered)
