"""Readers of what Kubernetes takes: names, labels, resources and tolerations. Each names what is allowed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from dispatcher.base import values
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import read_all
from dispatcher.base.schema.kinds import TEXT, one_or_many_of
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import BadValueError
from dispatcher.hosts import fields

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and .../labels/
_PART: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = rf"{_PART}(\.{_PART})*"
_WORD: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LONGEST_NAME: Final = 253
_LONGEST_WORD: Final = 63
_NAME_EXPECTED: Final = "expected small letters, digits, '-' and '.', beginning and ending with a letter or a digit"
# By these the dispatcher finds what it has made.
_RESERVED: Final = "dispatcher/"


def parse_object_name(value: object) -> str:
    """The name of an object, such as a claim or a queue."""
    text = fields.parse_word(value)
    if len(text) > _LONGEST_NAME or not re.fullmatch(_NAME, text):
        raise BadValueError(_NAME_EXPECTED)
    return text


def parse_namespace(value: object) -> str:
    """The name of a namespace, which is shorter and has no dots."""
    text = parse_object_name(value)
    if len(text) > _LONGEST_WORD or "." in text:
        raise BadValueError(f"expected at most {_LONGEST_WORD} small letters, digits and '-'")
    return text


def _parse_key(value: object) -> str:
    """The key of a label or of a resource: `team`, `nvidia.com/gpu`."""
    text = fields.parse_word(value)
    prefix, slash, word = text.rpartition("/")
    is_key = len(word) <= _LONGEST_WORD and re.fullmatch(_WORD, word) and (not slash or re.fullmatch(_NAME, prefix))
    if not is_key or len(prefix) > _LONGEST_NAME:
        raise BadValueError("expected a key such as team or nvidia.com/gpu")
    return text


def parse_resource_key(value: object) -> str:
    """The key of devices of nodes; only those of Kubernetes itself have no domain."""
    text = _parse_key(value)
    if "/" not in text:
        raise BadValueError("expected a resource with its domain, such as nvidia.com/gpu or rdma/hca")
    return text


def parse_labels(value: object) -> Mapping[str, str]:
    """Labels: keys, and values of at most 63 characters."""
    if not isinstance(value, Mapping):
        raise BadValueError("expected names and values such as {team: speech}")
    keys = read_all((f".{key}", key, _parse_label_key) for key in value)
    texts = read_all((f".{key}", text, _parse_label) for key, text in value.items())
    return dict(zip(keys, texts, strict=True))


def _parse_label_key(value: object) -> str:
    text = _parse_key(value)
    if text.startswith(_RESERVED):
        raise BadValueError(f"labels of {_RESERVED} are set by the dispatcher")
    return text


def _parse_label(value: object) -> str:
    if value == "":
        return ""
    text = fields.parse_text(value)
    if len(text) > _LONGEST_WORD or not re.fullmatch(_WORD, text):
        raise BadValueError(
            "expected at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
        )
    return text


def _parse_seconds(value: object) -> str:
    return str(values.parse_count(int(value) if isinstance(value, str) and value.isdecimal() else value))


def parse_mount_path(value: object) -> str:
    """Where a volume is mounted: an absolute path without variables."""
    text = fields.parse_path(value)
    if not text.startswith("/") or "$" in text or ":" in text or posixpath.normpath(text) != text or text == "/":
        raise BadValueError("expected an absolute path without variables and ':', such as /data")
    return text


_OBJECT_NAME: Final = {"type": "string", "pattern": f"^{_NAME}$", "maxLength": _LONGEST_NAME}
_LABELS: Final = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
ObjectName: TypeAlias = Annotated[str, Value(parse_object_name, _OBJECT_NAME)]
Namespace: TypeAlias = Annotated[str, Value(parse_namespace, {**_OBJECT_NAME, "maxLength": _LONGEST_WORD})]
LabelKey: TypeAlias = Annotated[str, Value(_parse_key, TEXT)]
ResourceKey: TypeAlias = Annotated[str, Value(parse_resource_key, {"type": "string", "pattern": "/"})]
MountPath: TypeAlias = Annotated[str, Value(parse_mount_path, {"type": "string", "pattern": "^/[^$:]+$"})]
LabelValue: TypeAlias = Annotated[str, Value(_parse_label, {"type": ["string", "integer"]})]
Labels: TypeAlias = Annotated[Mapping[str, str], Value(parse_labels, _LABELS)]
Seconds: TypeAlias = Annotated[str, Value(_parse_seconds, {"type": ["string", "integer"]})]


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """Taints of nodes that do not keep attempts away, in the words of Kubernetes."""

    EXAMPLE: ClassVar[str] = "{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}"

    key: Annotated[LabelKey | None, Key("the key of the taint")] = None
    operator: Annotated[Literal["Exists", "Equal"] | None, Key("whether `value` counts")] = None
    value: Annotated[LabelValue | None, Key("the value of the taint")] = None
    effect: Annotated[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None, Key("the effect of the taint")] = (
        None
    )
    toleration_s: Annotated[Seconds | None, Key("for how long it is tolerated", name="tolerationSeconds")] = None


def _parse_toleration(value: object) -> Mapping[str, str]:
    return reading.written(Toleration, reading.convert(Toleration, value))


Tolerations: TypeAlias = Annotated[
    tuple[Mapping[str, str], ...], Value(fields.listed(_parse_toleration), one_or_many_of(Toleration))
]
