"""The ways in which a notice is sent. Each module has one function, which runs in a process of its own:

    send(channel, notice, begin, limit_s) -> str

It calls `begin()` before the first thing that may deliver the notice. It returns what else is to be said of a notice
that was sent (mostly nothing), raises RefusedError when the other side has said that it was not, and UnknownError or
anything else when that is not known. No message of the first two has anything of a secret; others are not shown.
"""

from __future__ import annotations

import os
from typing import Final

# Answers of HTTP by which a proxy says that it has passed a request on and got no answer that it understands. Any other
# answer that is no success says that the request was not done.
DOUBTFUL_ANSWERS: Final = frozenset({502, 504, 520, 524})


class RefusedError(Exception):
    """The notice was not sent for certain: it can be tried again."""


class UnknownError(Exception):
    """Whether the notice was sent is not known, and why."""


def unknown_answer(status: int) -> UnknownError:
    return UnknownError(f"a proxy answered {status}: it has no answer of the service behind it")


def error_text(error: BaseException) -> str:
    """What an error is, without the words of the library that raised it, which may contain an address."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return error_text(reason)
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and isinstance(number, int) and number > 0 and type(error).__module__ != "ssl":
        return os.strerror(number)
    if isinstance(error, TimeoutError):
        return "timed out"
    if type(error).__name__ == "SSLCertVerificationError":
        return f"its certificate is refused: {getattr(error, 'verify_message', '')}"
    if type(error).__module__ == "ssl" and reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"):
        return "it has no TLS on this port. Does `tls` (none, starttls, tls) fit the server's port?"
    return {"gaierror": "the name of the host is unknown"}.get(type(error).__name__, type(error).__name__)
