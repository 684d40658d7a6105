"""Any service that Apprise knows (extra `notify`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.base.secrets import SecretError, read_line
from dispatcher.notify.channels import DOUBTFUL_ANSWERS, RefusedError, unknown_answer
from dispatcher.notify_config import Apprise

# What Apprise logs of an answer of the service, and of a connection that was never made.
_REFUSED: Final = re.compile(r"error=(\d{3})\b")
_UNREACHED: Final = ("Failed to establish a new connection", "NameResolutionError", "Connection refused")


class _Words(logging.Handler):
    """Keeps what Apprise logs, to be searched: it may contain the address, and is never shown."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.said += record.getMessage() + "\n"


def send(channel: Apprise, notice: Mapping[str, Any], begin: Callable[[], None], limit_s: float) -> str:
    """Send it. Where Apprise says only that it failed, the notice may have arrived."""
    import apprise

    url = read_line(channel.url_file)
    words = _Words()
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(words)
    service = apprise.Apprise()
    if not service.add(url):
        raise SecretError(f"{channel.url_file}: Apprise does not know such an address")
    begin()
    if service.notify(title=notice["subject"], body=notice["text"], body_format=apprise.NotifyFormat.TEXT):
        return ""
    answered = _REFUSED.search(words.said)
    if answered and int(answered[1]) in DOUBTFUL_ANSWERS:
        raise unknown_answer(int(answered[1]))
    if answered:
        raise RefusedError(f"the service answered {answered[1]}")
    if any(text in words.said for text in _UNREACHED):
        raise RefusedError("the service cannot be reached")
    raise TimeoutError
