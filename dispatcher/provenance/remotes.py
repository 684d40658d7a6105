"""The address of a repository without what may be secret: user information, tokens, queries."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{0,5})?")
# After the user information is gone, nothing of it may be left in any spelling.
_DOUBTFUL: Final = re.compile(r"[@?#\s\x00-\x1f\x7f]")
# Access tokens of GitHub, GitLab and Hugging Face, by how they begin: some proxies have them in the path.
_TOKEN: Final = re.compile(r"gh[opsur]_\w{20}|github_pat_|gl[a-z]{2,4}-[\w-]{20}|hf_[A-Za-z]{20}")


def without_secrets(url: str) -> str | None:
    """The address without user information, query and fragment; None when it has a form in which a secret may hide.

    https, ssh, git and file addresses, `host:path` as scp writes it, and paths. Those of remote helpers (`ext::`) are
    left out: they hold commands.
    """
    scheme = _SCHEME.match(url)
    rest, *dropped = re.split("[?#]", url[scheme.end() if scheme else 0 :], maxsplit=1)
    if dropped and "@" in _fully_unquoted(dropped[0]):
        # A password with one of these characters: what is before it is no host.
        return None
    if scheme is not None:
        authority, slash, path = rest.partition("/")
        host = _fully_unquoted(authority).rpartition("@")[2]
        if not (_HOST.fullmatch(host) or (not host and scheme[0].lower() == "file://")):
            return None
        kept = f"{scheme[0]}{host}{slash}{path}"
    elif "::" in rest:
        return None
    else:
        # Only before a colon that no slash precedes does scp see a host.
        colon = rest.find(":")
        is_scp = colon > 0 and "/" not in rest[:colon]
        host, at, path = rest.partition("@")
        if at and "/" in host:
            return None
        kept = path if at else rest
        if is_scp and not _HOST.fullmatch(kept.partition(":")[0]):
            return None
    plain = _fully_unquoted(kept)
    return None if _DOUBTFUL.search(plain) or _TOKEN.search(plain) else kept


def _fully_unquoted(text: str) -> str:
    """The text without percent-encoding, also where that was encoded again."""
    for _ in range(5):
        plain = unquote(text)
        if plain == text:
            return text
        text = plain
    # That is not written by accident: it is refused as doubtful.
    return "@"
