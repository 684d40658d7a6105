"""The entry of one job in a manifest: its id, its method, its parameters, and the keys that the dispatcher reads.

To add such a key, add a line to READERS and a field to Entry, and its name to SCHEDULING if it only says when and where
the job runs. A key that asks for hardware also becomes a field of outlets.base.Request, set by pod.offers.request_of.
One that a method may set for all its jobs is added to config.Method, config._METHOD_KEYS and, for templates, to
templates.training._method_words.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dispatcher.base import values
from dispatcher.hosts.container import parse_container
from dispatcher.hosts.options import parse_pbs, parse_slurm
from dispatcher.hosts.types import Container, PbsOptions, SlurmOptions

parse_time_limit = values.parse_duration

_JOB_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def _parse_job(value: object) -> str:
    """The key of a job's class: words joined by `/`."""
    if not isinstance(value, str) or not _JOB_KEY.fullmatch(value):
        raise values.BadValueError("expected the key of a class with @job, such as gpt/train/pretrain")
    return value


def _parse_config(value: object) -> Mapping[str, Any]:
    """The configuration of a job: nested mappings, whose keys are checked by the job itself."""
    if not isinstance(value, Mapping):
        raise values.BadValueError('expected keys and values such as {"training": {"lr": 1e-4}}')
    for key, inner in value.items():
        if not isinstance(key, str):
            raise values.BadValueError(f"the key {values.shown(key)} is not text: put it in quotes")
        if isinstance(inner, Mapping):
            _parse_config(inner)
    return value


def _parse_cwd(value: object) -> str:
    """A directory in the workspace, or an absolute path."""
    path = values.parse_text(value)
    if ".." in path.split("/"):
        raise values.BadValueError("expected a directory in the workspace, or an absolute path, without '..'")
    return path


# The reserved keys: for each its field and the function that parses its value. All other keys are parameters.
READERS: Final[Mapping[str, tuple[str, values.Reader]]] = {
    "command": ("command", values.parse_command),
    "gpus": ("gpus", values.parse_count),
    "gpu_memory": ("gpu_memory_mib", values.parse_memory),
    "needs": ("needs", values.parse_names),
    "priority": ("priority", values.parse_integer),
    "retries": ("retries", values.parse_count),
    "retry_on": ("retry_on", values.parse_retry_on),
    "time_limit": ("time_limit_s", values.parse_duration),
    "env": ("env", values.parse_env),
    "env_file": ("env_file", values.parse_private_path),
    "cwd": ("cwd", _parse_cwd),
    "outlet": ("outlet", values.parse_words),
    "resources": ("resources", values.parse_resources),
    "container": ("container", parse_container),
    "slurm": ("slurm", parse_slurm),
    "pbs": ("pbs", parse_pbs),
    "queue_limit": ("queue_limit_s", values.parse_duration),
    "job": ("job", _parse_job),
    "config": ("config", _parse_config),
    "import": ("imports", values.parse_words),
    "snapshot": ("snapshot", values.parse_flag),
    "user": ("user", values.parse_user),
}
# The reserved keys that determine when and where a job runs and from which copy of the code, not its parameters.
SCHEDULING: Final = frozenset(
    {
        "needs",
        "priority",
        "retries",
        "retry_on",
        "time_limit",
        "gpu_memory",
        "outlet",
        "resources",
        "slurm",
        "pbs",
        "queue_limit",
        "snapshot",
    }
)
# Whose job it is.
OWNER: Final = "user"
# What does not count in the digest of an entry: a job that differs in it computes the same.
UNDIGESTED: Final = SCHEDULING | {OWNER}
RESERVED: Final = frozenset(READERS) | {"job_id", "method"}

