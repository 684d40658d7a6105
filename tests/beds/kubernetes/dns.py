"""The cluster's name server: what CoreDNS tells pods of services, from the control plane's Endpoints.

    python -m beds.kubernetes.dns ADDRESS PORT AUTHORITY TOKENS      in the bed's network

`SERVICE.NAMESPACE.svc.cluster.local` is all of a service's ready pods, `HOSTNAME.SERVICE.NAMESPACE...` is one of them,
as soon as the control plane lists it and no longer. Every other name does not exist. Services with an address of their
own are answered with their pods' addresses too, because nothing in the bed forwards from the one to the others.
"""

from __future__ import annotations

import http.client
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

from .api import Api, ApiError, Object

Names = dict[str, list[str]]
DOMAIN = "svc.cluster.local"
HEADER = struct.Struct("!HHHHHH")
QUESTION = struct.Struct("!HH")
ANSWER = struct.Struct("!HHHIH4s")
A, INTERNET = 1, 1
# A response, authoritative, recursion available; the lowest four bits are how it went.
RESPONSE, NO_SUCH_NAME = 0x8480, 3
TTL_S = 5


def names_of(endpoints: Object) -> Names:
    """The addresses by name of one service."""
    metadata = endpoints["metadata"]
    service = f"{metadata['name']}.{metadata['namespace']}.{DOMAIN}"
    names: Names = {}
    for subset in endpoints.get("subsets") or []:
        for address in subset.get("addresses") or []:
            names.setdefault(service, []).append(address["ip"])
            if hostname := address.get("hostname"):
                names.setdefault(f"{hostname}.{service}", []).append(address["ip"])
    return names


class Zone:
    """What the control plane has said, by service."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._services: dict[tuple[str, str], Names] = {}

    def addresses(self, name: str) -> list[str] | None:
        """None where the name does not exist."""
        for names in list(self._services.values()):
            if found := names.get(name.lower()):
                return found
        return None

    def follow(self) -> None:
        while True:
            try:
                listed = self._api.get("/api/v1/endpoints")
                self._services = {_key(item): names_of(item) for item in listed["items"]}
                for kind, item in self._changes(listed["metadata"]["resourceVersion"]):
                    if kind == "DELETED":
                        self._services.pop(_key(item), None)
                    else:
                        self._services[_key(item)] = names_of(item)
            except (ApiError, OSError, http.client.HTTPException) as error:
                print(f"the API server: {error}", file=sys.stderr, flush=True)
                time.sleep(0.2)

    def _changes(self, version: str) -> Iterator[tuple[str, Object]]:
        for event in self._api.watch(f"/api/v1/endpoints?watch=1&resourceVersion={version}"):
            if event["type"] == "ERROR":
                return
            yield event["type"], event["object"]


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def answer(query: bytes, zone: Zone) -> bytes:
    """The response to one question."""
    number, flags, *_ = HEADER.unpack_from(query)
    labels, at = [], HEADER.size
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode(errors="replace"))
        at += 1 + length
    kind, category = QUESTION.unpack_from(query, at + 1)
    question = query[HEADER.size : at + 1 + QUESTION.size]
    found = zone.addresses(".".join(labels))
    records = []
    if found and (kind, category) == (A, INTERNET):
        # 0xC00C points at the question's name.
        records = [ANSWER.pack(0xC00C, A, INTERNET, TTL_S, 4, socket.inet_aton(address)) for address in found]
    code = RESPONSE | (flags & 0x0100) | (0 if found else NO_SUCH_NAME)
    return HEADER.pack(number, code, 1, len(records), 0, 0) + question + b"".join(records)


def serve(address: str, port: int, zone: Zone) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        while True:
            query, client = server.recvfrom(4096)
            try:
                server.sendto(answer(query, zone), client)
            except (IndexError, struct.error) as error:
                print(f"no question in {query!r}: {error}", file=sys.stderr, flush=True)


def main() -> None:
    address, port, authority, tokens = sys.argv[1:]
    with open(tokens, encoding="utf-8") as file:
        token = file.readline().partition(",")[0]
    zone = Zone(Api(lambda: socket.create_connection(("127.0.0.1", 6443), timeout=10), authority, token))
    threading.Thread(target=zone.follow, daemon=True).start()
    serve(address, int(port), zone)


if __name__ == "__main__":
    main()
