"""One try to send a notice, in a child as pods have it, without a pod."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dispatcher.notify.process import Outcome, SendingProcess
from dispatcher.notify.text import payload
from dispatcher.notify_config import Target, parse_notify
from dispatcher.run_state.facets.notices import Cause

AT = "2026-11-23T03:04:05.000Z"


def target(**keys: Any) -> Target:
    limits = {"timeout": keys.pop("timeout", "20s")}
    return parse_notify({"targets": {"t": {**limits, **keys}}}).targets["t"]


def notice(text: str = "exit 1", *jobs: str) -> dict[str, Any]:
    cause = Cause(topic="job_failed", text=text, count=max(1, len(jobs)), first_at=AT, last_at=AT, jobs=jobs)
    return payload("lab", "t", 7, {"c": cause}, 1, "0123")


def sent(to: Target, content: dict[str, Any] | None = None) -> Outcome:
    sending = SendingProcess(to, content or notice())
    while (outcome := sending.outcome()) is None:
        time.sleep(0.02)
    return outcome


def private(path: Path, text: str) -> str:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)
