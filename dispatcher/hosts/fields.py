"""Readers of single values in descriptions of hosts: each returns the value that the code uses, or raises.

They add to those of base/values.py what occurs only here, and faults *within* a value: PartsError has one line for
each, with the place in the value, so that all faults of a file can be listed at once.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dispatcher.base import devices, values
from dispatcher.base.values import BadValueError, Reader, shown, shown_at
from dispatcher.checkpoints.storage import is_url, normal
from dispatcher.errors import UsageError, nearest
from dispatcher.hosts.quantity import parse_quantity

_SHA256 = re.compile(r"sha256=[0-9a-f]{64}")
_SQUASH = re.compile(r"[0-9]+(:[0-9]+)?")
_JUICEFS_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?\s?([KMGT](i?B)?)?")
_PASSWORD_IN_QUERY = re.compile(r"[?&](password|passwd|pwd)=", re.IGNORECASE)
_ACCELERATOR = re.compile(r"[a-z][a-z0-9]*-[1-9][0-9]{0,5}")
_VARIABLE = r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}"
_INSTALLER_EXPECTED = (
    "expected a path of the host, such as /opt/installer.sh, or an address, such as https://example.org/installer.sh"
)
_BARE_ADDRESS = re.compile(r"[\w-]+(\.[\w-]+)+/")
_PATH = re.compile(rf"(?:/|~/|~$|{_VARIABLE})(?:[^$`]|{_VARIABLE})*", re.ASCII)


class PartFault(NamedTuple):
    """A fault within a value: its place there (`[1].name`), the value at that place, and what was expected."""

    place: str
    value: object
    message: str
    is_missing: bool = False

    def line(self, before: str = "") -> str:
        """The fault as a line, its place below `before`."""
        place = (before + self.place).removeprefix(".")
        if self.is_missing:
            return f"{place}: {self.message}"
        return f"{place} = {shown_at(place, self.value)}: {self.message}"


class PartsError(BadValueError):
    """A value with faults in its parts."""

    def __init__(self, faults: Sequence[PartFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.line() for fault in faults))


def faults_of(error: BadValueError, value: object, place: str = "") -> list[PartFault]:
    """The faults that a reader has raised for `value`, which is found at `place`."""
    if isinstance(error, PartsError):
        return [fault._replace(place=place + fault.place) for fault in error.faults]
    return [PartFault(place, value, str(error))]


def read_all(parts: Iterable[tuple[str, object, Reader]]) -> list[Any]:
    """What the readers return for the parts of a value (place, value, reader); PartsError with the faults of all."""
    found, faults = [], []
    for place, value, read in parts:
        try:
            found.append(read(value))
        except BadValueError as error:
            faults += faults_of(error, value, place)
    if faults:
        raise PartsError(faults)
    return found


def read_struct(value: object, readers: Mapping[str, Reader], required: Sequence[str], expected: str) -> dict[str, Any]:
    """The keys that a mapping sets, read; keys without a value count as unset."""
    if not isinstance(value, Mapping):
        raise BadValueError(f"expected {expected}")
    given = {key: part for key, part in value.items() if part is not None}
    faults = [
        PartFault(f".{key}", None, f"unknown key{nearest(str(key), readers)}", is_missing=True)
        for key in value
        if key not in readers
    ]
    faults += [PartFault(f".{key}", None, "is missing", is_missing=True) for key in required if key not in given]
    known = {key: part for key, part in given.items() if key in readers}
    try:
        found = read_all((f".{key}", part, readers[key]) for key, part in known.items())
    except PartsError as error:
        faults += error.faults
    if faults:
        raise PartsError(faults)
    return dict(zip(known, found, strict=True))


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


def one_of(*choices: str) -> Reader:
    """A reader of one of these words."""

    def read(value: object) -> str:
        if value not in choices:
            raise BadValueError(f"expected one of {', '.join(choices)}{_meant(value, choices)}")
        return str(value)

    return read


def _meant(value: object, choices: Sequence[str]) -> str:
    hint = nearest(value, choices) if isinstance(value, str) else ""
    return hint if "did you mean" in hint else ""


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
    if _PASSWORD_IN_QUERY.search(value):
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
    if not isinstance(value, str) or not value.isprintable() or not _PATH.fullmatch(value):
        raise BadValueError("expected an absolute path of the host, such as /scratch/lab, ~/lab or $SCRATCH/lab")
    return value.rstrip("/") or "/"


def parse_place(value: object) -> str:
    """A path as `parse_path` takes it, or the URL of an object store, which is expanded nowhere."""
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
    if mark and not _SHA256.fullmatch(digest):
        raise BadValueError("expected #sha256= and 64 hexadecimal digits after the path or the address")
    if source.startswith("http://") and not mark:
        raise BadValueError("expected an address that begins with https://, or #sha256= and the digest after this one")
    if not (_PATH.fullmatch(source) or source.startswith(("https://", "http://"))):
        hint = f" (did you mean 'https://{source}'?)" if _BARE_ADDRESS.match(source) else ""
        raise BadValueError(f"{_INSTALLER_EXPECTED}{hint}")
    return text


def parse_flag(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise BadValueError("expected true or false")
    return value


def parse_positive(value: object) -> int:
    """A whole number, 1 or more."""
    if type(value) is not int or value < 1:
        raise BadValueError("expected a whole number, 1 or more")
    return value


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
    env = parse_env(value)
    named = next((name for name in devices.NAMING if name in env and not devices.hides_all(env[name])), None)
    if named is not None:
        raise BadValueError(f"{named} is {values.shown(env[named])}: which GPUs a job gets is decided by the scheduler")
    return env


def parse_plain_env(value: object) -> Mapping[str, str]:
    """The variables of a host whose GPUs are chosen by what starts the attempts: it may say which of them are used."""
    return devices.checked(parse_env(value))


def parse_cluster_env(value: object) -> Mapping[str, str]:
    """The variables of a cluster: which GPUs are used is said by each of its hosts."""
    env = devices.checked(parse_env(value))
    if devices.VISIBLE in env:
        raise BadValueError(f"{devices.VISIBLE} is of one host: set it in `env` of the host")
    return env


def _reader_of_variable(name: object) -> Reader:
    def read(value: object) -> Mapping[str, str]:
        is_fraction = isinstance(value, float) and math.isfinite(value)
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
    if not isinstance(text, str) or not _JUICEFS_SIZE.fullmatch(text):
        raise BadValueError("expected a size such as 100G, or a number of MiB")
    return text


def parse_squash(value: object) -> str:
    """`UID:GID`."""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not _SQUASH.fullmatch(text):
        raise BadValueError("expected UID:GID in quotes, such as '1000:1000'")
    return text


def parse_accelerator_type(value: object) -> str:
    """A kind of TPU and a number, as Google writes them."""
    if not isinstance(value, str) or not _ACCELERATOR.fullmatch(value):
        raise BadValueError("expected a TPU as Google calls it, such as v4-32 or v5litepod-16")
    return value


def parse_amount(value: object) -> str:
    """An amount as Kubernetes writes it; a number counts as its digits."""
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
