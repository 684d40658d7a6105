"""The options with which gcloud creates a TPU VM, and what `create_args` may add. Pure.

`create_args` that contradict an option that is ours are an error that names all of them, and the key to use instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu import timer

# gcloud splits a list at the characters that stand between two carets at its beginning.
_SEPARATORS: Final = ",;|~#!@%&+*/:?<>\x1f\x1e\x1d\x1c\x01\x02\x03\x04\x05\x06\x07"

# Options that are ours, and the key of the host that says it; empty: none does.
_OURS: Final = {
    "accelerator-type": "accelerator_type", "type": "accelerator_type", "topology": "accelerator_type",
    "version": "version", "runtime-version": "version", "spot": "spot", "preemptible": "preemptible",
    "network": "network", "subnetwork": "subnetwork", "service-account": "service_account",
    "internal-ips": "internal_ip", "metadata": "metadata", "metadata-from-file": "metadata",
    "reserved": "reserved", "reservation": "reservation", "data-disk": "data_disk", "tags": "tags",
    "zone": "zone", "project": "project", "provisioning-model": "spot",
    "labels": "", "node-id": "", "async": "", "format": "", "quiet": "",
    "valid-until-duration": "", "valid-until-time": "", "help": "", "flatten": "", "user-output-enabled": "",
    "account": "", "access-token-file": "", "configuration": "", "flags-file": "", "impersonate-service-account": "",
}  # fmt: skip
# Those that ask for several slices.
_SLICES: Final = frozenset({"node-count", "node-prefix"})
# Those of the rest that only one of the two commands has: a VM that is created at once, or a request that waits.
_OF_VM: Final = frozenset({"queue-count"})
_OF_QUEUED: Final = frozenset(
    {
        "guaranteed", "best-effort", "valid-after-duration", "valid-after-time", "reservation-host-project",
        "reservation-host-folder", "reservation-host-organization", "max-run-duration",
    }
)  # fmt: skip
_OTHERS: Final = _OF_VM | _OF_QUEUED | {"description", "range", "scopes", "shielded-secure-boot", "network-config"}


def of_vm(host: TpuHost, labels: Mapping[str, str]) -> list[str]:
    """The options of a VM that is created at once. Raises OutletError."""
    preemptible = ["--preemptible"] if host.preemptible and not host.spot else []
    return [f"--version={_version(host)}", *_common(host, labels), *preemptible, *_added(host, without=_OF_QUEUED)]


def of_queued(host: TpuHost, labels: Mapping[str, str]) -> list[str]:
    """The options of a request that waits for capacity. Raises OutletError."""
    spot = ["--spot"] if host.preemptible and not host.spot else []
    return [f"--runtime-version={_version(host)}", *_common(host, labels), *spot, *_added(host, without=_OF_VM)]


def argument_problems(host: TpuHost) -> str:
    """Which of `create_args` cannot be used; empty when all can."""
    faults = []
    for words in _options(host.create_args):
        name = _name(words)
        if not words[0].startswith("--") or not name:
            faults.append(f"{words[0]!r} is no option: write --NAME=VALUE")
            continue
        if any(one.startswith(name) for one in _SLICES):
            faults.append(f"{words[0]}: a host is one TPU VM, and one job over several slices is not supported")
            continue
        # gcloud takes what begins like one option alone for that option.
        ours = name if name in _OURS else next((one for one in _OURS if one.startswith(name)), "")
        if ours and name not in _OTHERS:
            where = f": use `{_OURS[ours]}` of the host" if _OURS[ours] else ""
            faults.append(f"{words[0]} contradicts --{ours}, which is generated{where}")
    return f"hosts.{host.name}.create_args: {'; '.join(faults)}" if faults else ""


def dictionary(values: Mapping[str, str]) -> str:
    """Names and values as one argument of gcloud, whatever the values have in them.

    Raises OutletError for a name with `=`, and where no separator is left.
    """
    wrong = next((name for name in values if "=" in name or not name), None)
    if wrong is not None:
        raise OutletError(f"metadata: {wrong!r} cannot be a name: it is empty or has a '='")
    text = "".join(f"{name}{value}" for name, value in values.items())
    separator = next((char for char in _SEPARATORS if char not in text), None)
    if separator is None:
        raise OutletError("metadata: the values have every character that could separate them; put them into a file")
    return f"^{separator}^" + separator.join(f"{name}={value}" for name, value in values.items())


def _options(words: Sequence[str]) -> Iterator[list[str]]:
    """Each option with its value, which may be a word of its own."""
    found: list[list[str]] = []
    for word in words:
        if found and not word.startswith("-") and len(found[-1]) == 1 and "=" not in found[-1][0]:
            found[-1].append(word)
        else:
            found.append([word])
    yield from found


def _name(words: Sequence[str]) -> str:
    return words[0].removeprefix("--").partition("=")[0].removeprefix("no-")


def _added(host: TpuHost, without: frozenset[str]) -> list[str]:
    problems = argument_problems(host)
    if problems:
        raise OutletError(problems)
    return [word for words in _options(host.create_args) if _name(words) not in without for word in words]


def _version(host: TpuHost) -> str:
    if host.version is None:
        raise OutletError(
            f"hosts.{host.name}.version is missing: a TPU VM is created with a runtime version, such as "
            f"tpu-ubuntu2204-base; `gcloud compute tpus tpu-vm versions list --zone={host.zone}` lists them"
        )
    return host.version


def _common(host: TpuHost, labels: Mapping[str, str]) -> list[str]:
    """The options that both commands have."""
    given = ",".join(f"{name}={value}" for name, value in labels.items())
    words = [f"--accelerator-type={host.accelerator_type}", f"--labels={given}"]
    if host.spot:
        words.append("--spot")
    if host.reserved:
        words.append("--reserved")
    for option, value in (
        ("reservation", host.reservation),
        ("network", host.network),
        ("subnetwork", host.subnetwork),
        ("service-account", host.service_account),
        *(("data-disk", disk) for disk in host.data_disk),
        ("tags", ",".join(host.tags) or None),
    ):
        if value is not None:
            words.append(f"--{option}={value}")
    if host.internal_ip:
        words.append("--internal-ips")
    metadata = timer.metadata(host)
    return [*words, *([f"--metadata={dictionary(metadata)}"] if metadata else [])]
