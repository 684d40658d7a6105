"""Options that say what hardware a job needs and which hosts there are, shared by the commands that choose a host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.values import MOST
from dispatcher.cli.common import WholeNumber, read_memory
from dispatcher.cli.one_argument import one_argument
from dispatcher.errors import UsageError, nearest

if TYPE_CHECKING:
    from dispatcher.hosts.types import Hosts
    from dispatcher.outlets.base import Request
    from dispatcher.outlets.solver.request import HardwareRequest

# With the path of dispatcher.yaml.
NO_HOSTS: Final = "no hosts are configured: describe them under `hosts` in {}, or use --hosts FILE"


class HardwareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was given on the command line; None or empty: nothing."""

    chip: str | None = None
    chips: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    nodes: int | None = None
    clusters: tuple[str, ...] = ()
    excluded_clusters: tuple[str, ...] = ()

    @property
    def are_given(self) -> bool:
        """Whether any of the options was given."""
        return self != HardwareOptions()

    def over(self, request: Request) -> HardwareRequest:
        """A job's own request with the options that were given instead. One GPU where neither tells a number."""
        from dispatcher.outlets.solver.request import HardwareRequest

        chips = request.gpus if self.chips is None else self.chips
        return HardwareRequest(
            chip=request.chip if self.chip is None else self.chip,
            min_chips=1 if chips is None else chips,
            cpus=request.cpus if self.cpus is None else self.cpus,
            memory_mib=request.memory_mib if self.memory_mib is None else self.memory_mib,
            nodes=request.nodes if self.nodes is None else self.nodes,
            preferred_clusters=self.clusters,
            excluded_clusters=self.excluded_clusters,
        )

    def resources(self) -> dict[str, Any]:
        """The options that were given, as `resources` of an entry."""
        given = {
            "chip": self.chip,
            "min_chips": self.chips,
            "cpus": self.cpus,
            "memory": None if self.memory_mib is None else f"{self.memory_mib}M",
            "nodes": self.nodes,
        }
        return {key: value for key, value in given.items() if value is not None}

    def check_clusters(self, hosts: Hosts) -> None:
        """UsageError for a cluster that no host belongs to."""
        known = dict.fromkeys([*hosts.clusters, *(host.cluster for host in hosts.hosts.values())])
        given = (("--cluster", self.clusters), ("--exclude-cluster", self.excluded_clusters))
        for option, name in ((option, name) for option, names in given for name in names):
            if name not in known:
                raise UsageError(f"{option} {name}: there is no such cluster{nearest(name, known)}")


# `--chip`, `-n`, `--cpu`, `--mem`, `--nodes`, `--cluster` and `--exclude-cluster`, as one argument `hardware`.
hardware_options: Final = one_argument("hardware", HardwareOptions, (
    click.option("--chip", metavar="NAME", help="The kind of GPU, such as h100.  [default: any]"),
    click.option(
        "-n",
        "--chips",
        "--gpus",
        "chips",
        type=WholeNumber(0, MOST),
        metavar="N",
        help="GPUs over all nodes; 0 for CPUs only.",
    ),
    click.option("--cpu", "--cpus", "cpus", type=WholeNumber(1, MOST), metavar="N", help="CPUs of each node."),
    click.option(
        "--mem", "--memory", "memory_mib", callback=read_memory, metavar="SIZE", help="Memory of each node: 64G, 512M."
    ),
    click.option("--nodes", type=WholeNumber(1, MOST), metavar="N", help="Number of nodes."),
    click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="Prefer hosts of this cluster."),
    click.option(
        "--exclude-cluster", "excluded_clusters", multiple=True, metavar="NAME", help="Use no host of this cluster."
    ),
))  # fmt: skip


def hosts_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--hosts FILE`, or DISPATCHER_HOSTS as for a pod, passed to the command as `hosts_file`."""
    return click.option(
        "--hosts",
        "hosts_file",
        envvar="DISPATCHER_HOSTS",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Clusters and hosts, such as ~/.theseus.yaml; they come before those of dispatcher.yaml.  "
        "[default: $DISPATCHER_HOSTS]",
    )(function)
