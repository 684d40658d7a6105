"""Volcano's plugins of a Job: `env` tells a pod its index, `svc` where the others are, `ssh` gives them a key."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api import Api, Object
from objects import JOB_NAME, JOB_NAMESPACE, containers, owner, tasks
from pods import pod_name

HOSTS_PATH = "/etc/volcano"
# Below the home of the user as whom a container runs by default.
SSH_PATH = str(Path("~root/.ssh").expanduser())
# The secret's key of each file.
SSH_FILES = {"id_rsa": "id_rsa", "id_rsa.pub": "id_rsa.pub", "authorized_keys": "id_rsa.pub", "config": "config"}


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Plugin:
    """`add` and `remove` are called when a Job begins and ends, `mount` for each new pod."""

    mount: Callable[[Object, Object, list[str]], None]
    add: Callable[[Api, Object, list[str]], None] = _nothing
    remove: Callable[[Api, Object, list[str]], None] = _nothing


def _mount_env(_job: Object, pod: Object, _arguments: list[str]) -> None:
    index = pod["metadata"]["name"].rpartition("-")[2]
    for container in containers(pod["spec"]):
        container.setdefault("env", []).extend(
            [{"name": "VK_TASK_INDEX", "value": index}, {"name": "VC_TASK_INDEX", "value": index}]
        )


def hosts(job: Object) -> dict[str, dict[str, str]]:
    """The pods' host names by task, each with its name within the service."""
    service = job["metadata"]["name"]
    found: dict[str, dict[str, str]] = {}
    for task in tasks(job):
        spec = task["template"]["spec"]
        own = spec.get("hostname")
        names = [own] if own else [pod_name(job, task, index) for index in range(task.get("replicas", 0))]
        found[task["name"]] = {name: f"{name}.{spec.get('subdomain') or service}" for name in names}
    return found


def _host_data(job: Object) -> dict[str, str]:
    data = {}
    for task, named in hosts(job).items():
        word = task.replace("-", "_")
        data[f"{word}.host"] = "\n".join(named.values())
        data[f"VC_{word.upper()}_HOSTS"] = ",".join(named.values())
        data[f"VC_{word.upper()}_NUM"] = str(len(named))
    return data


def _svc_name(job: Object) -> str:
    return f"{job['metadata']['name']}-svc"


def _mount_svc(job: Object, pod: Object, _arguments: list[str]) -> None:
    spec, name = pod["spec"], _svc_name(job)
    spec.setdefault("hostname", pod["metadata"]["name"])
    spec.setdefault("subdomain", job["metadata"]["name"])
    spec.setdefault("volumes", []).append({"name": name, "configMap": {"name": name}})
    variables = [key for key in _host_data(job) if key.startswith("VC_")]
    for container in containers(spec):
        container.setdefault("env", []).extend(
            {"name": variable, "valueFrom": {"configMapKeyRef": {"name": name, "key": variable}}}
            for variable in variables
        )
        container.setdefault("volumeMounts", []).append({"name": name, "mountPath": HOSTS_PATH})


def _add_svc(api: Api, job: Object, arguments: list[str]) -> None:
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    selector = {JOB_NAME: name, JOB_NAMESPACE: namespace}
    meta = {"name": name, "namespace": namespace, "ownerReferences": owner(job)}
    api.create_once("configmaps", namespace, {"metadata": {**meta, "name": _svc_name(job)}, "data": _host_data(job)})
    service: Object = {"clusterIP": "None", "selector": selector}
    if _is_set(arguments, "publish-not-ready-addresses"):
        service["publishNotReadyAddresses"] = True
    api.create_once("services", namespace, {"metadata": meta, "spec": service})
    if not _is_set(arguments, "disable-network-policy"):
        pods = {"podSelector": {"matchLabels": selector}}
        policy = {**pods, "ingress": [{"from": [pods]}], "policyTypes": ["Ingress"]}
        api.create_once("networkpolicies", namespace, {"metadata": meta, "spec": policy})


def _remove_svc(api: Api, job: Object, _arguments: list[str]) -> None:
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    api.delete("configmaps", namespace, _svc_name(job))
    api.delete("services", namespace, name)
    api.delete("networkpolicies", namespace, name)


def _is_set(arguments: list[str], flag: str) -> bool:
    return any(word.lstrip("-") in (flag, f"{flag}=true") for word in arguments)


def _ssh_name(job: Object) -> str:
    return f"{job['metadata']['name']}-ssh"


def _mount_ssh(job: Object, pod: Object, arguments: list[str]) -> None:
    spec, name = pod["spec"], _ssh_name(job)
    paths = [word.partition("=")[2] for word in arguments if word.lstrip("-").startswith("ssh-key-file-path=")]
    path = paths[-1] if paths else SSH_PATH
    items = [{"key": key, "path": f".ssh/{file}"} for file, key in SSH_FILES.items()]
    mode = 0o600 if path == SSH_PATH else 0o755
    volume = {"name": name, "secret": {"secretName": name, "items": items, "defaultMode": mode}}
    spec.setdefault("volumes", []).append(volume)
    for container in spec["containers"]:
        container.setdefault("volumeMounts", []).append({"name": name, "mountPath": path, "subPath": ".ssh"})


def _add_ssh(api: Api, job: Object, _arguments: list[str]) -> None:
    lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    for named in hosts(job).values():
        for host, address in named.items():
            lines += [f"Host {host}", f"  HostName {address}"]
    with tempfile.TemporaryDirectory(prefix="volcano-") as folder:
        file = Path(folder, "id_rsa")
        words = ["ssh-keygen", "-q", "-t", "rsa", "-b", "1024", "-m", "PEM", "-N", "", "-C", "", "-f", str(file)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        files = {"id_rsa": file.read_bytes(), "id_rsa.pub": file.with_suffix(".pub").read_bytes()}
    files["config"] = "".join(f"{line}\n" for line in lines).encode()
    meta = {"name": _ssh_name(job), "ownerReferences": owner(job)}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    api.create_once("secrets", job["metadata"]["namespace"], {"metadata": meta, "data": data})


def _remove_ssh(api: Api, job: Object, _arguments: list[str]) -> None:
    api.delete("secrets", job["metadata"]["namespace"], _ssh_name(job))


PLUGINS = {
    "env": Plugin(_mount_env),
    "ssh": Plugin(_mount_ssh, _add_ssh, _remove_ssh),
    "svc": Plugin(_mount_svc, _add_svc, _remove_svc),
}


def of_job(job: Object) -> list[tuple[str, Plugin, list[str]]]:
    """The plugins that a Job asks for, with their arguments."""
    return [(name, PLUGINS[name], words or []) for name, words in (job["spec"].get("plugins") or {}).items()]
