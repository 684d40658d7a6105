"""Typed changes of records: a misspelt field is an error and never becomes a field of a person's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

_T = TypeVar("_T")
# Not mentioned, removed, or set.
_Field: TypeAlias = _T | UnsetType | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a record that change: None removes one, UNSET leaves it as it is.

    `Record` says what they mean.
    """

    state: State | UnsetType = UNSET
    pod: _Field[str] = UNSET
    pid: _Field[int] = UNSET
    gpu: _Field[int | tuple[int, ...]] = UNSET
    started_at: _Field[str] = UNSET
    attempt: _Field[int] = UNSET
    host: _Field[str] = UNSET
    finished_at: _Field[str] = UNSET
    exit_code: _Field[int] = UNSET
    reason: _Field[str] = UNSET
    error: _Field[str] = UNSET
    outlet: _Field[str] = UNSET
    handle: _Field[str] = UNSET
    code: _Field[str] = UNSET
    external: _Field[bool] = UNSET
    priority: _Field[int] = UNSET
    desired: _Field[State] = UNSET
    retries: _Field[int] = UNSET
    requeues: _Field[int] = UNSET
    retry_at: _Field[str] = UNSET
    snapshot: _Field[str] = UNSET
    ran_with: _Field[str] = UNSET
    inputs_at: _Field[int] = UNSET
    redone: _Field[int] = UNSET
    backoff: _Field[int] = UNSET
    furthest_step: _Field[float] = UNSET
    furthest_checkpoint: _Field[float] = UNSET
    checkpoint_at: _Field[str] = UNSET
    user: _Field[str] = UNSET
    ad_hoc: _Field[bool] = UNSET
    time_limit: _Field[str] = UNSET
    has_result: _Field[bool] = UNSET
    force: _Field[bool] = UNSET

    def fields(self) -> dict[str, Any]:
        """The fields that change, as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def __or__(self, other: Change) -> Change:
        """Both changes; where both name a field, `other` counts."""
        given = {name: value for name in FIELDS if (value := getattr(other, name)) is not UNSET}
        return msgspec.structs.replace(self, **given)


FIELDS: Final = Change.__struct_fields__


class Decision(msgspec.Struct, frozen=True):
    """What becomes of an edit: `change` under `event`, nothing (no event), or a refusal; `refused` says why."""

    event: Event | None = None
    change: Change = Change()
    refused: str = ""


NOTHING: Final = Decision()


def split(fields: Mapping[str, Any]) -> tuple[Change, dict[str, Any]]:
    """The fields of a status line as a change, and those that people have added.

    Raises msgspec.ValidationError when one of ours has a wrong type. `rev` is not part of it.
    """
    known = {name: value for name, value in fields.items() if name in _NAMES}
    extra = {name: value for name, value in fields.items() if name not in _NAMES and name != "rev"}
    return msgspec.convert(known, Change), extra


_NAMES: Final = frozenset(FIELDS)
