"""A small client of the Kubernetes API: JSON in, JSON out, one connection per object of this class."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Object = dict[str, Any]

VOLCANO_JOBS = "/apis/batch.volcano.sh/v1alpha1"
GROUPS = {
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "podtemplates": "/api/v1",
    "events": "/api/v1",
    "services": "/api/v1",
    "secrets": "/api/v1",
    "configmaps": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    "storageclasses": "/apis/storage.k8s.io/v1",
    "jobs": VOLCANO_JOBS,
    "commands": "/apis/bus.volcano.sh/v1alpha1",
    "podgroups": "/apis/scheduling.volcano.sh/v1beta1",
    "queues": "/apis/scheduling.volcano.sh/v1beta1",
}
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The server's refusal: `code` is the HTTP status, `reason` and `causes` are as in metav1.Status."""

    def __init__(self, code: int, status: Object, what: str) -> None:
        self.message = str(status.get("message", ""))
        super().__init__(f"{what}: {code}: {self.message}")
        self.code = code
        self.reason = status.get("reason", "")
        self.causes: list[Object] = status.get("details", {}).get("causes", [])


# What a call may raise.
FAILURES = (ApiError, OSError, http.client.HTTPException)


class Api:
    """`timeout_s` is for one call; a watch ends after it and is begun anew by the caller."""

    def __init__(self, server: str, headers: dict[str, str], tls: ssl.SSLContext, timeout_s: float = 30) -> None:
        parts = urlsplit(server)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 443)
        self._headers, self._tls, self._timeout_s = headers, tls, timeout_s
        self._connection: http.client.HTTPSConnection | None = None
        self._turn = threading.Lock()

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Api:
        config = yaml.safe_load(path.read_text())
        named = {kind: {each["name"]: each[kind[:-1]] for each in config[kind]} for kind in ("clusters", "users")}
        contexts = {each["name"]: each["context"] for each in config["contexts"]}
        context = contexts[config["current-context"]]
        cluster, user = named["clusters"][context["cluster"]], named["users"][context["user"]]
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        return cls(cluster["server"], headers, _tls(cluster, user))

    def another(self) -> Api:
        """The same server over a connection of its own."""
        return Api(f"https://{self._address[0]}:{self._address[1]}", self._headers, self._tls, self._timeout_s)

    def list(self, kind: str) -> Object:
        return self.call("GET", url(kind))

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return self.call("GET", url(kind, namespace, name))

    def create(self, kind: str, namespace: str | None, body: Object) -> Object:
        return self.call("POST", url(kind, namespace), body)

    def create_once(self, kind: str, namespace: str | None, body: Object) -> Object | None:
        """None where it exists."""
        try:
            return self.create(kind, namespace, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return None

    def replace(self, kind: str, body: Object, sub: str = "") -> Object:
        meta = body["metadata"]
        return self.call("PUT", url(kind, meta.get("namespace"), meta["name"], sub), body)

    def patch(self, kind: str, namespace: str | None, name: str, body: Object, sub: str = "") -> Object:
        # Lists of core objects are merged by their keys, which custom resources do not know.
        how = STRATEGIC_PATCH if GROUPS[kind] == "/api/v1" else MERGE_PATCH
        return self.call("PATCH", url(kind, namespace, name, sub), body, how)

    def delete(self, kind: str, namespace: str | None, name: str, body: Object | None = None) -> bool:
        """Whether it was there."""
        try:
            self.call("DELETE", url(kind, namespace, name), body)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

    def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        with self._turn:
            try:
                answer = self._send(method, path, body, kind)
            except (http.client.HTTPException, OSError):
                # The server closes connections that stood idle, which TLS tells in words of its own.
                self.close()
                answer = self._send(method, path, body, kind)
            data = json.loads(answer.read())
        if answer.status >= 400:
            raise ApiError(answer.status, data, f"{method} {path}")
        return data

    def watch(self, kind: str, version: str) -> Iterator[tuple[str, Object]]:
        """Changes after a resource version; ends after a while. Blocks, so use a client of its own (`another`)."""
        query = urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": int(self._timeout_s / 2)})
        answer = self._send("GET", f"{url(kind)}?{query}", None, "application/json")
        if answer.status >= 400:
            raise ApiError(answer.status, json.loads(answer.read()), f"watch {kind}")
        while line := answer.readline():
            change = json.loads(line)
            if change["type"] == "ERROR":
                raise ApiError(change["object"].get("code", 500), change["object"], f"watch {kind}")
            yield change["type"], change["object"]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, path: str, body: Object | None, kind: str) -> http.client.HTTPResponse:
        if self._connection is None:
            host, port = self._address
            self._connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": "application/json", **({"Content-Type": kind} if data else {})}
        self._connection.request(method, path, data, headers)
        return self._connection.getresponse()


def url(kind: str, namespace: str | None = None, name: str = "", sub: str = "") -> str:
    words = [GROUPS[kind], *(["namespaces", namespace] if namespace else []), kind, name, sub]
    return "/".join(word for word in words if word)


def _tls(cluster: Object, user: Object) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif "certificate-authority-data" in cluster:
        context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    else:
        context.load_verify_locations(cluster["certificate-authority"])
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context
