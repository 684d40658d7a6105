"""Whether all views of one moment show the same: the journal, `status`, `pods`, the status file, the page, notices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lab import Lab
from table import Table

from dispatcher.run_state.journal import now_text

_PATIENCE_S: Final = 15.0
_LOOK_S: Final = 0.3
_HOUR_S: Final = 3600.0


def compare(lab: Lab, table: Table) -> None:
    """Note where the views differ. Jobs go on meanwhile, so they are asked until they agree."""
    end_s = time.monotonic() + _PATIENCE_S
    while (found := _differences(lab)) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    table.check("what is not the same in all views", found, [])


def _differences(lab: Lab) -> list[str]:
    """`running: status 2, page 1` for each number that is not the same everywhere."""
    found = []
    for what, views in _numbers(lab).items():
        if len({repr(value) for value in views.values()}) > 1:
            found.append(f"{what}: " + ", ".join(f"{view} {value}" for view, value in views.items()))
    return found


def _numbers(lab: Lab) -> dict[str, dict[str, Any]]:
    """What can be seen, and what each view says of it."""
    status, pods, notes = lab.json("status"), lab.json("pods"), lab.notes()
    # It reads the files every two seconds at most.
    asked_at = now_text(time.time())
    page = lab.web.wait_for("/api/overview", lambda one: one["read_at"] >= asked_at, "a fresh page")
    page_pods = lab.web.get("/api/pods").json["pods"]
    page_jobs = lab.web.get("/api/jobs?limit=500").json["jobs"]
    rows, attention = status["jobs"], page["attention"]
    alive = [pod for pod in pods if pod["alive"]]
    return {
        "states": {
            "journal": dict(sorted(lab.fleet.states().items())),
            "status": _states((row["job"], row["state"]) for row in rows),
            "page": _states((row["job"], row["state"]) for row in page_jobs),
            "status file": _states((job, one["state"]) for job, one in lab.fleet.status().items()),
        },
        "counts": {
            "rows of status": _counts(Counter(row["state"] for row in rows)),
            "status": _counts(status["counts"]),
            "page": _counts(page["counts"]),
        },
        "slots": {
            "status": [status["pace"]["slots_busy"], status["pace"]["slots"], status["pace"]["pods"]],
            "pods": [sum(pod["busy"] for pod in alive), sum(pod["size"] for pod in alive), len(alive)],
            "page": [page["slots"]["busy"], page["slots"]["all"], page["slots"]["pods"]],
            "page of pods": [sum(pod[key] or 0 for pod in page_pods if pod["alive"]) for key in ("busy", "size")]
            + [sum(pod["alive"] for pod in page_pods)],
        },
        "users of running jobs": {
            "status": _states((row["job"], row["user"]) for row in rows if row["state"] == "running"),
            "page": _states((row["job"], row["user"]) for row in page["running"]),
        },
        "left and blocked": {
            "status": [status["pace"]["left"], status["pace"]["stuck"]],
            "page": [page["left"], page["stuck"]],
        },
        "stalled": {
            "status": [row["job"] for row in rows if row["stalled_s"] is not None],
            "page": [row["job"] for row in page["running"] if "stalled_since" in row],
            "what needs a person": _jobs(attention, "stalled"),
        },
        "paused": {
            "notes of status": sum(" is paused since " in note for note in notes),
            "what needs a person": len([one for one in attention if one["kind"] == "paused"]),
        },
        "dead pods": {
            "pods": [pod["pod"] for pod in pods if pod["state"] == "dead"],
            "page of pods": [pod["pod"] for pod in page_pods if pod["state"] == "dead"],
            "what needs a person": [one["pod"] for one in attention if one["kind"] == "dead_pod"],
        },
        "failed": {
            "status": sum(row["state"] == "failed" for row in rows),
            "causes of the page": sum(one["count"] for one in page["failures"]),
        },
        "waiting": {
            "status": sum(row["state"] in ("queued", "held") and row["why"] is not None for row in rows),
            "reasons of the page": sum(one["count"] for one in page["waiting"]),
        },
    }


def _states(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return dict(sorted(pairs))


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {state: count for state, count in sorted(counts.items()) if count}


def _jobs(attention: list[dict[str, Any]], kind: str) -> list[str]:
    return [job for one in attention if one["kind"] == kind for job in one["jobs"]]


def week_of_the_page(lab: Lab, table: Table) -> None:
    """The page's account of the week is what `usage` says of the same time."""
    week = lab.web.wait_for("/api/overview", lambda page: "week" in page, "the week of the page")["week"]
    usage = lab.json("usage", "--by", "method", "--until", week["until"])
    seen = f"{week['total']['total']['slots'] * _HOUR_S:.0f}"
    table.check("slot-seconds of the page's week", seen, f"{usage['total']['total']['slots'] * _HOUR_S:.0f}")
