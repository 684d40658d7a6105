"""How a server is reached: directly, or through the proxy that the environment names, as on nodes of many clusters.

`https_proxy`, `http_proxy` and `no_proxy` are read as the standard library reads them; this host needs no proxy.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


def open_route(url: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    """A connection for requests to the server of `url`, not connected yet; the certificates of https are verified."""
    proxy = _proxy_of(url)
    address = url.netloc if proxy is None else _address(proxy)
    if url.scheme == "http":
        return http.client.HTTPConnection(address, timeout=timeout_s)
    connection = http.client.HTTPSConnection(address, timeout=timeout_s, context=ssl.create_default_context())
    if proxy is not None:
        connection.set_tunnel(url.netloc, headers=dict(_credentials(proxy)))
    return connection


def routed(url: str, target: str) -> tuple[str, Mapping[str, str]]:
    """What is asked for, and the headers for a proxy: without a tunnel it is told the whole URL."""
    parts = urlsplit(url)
    proxy = _proxy_of(parts) if parts.scheme == "http" else None
    return (target, {}) if proxy is None else (url, _credentials(proxy))


def _proxy_of(url: SplitResult) -> SplitResult | None:
    if url.hostname in LOCAL_HOSTS or urllib.request.proxy_bypass(url.netloc):
        return None
    address = urllib.request.getproxies().get(url.scheme)
    if not address:
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _address(proxy: SplitResult) -> str:
    return proxy.netloc.rpartition("@")[2]


def _credentials(proxy: SplitResult) -> Mapping[str, str]:
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"}
