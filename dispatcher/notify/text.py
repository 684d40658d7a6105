"""A notice in words and as JSON. Ids and errors come from users: they are data, in one line each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final

from dispatcher.base.messages import counted
from dispatcher.base.times import parse_time
from dispatcher.run_state.facets.notices import Cause
from dispatcher.run_state.facets.pauses import unpause_command
from dispatcher.topics import Topic

_LONGEST_LINE: Final = 300
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_ADVICE: Final = {
    Topic.JOB_FAILED: "`dispatcher status --state failed` lists them; `dispatcher logs JOB` shows why",
    Topic.METHOD_PAUSED: "`{unpause}` continues",
    Topic.POD_DEAD: "start it again, or let another pod take care of its jobs; `dispatcher pods` shows all",
    Topic.JOB_STALLED: "`dispatcher logs JOB` shows what it does; `dispatcher cancel JOB` stops it",
    Topic.GPU_IDLE: "`dispatcher logs JOB` shows what it does; `dispatcher cancel JOB` stops it",
    Topic.MATRIX_DONE: "`dispatcher results` shows what came out",
    Topic.NOTHING_RUNNING: "`dispatcher status` says why they wait",
}
# The most urgent first, for the subject.
_ORDER: Final = (
    Topic.POD_DEAD, Topic.NOTHING_RUNNING, Topic.METHOD_PAUSED, Topic.JOB_FAILED, Topic.JOB_STALLED, Topic.GPU_IDLE,
    Topic.MATRIX_DONE,
)  # fmt: skip


def one_line(text: str, longest: int = _LONGEST_LINE) -> str:
    """The text without anything that begins a line, moves the cursor or cannot be sent."""
    plain = _CONTROL.sub(" ", text).strip()
    return plain if len(plain) <= longest else f"{plain[: longest - 3]}..."


def workspace_id(root: Path) -> str:
    """What tells a workspace from all others, in ids of notices: receivers can leave out what they have already."""
    return hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:12]


def payload(
    workspace: str,
    target: str,
    number: int,
    causes: Mapping[str, Cause],
    tries: int,
    of: str,
    zone: tzinfo | None = None,
) -> dict[str, Any]:
    """A notice as data, with `subject` and `text`. `of`: what tells the workspace from all others.

    `zone` is that of the times in the text; None: that of this host.
    """
    ordered = sorted(causes.values(), key=lambda cause: (_rank(cause.topic), cause.first_at))
    subject = one_line(f"dispatcher {workspace}: {_subject(ordered)}", 180)
    return {
        "id": f"{of}.{number}.{target}",
        "workspace": workspace,
        "target": target,
        "subject": subject,
        "text": _text(subject, ordered, zone),
        "try": tries,
        "events": [
            {
                "event": cause.topic,
                "cause": one_line(cause.text),
                "count": cause.count,
                "jobs": [one_line(job) for job in cause.jobs],
                "first_at": cause.first_at,
                "last_at": cause.last_at,
            }
            for cause in ordered
        ],
    }


def test_payload(workspace: str, target: str, of: str) -> dict[str, Any]:
    """A notice that tells nothing but that notices arrive."""
    subject = one_line(f"dispatcher {workspace}: test notice", 180)
    text = f"{subject}\n\nThis is a test: notices to {target} arrive.\n"
    return {
        "id": f"{of}.test.{target}", "workspace": workspace, "target": target, "subject": subject, "text": text,
        "try": 1, "events": [],
    }  # fmt: skip


def headline(causes: Sequence[Cause]) -> str:
    """The causes in a few words: `3 jobs failed, pod gpu-a is dead`."""
    return one_line(_subject(sorted(causes, key=lambda cause: _rank(cause.topic))))


def _rank(topic: str) -> int:
    return _ORDER.index(Topic(topic)) if topic in _ORDER else len(_ORDER)


def _subject(causes: Sequence[Cause]) -> str:
    """The topics in the order of the causes, each with its number."""
    parts = []
    for topic in dict.fromkeys(cause.topic for cause in causes):
        alike = [cause for cause in causes if cause.topic == topic]
        count = sum(cause.count for cause in alike)
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        parts.append(_WORDS[topic](count) if topic in _WORDS else f"{_in_short(alike[0])}{more}")
    return ", ".join(parts)


def _in_short(cause: Cause) -> str:
    """`lora is paused`, `pod gpu-a on node-1 is dead`: the rest is in the text."""
    end = _DETAILS.get(cause.topic)
    return cause.text if end is None else cause.text.partition(end)[0]


# What details follow in texts of these topics, which say by themselves what happened.
_DETAILS: Final[Mapping[str, str]] = {Topic.METHOD_PAUSED: ": ", Topic.POD_DEAD: " since "}
# In texts of these the dispatcher has written a time, which is shown in the zone of all others.
_WITH_TIME: Final = frozenset({Topic.POD_DEAD, Topic.GPU_IDLE})
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*Z")


_WORDS: Final[Mapping[str, Callable[[int], str]]] = {
    Topic.JOB_FAILED: lambda count: f"{counted(count, 'job')} failed",
    Topic.JOB_STALLED: lambda count: f"{counted(count, 'job')} stalled",
    Topic.GPU_IDLE: lambda count: f"{counted(count, 'job leaves its GPU', 'jobs leave their GPUs')} idle",
    Topic.MATRIX_DONE: lambda count: "all jobs have ended",
}


def _text(subject: str, causes: Sequence[Cause], zone: tzinfo | None) -> str:
    lines = [subject, ""]
    for topic in dict.fromkeys(cause.topic for cause in causes):
        for cause in causes:
            if cause.topic == topic:
                lines += _told(cause, zone)
        advice = _advice(topic, [cause for cause in causes if cause.topic == topic])
        lines += [f"  {advice}", ""] if advice else [""]
    return "\n".join(lines)


def _advice(topic: str, causes: Sequence[Cause]) -> str | None:
    if topic not in _ORDER:
        return None
    scope = causes[0].text.partition(" is paused")[0] if len(causes) == 1 else "SCOPE"
    return _ADVICE[Topic(topic)].format(unpause=unpause_command(one_line(scope)))


def _time_text(at: str, zone: tzinfo | None) -> str:
    """`2026-06-17 22:48:00 CEST`; None is the zone of this host. A time that cannot be read is given as it is."""
    seconds = parse_time(at)
    if seconds is None:
        return one_line(at)
    return datetime.fromtimestamp(seconds, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def _told(cause: Cause, zone: tzinfo | None) -> list[str]:
    times = f"{cause.count} x " if cause.count > 1 else ""
    when = _time_text(cause.first_at, zone)
    if cause.count > 1:
        when = f"{when} to {_time_text(cause.last_at, zone)}"
    label = "" if cause.topic in _DETAILS else f"{cause.topic.replace('_', ' ')}: "
    text = one_line(cause.text)
    if cause.topic in _WITH_TIME:
        text = _TIME.sub(lambda found: _time_text(found[0], zone), text)
    lines = [f"{times}{label}{text} ({when})"]
    if cause.jobs:
        more = cause.count - len(cause.jobs)
        names = ", ".join(one_line(job, 100) for job in cause.jobs)
        lines.append(f"  {names}{f' and {more} more' if more > 0 else ''}")
    return lines
