"""From journal lines to how things stand now. Pure: the same lines give the same fold on every host."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import Record, apply, make_record

# How many different entries must fail alike in a row before claiming pauses.
STREAK_LENGTH: Final = 5
# Old versions of records kept in memory, to judge hand edits of a copy that is a few changes old.
_REMEMBERED: Final = 20_000

_HOST: Final = "host:"

# Events by which somebody settles a refused edit of the same entry.
_SETTLING: Final = frozenset(
    {"cleared", "adopted", "edited", "requeued", "held", "abandoned", "marked", "requested", "forgotten"}
)
# Events that change a record and nothing else: the bulk of every journal.
_PLAIN: Final = frozenset({"queued", "claimed", "started", "submitted", "snapshot"})


class Pause(msgspec.Struct, frozen=True):
    """Claiming of a method (`fft`), on a GPU (`gpu:NAME:3`) or on a host (`host:NAME`) is paused until
    `dispatcher unpause SCOPE`.
    """

    scope: str
    why: str
    at: str


class Refusal(msgspec.Struct, frozen=True):
    """A hand edit that could not be used; `line` is what was written, `job` is empty for the file as a whole."""

    job: str
    line: str
    why: str
    at: str


class Taken(msgspec.Struct, frozen=True):
    """What was taken in of a job's line of `rev` (0: a line without one) by change `seq`; null removed a field."""

    rev: int
    fields: Mapping[str, Any]
    seq: int = 0


class Streak(msgspec.Struct, frozen=True):
    """Failures in a row within a scope; `jobs` are different entries, oldest first.

    `reason` and `error` are those of the last failure, word for word.
    """

    signature: str = ""
    jobs: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    reason: str = ""
    error: str | None = None


def host_scope(host: str) -> str:
    """The scope in which claims on all of a host are paused."""
    return f"{_HOST}{host}"


def signature(error: str | None, reason: str | None, job: str = "") -> str:
    """What is the same in the same failure of different entries: the reason as it is, and the error line without ids,
    numbers and paths.
    """
    text = error or ""
    if job:
        text = re.sub(rf"(?<![\w-]){re.escape(job)}(?![\w-])", "<job>", text)
    text = re.sub(r"(?:[\w.~-]*/)+[\w.~-]*", "<path>", text)
    text = re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?", "<n>", text)
    text = re.sub(r"\s+", " ", text).strip()
    return f"{reason or 'unknown'}: {text}"[:300]


