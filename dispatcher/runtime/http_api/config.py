"""ApiConfig: how an API is reached and how it is treated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field

_MOST_CONCURRENT: Final = 1024
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_HEADER_VALUE: Final = re.compile(r"[ -~]*")
_OWN_HEADERS: Final = ("content-length", "transfer-encoding")
# Headers that carry a secret: what is in a configuration is copied into files that everybody can read.
_SECRET_HEADERS: Final = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")


@dataclass(frozen=True)
class ApiConfig:
    """An OpenAI-compatible API by default: `url` ends before `/chat/completions`, as in `https://host/v1`.

    `parameters` are added to each body (`{temperature: 0.7}`). The key is in `key_file`, which only its owner may read,
    or in the environment variable `key_env`. `timeout_s` bounds one exchange from its start to its last byte. A failure
    that may pass is tried again up to `retries` times, after `backoff_s`, doubled each time up to `backoff_max_s`, with
    jitter; an API's Retry-After takes precedence. `on_error`: whether a request that is refused for good stops the job
    or becomes a row with its error. `idempotency_header` is sent with the same value whenever a request is sent again;
    null where the API would repeat a failure for it.
    """

    url: str = field("api/url")
    model: str | None = field("api/model", default=None)
    parameters: dict[str, Any] = field("api/parameters", default_factory=dict)
    headers: dict[str, str] = field("api/headers", default_factory=dict)
    key_file: Path | None = field("api/key_file", default=None)
    key_env: str | None = field("api/key_env", default=None)
    concurrency: int = field("api/concurrency", default=16)
    requests_per_minute: float | None = field("api/requests_per_minute", default=None)
    timeout_s: float = field("api/timeout_s", default=600.0)
    retries: int = field("api/retries", default=10)
    backoff_s: float = field("api/backoff_s", default=1.0)
    backoff_max_s: float = field("api/backoff_max_s", default=60.0)
    on_error: Literal["stop", "record"] = field("api/on_error", default="stop")
    idempotency_header: str | None = field("api/idempotency_header", default="Idempotency-Key")

    def __post_init__(self) -> None:
        faults = [*self._address_faults(), *self._key_faults(), *self._header_faults(), *self._number_faults()]
        if faults:
            raise ConfigError("\n".join(faults))

    def _address_faults(self) -> Iterator[str]:
        try:
            parts = urlsplit(self.url)
            known = (
                parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
            )
        except ValueError:
            known = False
        if not known or re.search(r"[^!-~]", self.url):
            yield f"api.url = {self.url!r}: expected an address such as https://host/v1"
        elif parts.username is not None or parts.password is not None:
            yield "api.url has a user or a password in it: use key_file or key_env"

    def _key_faults(self) -> Iterator[str]:
        if self.key_file is not None and self.key_env is not None:
            yield "api.key_file and api.key_env are both set: expected one of them"
        if self.key_env is not None and not _VARIABLE.fullmatch(self.key_env):
            # Not quoted: it may be the key itself.
            yield "api.key_env: expected the name of an environment variable, such as OPENAI_API_KEY, not the key"

    def _header_faults(self) -> Iterator[str]:
        if self.idempotency_header is not None and not _HEADER_NAME.fullmatch(self.idempotency_header):
            yield f"api.idempotency_header = {self.idempotency_header!r}: expected a name of printable ASCII, or null"
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                # The value is not quoted: it may be a secret.
                yield f"api.headers: {name!r}: expected a name and a value of printable ASCII characters"
            if name.lower() in _OWN_HEADERS:
                yield f"api.headers: {name}: is computed for each request: leave it out"
            if name.lower() in _SECRET_HEADERS:
                yield f"api.headers: {name}: the configuration is no place for a secret: use key_file or key_env"

    def _number_faults(self) -> Iterator[str]:
        if not 1 <= self.concurrency <= _MOST_CONCURRENT:
            yield f"api.concurrency = {self.concurrency}: expected 1 to {_MOST_CONCURRENT}"
        if self.retries < 0:
            yield f"api.retries = {self.retries}: expected 0 or more"
        for name in ("requests_per_minute", "timeout_s", "backoff_s", "backoff_max_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                yield f"api.{name} = {value}: expected a number above 0"
