"""Failed jobs: what those that fail alike have in common, and what people are told of one. Pure."""

from __future__ import annotations

import re

from dispatcher.run_state.facets.facet import News
from dispatcher.run_state.journal import Line
from dispatcher.topics import Topic


def signature(error: str | None, reason: str | None, job: str = "", *, keeps_numbers: bool = False) -> str:
    """What the same failure of different jobs has in common: the reason, and the error without ids, numbers, paths."""
    text = error or ""
    if job:
        text = re.sub(rf"(?<![\w-]){re.escape(job)}(?![\w-])", "<job>", text)
    text = re.sub(r"(?:[\w.~-]*/)+[\w.~-]*", "<path>", text)
    if not keeps_numbers:
        text = re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?", "<n>", text)
    text = re.sub(r"\s+", " ", text).strip()
    return f"{reason or 'unknown'}: {text}"[:300]


def news(line: Line) -> News | None:
    error, reason = line.set.get("error"), line.set.get("reason")
    text = ": ".join(filter(None, (str(reason or "unknown"), error)))
    return News(Topic.JOB_FAILED, signature(error, reason, line.job or ""), text)
