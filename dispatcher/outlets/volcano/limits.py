"""How many Jobs a namespace may have: its ResourceQuotas. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dispatcher.outlets.batch.scheduler import Limits
from dispatcher.outlets.remote.operations import Ran, Run
from dispatcher.outlets.volcano.kubectl import Kubectl

# As quotas count objects of any kind; a Job that has ended is one of them for as long as it is kept.
_COUNTED: Final = "count/jobs.batch.volcano.sh"
# Jobs of one `kubectl create`, which makes them one after the other: nothing else is asked meanwhile.
_ARRAY_SIZE: Final = 50


class _Spec(msgspec.Struct, frozen=True):
    hard: dict[str, str | int] | None = None


class _Quota(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


class _Quotas(msgspec.Struct, frozen=True):
    items: list[_Quota] | None = None


def query(kubectl: Kubectl) -> Run:
    """The call that tells them; not every user may ask."""
    return Run(words=kubectl.words("get", "resourcequotas", "-o", "json"))


def read(answer: Any) -> Limits:
    """The limits, as far as they are told."""
    limits = Limits(array_size=_ARRAY_SIZE)
    if not isinstance(answer, Ran) or answer.exit_code != 0:
        return limits
    try:
        quotas = msgspec.json.decode(answer.out, type=_Quotas).items or []
    except msgspec.MsgspecError:
        return limits
    told = [str(quota.spec.hard[_COUNTED]) for quota in quotas if quota.spec.hard and _COUNTED in quota.spec.hard]
    return msgspec.structs.replace(
        limits, in_flight=min((int(text) for text in told if text.isdecimal()), default=None)
    )
