"""Cloud TPU VMs on this machine: the real `gcloud`, a strict stand-in of its API, and workers that are real sshd hosts.

    with TpuBed() as tpu:
        tpu.gcloud("create", "pod", "--accelerator-type=v4-16", "--version=tpu-ubuntu2204-base")
        tpu.gcloud("ssh", "pod", "--worker=all", "--command=hostname").stdout
        tpu.preempt("pod")
        assert [request.body for request in tpu.requests("nodes.create")] == ...

`env` makes any process of this machine use the bed: the `gcloud` that is first on its PATH enters the bed's network,
where the API listens and the workers answer at port 22, and is the real one otherwise. The workers share no files with
each other nor with this machine's temporary directories. They live from shortly before their VM is READY until it is
deleted, stopped or preempted; a VM that is created again has new disks, host keys and addresses.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from .bed import BedError, plain_directory, wait_for
from .computer import HostSettings
from .needs import SEARCH_PATH, why_not
from .tpu_api import Api, Fault, Request
from .tpu_checks import NO_CAPACITY, PROJECT, ZONES, Refusal
from .tpu_cloud import Cloud
from .tpu_network import GATEWAY, Hub, Vm, Worker
from .tpu_queue import Queue
from .warm_gcloud import WarmGcloud

API_PORT = 80
TOKEN = "ya29.bed"
VERSION = "tpu-ubuntu2204-base"


class TpuBed:
    """A context manager. `settings` are those of every worker; its `user` logs in. With `has_key`, gcloud's ssh key is
    there, as on a machine that has used `gcloud ... ssh` before.

    Calls of gcloud go to `warm`, where one is given; gcloud then waits for `sleep_factor` of the time that it would
    wait between attempts and between looks at an operation.

    A worker runs the startup script of its metadata, has a metadata server, and reaches the API as `api.vm_may_delete`
    allows its service account; what it asks for is in `api.vm_requests`.

    `cloud` and `queue` have what takes how long (`cloud.create_s`, `queue.wait_s` ...), to be changed at any time.
    """

    def __init__(
        self, settings: HostSettings | None = None, *, has_key: bool = True, warm: WarmGcloud | None = None,
        sleep_factor: float = 1.0,
    ) -> None:  # fmt: skip
        if reason := why_not("tpu"):
            raise BedError(reason)
        self.settings = settings or HostSettings(user=pwd.getpwuid(os.geteuid()).pw_name)
        self.project, self.zone = PROJECT, ZONES[0]
        self.directory = Path(tempfile.mkdtemp(prefix="tpu-", dir=plain_directory()))
        self.directory.chmod(0o755)
        self._numbers = itertools.count(1)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.hub = Hub(self.directory)
            undo.callback(self.hub.close)
            self.cloud = Cloud(self._make_vm)
            undo.callback(self.cloud.close)
            self.queue = Queue(self.cloud)
            self.api = Api(self.cloud, self.queue, TOKEN)
            self.api.serve(self.hub.listen(API_PORT))
            undo.callback(self.api.close)
            self.env = self._install(warm, sleep_factor)
            if has_key:
                self._make_key()
            self._undo = undo.pop_all()

    def __enter__(self) -> TpuBed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._undo.close()
        self._check()

    def _check(self) -> None:
        if failure := self.cloud.timetable.failure:
            raise BedError(f"something that was due in the cloud failed: {failure}") from failure

    def gcloud(
        self, command: str, *words: str, group: str = "tpu-vm", check: bool = False, timeout_s: float = 120, **run: Any
    ) -> subprocess.CompletedProcess[str]:
        """`gcloud compute tpus GROUP COMMAND WORDS`; `run` goes to subprocess.run."""
        streams = {} if run.keys() & {"input", "stdin"} else {"stdin": subprocess.DEVNULL}
        env = {**os.environ, **self.env, **run.pop("env", {})}
        done = subprocess.run(
            ["gcloud", "compute", "tpus", group, command, *words],
            env=env, capture_output=True, text=True, timeout=timeout_s, check=False, **streams, **run,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise BedError(f"gcloud {command} {words}: {done.returncode}: {done.stderr}")
        return done

    # What is there, and what was asked.

    def node(self, name: str) -> dict[str, Any]:
        """As the API shows it."""
        with self.cloud.lock:
            return dict(self.cloud.node(self._full(name)))

    def names(self) -> list[str]:
        """All nodes that there are, in whatever state."""
        with self.cloud.lock:
            return [name.rpartition("/")[2] for name in self.cloud.nodes]

    def workers(self, name: str) -> list[Worker]:
        """Its machines; none while it has none."""
        with self.cloud.lock:
            vm = self.cloud.vms.get(self._full(name))
            return list(vm.workers) if vm else []

    def requests(self, kind: str | None = None) -> list[Request]:
        with self.cloud.lock:
            return [request for request in self.api.requests if kind in (None, request.kind)]

    def create(
        self, name: str, accelerator: str = "v4-8", *, spot: bool = False, external: bool = True
    ) -> list[Worker]:
        """A VM that somebody made, without gcloud; returns its workers when it is READY."""
        body = {
            "acceleratorType": accelerator, "runtimeVersion": VERSION, "schedulingConfig": {"spot": spot},
            "networkConfig": {"network": "default", "enableExternalIps": external},
        }  # fmt: skip
        with self.cloud.lock:
            self.cloud.create_node(self._full("").removesuffix("/nodes/"), name, body, "v2")
        self.wait_for(name, "READY")
        return self.workers(name)

    def wait_for(self, name: str, state: str | None, limit_s: float = 30) -> None:
        """Until a node has this state; None: until there is no such node."""

        def found() -> str | None:
            self._check()
            with self.cloud.lock:
                return self.cloud.nodes.get(self._full(name), {}).get("state")

        wait_for(lambda: found() == state, lambda: f"{name} is {found()}, not {state}", limit_s=limit_s)

    # What happens to it.

    def preempt(self, name: str, state: str = "PREEMPTED") -> None:
        """Its machines are gone without a word. `state` is what the API says from now on: PREEMPTED; READY, which it is
        not; TERMINATED, as after maintenance or at the end of its time."""
        with self.cloud.lock:
            scheduling = self.cloud.node(self._full(name)).get("schedulingConfig", {})
            if state == "PREEMPTED" and not (scheduling.get("spot") or scheduling.get("preemptible")):
                raise BedError(f"{name} is neither spot nor preemptible: it cannot be preempted")
            self.cloud.lose_node(self._full(name), state)

    def set(self, name: str, **fields: Any) -> None:
        """Change what the API shows of a node (state, health ...) and nothing else."""
        with self.cloud.lock:
            self.cloud.node(self._full(name)).update(fields)

    def no_capacity(self, ending: tuple[int, str] = NO_CAPACITY) -> None:
        """From now on creating ends so (tpu_checks has others); `there_is_capacity` takes it back."""
        self.cloud.no_capacity = ending

    def there_is_capacity(self) -> None:
        self.cloud.no_capacity = None

    def refuse(self, kind: str, status: str, message: str = "made up by the bed", times: int = 1) -> None:
        """The next requests of a kind (`nodes.create`; `nodes.*`) end with a status of tpu_checks.STATUS."""
        self._fault(Fault(kind, times, refusal=Refusal(status, message)))

    def lose_answer(self, kind: str, times: int = 1) -> None:
        """They are obeyed, and the connection breaks before the answer."""
        self._fault(Fault(kind, times, is_answer_lost=True))

    def delay(self, kind: str, delay_s: float, times: int = 1) -> None:
        self._fault(Fault(kind, times, delay_s=delay_s))

    def grant(self, name: str) -> None:
        """A queued resource that waits (`queue.wait_s` None) gets what it asks for."""
        with self.cloud.lock:
            self.queue.grant(self._full(name, "queuedResources"))

    def _fault(self, fault: Fault) -> None:
        with self.cloud.lock:
            self.api.faults.append(fault)

    def _full(self, name: str, collection: str = "nodes") -> str:
        return f"projects/{self.project}/locations/{self.zone}/{collection}/{name}"

    def _make_vm(self, name: str, count: int, is_external: bool) -> Vm:
        number = next(self._numbers)
        return Vm(
            [
                Worker(self.hub, f"{name}-w-{index}", self.directory / f"vm{number}" / str(index), self.settings,
                       is_external=is_external)
                for index in range(count)
            ]
        )  # fmt: skip

    def _make_key(self) -> None:
        folder = self.directory / "home" / ".ssh"
        folder.mkdir(mode=0o700)
        words = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(folder / "google_compute_engine")]
        subprocess.run(words, check=True)

    def _install(self, warm: WarmGcloud | None, sleep_factor: float) -> dict[str, str]:
        """The `gcloud` of the bed, and the variables that it needs."""
        home, config, binaries = (self.directory / folder for folder in ("home", "config", "bin"))
        for folder in (home, config, binaries):
            folder.mkdir()
        network = f"/proc/{self.hub.pid}/ns/net"
        words = warm.words(network, sleep_factor) if warm else ["nsenter", f"--net={network}", "--", real_gcloud()]
        program = binaries / "gcloud"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
        (self.directory / "token").write_text(TOKEN)
        return {
            "PATH": f"{binaries}:{os.environ.get('PATH', SEARCH_PATH)}",
            # ssh keys and known hosts of gcloud.
            "HOME": str(home),
            "LOGNAME": self.settings.user,
            "CLOUDSDK_CONFIG": str(config),
            "CLOUDSDK_CORE_PROJECT": self.project,
            "CLOUDSDK_COMPUTE_ZONE": self.zone,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"http://{GATEWAY}:{API_PORT}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"http://{GATEWAY}:{API_PORT}/compute/v1/",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(self.directory / "token"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }


def real_gcloud() -> str:
    found = shutil.which("gcloud", path=SEARCH_PATH)
    assert found
    return found
