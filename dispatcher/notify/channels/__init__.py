"""The ways in which a notice is sent. Each module has one function, which runs in a process of its own:

    send(channel, notice, begin, limit_s) -> str

It calls `begin()` before the first thing that may deliver the notice. It returns what else is to be said of a notice
that was sent (mostly nothing), raises RefusedError when the other side has said that it was not, and anything else when
that is not known. No message has anything of a secret.
"""

from __future__ import annotations

import os


class RefusedError(Exception):
    """The notice was not sent for certain: it can be tried again."""


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
    return {"gaierror": "the name of the host is unknown"}.get(type(error).__name__, type(error).__name__)
