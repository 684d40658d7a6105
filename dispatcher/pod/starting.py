"""Starting what was claimed: rendered here, delivered and started by the attempt's outlet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from dispatcher.base import files
from dispatcher.errors import CodeError, DispatcherError, OutletError, StorageError
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import CANNOT_START, Bundle, Ended, Key, Request, cannot_start
from dispatcher.outlets.bundle import deliver, entry_bundle, render
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.env_file import refuse_env_file
from dispatcher.pod.claim import Choice
from dispatcher.pod.pack import Pack
from dispatcher.pod.participant import Shared
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.provenance.origin import Origin


class Claimed(msgspec.Struct, frozen=True):
    """A choice that is journalled, the number of its attempt, and the copy of the code that it runs, if any."""

    choice: Choice
    number: int
    snapshot: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.choice.entry.job_id, self.number)


class Starter:
    """Renders what was claimed and submits it to the outlets; `note` is given the origins of what was submitted."""

    def __init__(
        self,
        shared: Shared,
        request_of: Callable[[Entry], Request],
        copy_of: Callable[[str], CodeSnapshot],
        note: Callable[[Iterable[Origin]], None],
    ) -> None:
        self._config = shared.config
        self._pod = shared.options.pod
        self._outlets = shared.outlets
        self._attempts = shared.attempts
        self._request_of = request_of
        self._copy_of = copy_of
        self._log = shared.log
        self._note = note

    def start(self, claims: Sequence[Claimed]) -> None:
        """Start these attempts; what keeps one from starting becomes its end, never an exception."""
        bundles: dict[str, list[Bundle]] = {}
        added = []
        firsts: dict[Pack, Key] = {}
        for claimed in claims:
            choice = claimed.choice
            attempt = self._attempts.add(claimed.key, choice.outlet, choice.slot, choice.pack)
            added.append(attempt)
            if choice.starts_anew:
                self._log(f"{choice.entry.job_id} starts anew: {choice.outlet} does not see its checkpoint")
            bundle = self._render(attempt, claimed)
            if bundle is None:
                continue
            if choice.pack is not None:
                bundle = msgspec.structs.replace(bundle, pack=firsts.setdefault(choice.pack, bundle.key))
            bundles.setdefault(choice.outlet, []).append(bundle)
        for name, group in bundles.items():
            self._outlets[name].submit(group)
        self._note(bundle.origin for group in bundles.values() for bundle in group if bundle.origin is not None)
        self._attempts.poll(attempt for attempt in added if attempt.ended is None)
        for attempt in added:
            self._report(attempt)

    def _render(self, attempt: RunningAttempt, claimed: Claimed) -> Bundle | None:
        choice, outlet = claimed.choice, self._outlets[claimed.choice.outlet]
        assigned = Assignment(
            entry=choice.entry,
            key=claimed.key,
            pod=self._pod,
            request=self._request_of(choice.entry),
            slot=choice.slot,
        )
        try:
            if claimed.snapshot is not None:
                assigned = msgspec.structs.replace(assigned, code=self._copy_of(claimed.snapshot))
            refuse_env_file(self._config.now, choice.entry, choice.outlet)
            return render(self._config.now, assigned, outlet.site(choice.slot, assigned.request))
        except DispatcherError as error:
            # What cannot be rendered is the entry's fault; a workspace that cannot be read is not.
            is_entrys = not (isinstance(error, (StorageError, OutletError, CodeError)) or files.is_passing(error))
            attempt.ended = Ended(None, CANNOT_START, error=str(error)) if is_entrys else cannot_start(error)
        with contextlib.suppress(StorageError):
            # What the attempt would have run with is shown all the same.
            deliver(entry_bundle(assigned), self._config.now.layout)
        return None

    def _report(self, attempt: RunningAttempt) -> None:
        job, number = attempt.key.job_id, attempt.key.number
        if attempt.ended is not None and attempt.ended.exit_reason == CANNOT_START:
            self._log(f"cannot start {job} (attempt {number}): {attempt.ended.error}")
        elif attempt.placement is not None and attempt.placement.pid is not None:
            where = self._outlets[attempt.outlet].capacity.slot_text(attempt.slot)
            self._log(f"start {job} (attempt {number}) on {where}, pid {attempt.placement.pid}")
        else:
            self._log(f"submit {job} (attempt {number}) to {attempt.outlet}")