class Fold:
    """All records and what else the journal says, after line `seq`."""

    def __init__(self) -> None:
        self.seq = 0
        self.records: dict[str, Record] = {}
        self.born: dict[str, int] = {}
        self.pauses: dict[str, Pause] = {}
        self.refusals: dict[str, Refusal] = {}
        self.streaks: dict[str, Streak] = {}
        self.taken: dict[str, Taken] = {}
        self.lock_kind: str | None = None
        self.touched: set[str] = set()
        self._versions: OrderedDict[tuple[str, int], Record] = OrderedDict()

    def extend(self, lines: Iterable[Line]) -> None:
        """Take in lines that follow `seq`."""
        for line in lines:
            if line.job is not None and (line.set or line.event == "forgotten"):
                self._take_record(line)
                self._take_edit(line)
            if line.event not in _PLAIN:
                self._take_rest(line)
            self.seq = line.seq

    def extend_in_bulk(self, lines: Iterable[Line]) -> None:
        """The same for many lines: each record is built once, and no old versions are remembered."""
        fields: dict[str, dict[str, Any]] = {}
        for line in lines:
            job = line.job
            if job is not None and (line.set or line.event == "forgotten"):
                if line.event == "forgotten":
                    fields.pop(job, None)
                    self._forget(job)
                else:
                    known = fields.get(job)
                    if known is None:
                        old = self.records.get(job)
                        fields[job] = known = {} if old is None else old.fields()
                        self.born.setdefault(job, _birth(line))
                    known.update(line.set)
                    if line.event != "snapshot":
                        known["rev"] = line.seq
                    self._take_edit(line)
            if line.event not in _PLAIN:
                self._take_rest(line)
            self.seq = line.seq
        for job, values in fields.items():
            self.records[job] = make_record(values)
        self.touched.update(fields)

    def version(self, job: str, rev: int) -> Record | None:
        """The record of `job` as it was at `rev`, if it is still remembered."""
        current = self.records.get(job)
        if current is not None and current.rev == rev:
            return current
        return self._versions.get((job, rev))

    def put_back(self, job: str, record: Record | None, born: int | None, taken: Taken | None) -> None:
        """Undo changes of a record whose lines were never written."""
        current = self.records.get(job)
        if current is not None and current is not record:
            # The next line will bear this number, and may be another job's.
            self._versions.pop((job, current.rev), None)
        if record is None:
            self.records.pop(job, None)
            self.born.pop(job, None)
        else:
            self.records[job] = record
            self.born[job] = born or 0
        self.taken.pop(job, None)
        if taken is not None:
            self.taken[job] = taken
        self.touched.add(job)

    def drain_touched(self) -> set[str]:
        """The jobs whose records changed since the last call."""
        touched, self.touched = self.touched, set()
        return touched

    def _take_record(self, line: Line) -> None:
        job = line.job
        assert job is not None
        if line.event == "forgotten":
            self._forget(job)
            return
        old = self.records.get(job)
        if old is None:
            self.born.setdefault(job, _birth(line))
        record = apply(old, line.set, line.set["rev"] if line.event == "snapshot" else line.seq)
        self.records[job] = record
        self.touched.add(job)
        self._versions[(job, record.rev)] = record
        if len(self._versions) > _REMEMBERED:
            self._versions.popitem(last=False)

    def _take_edit(self, line: Line) -> None:
        """Remember what a person wrote into the job's line: the same file may be looked at again."""
        if line.data is not None and "edit" in line.data:
            edit = line.data["edit"]
            self.taken[str(line.job)] = Taken(int(edit["rev"]), dict(edit["fields"]), int(edit.get("seq", line.seq)))

    def _forget(self, job: str) -> None:
        self.records.pop(job, None)
        self.born.pop(job, None)
        self.taken.pop(job, None)
        self.touched.add(job)

    def _take_rest(self, line: Line) -> None:
        event, data = line.event, line.data or {}
        if event == "refused":
            job = line.job or ""
            self.refusals[job] = Refusal(job, str(data.get("line", "")), str(data.get("why", "")), line.at)
        elif event in _SETTLING:
            self.refusals.pop(line.job or "", None)
        elif event == "paused":
            scope = str(data["scope"])
            self.pauses[scope] = Pause(scope, str(data.get("why", "")), line.at)
        elif event == "resumed":
            self.pauses.pop(str(data["scope"]), None)
            self.streaks.pop(str(data["scope"]), None)
        elif event == "streak":
            self.streaks[str(data["scope"])] = msgspec.convert(data["streak"], Streak)
        elif event == "lock":
            self.lock_kind = str(data["kind"])
        elif event in ("done", "failed", "retried", "auto_requeued") and data:
            self._count_streaks(line, data)

    def _count_streaks(self, line: Line, data: dict[str, Any]) -> None:
        """`data` names the scopes in which the end of an attempt counts; `suspect`: the host may be to blame for it."""
        method = data.get("method")
        for scope in filter(None, (method, data.get("gpu"), data.get("host"))):
            is_host = scope.startswith(_HOST)
            if line.event == "done" or (is_host and not data.get("suspect")):
                self.streaks.pop(scope, None)
                continue
            reason, error = line.set.get("reason"), line.set.get("error")
            # A GPU or a host is suspected whatever the failures look like.
            key = signature(error, reason, line.job or "") if scope == method else ""
            old = self.streaks.get(scope, Streak())
            jobs = old.jobs if old.signature == key else ()
            methods = old.methods if old.signature == key else ()
            self.streaks[scope] = Streak(
                signature=key,
                jobs=(*(j for j in jobs if j != line.job), str(line.job))[-STREAK_LENGTH:],
                methods=(*(m for m in methods if m != method), *([method] if method else []))[-STREAK_LENGTH:],
                reason=str(reason),
                error=error,
            )


def _birth(line: Line) -> int:
    """The `seq` at which a record came to be, which a snapshot repeats."""
    return int((line.data or {})["born"]) if line.event == "snapshot" else line.seq


def snapshot(fold: Fold, at: str, by: str) -> Iterator[Line]:
    """Lines from which a new fold comes to stand as `fold` does; all bear its `seq`."""

    def line(event: str, job: str | None = None, when: str = at, **rest: Any) -> Line:
        return Line(seq=fold.seq, at=when, by=by, event=event, job=job, **rest)

    for job, record in fold.records.items():
        data: dict[str, Any] = {"born": fold.born[job]}
        if job in fold.taken:
            data["edit"] = msgspec.to_builtins(fold.taken[job])
        yield line("snapshot", job, set=record.fields(), data=data)
    for pause in fold.pauses.values():
        yield line("paused", when=pause.at, data={"scope": pause.scope, "why": pause.why})
    for refusal in fold.refusals.values():
        yield line("refused", refusal.job or None, refusal.at, data={"line": refusal.line, "why": refusal.why})
    for scope, streak in fold.streaks.items():
        yield line("streak", data={"scope": scope, "streak": msgspec.to_builtins(streak)})


def tripped(streak: Streak, scope: str) -> str | None:
    """Why claiming within `scope` should pause, if it should."""
    if len(streak.jobs) < STREAK_LENGTH:
        return None
    names = ", ".join(streak.jobs)
    last = f"the last one, {streak.jobs[-1]}: {streak.reason}" + (f": {streak.error}" if streak.error else "")
    if scope.startswith(_HOST):
        return f"{STREAK_LENGTH} different jobs in a row could not run here ({names}); {last}"
    if not scope.startswith("gpu:"):
        return f"{STREAK_LENGTH} different jobs in a row failed alike ({names}); {last}"
    if len(streak.methods) > 1:
        methods = ", ".join(streak.methods)
        return f"{STREAK_LENGTH} different jobs of methods {methods} failed here in a row ({names}); {last}"
    return None
