"""Values in descriptions of hosts, each a type with its form in files; they add to those of base/schema/kinds.py.

Each `parse_*` returns the value that the code uses, or raises BadValueError. Every command reads entries, whose options
of hosts have these types: what few of them need is imported, and patterns are compiled, when a value is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

from dispatcher.base import values
from dispatcher.base.schema.faults import PartFault, PartsError, read_all
from dispatcher.base.schema.kinds import ENV, TEXT, duration, number, one_or_many
from dispatcher.base.schema.types import Value
from dispatcher.base.values import BadValueError, Reader, shown
from dispatcher.errors import UsageError

# Sources of a job's project: the name of the workspace's directory, the job's owner, a key of its entry.
OF_WORKSPACE: Final = "workspace"
OF_USER: Final = "user"
LABEL: Final = "label"
_SHA256: Final = r"sha256=[0-9a-f]{64}"
_SQUASH: Final = r"[0-9]+(:[0-9]+)?"
_JUICEFS_SIZE: Final = r"[0-9]+(\.[0-9]+)?\s?([KMGT](i?B)?)?"
_PASSWORD_IN_QUERY: Final = r"[?&](password|passwd|pwd)="
_ACCELERATOR: Final = r"[a-z][a-z0-9]*-[1-9][0-9]{0,5}"
_VARIABLE: Final = r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}"
_INSTALLER_EXPECTED: Final = (
    "expected a path of the host, such as /opt/installer.sh, or an address, such as https://example.org/installer.sh"
)
_BARE_ADDRESS: Final = r"[\w-]+(\.[\w-]+)+/"
_PATH: Final = rf"(?:/|~/|~$|{_VARIABLE})(?:[^$`]|{_VARIABLE})*"


def listed(read: Reader, *, twice: bool = False) -> Callable[[object], tuple[Any, ...]]:
    """A reader of one value or a list of such values; empty lists are allowed. `twice`: so are equal values.

    Values with a name are equal where the names are.
    """

    def read_list(value: object) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            return (read(value),)
        found = read_all((f"[{index}]", part, read) for index, part in enumerate(value))
        names = [getattr(part, "name", part) for part in found]
        faults = [
            PartFault(f"[{index}]", value[index], f"{shown(name)} is named twice: remove one of them")
            for index, name in enumerate(names)
            if not twice and name in names[:index]
        ]
        if faults:
            raise PartsError(faults)
        return tuple(found)

    return read_list


def mapped(read: Reader, expected: str) -> Callable[[object], Mapping[str, Any]]:
    """A reader of a mapping from names to such values."""

    def read_mapping(value: object) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise BadValueError(f"expected {expected}")
        names = read_all((f".{key}", key, parse_word) for key in value)
        found = read_all((f".{key}", part, read) for key, part in value.items())
        return dict(zip(names, found, strict=True))

    return read_mapping


def parse_word(value: object) -> str:
    """A name that is passed on command lines (an account, a partition, a node): no blanks, not an option."""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not text or not text.isprintable() or " " in text:
        raise BadValueError("expected a name without blanks")
    if text.startswith("-"):
        raise BadValueError("expected a name; one that begins with '-' would be taken for an option")
    return text


def parse_name(value: object) -> str:
    """A name of letters, digits, '.', '_' and '-'; a whole number counts as its digits."""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not values.is_name(text):
        raise BadValueError("expected a name of letters, digits, '.', '_' and '-', not beginning with '.' or '-'")
    return text


def parse_url(value: object) -> str:
    """The address of a database, which may hold a password."""
    if not isinstance(value, str) or not value.isprintable() or " " in value or "://" not in value:
        raise BadValueError("expected an address such as redis://host:6379/0")
    if re.search(_PASSWORD_IN_QUERY, value, re.IGNORECASE):
        # It is removed from the address before that is passed to programs, and is found in its usual place alone.
        raise BadValueError("write the password before the host, as in postgres://user:PASSWORD@host/db")
    return value


def parse_text(value: object) -> str:
    """Text in one line; a whole number counts as its digits."""
    text = values.parse_text(str(value) if type(value) is int else value)
    if not text.isprintable():
        raise BadValueError("expected text in one line, without control characters")
    return text


def parse_path(value: object) -> str:
    """An absolute path of the host, which may begin with `~` and have `$VARIABLES`: they are expanded there."""
    if not isinstance(value, str) or not value.isprintable() or not re.fullmatch(_PATH, value, re.ASCII):
        raise BadValueError("expected an absolute path of the host, such as /scratch/lab, ~/lab or $SCRATCH/lab")
    return value.rstrip("/") or "/"


def parse_place(value: object) -> str:
    """A path as `parse_path` takes it, or the URL of an object store, which is expanded nowhere."""
    from dispatcher.checkpoints.storage import is_url, normal

    if not isinstance(value, str) or not is_url(value):
        try:
            return parse_path(value)
        except BadValueError as error:
            raise BadValueError(f"{error}, or the URL of an object store, such as gs://bucket/lab") from None
    if not value.isprintable() or " " in value or "$" in value:
        raise BadValueError(
            "expected the URL of an object store, such as gs://bucket/lab, without blanks and variables"
        )
    try:
        return normal(value)
    except UsageError as error:
        raise BadValueError(str(error)) from None


def parse_installer(value: object) -> str:
    """A path or an address, which `#sha256=` and the digest of the file may follow."""
    try:
        text = parse_word(value)
    except BadValueError:
        raise BadValueError(_INSTALLER_EXPECTED) from None
    source, mark, digest = text.partition("#")
    if mark and not re.fullmatch(_SHA256, digest):
        raise BadValueError("expected #sha256= and 64 hexadecimal digits after the path or the address")
    if source.startswith("http://") and not mark:
        raise BadValueError("expected an address that begins with https://, or #sha256= and the digest after this one")
    if not (re.fullmatch(_PATH, source, re.ASCII) or source.startswith(("https://", "http://"))):
        hint = f" (did you mean 'https://{source}'?)" if re.match(_BARE_ADDRESS, source) else ""
        raise BadValueError(f"{_INSTALLER_EXPECTED}{hint}")
    return text


def parse_one_node(value: object) -> int:
    """The number of VMs of a TPU host: one."""
    if value != 1 or isinstance(value, bool):
        raise BadValueError(
            "a host is one TPU VM: one job over several slices (multislice) is not supported. Describe a host for each "
            "slice, and let jobs choose among them"
        )
    return 1


def parse_duration_or_never(value: object) -> float | None:
    """A duration as everywhere, or `never`: None."""
    if value == "never":
        return None
    try:
        return values.parse_duration(value)
    except BadValueError as error:
        raise BadValueError(f"{error}, or never") from None


def parse_arguments(value: object) -> tuple[str, ...]:
    """Arguments of a command: a list, or text that is split like a shell line."""
    if isinstance(value, str):
        import shlex

        try:
            value = shlex.split(value)
        except ValueError as error:
            raise BadValueError(f"cannot be split like a shell line ({error}); write a list of arguments") from None
    if not isinstance(value, (list, tuple)):
        raise BadValueError("expected a list of arguments, or text that is split like a shell line")
    return tuple(read_all((f"[{index}]", part, parse_text) for index, part in enumerate(value)))


def parse_env(value: object) -> Mapping[str, str]:
    """Environment variables, as everywhere; fractions become text, too: labs' files have `MEM_FRACTION: 0.9`."""
    if not isinstance(value, Mapping):
        raise BadValueError("expected names and values such as {NCCL_DEBUG: WARN}")
    found = read_all((f".{name}", part, _reader_of_variable(name)) for name, part in value.items())
    return {name: text for each in found for name, text in each.items()}


