"""A POST of JSON."""

from __future__ import annotations

import html
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.secrets import SecretError, read_line
from dispatcher.notify.channels import DOUBTFUL_ANSWERS, RefusedError, unknown_answer
from dispatcher.notify.checks import header_lines
from dispatcher.notify_config import Webhook, check_url

# What Discord accepts.
_LONGEST_CONTENT: Final = 1900


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, which delivers nothing and is answered with success."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Announced:
    """The body of a request: `begin()` is called when the first byte of it is asked for, so it is connected by then."""

    def __init__(self, data: bytes, begin: Callable[[], None]) -> None:
        self._data = data
        self._begin = begin

    def read(self, _size: int = -1) -> bytes:
        data, self._data = self._data, b""
        if data:
            self._begin()
        return data


def send(channel: Webhook, notice: Mapping[str, Any], begin: Callable[[], None], limit_s: float) -> str:
    """Post it. Only an answer of 2xx says that it was taken; any other, except a proxy's, that it was not."""
    url = channel.url if channel.url_file is None else read_line(channel.url_file)
    if url is None or check_url(url):
        raise SecretError(f"{channel.url_file}: {check_url(url or '')}")
    headers = {} if channel.headers_file is None else header_lines(channel.headers_file)
    body = msgspec.json.encode(_body(channel, notice))
    request = urllib.request.Request(
        url,
        data=_Announced(body, begin),
        headers={
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "User-Agent": "dispatcher",
            **channel.headers,
            **headers,
        },
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=limit_s) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in DOUBTFUL_ANSWERS:
            raise unknown_answer(error.code) from None
        moved = ": it has moved, so write the new address" if 300 <= error.code < 400 else ""
        words = f"answered {error.code} {http.client.responses.get(error.code, '')}".strip()
        raise RefusedError(words + moved) from None
    if not 200 <= status < 300:
        raise RefusedError(f"answered {status}")
    return ""


def _body(channel: Webhook, notice: Mapping[str, Any]) -> Mapping[str, Any]:
    if channel.form == "slack":
        # Else `<!channel>` in an error would call everybody, and `<module>` would not be shown.
        return {"text": html.escape(notice["text"], quote=False)}
    if channel.form == "discord":
        return {"content": notice["text"][:_LONGEST_CONTENT], "allowed_mentions": {"parse": []}}
    return notice
