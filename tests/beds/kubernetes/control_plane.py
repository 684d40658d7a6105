"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler in a bed's namespaces."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..bed import BedError, wait_for
from ..needs import KUBERNETES
from .api import Api

if TYPE_CHECKING:
    from ..bed import Bed

PORT = 6443
ETCD = "http://127.0.0.1:2379"
PEERS = "http://127.0.0.1:2380"
SERVICES = "10.96.0.0/16"
# An administrator, and somebody without any rights.
USERS = {"admin": "system:masters", "ordinary": ""}
# The first is an option no more in clusters of today; the other makes objects that nothing here needs.
GATES = "--feature-gates=TTLAfterFinished=true,APIPriorityAndFairness=false"
# What every request and every `kubectl create` would pay for: kinds that no test and no controller below uses.
KINDS = "--runtime-config=api/beta=false,policy/v1beta1=true,autoscaling/v1=false,certificates.k8s.io/v1=false"
CONTROLLERS = (
    "endpoint", "garbagecollector", "job", "namespace", "nodelifecycle", "persistentvolume-binder", "podgc",
    "pv-protection", "pvc-protection", "resourcequota", "serviceaccount", "serviceaccount-token",
    "ttl-after-finished",
)  # fmt: skip


class ControlPlane:
    """`controller_options` are more flags of kube-controller-manager."""

    def __init__(self, bed: Bed, controller_options: list[str]) -> None:
        self._bed = bed
        self._controller_options = controller_options
        self._pids: dict[str, int] = {}
        self.tokens = {user: secrets.token_hex(16) for user in USERS}
        self.token_file = f"{bed.directory}/tokens"
        self.certificate = f"{bed.directory}/certs/apiserver.crt"
        self.api = Api(lambda: bed.dial("127.0.0.1", PORT), bed.outside(self.certificate), self.tokens["admin"])

    def up(self, prepare: Callable[[], None]) -> None:
        """`prepare` is called when the API server is up and no controller runs yet."""
        bed = self._bed
        for name in ("certs", "log", "etcd"):
            os.makedirs(bed.outside(f"{bed.directory}/{name}"), mode=0o700)
        bed.write(
            self.token_file,
            "".join(f'{self.tokens[user]},{user},{user},"{group}"\n' for user, group in USERS.items()),
            mode=0o600,
        )
        self._make_keys()
        self._start(
            "etcd", "--name=bed", f"--data-dir={bed.directory}/etcd", f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}", f"--listen-peer-urls={PEERS}", f"--initial-advertise-peer-urls={PEERS}",
            f"--initial-cluster=bed={PEERS}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.start_api_server()
        prepare()
        self.start_controllers()

    def _make_keys(self) -> None:
        """On elliptic curves: the programs themselves would make RSA keys, and use them, which takes much longer."""
        certs = f"{self._bed.directory}/certs"
        for name in ("accounts", "apiserver"):
            key = f"{certs}/{name}.key"
            self._bed.run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        names = ["-subj", "/CN=bed", "-addext", "subjectAltName=IP:127.0.0.1"]
        self._bed.run("openssl", "req", "-x509", "-days", "30", "-key", key, *names, "-out", self.certificate)

    def start_api_server(self) -> None:
        certs = f"{self._bed.directory}/certs"
        self._start(
            f"{KUBERNETES}/kube-apiserver", f"--etcd-servers={ETCD}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={PORT}", f"--cert-dir={certs}",
            f"--token-auth-file={self.token_file}", "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={SERVICES}", "--service-account-issuer=https://bed",
            f"--service-account-key-file={certs}/accounts.key",
            f"--service-account-signing-key-file={certs}/accounts.key", "--allow-privileged=true",
            "--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP", GATES, KINDS,
        )  # fmt: skip
        self._wait(self.api.is_ready, "kube-apiserver", 120)

    @property
    def is_api_server_up(self) -> bool:
        return "kube-apiserver" in self._pids

    def stop_api_server(self) -> None:
        """Outright; `kubectl` is refused the connection then."""
        self._bed.kill(self._pids.pop("kube-apiserver"))

    def start_controllers(self) -> None:
        config = self.write_kubeconfig(f"{self._bed.directory}/inside.kubeconfig", PORT)
        certs = f"{self._bed.directory}/certs"
        self._start(
            f"{KUBERNETES}/kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false",
            f"--service-account-private-key-file={certs}/accounts.key", "--port=0", "--secure-port=0",
            "--use-service-account-credentials=false", GATES, f"--controllers={','.join(CONTROLLERS)}",
            # What conflicts is tried again after this, and a volume is bound in several steps.
            "--pvclaimbinder-sync-period=1s",
            *self._controller_options,
        )  # fmt: skip
        self._start(
            f"{KUBERNETES}/kube-scheduler", f"--kubeconfig={config}", "--leader-elect=false", "--port=0",
            "--secure-port=0",
        )  # fmt: skip

    def write_kubeconfig(self, path: str, port: int, namespace: str = "default") -> str:
        """A file in the bed; its contexts are named after the users."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bed", "cluster": self._cluster(port)}],
            "users": [{"name": user, "user": {"token": token}} for user, token in self.tokens.items()],
            "contexts": [
                {"name": user, "context": {"cluster": "bed", "user": user, "namespace": namespace}}
                for user in self.tokens
            ],
            "current-context": "admin",
        }
        # YAML reads JSON.
        return self._bed.write(path, json.dumps(config, indent=1), mode=0o600)

    def _cluster(self, port: int) -> Mapping[str, str]:
        with open(self._bed.outside(self.certificate), "rb") as file:
            authority = base64.b64encode(file.read()).decode()
        return {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}

    def _start(self, path: str, *options: str) -> None:
        name = os.path.basename(path)
        self._pids[name] = self._bed.start([path, *options], self._log(name))

    def _log(self, name: str) -> str:
        return f"{self._bed.directory}/log/{name}.log"

    def _wait(self, condition, name: str, limit_s: float) -> None:
        def holds() -> bool:
            if not self._bed.alive(self._pids[name]):
                raise BedError(f"{name} ended:\n{self._bed.log_tail(self._log(name))}")
            return condition()

        wait_for(
            holds,
            lambda: f"{name} does not answer:\n{self._bed.log_tail(self._log(name))}",
            limit_s=limit_s,
            every_s=0.05,
        )
