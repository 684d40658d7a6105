"""Attempts whose outlet cannot tell how they are: which, why, and since when."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import msgspec

from dispatcher.base.messages import first_names
from dispatcher.outlets.base import Key, Report, Unknown
from dispatcher.run_state.journal import now_text


class _Case(msgspec.Struct, frozen=True):
    """`since` is a journal time."""

    outlet: str
    why: str
    since: str


class UnknownAttempts:
    """Kept up to date with the reports of outlets; shown as notes of the pod."""

    def __init__(self) -> None:
        self._cases: dict[Key, _Case] = {}

    def take_in(self, outlet: str, reports: Mapping[Key, Report]) -> None:
        """What an outlet has reported by now."""
        for key, report in reports.items():
            before = self._cases.pop(key, None)
            if isinstance(report.status, Unknown):
                since = now_text(time.time()) if before is None else before.since
                self._cases[key] = _Case(outlet, report.status.why, since)

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all attempts but these."""
        self._cases = {key: case for key, case in self._cases.items() if key in keys}

    def notes(self) -> list[str]:
        """One line for each outlet and reason."""
        groups: dict[tuple[str, str], list[Key]] = {}
        for key, case in self._cases.items():
            groups.setdefault((case.outlet, case.why), []).append(key)
        return [
            f"outlet {outlet}: {first_names([key.job_id for key in keys])} unknown: {why} "
            f"(since {min(self._cases[key].since for key in keys)})"
            for (outlet, why), keys in groups.items()
        ]