# Shared by all entries: msgspec would give each of them an empty dict of its own.
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One job to run. Fields that are None or empty are unset, and the method's setting applies.

    `params` are all keys that are not reserved. `gpus` None means one on a GPU slot, and a CPU slot takes the job as
    well. `gpu_memory_mib` is what it takes of its GPU, which it then may share. `outlet` names the outlets that may run
    the job, the preferred one first. `order` is the position in the manifest. `written` holds the reserved keys as the
    manifest has them. `cwd` is where the command runs, below the workspace's root, which it is when unset. `env_file`
    is the path of a file with secrets where the job runs. `slurm` and `pbs` count on hosts of these types.

    `job` is the key of a class with @job, which runs with the configuration `config` instead of the method's command;
    `imports` are the modules and files that define such classes. The method's other settings apply. `snapshot`:
    attempts run a copy of the code as it was when the job was queued. `user` owns the job: as written, else the owner
    of the manifest's file.
    """

    job_id: str
    method: str
    params: Mapping[str, Any] = _NOTHING
    command: str | tuple[str, ...] | None = None
    gpus: int | None = None
    gpu_memory_mib: int | None = None
    needs: tuple[str, ...] = ()
    priority: int = 0
    retries: int | None = None
    retry_on: tuple[str, ...] | None = None
    time_limit_s: float | None = None
    env: Mapping[str, str] = _NOTHING
    env_file: str | None = None
    cwd: str | None = None
    outlet: tuple[str, ...] = ()
    resources: Mapping[str, Any] = _NOTHING
    container: Container | None = None
    slurm: SlurmOptions | None = None
    pbs: PbsOptions | None = None
    queue_limit_s: float | None = None
    job: str | None = None
    config: Mapping[str, Any] = _NOTHING
    imports: tuple[str, ...] = ()
    snapshot: bool | None = None
    user: str | None = None
    order: int = 0
    written: Mapping[str, Any] = _NOTHING

    def document(self) -> dict[str, Any]:
        """The JSON object of this entry: id, method, parameters, then the reserved keys as written, and its owner."""
        owner = {} if self.user is None else {OWNER: self.user}
        return {"job_id": self.job_id, "method": self.method, **self.params, **self._words(), **owner}

    def owned_by(self, user: str | None) -> Entry:
        """The same entry as a job of `user`; None: of whom it is."""
        return self if user in (None, self.user) else msgspec.structs.replace(self, user=user)

    def limited_to(self, time_limit: str | None) -> Entry:
        """The same entry with another time limit, as entries have it; None: with its own."""
        if time_limit is None:
            return self
        written = {**self.written, "time_limit": time_limit}
        return msgspec.structs.replace(self, time_limit_s=values.parse_duration(time_limit), written=written)

    def value(self, key: str) -> Any:
        """The value of a parameter or of a reserved key; None when the entry does not have it."""
        if key in self.params:
            return self.params[key]
        if key in ("job_id", "method", OWNER):
            return getattr(self, key)
        return self._words().get(key)

    def digest(self) -> str:
        """Equal for entries that are the same to a job: those in UNDIGESTED do not count.

        Nor do fields that are unset, so that a new reserved key does not change the digests of entries without it.
        """
        seen: dict[str, Any] = {"method": self.method, "params": dict(self.params)}
        for field in _DIGESTED:
            value = getattr(self, field)
            if value != _DEFAULTS[field]:
                seen[field] = _plain(value)
        try:
            text = msgspec.json.encode(seen, order="sorted")
        except (ValueError, OverflowError):
            # Whole numbers beyond 64 bits, halves of surrogate pairs.
            text = json.dumps(seen, sort_keys=True).encode()
        # 64 bits suffice against accidents, and importing hashlib would cost `status` more than all digests together.
        return f"{zlib.crc32(text):08x}{zlib.crc32(text[::-1]):08x}"

    def has(self, key: str) -> bool:
        """Whether the entry has `key`."""
        return (
            key in self.params
            or key in ("job_id", "method")
            or (key == OWNER and self.user is not None)
            or key in self._words()
        )

    def shape(self) -> Hashable:
        """Equal for entries that differ only in the values of parameters: a check of keys is needed once per shape."""
        return self.method, self.command, self.job is None, tuple(self.params), tuple(self._words())

    def _words(self) -> Mapping[str, Any]:
        if self.written:
            return self.written
        # Not read from a manifest: the fields that differ from the defaults were set.
        words: dict[str, Any] = {}
        for word, (field, _) in READERS.items():
            value = getattr(self, field)
            if value != _DEFAULTS[field]:
                words[word] = list(value) if isinstance(value, tuple) else _plain(value)
        if self.gpu_memory_mib is not None:
            words["gpu_memory"] = f"{self.gpu_memory_mib}M"
        return words


DIGEST_SIZE: Final = 8


def packed_digest(digest: str) -> bytes | None:
    """What Entry.digest returns, in half of the room; None for anything else."""
    try:
        packed = bytes.fromhex(digest)
    except ValueError:
        return None
    return packed if len(packed) == DIGEST_SIZE and packed.hex() == digest else None


def _plain(value: Any) -> Any:
    """A field's value as JSON has it; fields of a struct that are unset are left out."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return dict(value) if isinstance(value, Mapping) else value


_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(Entry)}
_DIGESTED: Final = tuple(field for word, (field, _) in READERS.items() if word not in UNDIGESTED)


def read_entry(document: dict[str, Any], order: int, owner: str | None = None) -> tuple[Entry | None, list[str]]:
    """The entry in `document`, whose items are removed, and every fault in it as `key = value: expected ...`.

    `owner` owns the job if the document does not say who does.

    An entry with faults has only the fields that could be parsed, for comparison with others; None without a valid id.
    """
    job_id = document.pop("job_id", None)
    method = document.pop("method", None)
    faults: list[str] = []
    for key, value in (("job_id", job_id), ("method", method)):
        if not values.is_name(value):
            faults.append(_name_fault(key, value))
    if READERS.keys().isdisjoint(document):
        fields: dict[str, Any] = {OWNER: owner}
        return _make(job_id, method, document, order, fields, faults), faults
    written = {word: document.pop(word) for word in [word for word in document if word in READERS]}
    fields = {"written": written, OWNER: owner}
    for word, value in written.items():
        if value is None:
            continue
        field, read = READERS[word]
        try:
            fields[field] = read(value)
        except values.BadValueError as error:
            faults.append(f"{word} = {values.shown_at(word, value)}: {error}")
    if fields.get("gpu_memory_mib") is not None and fields.get("gpus") == 0:
        faults.append(f"gpu_memory = {values.shown(written['gpu_memory'])}: gpus is 0, so there is no GPU to share")
    if written.get("job") is None:
        for word in ("config", "import"):
            if written.get(word) is not None:
                faults.append(f"{word} = {values.shown(written[word])}: only an entry with `job` has a {word}")
    return _make(job_id, method, document, order, fields, faults), faults


def _make(
    job_id: Any, method: Any, params: dict[str, Any], order: int, fields: dict[str, Any], faults: list[str]
) -> Entry | None:
    if faults and not values.is_name(job_id):
        return None
    return Entry(job_id=job_id, method=method, params=params, order=order, **fields)


def _name_fault(key: str, value: object) -> str:
    if value is None:
        return f"{key} is missing: every entry needs one"
    try:
        values.parse_name(value)
    except values.BadValueError as error:
        return f"{key} = {values.shown_at(key, value)}: {error}"
    return ""
