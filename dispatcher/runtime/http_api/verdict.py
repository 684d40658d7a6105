"""What a response means: the answer, a failure that may pass, a refusal of this request, or a fault of the job."""

from __future__ import annotations

import email.utils
import enum
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.runtime.http_api.config import ApiConfig
from dispatcher.runtime.http_api.exchange import HttpResponse

# Beside all of 500 and above, as OpenAI's own client has it, and 425.
_MAY_PASS: Final = frozenset({408, 409, 425, 429})
# About the key, the account or the address: every other request would get the same.
_OF_THE_JOB: Final = frozenset({401, 402, 403, 404, 405, 407})
# An API that asks for a longer pause is asked again after this one.
_LONGEST_PAUSE_S: Final = 3600.0
_MOST_QUOTED: Final = 300


class ResponseKind(enum.Enum):
    """What is to be done after a response."""

    ANSWERED = "answered"
    MAY_PASS = "may pass"
    REFUSED = "refused"
    OF_THE_JOB = "of the job"


@dataclass(frozen=True)
class Verdict:
    """`answer` is the body of a response that is one; `reason` says why another is none.

    `pause_s`: for how long the API asks to be left alone.
    """

    kind: ResponseKind
    answer: Any = None
    reason: str = ""
    pause_s: float | None = None


def judge(response: HttpResponse) -> Verdict:
    """The verdict on a response that was received completely."""
    reason = f"HTTP {response.status}: {_quoted(response.body)}"
    if 200 <= response.status < 300:
        try:
            return Verdict(ResponseKind.ANSWERED, json.loads(response.body))
        except (ValueError, RecursionError):
            kind = response.headers.get("content-type", "no type")
            return Verdict(
                ResponseKind.MAY_PASS, reason=f"a response that is not JSON ({kind}): {_quoted(response.body)}"
            )
    if response.status >= 500 or response.status in _MAY_PASS:
        return Verdict(ResponseKind.MAY_PASS, reason=reason, pause_s=_asked_pause_s(response.headers, time.time()))
    if 300 <= response.status < 400:
        # Not followed: the key would be sent elsewhere.
        place = response.headers.get("location", "nowhere")
        return Verdict(
            ResponseKind.OF_THE_JOB, reason=f"HTTP {response.status}: the API has moved to {place}: correct the URL"
        )
    return Verdict(ResponseKind.OF_THE_JOB if response.status in _OF_THE_JOB else ResponseKind.REFUSED, reason=reason)


def backoff_s(config: ApiConfig, failures: int) -> float:
    """The pause after that many failures in a row: doubled each time, and between half and all of it by chance."""
    doubled = config.backoff_s * 2.0 ** min(failures - 1, 64)
    return min(doubled, config.backoff_max_s) * random.uniform(0.5, 1.0)


def _asked_pause_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Retry-After, in seconds or as a date; None where it is missing or cannot be read."""
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return min(float(value), _LONGEST_PAUSE_S)
    try:
        date_s = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(date_s - now_s, 0.0), _LONGEST_PAUSE_S)


def _quoted(body: bytes) -> str:
    """The beginning of a body, on one line."""
    return " ".join(body[: 4 * _MOST_QUOTED].decode("utf-8", "replace").split())[:_MOST_QUOTED] or "(empty)"
