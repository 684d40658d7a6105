"""The entry of one job in a manifest: its id, its method, its parameters, and the keys that the dispatcher reads.

To add such a key, add an annotated field to Entry, or to job_keys.JobKeys where a method may set it for all its jobs,
and the code that uses it. A key that asks for hardware also becomes a field of outlets.base.Request, set by
pod.offers.request_of.
"""

# Without `from __future__ import annotations`: every command reads entries, and evaluating text takes time.

import functools
import json
import re
import zlib
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Final, Self, TypeAlias, get_type_hints

import msgspec

from dispatcher.base import values
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import lines_of
from dispatcher.base.schema.kinds import ENV, TEXT, Integer, Names, Words
from dispatcher.base.schema.types import Key, Value
from dispatcher.job_keys import NOTHING, JobKeys

_JOB_KEY: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*"


def _parse_job(value: object) -> str:
    """The key of a job's class: words joined by `/`."""
    if not isinstance(value, str) or not re.fullmatch(_JOB_KEY, value):
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


# Whose job it is.
OWNER: Final = "user"
# What must be there only with `job`.
_OF_JOBS: Final = ("config", "import")

_Directory: TypeAlias = Annotated[str, Value(_parse_cwd, TEXT)]
_User: TypeAlias = Annotated[str, Value(values.parse_user, TEXT)]
_JobKey: TypeAlias = Annotated[str, Value(_parse_job, {"type": "string", "pattern": f"^{_JOB_KEY}$"})]
_Config: TypeAlias = Annotated[Mapping[str, Any], Value(_parse_config, {"type": "object"})]


class Entry(JobKeys, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One job to run. Fields that are None or empty are unset, and the method's setting applies.

    `params` are all keys that are not reserved. `order` is the position in the manifest. `written` holds the reserved
    keys as the manifest has them. `job` runs with the configuration `config` instead of the method's command.
    """

    job_id: str
    method: str
    params: Mapping[str, Any] = NOTHING
    env: Annotated[
        Mapping[str, str],
        Value(values.parse_env, ENV),
        Key("environment variables, `{OMP_NUM_THREADS: 2}`; added to the method's; those that say which GPUs are seen "
            "can only [narrow](pods.md#which-gpus-a-job-sees) that", default="none"),
    ] = NOTHING  # fmt: skip
    needs: Annotated[
        Names,
        Key("a list of ids of jobs that must be done first ([when one is done again]"
            "(entries.md#when-a-needed-job-is-done-again))", is_digested=False),
    ] = ()  # fmt: skip
    priority: Annotated[Integer, Key("a whole number; jobs with a higher one are claimed first", is_digested=False)] = 0
    cwd: Annotated[
        _Directory | None,
        Key("where the command runs: a directory below the workspace's root (of [shipped code](outlets/code.md), below "
            "its root), or an absolute path", default="the root"),
    ] = None  # fmt: skip
    outlet: Annotated[
        Words,
        Key("where it may run: one name or a list, the preferred one first", default="anywhere", is_digested=False),
    ] = ()
    job: Annotated[
        _JobKey | None, Key("a job class instead of a script, such as `gpt/train/pretrain` ([Jobs in JAX](jax.md))")
    ] = None
    config: Annotated[_Config, Key("the configuration of that class; only with `job`", default="its defaults")] = (
        NOTHING
    )
    imports: Annotated[
        Words,
        Key("modules or files that define such classes; only with `job`", default="`jobs/` of the workspace",
            name="import"),
    ] = ()  # fmt: skip
    user: Annotated[
        _User | None,
        Key("[whose job](entries.md#owner-of-a-job) it is", default="who submitted it, else the file's owner",
            is_digested=False),
    ] = None  # fmt: skip
    order: int = 0
    written: Mapping[str, Any] = NOTHING

    def document(self) -> dict[str, Any]:
        """The JSON object of this entry: id, method, parameters, then the reserved keys as written, and its owner."""
        owner = {} if self.user is None else {OWNER: self.user}
        return {"job_id": self.job_id, "method": self.method, **self.params, **self._words(), **owner}

    def owned_by(self, user: str | None) -> Self:
        """The same entry as a job of `user`; None: of whom it is."""
        return self if user in (None, self.user) else msgspec.structs.replace(self, user=user)

    def limited_to(self, time_limit: str | None) -> Self:
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
            value = getattr(self, field.name)
            if value != field.default:
                seen[field.name] = _plain(value)
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
        return reading.written(Entry, self)


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


# The reserved keys. All other keys are parameters.
KEYS: Final[Mapping[str, reading.Field]] = reading.fields(Entry)
# The reserved keys that do not count in the digest of an entry: a job that differs in them computes the same.
UNDIGESTED: Final = frozenset(key for key, field in KEYS.items() if not field.key.is_digested)
# Those of them that say when and where a job runs and from which copy of the code, not whose it is.
SCHEDULING: Final = UNDIGESTED - {OWNER}
RESERVED: Final = frozenset(KEYS) | {"job_id", "method"}
# As tuples: a manifest may have a million entries.
_READERS: Final = {key: (field.name, field.read) for key, field in KEYS.items()}
_DIGESTED: Final = tuple(field for key, field in KEYS.items() if key not in UNDIGESTED)


@functools.cache
def form() -> str:
    """Changes with the fields of entries and their types: what was saved with another form cannot be read."""
    return repr(get_type_hints(Entry))


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
    if KEYS.keys().isdisjoint(document):
        fields: dict[str, Any] = {OWNER: owner}
        return _make(job_id, method, document, order, fields, faults), faults
    written = {word: document.pop(word) for word in [word for word in document if word in KEYS]}
    fields = {"written": written, OWNER: owner}
    for word, value in written.items():
        if value is None:
            continue
        name, read = _READERS[word]
        try:
            fields[name] = read(value)
        except values.BadValueError as error:
            faults += lines_of(error, value, word)
    if fields.get("gpu_memory_mib") is not None and fields.get("gpus") == 0:
        faults.append(f"gpu_memory = {values.shown(written['gpu_memory'])}: gpus is 0, so there is no GPU to share")
    if written.get("job") is None:
        for word in _OF_JOBS:
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
