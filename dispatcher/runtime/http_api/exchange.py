"""One request and its response, over the connections of a pool."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from dispatcher.errors import ConfigError, RequestError
from dispatcher.runtime.http_api.config import ApiConfig

if TYPE_CHECKING:
    import httpx

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_CONNECT_TIMEOUT_S: Final = 30.0
# A server that does not end its response must not fill the memory.
MOST_BYTES: Final = 128 * 2**20


@dataclass(frozen=True)
class HttpRequest:
    """A POST of `body` as JSON. `headers` hold no secret."""

    url: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The path and query of the URL."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def digest(self) -> str:
        """The SHA-256 of path and body; keys are sorted, so that their order does not count."""
        content = json.dumps([self.target, self.body], sort_keys=True, allow_nan=False, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class HttpResponse:
    """A response that was received completely; the names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class IncompleteExchangeError(Exception):
    """No complete response: the server could not be reached, broke off, or took too long."""


class Client:
    """Sends requests over connections that are kept alive, as many as there are requests in flight.

    The proxies of the environment (`https_proxy`, `http_proxy`, `all_proxy`, `no_proxy`) are used, but never for this
    host. ConfigError where one of them cannot be used.
    """

    def __init__(self, config: ApiConfig) -> None:
        import httpx

        self._timeout_s = config.timeout_s
        self._connect_s = min(_CONNECT_TIMEOUT_S, config.timeout_s)
        self._exchanges: set[asyncio.Timeout] = set()
        self._aborted = False
        try:
            self._http = httpx.AsyncClient(
                # Not HTTP/2: when a server ends such a connection in good order, httpcore gives up all of its requests,
                # also those that are computed and paid for.
                http2=False,
                # `timeout_s` bounds the whole exchange.
                timeout=httpx.Timeout(None, connect=self._connect_s),
                # The authorities that the host trusts: by default httpx trusts those of the package certifi only.
                verify=ssl.create_default_context(),
                limits=httpx.Limits(max_connections=config.concurrency),
                mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOCAL_HOSTS},
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"requests cannot be sent as the environment's proxy variables ask for: {error}"
            ) from None

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def post(self, request: HttpRequest, headers: Mapping[str, str]) -> HttpResponse:
        """The response to `request`, sent with `headers` in addition; IncompleteExchangeError when there is none."""
        import httpx

        given = {"Content-Type": "application/json", "Accept": "application/json", **request.headers, **headers}
        content = json.dumps(request.body, allow_nan=False).encode()
        if self._aborted:
            raise IncompleteExchangeError("the job has ended")
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                self._exchanges.add(limit)
                try:
                    async with self._http.stream("POST", request.url, content=content, headers=given) as response:
                        return HttpResponse(response.status_code, dict(response.headers), await _body(response))
                finally:
                    self._exchanges.discard(limit)
        except httpx.ConnectTimeout:
            raise IncompleteExchangeError(f"no connection within {self._connect_s:g} s") from None
        except TimeoutError:
            why = "the job has ended" if self._aborted else f"no complete response within {self._timeout_s:g} s"
            raise IncompleteExchangeError(why) from None
        except (httpx.TransportError, httpx.DecodingError, _TooLongError, OSError) as error:
            if (untrusted := _untrusted(error)) is not None:
                raise RequestError(
                    f"{request.url}: the server's certificate is not trusted: {untrusted.verify_message}. Correct "
                    "api.url, or name the authority's file in the environment variable SSL_CERT_FILE"
                ) from None
            raise IncompleteExchangeError(" ".join(f"{type(error).__name__}: {error}".split())) from None

    def abort(self) -> None:
        """Break off all exchanges; nothing is sent any more."""
        self._aborted = True
        for limit in self._exchanges:
            # One that is over already may still be closing its connection; to reschedule it is an error.
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())


class _TooLongError(Exception):
    """A response of more than MOST_BYTES."""


async def _body(response: httpx.Response) -> bytes:
    too_long = _TooLongError(f"a response of more than {MOST_BYTES >> 20} MB")
    if int(response.headers.get("content-length", "0")) > MOST_BYTES:
        raise too_long
    received = bytearray()
    async for chunk in response.aiter_bytes():
        received += chunk
        if len(received) > MOST_BYTES:
            raise too_long
    return bytes(received)


def _untrusted(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """What is wrong with the server's certificate, if that is what `error` comes from."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
