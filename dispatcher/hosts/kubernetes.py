"""Readers of what Kubernetes takes: names, labels, resources and tolerations. Each names what is allowed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from dispatcher.base import values
from dispatcher.base.values import BadValueError
from dispatcher.hosts import fields

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and .../labels/
_PART: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_PART}(\.{_PART})*")
_WORD: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST_NAME: Final = 253
_LONGEST_WORD: Final = 63
_NAME_EXPECTED: Final = "expected small letters, digits, '-' and '.', beginning and ending with a letter or a digit"
# By these the dispatcher finds what it has made.
_RESERVED: Final = "dispatcher/"
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS: Final = ("Exists", "Equal")


def parse_object_name(value: object) -> str:
    """The name of an object, such as a claim or a queue."""
    text = fields.parse_word(value)
    if len(text) > _LONGEST_NAME or not _NAME.fullmatch(text):
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
    is_key = len(word) <= _LONGEST_WORD and _WORD.fullmatch(word) and (not slash or _NAME.fullmatch(prefix))
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
    keys = fields.read_all((f".{key}", key, _parse_label_key) for key in value)
    texts = fields.read_all((f".{key}", text, _parse_label) for key, text in value.items())
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
    if len(text) > _LONGEST_WORD or not _WORD.fullmatch(text):
        raise BadValueError(
            "expected at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
        )
    return text


def parse_toleration(value: object) -> Mapping[str, str]:
    """A toleration: taints of nodes that do not keep attempts away."""
    readers = {
        "key": _parse_key,
        "operator": fields.one_of(*_OPERATORS),
        "value": _parse_label,
        "effect": fields.one_of(*_EFFECTS),
        "tolerationSeconds": _parse_seconds,
    }
    expected = "keys such as {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}"
    return fields.read_struct(value, readers, (), expected)


def _parse_seconds(value: object) -> str:
    return str(values.parse_count(int(value) if isinstance(value, str) and value.isdecimal() else value))


def parse_mount_path(value: object) -> str:
    """Where a volume is mounted: an absolute path without variables."""
    text = fields.parse_path(value)
    if not text.startswith("/") or "$" in text or ":" in text or posixpath.normpath(text) != text or text == "/":
        raise BadValueError("expected an absolute path without variables and ':', such as /data")
    return text
