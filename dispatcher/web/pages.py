"""The files of the page itself, and what is shown instead of it."""

from __future__ import annotations

import hashlib
import html
import importlib.resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.responses import Response

from dispatcher.web.states import state_files

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
_PAGE: Final = "index.html"


class Pages:
    """The files of `static/`, read once, and those that are made: other names do not exist."""

    def __init__(self) -> None:
        root = importlib.resources.files("dispatcher.web") / "static"
        self._files = {**_found(root, ""), **state_files()} if root.is_dir() else {}
        self._tags = {name: f'"{hashlib.sha256(data).hexdigest()[:32]}"' for name, data in self._files.items()}

    def page(self) -> Response:
        if _PAGE not in self._files:
            return self.refusal(404, "this installation has no page, only its API")
        return Response(self._files[_PAGE], media_type=_TYPES[".html"])

    def static(self, name: str, known: str | None) -> Response:
        """A file; nothing when the browser has it already."""
        data = self._files.get(name)
        if data is None:
            return self.refusal(404, f"there is no /static/{name[:100]}")
        headers = {"ETag": self._tags[name], "Cache-Control": "no-cache"}
        if known is not None and self._tags[name] in known:
            return Response(status_code=304, headers=headers)
        ending = name[name.rfind(".") :]
        return Response(data, media_type=_TYPES.get(ending, "application/octet-stream"), headers=headers)

    @staticmethod
    def refusal(status: int, text: str) -> Response:
        """Why there is no page, with a link: one that was followed from elsewhere comes without its cookie."""
        again = '<p><a href="/">Open the page again</a> if this server has let you in before.</p>'
        body = f"<!doctype html><title>dispatcher</title><p>{html.escape(text)}</p>{again if status == 401 else ''}"
        return Response(body, status, media_type=_TYPES[".html"])


def _found(folder: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for one in folder.iterdir():
        if one.is_dir():
            found |= _found(one, f"{prefix}{one.name}/")
        else:
            found[prefix + one.name] = one.read_bytes()
    return found