def parse_host_env(value: object) -> Mapping[str, str]:
    """The variables of a host whose scheduler gives attempts their GPUs: they may hide these, and not name others."""
    from dispatcher.base import devices

    env = parse_env(value)
    named = next((name for name in devices.NAMING if name in env and not devices.hides_all(env[name])), None)
    if named is not None:
        raise BadValueError(f"{named} is {values.shown(env[named])}: which GPUs a job gets is decided by the scheduler")
    return env


def parse_plain_env(value: object) -> Mapping[str, str]:
    """The variables of a host whose GPUs are chosen by what starts the attempts: it may say which of them are used."""
    from dispatcher.base import devices

    return devices.checked(parse_env(value))


def parse_cluster_env(value: object) -> Mapping[str, str]:
    """The variables of a cluster: each of its hosts sets which GPUs are used."""
    from dispatcher.base import devices

    env = devices.checked(parse_env(value))
    if devices.VISIBLE in env:
        raise BadValueError(f"{devices.VISIBLE} is of one host: set it in `env` of the host")
    return env


def _reader_of_variable(name: object) -> Reader:
    def read(value: object) -> Mapping[str, str]:
        is_fraction = isinstance(value, float) and abs(value) < float("inf")
        return values.parse_env({name: repr(value) if is_fraction else value})

    return read


