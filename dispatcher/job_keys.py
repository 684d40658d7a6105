"""The keys that an entry and its method have in common: an entry's own value replaces that of its method.

Of `env`, `env_file` and `resources` both count, and where they differ, the entry's.

A key that is added here is one of both: matrix/entry.py and config.py need no change unless their defaults differ.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from dispatcher.base import values
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import PartsError
from dispatcher.base.schema.kinds import Command, Count, Duration, Env, Memory, Positive, PrivatePath, Text, one_or_many
from dispatcher.base.schema.types import Key, Value, expected
from dispatcher.base.values import FAILURE_REASONS, BadValueError
from dispatcher.hosts.types import Container, PbsOptions, SlurmOptions

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What a host must have for an attempt. Entries and methods have them as they are written: a mapping."""

    EXAMPLE: ClassVar[str] = "{chip: h100, min_chips: 4}"

    chip: Annotated[
        Text | None,
        Key(
            "the kind of GPU: `h100`; as hosts name it in `chips`, and on a pod's own GPUs by the driver's name "
            "(`NVIDIA H100 80GB HBM3`), where it tells one",
            default="any",
        ),
    ] = None
    min_chips: Annotated[Count | None, Key("how many GPUs over all nodes, like `gpus`; 0 for none")] = None
    cpus: Annotated[
        Positive | None,
        Key("CPUs of each node. A pod counts them for its own jobs: [sharing a host](sharing.md#cpus-and-memory)"),
    ] = None
    memory: Annotated[Memory | None, Key("memory of each node, an amount such as `64G`; counted as `cpus`")] = None
    nodes: Annotated[Positive | None, Key("how many nodes", default="1")] = None


def parse_resources(value: object) -> Mapping[str, Any]:
    """The resources as they are written, without keys that are not set."""
    if not isinstance(value, Mapping):
        raise BadValueError(f"expected {expected(Resources)}")
    _, faults = reading.parse(Resources, value)
    if faults:
        raise PartsError(faults)
    return {key: one for key, one in value.items() if one is not None}


def _resources_schema() -> Mapping[str, Any]:
    from dispatcher.base.schema.json_schema import of_struct

    return of_struct(Resources)


RetryOn: TypeAlias = Annotated[
    tuple[str, ...],
    Value(
        values.parse_retry_on,
        one_or_many(
            {"anyOf": [{"enum": list(FAILURE_REASONS)}, {"type": "string", "pattern": "^(exit|signal) [0-9]{1,3}$"}]}, 1
        ),
    ),
]


class JobKeys(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What both say of how a job is run. None and empty: unset."""

    command: Annotated[
        Command | None, Key("what runs: a line (split like a shell line, no shell) or a list of arguments")
    ] = None
    gpus: Annotated[
        Count | None, Key("number of GPUs of one attempt; 0 for a CPU job", default="one GPU, or a CPU slot")
    ] = None
    gpu_memory_mib: Annotated[
        Memory | None,
        Key(
            "what one attempt takes of its GPU: `20G`. Jobs that say so [share GPUs](sharing.md) of pods as long as "
            "their sum fits",
            default="its GPU is not shared by memory",
            is_digested=False,
        ),
    ] = None
    retries: Annotated[Count | None, Key("how often a failed job is tried again", default="0", is_digested=False)] = (
        None
    )
    retry_on: Annotated[
        RetryOn | None,
        Key(
            "after which [reasons](pods.md#failures): `exit`, `exit 1`, `signal`, `signal 9`, `out of memory`, "
            "`time limit`, `setup`, `gpu idle`",
            default="any",
            is_digested=False,
        ),
    ] = None
    time_limit_s: Annotated[
        Duration | None,
        Key("how long an attempt may run: `90m`, `8h`, `1h30m`, `1-12:00:00`, or seconds", is_digested=False),
    ] = None
    env: Annotated[Env, Key("environment variables, `{OMP_NUM_THREADS: 2}`")] = NOTHING
    env_file: Annotated[
        PrivatePath | None,
        Key(
            "a file with variables that others must not read, absolute or `~/...`, where the job runs "
            "([secrets](entries.md#secrets)); that of the entry is read after the method's"
        ),
    ] = None
    resources: Annotated[
        Mapping[str, Any],
        Value(parse_resources, _resources_schema),
        Key("what a host must have ([resources](entries.md#resources))", is_digested=False),
    ] = NOTHING
    container: Annotated[
        Container | None,
        Key("what it runs in: `runtime`, `image`, `mounts`, `options` ([containers](outlets/containers.md))",
            default="the host's"),
    ] = None  # fmt: skip
    slurm: Annotated[
        SlurmOptions | None,
        Key("what it asks of hosts with SLURM ([options](entries.md#slurm-and-pbs)): `{partition: big}`",
            default="the host's", is_digested=False),
    ] = None  # fmt: skip
    pbs: Annotated[
        PbsOptions | None,
        Key("what it asks of hosts with PBS ([options](entries.md#slurm-and-pbs)): `{queue: big}`",
            default="the host's", is_digested=False),
    ] = None  # fmt: skip
    queue_limit_s: Annotated[
        Duration | None,
        Key("how long it may wait in an outlet's queue before another one is tried", default="for ever",
            is_digested=False),
    ] = None  # fmt: skip
    snapshot: Annotated[
        bool | None,
        Key("`true`: attempts run a [copy of the code](snapshot.md) as it was when the job was queued, also when they "
            "are repeated", default="`false`", is_digested=False),
    ] = None  # fmt: skip
