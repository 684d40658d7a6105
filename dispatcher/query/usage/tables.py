"""An account as text for people and as rows for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher.base.messages import counted
from dispatcher.base.times import Clock, duration_text
from dispatcher.query.selection import cell_text
from dispatcher.query.usage.history import SlotUse
from dispatcher.query.usage.ledger import DAY, OF_SLOTS, Hours, Usage, UsageRow
from dispatcher.run_state.journal import now_text

SLOTS: Final = "slot-hours"
GPUS: Final = "GPU-hours"
_TOTAL: Final = "total"
_NO_JOB: Final = "(no job)"
# As people read them: in a column of their own, and as headings of narrow columns.
_NAMES: Final = {
    SlotUse.UNKNOWN_END: "unknown end",
    SlotUse.RUNNING: "running so far",
    SlotUse.WAITED: "idle: jobs waited",
    SlotUse.PAUSED: "idle: paused",
    SlotUse.IDLE: "idle: otherwise",
}
_HEADINGS: Final = {SlotUse.UNKNOWN_END: "unknown end", SlotUse.WAITED: "idle: waited", SlotUse.PAUSED: "idle: paused"}
_IDLE: Final = frozenset({SlotUse.WAITED, SlotUse.PAUSED, SlotUse.IDLE})
_NOW_S: Final = 60.0
# What is left over counts only when it would show: a thousandth, and ten seconds.
_LEAST_SHARE, _LEAST_HOURS = 0.001, 10 / 3600


def window_text(usage: Usage, clock: Clock) -> str:
    """From when to when."""
    until = "now" if abs(clock.now_s - usage.until_s) < _NOW_S else clock(usage.until_s)
    return f"{clock(usage.since_s)} to {until} ({duration_text(usage.until_s - usage.since_s)})"


def sums(usage: Usage) -> list[dict[str, str]]:
    """One row for each kind of time that occurs, and the total; all texts but the first are numbers."""
    total = usage.total
    of, form = total.total, _Form(total.total)
    parts = [(_NAMES.get(kind, kind.value), total.hours[kind]) for kind in SlotUse if _occurs(total, kind)]
    rows = []
    for name, hours in [*parts, (_TOTAL, of)]:
        row = {"time": name}
        if form.has_gpus:
            row |= {GPUS: form.hours(hours.gpus), "% of GPUs": form.percent(hours.gpus, of.gpus)}
        if form.has_slots:
            row |= {SLOTS: form.hours(hours.slots), "% of slots": form.percent(hours.slots, of.slots)}
        rows.append(row)
    return rows


def by_keys(usage: Usage, most: int | None = None) -> list[dict[str, str]]:
    """One row for each combination of the keys' values, the greatest first, then idle slots and the total. Days stay
    in their order.

    The texts after the keys are numbers: hours, and the share of each kind of time in the row's GPU-hours; of a row
    without GPUs, in its slot-hours. `most`: only so many kinds have a column of their own, the others one together.
    """
    total = usage.total
    form = _Form(total.total)
    columns = _columns(total, most)
    found = [{**_names(usage, row), **_shares(row, columns, form)} for row in _ordered(usage) if row.total.slots > 0]
    if len(found) > 1:
        names = {key: _TOTAL if number == 0 else "" for number, key in enumerate(usage.keys)}
        found.append({**names, **_shares(total, columns, form)})
    return found


def _ordered(usage: Usage) -> list[UsageRow]:
    if DAY not in usage.keys:
        return sorted(usage.rows, key=lambda row: (_is_idle(usage, row), -row.total.gpus, -row.total.slots))
    day = usage.keys.index(DAY)
    if day == 0:
        return sorted(
            usage.rows, key=lambda row: (row.values[0], _is_idle(usage, row), -row.total.gpus, -row.total.slots)
        )
    # What the other keys tell apart comes by its sum over all days.
    groups: dict[tuple[object, ...], list[UsageRow]] = {}
    for row in usage.rows:
        groups.setdefault((row.values[:day], row.values[day + 1 :]), []).append(row)

    def rank(rows: list[UsageRow]) -> tuple[object, ...]:
        totals = [row.total for row in rows]
        is_idle = all(_is_idle(usage, row) for row in rows)
        return is_idle, -sum(hours.gpus for hours in totals), -sum(hours.slots for hours in totals)

    ordered = sorted(groups.values(), key=rank)
    return [row for rows in ordered for row in sorted(rows, key=lambda row: str(row.values[day]))]


def shares_text(usage: Usage) -> str:
    """What the shares of `by_keys` are shares of."""
    form = _Form(usage.total.total)
    if not form.has_gpus:
        return "in % of the row's slot-hours:"
    return f"in % of the row's GPU-hours{', without GPUs of its slot-hours' if form.has_slots else ''}:"


def kinds_in(usage: Usage) -> int:
    """How many kinds of time there are: as many columns `by_keys` has for them."""
    return len(_columns(usage.total, None))


def _columns(total: UsageRow, most: int | None) -> dict[str, list[SlotUse]]:
    """The columns of shares, with the kinds in each; the smallest kinds are in one column together."""
    kinds = [kind for kind in SlotUse if _occurs(total, kind)]
    kept = sorted(kinds, key=lambda kind: (-total.hours[kind].gpus, -total.hours[kind].slots))[:most]
    columns = {_HEADINGS.get(kind, kind.value): [kind] for kind in kinds if kind in kept}
    others = [kind for kind in kinds if kind not in kept]
    return columns | {"other": others} if others else columns


class _Form:
    """Writes hours with as many decimals as the greatest of them needs, and shares in percent.

    Where every slot is a GPU, hours of slots say nothing new.
    """

    def __init__(self, total: Hours) -> None:
        self.has_gpus = total.gpus > 0
        self.has_slots = abs(total.slots - total.gpus) > 1e-6 * total.slots
        self._decimals = 1 if total.slots >= 100 else 2 if total.slots >= 1 else 4

    def hours(self, hours: float) -> str:
        return f"{hours:,.{self._decimals}f}"

    def percent(self, part: float, of: float) -> str:
        return f"{100 * part / of:.1f}" if of > 0 else ""


def _names(usage: Usage, row: UsageRow) -> dict[str, str]:
    if _is_idle(usage, row):
        named = zip(usage.keys, row.values, strict=True)
        return {key: cell_text(value) if key in OF_SLOTS else _NO_JOB for key, value in named}
    return {key: cell_text(value) or "-" for key, value in zip(usage.keys, row.values, strict=True)}


def _is_idle(usage: Usage, row: UsageRow) -> bool:
    """Whether nothing but idle slots is in a row, because it is asked for values that only jobs have."""
    return row.hours.keys() <= _IDLE and not usage.keys_of_pods


def _shares(row: UsageRow, columns: Mapping[str, Sequence[SlotUse]], form: _Form) -> dict[str, str]:
    of = row.total
    cells = {GPUS: form.hours(of.gpus) if of.gpus else ""} if form.has_gpus else {}
    if form.has_slots:
        cells[SLOTS] = form.hours(of.slots)
    for name, kinds in columns.items():
        part = Hours()
        for kind in kinds:
            hours = row.hours.get(kind, Hours())
            part.add(hours.slots, hours.gpus)
        share = form.percent(part.gpus, of.gpus) if of.gpus > 0 else form.percent(part.slots, of.slots)
        cells[name] = share if part.slots > 0 else ""
    return cells


def check(usage: Usage) -> list[str]:
    """What the total is made of, and what does not add up."""
    if usage.is_filtered:
        return []
    total = usage.total.total
    parts = [
        (usage.of_pods, f"wall time x slots of {counted(usage.pods, 'pod')}"),
        (usage.without_pod, "attempts that ran on without their pod"),
        (usage.on_hosts, "attempts on configured hosts"),
        (usage.external, "runs of other scripts"),
    ]
    form, left = _Form(total), usage.left_over
    texts = [f"{form.hours(hours.slots)} {what}" for hours, what in parts if hours.slots > 0]
    lines = [f"{form.hours(total.slots)} slot-hours = {' + '.join(texts)}"] if texts else []
    if max(abs(left.slots), abs(left.gpus)) > max(_LEAST_HOURS, _LEAST_SHARE * total.slots):
        share = form.percent(left.slots, total.slots)
        lines.append(
            f"does not add up: {form.hours(left.slots)} slot-hours ({share} %) are more than pods had slots for: a pod "
            "was restarted with fewer slots while attempts ran, or a record has a wrong time"
        )
    return lines


def notes(usage: Usage, clock: Clock) -> list[str]:
    """What is not in the account."""
    found = []
    if usage.accounted_since_s is not None:
        found.append(f"accounted since {clock(usage.accounted_since_s)}: the journal has nothing older")
    if usage.slots_since_s is not None:
        found.append(
            f"pods and their slots are recorded since {clock(usage.slots_since_s)}: what was idle before is not known"
        )
    if usage.idle_gpus > 0:
        hours = _Form(usage.total.total).hours(usage.idle_gpus)
        found.append(
            f"{hours} of the GPU-hours of jobs were at 0 % of their GPUs: `dispatcher history --event gpu_idle`"
        )
    if usage.unknown_ends:
        found.append(
            f"the end of {counted(usage.unknown_ends, 'attempt')} is not known (the host died, say): counted until "
            "the last sign of it"
        )
    if usage.is_filtered:
        found.append("only jobs that match --where, so no idle slots")
    return found


def document(usage: Usage) -> dict[str, Any]:
    """The whole account for programs, in hours; times in UTC."""
    return {
        "since": now_text(usage.since_s),
        "until": now_text(usage.until_s),
        "accounted_since": None if usage.accounted_since_s is None else now_text(usage.accounted_since_s),
        "slots_since": None if usage.slots_since_s is None else now_text(usage.slots_since_s),
        "by": list(usage.keys),
        "rows": [
            {"values": dict(zip(usage.keys, row.values, strict=True)), "hours": _document_of(row)} for row in usage.rows
        ],
        "total": _document_of(usage.total),
        "unknown_ends": usage.unknown_ends,
        "idle_gpu_hours": usage.idle_gpus,
        "check": None
        if usage.is_filtered
        else {
            "pods": _hours_document(usage.of_pods),
            "without_pod": _hours_document(usage.without_pod),
            "hosts": _hours_document(usage.on_hosts),
            "external": _hours_document(usage.external),
            "left_over": _hours_document(usage.left_over),
        },
    }


def _document_of(row: UsageRow) -> dict[str, Any]:
    kinds = {kind.value: _hours_document(row.hours[kind]) for kind in SlotUse if kind in row.hours}
    return {"total": _hours_document(row.total), **kinds}


def _hours_document(hours: Hours) -> dict[str, float]:
    return {"slots": hours.slots, "gpus": hours.gpus}


def long_rows(usage: Usage) -> list[dict[str, Any]]:
    """For CSV: one row for each combination of values and kind of time, in hours."""
    return [
        {
            **dict(zip(usage.keys, row.values, strict=True)),
            "time": kind.value,
            "slot_hours": hours.slots,
            "gpu_hours": hours.gpus,
        }
        for row in usage.rows
        for kind, hours in row.hours.items()
        if hours.slots > 0
    ]


def _occurs(row: UsageRow, kind: SlotUse) -> bool:
    return kind in row.hours and row.hours[kind].slots > 0
