"""Keys of hosts that the command line changes for one run of a command, without a change of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dispatcher.errors import UsageError
from dispatcher.hosts.types import AnyHost, Hosts, TpuHost, VolcanoHost


class HostOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What was given; None: the configuration counts.

    `tpu_spot` False is a VM that is not preempted, so neither a spot VM nor a preemptible one.
    """

    volcano_image: str | None = None
    volcano_namespace: str | None = None
    tpu_version: str | None = None
    tpu_spot: bool | None = None
    tpu_preemptible: bool | None = None

    def over(self, hosts: Hosts, meant: Iterable[str]) -> Hosts:
        """The hosts with these keys changed in those that are meant, by name.

        UsageError for a key that none of these has, and for two that exclude each other.
        """
        if self.tpu_preemptible and self.tpu_spot is not None:
            other = "--tpu-spot" if self.tpu_spot else "--tpu-on-demand"
            raise UsageError(f"--tpu-preemptible and {other} exclude each other: a VM is one of the three")
        chosen = [hosts.hosts[name] for name in meant if name in hosts.hosts]
        self._check(chosen)
        changed = {host.name: self._changed(host) for host in chosen}
        return msgspec.structs.replace(hosts, hosts={**hosts.hosts, **changed})

    def _check(self, hosts: Iterable[AnyHost]) -> None:
        types = {host.type for host in hosts}
        for type_, options in self._given().items():
            if options and type_ not in types:
                raise UsageError(
                    f"{options[0]} is for hosts of type {type_}, and none is meant here: name one that is configured "
                    "with --outlet HOST"
                )

    def _given(self) -> dict[str, list[str]]:
        """The options that were given, by type of host."""
        spot = "--tpu-on-demand" if self.tpu_spot is False else "--tpu-spot"
        preemptible = "--tpu-no-preemptible" if self.tpu_preemptible is False else "--tpu-preemptible"
        options = {
            VolcanoHost.type: (
                ("--volcano-image", self.volcano_image),
                ("--volcano-namespace", self.volcano_namespace),
            ),
            TpuHost.type: (
                ("--tpu-version", self.tpu_version),
                (spot, self.tpu_spot),
                (preemptible, self.tpu_preemptible),
            ),
        }
        return {type_: [option for option, value in pairs if value is not None] for type_, pairs in options.items()}

    def _changed(self, host: AnyHost) -> AnyHost:
        if isinstance(host, VolcanoHost):
            return msgspec.structs.replace(
                host, image=self.volcano_image or host.image, namespace=self.volcano_namespace or host.namespace
            )
        if not isinstance(host, TpuHost):
            return host
        spot = host.spot if self.tpu_spot is None else self.tpu_spot
        preemptible = host.preemptible if self.tpu_preemptible is None else self.tpu_preemptible
        if self.tpu_spot is not None:
            preemptible = False
        elif self.tpu_preemptible:
            spot = False
        changed = msgspec.structs.replace(
            host, version=self.tpu_version or host.version, spot=spot, preemptible=preemptible
        )
        # Google has no reserved VM that it may preempt.
        return msgspec.structs.replace(changed, reserved=False, reservation=None) if spot or preemptible else changed
