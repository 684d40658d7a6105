"""The server behind Volcano's admission webhooks, and their registration."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from admission import defaults, why_not_changed, why_refused
from api import Api, ApiError, Object, url
from dialects import Dialect
from switches import Switches

PORT = 8443
HANG_S = 60
# How long the API server waits for an answer.
TIMEOUT_S = 10
RULE = {"apiGroups": ["batch.volcano.sh"], "apiVersions": ["v1alpha1"], "resources": ["jobs"]}
# Path, kind of configuration, its name, the webhook's name, and when it is asked.
MUTATE = ("/jobs/mutate", "MutatingWebhookConfiguration", "volcano-admission-service-jobs-mutate",
          "mutatejob.volcano.sh", ["CREATE"])  # fmt: skip
VALIDATE = ("/jobs/validate", "ValidatingWebhookConfiguration", "volcano-admission-service-jobs-validate",
            "validatejob.volcano.sh", ["CREATE", "UPDATE"])  # fmt: skip
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


class Webhook:
    def __init__(self, api: Api, dialect: Dialect, switches: Switches, directory: Path) -> None:
        self._api, self._dialect, self._switches = api, dialect, switches
        self._certificate, key = _certificate(directory)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", PORT), self._handler())
        self._server.daemon_threads = True
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        for path, kind, name, webhook, operations in (MUTATE, VALIDATE):
            configuration = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": name},
                "webhooks": [
                    {
                        "name": webhook,
                        "rules": [{**RULE, "operations": operations, "scope": "*"}],
                        "clientConfig": {
                            "url": f"https://127.0.0.1:{PORT}{path}",
                            "caBundle": base64.b64encode(self._certificate.read_bytes()).decode(),
                        },
                        "failurePolicy": "Fail",
                        "matchPolicy": "Equivalent",
                        "sideEffects": "NoneOnDryRun",
                        "timeoutSeconds": TIMEOUT_S,
                        "admissionReviewVersions": ["v1"],
                    }
                ],
            }
            try:
                self._api.call("POST", f"{ADMISSION}/{kind.lower()}s", configuration)
            except ApiError as error:
                # From before a restart: the certificate is the same.
                if error.reason != "AlreadyExists":
                    raise

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Else the body waits until the API server has acknowledged the head.
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if webhook._switches.webhook == "hang":
                    time.sleep(HANG_S)
                answer = webhook.answer(self.path.partition("?")[0], review["request"])
                body = json.dumps(
                    {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler

    def answer(self, path: str, request: Object) -> Object:
        job = request["object"]
        # A Job of `generateName` has no name when it is looked at.
        job["metadata"].setdefault("name", "")
        if path == MUTATE[0]:
            patch = base64.b64encode(json.dumps(defaults(job)).encode()).decode()
            return {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        if request["operation"] == "UPDATE":
            why = why_not_changed(request["oldObject"], job)
        else:
            why = why_refused(job, self._dialect, self._queue, lambda template: self._errors(request, template))
        return {"uid": request["uid"], "allowed": not why, **({"status": {"message": why}} if why else {})}

    def _queue(self, name: str) -> Object | str:
        try:
            return self._api.get("queues", None, name)
        except ApiError as error:
            if error.code != 404:
                raise
            return f'queues.scheduling.volcano.sh "{name}" not found'

    def _errors(self, request: Object, template: Object) -> list[str]:
        """The API server's own validation, as Volcano has it built in."""
        probe = {"metadata": {"generateName": "probe-"}, "template": template}
        path = url("podtemplates", request["namespace"])
        try:
            self._api.call("POST", f"{path}?dryRun=All", probe)
        except ApiError as error:
            if error.code != 422:
                raise
            return [f"{cause['field']}: {cause['message']}" for cause in error.causes]
        return []


def _certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "webhook.crt", directory / "webhook.key"
    if certificate.exists():
        return certificate, key
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "3650", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(key), "-out", str(certificate)]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return certificate, key