def parse_memory(value: object) -> str:
    """Memory of a node as sbatch takes it, in MiB (`65536M`). A number without a unit is MiB; 0 is all that it has."""
    if type(value) is int and value >= 0:
        return f"{value}M" if value else "0"
    if isinstance(value, str) and value.isdecimal():
        return parse_memory(int(value))
    return f"{values.memory_mib(value)}M"


def parse_juicefs_size(value: object) -> str:
    """The size of a cache as `juicefs mount` takes it: `100G`, or a number of MiB."""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not re.fullmatch(_JUICEFS_SIZE, text):
        raise BadValueError("expected a size such as 100G, or a number of MiB")
    return text


def parse_squash(value: object) -> str:
    """`UID:GID`."""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not re.fullmatch(_SQUASH, text):
        raise BadValueError("expected UID:GID in quotes, such as '1000:1000'")
    return text


def parse_accelerator_type(value: object) -> str:
    """A kind of TPU and a number, as Google writes them."""
    if not isinstance(value, str) or not re.fullmatch(_ACCELERATOR, value):
        raise BadValueError("expected a TPU as Google calls it, such as v4-32 or v5litepod-16")
    return value


def parse_amount(value: object) -> str:
    """An amount as Kubernetes writes it; a number counts as its digits."""
    from dispatcher.hosts.quantity import parse_quantity

    text = str(value) if type(value) in (int, float) else value
    try:
        amount = parse_quantity(text) if isinstance(text, str) else None
    except ValueError:
        amount = None
    if not isinstance(text, str) or amount is None or amount <= 0:
        raise BadValueError("expected an amount such as 4, 500m or 64Gi")
    return text


def parse_gres_types(value: object) -> tuple[str, ...]:
    """The GRES types of a chip: one name or several, with or without SLURM's `gpu:` before it.

    `gpu` alone becomes '': GPUs without a type.
    """
    types: tuple[str, ...] = listed(parse_word)(value)
    if not types:
        raise BadValueError("expected the name of a GRES type, or a list of such names")
    return tuple(dict.fromkeys("" if name == "gpu" else name.removeprefix("gpu:") for name in types))


def parse_project_source(value: object) -> str:
    """`job_project_source` of a host."""
    if value in (OF_WORKSPACE, OF_USER) or (isinstance(value, str) and re.fullmatch(rf"{LABEL}(:[^\s:]+)?", value)):
        return str(value)
    raise BadValueError(f"expected {OF_WORKSPACE}, {OF_USER}, {LABEL} or {LABEL}:KEY, a key of entries")


