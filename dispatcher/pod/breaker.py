"""The circuit breaker: what is not claimed any more because job after job has failed. Pure.

Only the evidence is blamed. Jobs count that have failed for good, each once, since their method was last unpaused. Of
those that fail alike (same reason, same error line), `pause_after` have something in common: values of parameters, or
only the method. Claiming of just these jobs is paused (`fft:lr=1.0`), unless something speaks against it: a job among
them that has succeeded, or one about which nothing is known. About a job nothing is known that has a value with which
none has failed, as long as fewer than `pause_after` different values of that key have.

So a corner of a grid that diverges is paused alone, and a script with a syntax error pauses its method. A success
counts no more once `_OUTDATED` times as many have failed alike after it: the script may have been broken since.

A host is paused when jobs of different methods could not run there in a row, for one method when all are of that one:
a program may kill its own process group. A GPU is paused when jobs of different methods that succeed elsewhere fail on
it in a row. One success within its scope ends each of these pauses.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dispatcher.base.messages import counted, first_names
from dispatcher.config import Method
from dispatcher.matrix.entry import Entry
from dispatcher.pod.outcome import NO_FAULT
from dispatcher.run_state.facets.pauses import Paused, Streak, host_scope, keys_of, method_scope, value_text, values_of
from dispatcher.run_state.failures import signature
from dispatcher.run_state.states import BY_HAND, Record, State

# So many different jobs in a row pause a GPU or a host, and so many of them must be of each of two methods.
_OF_PLACE: Final = 5
_OF_EACH: Final = 2
_OUTDATED: Final = 4
# How many failed jobs are compared, as a multiple of `pause_after`, and how many others are looked at. Of very large
# manifests these are samples: some neighbours here and there.
_COMPARED: Final = 20
_MOST_SEEN: Final = 20_000
_NEIGHBOURS: Final = 16
_RECENT: Final = 100
_MOST_KEPT: Final = 2_000
# One that was requeued as often as it may be (`lost 21 times`) is no fault of the job either.
_GAVE_UP: Final = re.compile(r".* \d+ times")

_signature = functools.lru_cache(maxsize=1024)(signature)
Values = Mapping[str, str | None]


class Breaker:
    """Decides what is paused. `entries()` are those of the manifest in force."""

    def __init__(
        self,
        method_of: Callable[[str], Method],
        entries: Callable[[], Mapping[str, Entry]],
        record_of: Callable[[str], Record | None],
    ) -> None:
        self._method_of = method_of
        self._entries = entries
        self._record_of = record_of
        # By what was not paused: the job that spoke against it, which is likely to do so again.
        self._witnesses: dict[tuple[str, frozenset[tuple[str, str | None]]], str] = {}
        # Those that succeeded last are the most likely to do so.
        self._succeeded: deque[str] = deque(maxlen=_RECENT)
        # Of jobs that have failed: they are compared with every further one.
        self._values: dict[str, tuple[Entry, Values]] = {}

    def after_success(self, job: str) -> None:
        """A job has succeeded."""
        self._succeeded.appendleft(job)

    def after_failure(self, job: str, entry: Entry, streak: Streak) -> Paused | None:
        """What is to be paused because a job of a method has failed; `streak` are the failed jobs of the method."""
        method = self._method_of(entry.method)
        failed = [one for one in streak.jobs if self._failed_by_itself(one) is not None]
        if method.max_fails is not None and len(failed) >= method.max_fails:
            why = f"max_fails {method.max_fails}: {counted(len(failed), 'job')} failed ({first_names(failed)})"
            return Paused(scope=entry.method, why=why)
        most = method.pause_after
        if most is None or len(failed) < most:
            return None
        alike = self._alike(job, failed[-_COMPARED * most :])
        if len(alike) < most:
            return None
        for common, jobs in _groups(alike, most):
            holds_up = self._holds_up(entry.method, common, {one: alike[one] for one in jobs}, most)
            told = {} if holds_up is None else self._telling(entry.method, common)
            if holds_up or (holds_up is False and not told):
                names = f"{'the last ones ' if len(jobs) > most else ''}{', '.join(jobs[-most:])}"
                why = f"{len(jobs)} jobs failed alike: {_cause(streak.reason, streak.error)} ({names})"
                return Paused(scope=method_scope(entry.method, told), why=why, values=told, until_success=True)
        return None

    def on_host(self, host: str, streak: Streak) -> Paused | None:
        """What is to be paused because jobs could not run on a host."""
        counts = Counter(streak.methods)
        alone = [method for method, count in counts.items() if count >= _OF_PLACE]
        of_each = [method for method, count in counts.items() if count >= _OF_EACH]
        if len(of_each) > 1 and len(streak.jobs) >= _OF_PLACE:
            scope, jobs = host_scope(host), streak.jobs
        elif alone:
            scope = host_scope(host, alone[0])
            jobs = tuple(job for job, method in zip(streak.jobs, streak.methods, strict=True) if method == alone[0])
        else:
            return None
        names = ", ".join(jobs[-_OF_PLACE:])
        why = f"{_OF_PLACE} jobs in a row could not run here: {_cause(streak.reason, streak.error)} ({names})"
        return Paused(scope=scope, why=why, until_success=True)

    def on_gpu(self, scope: str, host: str, gpu: object, streak: Streak) -> Paused | None:
        """What is to be paused because jobs have failed on a GPU."""
        methods = list(dict.fromkeys(streak.methods))
        if len(streak.jobs) < _OF_PLACE or len(methods) < _OF_EACH:
            return None
        well = set()
        for job, entry in _sample(self._entries()):
            record = self._record_of(job) if entry.method in methods and entry.method not in well else None
            if record is not None and record.state is State.DONE and (record.host, record.gpu) != (host, gpu):
                well.add(entry.method)
        if len(well) < _OF_EACH:
            return None
        names, cause = ", ".join(streak.jobs[-_OF_PLACE:]), _cause(streak.reason, streak.error)
        listed = ", ".join(methods)
        why = f"{_OF_PLACE} jobs of methods {listed} failed here in a row, the last one with {cause} ({names})"
        return Paused(scope=scope, why=why, until_success=True)

    def _failed_by_itself(self, job: str) -> Record | None:
        """The record of a job that is failed; None where it is not, or a person has marked it so."""
        record = self._record_of(job)
        return record if record is not None and record.state is State.FAILED and record.reason != BY_HAND else None

    def _alike(self, job: str, failed: Iterable[str]) -> dict[str, Values]:
        """Those of the failed jobs that failed as this one did, and the values of each."""
        like, entries = self._kind_of_failure(job), self._entries()
        found: dict[str, Values] = {}
        for one in failed if like else ():
            if one in entries and self._kind_of_failure(one) == like:
                found[one] = self._values_of(one, entries[one])
        return found

    def _values_of(self, job: str, entry: Entry) -> Values:
        known = self._values.get(job)
        if known is None or known[0] != entry:
            if len(self._values) >= _MOST_KEPT:
                self._values.clear()
            known = self._values[job] = entry, values_of(entry)
        return known[1]

    def _kind_of_failure(self, job: str) -> str:
        """Equal for jobs that failed alike; empty where that was no fault of the job."""
        record = self._failed_by_itself(job)
        reason = "" if record is None else record.reason or ""
        if record is None or reason in NO_FAULT or _GAVE_UP.fullmatch(reason):
            return ""
        return _signature(record.error, record.reason, job)

    def _holds_up(
        self, method: str, common: dict[str, str | None], failed: Mapping[str, Values], most: int
    ) -> bool | None:
        """Whether a pause of the jobs with these values would hold any up; None where something speaks against it.

        A key that none of the failed jobs has is added to `common`, as one that must not be there.
        """
        entries = self._entries()
        keys = {key for values in failed.values() for key in values}
        known_keys = keys | {key.partition(".")[0] for key in keys}
        texts_of = {key: {values.get(key) for values in failed.values()} for key in keys - common.keys()}
        seen = {key: texts for key, texts in texts_of.items() if len(texts) < most}
        outdated_at = self._finished_at(list(failed)[-_OUTDATED * most]) if len(failed) >= _OUTDATED * most else ""
        place, holds_up = (method, frozenset(common.items())), False
        likely = [self._witnesses.get(place, ""), *self._succeeded]
        for job, entry in itertools.chain(((one, entries[one]) for one in likely if one in entries), _sample(entries)):
            if entry.method != method or any(value_text(entry, key) != text for key, text in common.items()):
                continue
            record = self._record_of(job)
            if record is None or record.reason == BY_HAND or record.state in (State.FAILED, State.ABANDONED):
                continue
            if record.state is State.DONE:
                speaks_against = (record.finished_at or "") >= outdated_at
            else:
                new = next((key for key in keys_of(entry) if key not in known_keys), None)
                if new is not None:
                    common[new] = None
                    continue
                speaks_against = any(value_text(entry, key) not in texts for key, texts in seen.items())
                holds_up = True
            if speaks_against:
                self._witnesses[place] = job
                return None
        return holds_up

    def _finished_at(self, job: str) -> str:
        record = self._record_of(job)
        return "" if record is None else record.finished_at or ""

    def _telling(self, method: str, common: Values) -> dict[str, str | None]:
        """Those of the values that not all jobs of the method have."""
        told: set[str] = set()
        for _, entry in _sample(self._entries()):
            if entry.method == method:
                told.update(key for key in common.keys() - told if value_text(entry, key) != common[key])
                if len(told) == len(common):
                    break
        return {key: text for key, text in common.items() if key in told}


def _groups(failed: Mapping[str, Values], most: int) -> Iterator[tuple[dict[str, str | None], list[str]]]:
    """What so many of the failed jobs have in common, and these jobs, the most jobs first.

    They are all of them, and those that share a value with the last one.
    """
    last = list(failed.values())[-1]
    groups = [list(failed)]
    groups += [[job for job, values in failed.items() if values.get(key) == last[key]] for key in last]
    known: list[dict[str, str | None]] = []
    for jobs in sorted(groups, key=len, reverse=True):
        common = {key: text for key, text in last.items() if all(failed[job].get(key) == text for job in jobs)}
        if len(jobs) >= most and common not in known:
            known.append(common)
            yield dict(common), jobs


def _sample(entries: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """All entries, or of very many some neighbours here and there."""
    jobs: Iterable[str] = entries
    if len(entries) > _MOST_SEEN:
        listed = list(entries)
        step = _NEIGHBOURS * -(-len(listed) // _MOST_SEEN)
        jobs = (job for at in range(0, len(listed), step) for job in listed[at : at + _NEIGHBOURS])
    return ((job, entries[job]) for job in jobs)


def _cause(reason: str, error: str | None) -> str:
    # It stands where a terminal still has room for it.
    return f"{reason}: {error}" if error else reason
