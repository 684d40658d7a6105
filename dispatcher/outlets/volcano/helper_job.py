"""The helper as data: a Kubernetes Job whose one pod mounts the volume and waits for calls."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.volcano.manifest import WORKSPACE, toleration
from dispatcher.outlets.volcano.merging import pod_spec

CONTAINER: Final = "helper"
PYTHON: Final = "python3"
HELPER_LABEL: Final = "dispatcher/helper"
OWNER_ANNOTATION: Final = "dispatcher/owner"
# After so long without a call it ends by itself, unless something else is said; its dispatcher may have been killed.
IDLE_S: Final = 300
# One that never started ends as well.
_LONGEST_S: Final = 12 * 3600
_KEPT_AFTER_END_S: Final = 60
_NAME_BYTES: Final = 6
_FROM_TEMPLATE: Final = ("imagePullSecrets", "securityContext")
_USED_DIRECTORY: Final = "/run/dispatcher-helper"
_USED: Final = f"{_USED_DIRECTORY}/used"
_REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "128Mi"}
_LIMITS: Final[Mapping[str, str]] = {"cpu": "1", "memory": "1Gi"}

# The container's program: a call touches the file, and keeps it locked for as long as it lasts.
_WAITING: Final = """
import fcntl, os, signal, sys, time
# The first process of a container does not end by a signal that it has no handler for.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
# What calls have left behind becomes its child.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
path, idle_s = sys.argv[1], float(sys.argv[2])
file = open(path, "a")
seen, used_s = None, time.monotonic()
while time.monotonic() - used_s < idle_s:
    time.sleep(min(5.0, idle_s / 10))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        used_s = time.monotonic()
        continue
    fcntl.flock(file, fcntl.LOCK_UN)
    stamp = os.stat(path).st_mtime_ns
    if stamp != seen:
        seen, used_s = stamp, time.monotonic()
"""
# The first lines of every call. The lock is released with the last process that has inherited it.
USING: Final = (
    f'import fcntl,os;used=open("{_USED}","a");os.utime(used.fileno());fcntl.flock(used,fcntl.LOCK_SH);'
    "os.set_inheritable(used.fileno(),True);"
)


def helper_job(
    host: VolcanoHost, workspace: str, owner: str, template: Mapping[str, Any], idle_s: int = IDLE_S
) -> dict[str, Any]:
    """The Job of `owner`'s helper: the same name for the same helper, another one when the configuration changes.

    Who may fetch images and write on the volume is as in the project's `template` of Jobs.
    """
    pod = {**_pod(host, idle_s), **_of_template(template)}
    # What is in the name is the same in every dispatcher of the owner.
    identity = msgspec.json.encode([host.name, owner, pod], order="deterministic")
    name = f"d-{workspace}-helper-{hashlib.blake2b(identity, digest_size=_NAME_BYTES).hexdigest()}"
    labels = {**host.labels, WORKSPACE: workspace, HELPER_LABEL: name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": host.namespace,
            "labels": labels,
            "annotations": {OWNER_ANNOTATION: owner},
        },
        "spec": {
            # A dispatcher makes a new one when it needs one.
            "backoffLimit": 0,
            "activeDeadlineSeconds": _LONGEST_S,
            "ttlSecondsAfterFinished": _KEPT_AFTER_END_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _of_template(template: Mapping[str, Any]) -> dict[str, Any]:
    pod = pod_spec(template)
    return {key: pod[key] for key in _FROM_TEMPLATE if pod.get(key) is not None}


def _pod(host: VolcanoHost, idle_s: int) -> dict[str, Any]:
    container = {
        "name": CONTAINER,
        "image": host.helper_image or host.image,
        "command": [PYTHON, "-I", "-c", _WAITING, _USED, str(idle_s)],
        # Directories that begin with `~` are on the volume.
        "env": [{"name": "HOME", "value": host.pvc_mount_path}],
        "resources": {
            "requests": {**_REQUESTS, **host.helper_resources},
            "limits": {**_LIMITS, **host.helper_resources},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": host.pvc_mount_path},
            {"name": "used", "mountPath": _USED_DIRECTORY},
        ],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": host.pvc_name}},
            {"name": "used", "emptyDir": {}},
        ],
    }
    if host.service_account is not None:
        pod["serviceAccountName"] = host.service_account
    if host.node_selector:
        pod["nodeSelector"] = dict(host.node_selector)
    if host.tolerations:
        pod["tolerations"] = [toleration(configured) for configured in host.tolerations]
    return pod