_NAME: Final = {"type": ["string", "integer"], "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$"}
_WORD: Final = {"type": ["string", "integer"], "pattern": r"^[^\s-]\S*$"}
_PLACE: Final = {"type": "string", "minLength": 1}
_ENV: Final = {**ENV, "additionalProperties": {"type": ["string", "number"]}}
_MEMORY: Final = {"type": ["string", "integer"], "pattern": r"^(\d+|\d+(\.\d+)?\s?[KMGT](i?B)?)$", "minimum": 0}

Name: TypeAlias = Annotated[str, Value(parse_name, _NAME)]
Names: TypeAlias = Annotated[tuple[str, ...], Value(listed(parse_name), one_or_many(_NAME))]
Word: TypeAlias = Annotated[str, Value(parse_word, _WORD)]
Words: TypeAlias = Annotated[tuple[str, ...], Value(listed(parse_word), one_or_many(_WORD))]
# Which may be named twice: the order in which they are loaded counts.
Modules: TypeAlias = Annotated[tuple[str, ...], Value(listed(parse_word, twice=True), one_or_many(_WORD))]
Line: TypeAlias = Annotated[str, Value(parse_text, {**TEXT, "type": ["string", "integer"]})]
Lines: TypeAlias = Annotated[tuple[str, ...], Value(listed(parse_text), one_or_many(TEXT))]
Arguments: TypeAlias = Annotated[tuple[str, ...], Value(parse_arguments, one_or_many({"type": ["string", "integer"]}))]
Path: TypeAlias = Annotated[str, Value(parse_path, {"type": "string", "pattern": r"^[/~$]"})]
Place: TypeAlias = Annotated[str, Value(parse_place, {"type": "string", "pattern": r"^([/~$]|[a-z0-9]+://)"})]
Installer: TypeAlias = Annotated[str, Value(parse_installer, _PLACE)]
Url: TypeAlias = Annotated[str, Value(parse_url, {"type": "string", "pattern": "://"})]
HostEnv: TypeAlias = Annotated[Mapping[str, str], Value(parse_host_env, _ENV)]
PlainEnv: TypeAlias = Annotated[Mapping[str, str], Value(parse_plain_env, _ENV)]
ClusterEnv: TypeAlias = Annotated[Mapping[str, str], Value(parse_cluster_env, _ENV)]
NodeMemory: TypeAlias = Annotated[str, Value(parse_memory, _MEMORY)]
CacheSize: TypeAlias = Annotated[str, Value(parse_juicefs_size, {"type": ["string", "integer"]})]
Squash: TypeAlias = Annotated[str, Value(parse_squash, {"type": ["string", "integer"]})]
AcceleratorType: TypeAlias = Annotated[
    str, Value(parse_accelerator_type, {"type": "string", "pattern": f"^{_ACCELERATOR}$"})
]
OneNode: TypeAlias = Annotated[int, Value(parse_one_node, {"const": 1})]
Amount: TypeAlias = Annotated[str, Value(parse_amount, {"type": ["string", "number"]})]
DurationOrNever: TypeAlias = Annotated[float | None, duration(parse_duration_or_never, "never")]
ProjectSource: TypeAlias = Annotated[
    str, Value(parse_project_source, {"type": "string", "pattern": rf"^({OF_WORKSPACE}|{OF_USER}|{LABEL}(:[^\s:]+)?)$"})
]
Metadata: TypeAlias = Annotated[
    Mapping[str, str],
    # A start-up script has several lines.
    Value(mapped(values.parse_text, "names and values"), {"type": "object", "additionalProperties": TEXT}),
]
Amounts: TypeAlias = Annotated[
    Mapping[str, str],
    Value(
        mapped(parse_amount, "amounts such as {cpu: 100m, memory: 128Mi}"),
        {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
    ),
]
Chips: TypeAlias = Annotated[
    Mapping[str, int],
    Value(
        mapped(values.parse_positive, "numbers of GPUs by chip, such as {h100: 8}"),
        {"type": "object", "additionalProperties": number(1, values.MOST, values.parse_positive).json},
    ),
]
