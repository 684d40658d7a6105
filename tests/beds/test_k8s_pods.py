"""Pods of the Kubernetes bed behave as on a real node."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from .bed import wait_for
from .computer import seen_in_tmp
from .k8s import K8sBed
from .test_k8s_bed import pod, terminated

SLEEP = ("sleep", "300")


def running(k8s: K8sBed, name: str, *command: str, **spec: Any) -> str:
    """The name of a pod that runs this command."""
    k8s.create(pod(name, *(command or SLEEP), **spec))
    k8s.wait_for_phase(name, "Running")
    return name


def data_object(kind: str, name: str, **data: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **data}


def waiting(k8s: K8sBed, name: str) -> dict[str, Any]:
    """Why the container of a pod waits: `reason` and `message`."""
    statuses = k8s.pod(name)["status"].get("containerStatuses", [{}])
    return statuses[0].get("state", {}).get("waiting", {})


def exec_in(k8s: K8sBed, name: str, *command: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command must read its input to the end: kubectl and the servers lose the output of one that does not."""
    words = ["kubectl", "--kubeconfig", k8s.kubeconfig, "exec", "-i", name, "--", *command]
    return subprocess.run(words, input=input, capture_output=True, timeout=120, check=False)


def test_every_byte_passes_both_ways_through_exec(k8s: K8sBed) -> None:
    sent = os.urandom(5 << 20)
    done = exec_in(k8s, running(k8s, "host"), "sh", "-c", "cat; echo done >&2; exit 7", input=sent)
    assert done.stdout == sent
    assert done.stderr == b"done\ncommand terminated with exit code 7\n"
    assert done.returncode == 7


def test_a_command_in_a_pod_sees_the_end_of_its_input(k8s: K8sBed, tmp_path: Path) -> None:
    files = Path(k8s.make_volume("data"))
    (tmp_path / "some file").write_bytes(os.urandom(1 << 20))
    packed = subprocess.run(["tar", "-cf", "-", "some file"], cwd=tmp_path, capture_output=True, check=True).stdout
    name = running(k8s, "host", mounts={"mountPath": "/data"})
    done = exec_in(k8s, name, "tar", "-xpf", "-", "-C", "/data", input=packed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (files / "some file").read_bytes() == (tmp_path / "some file").read_bytes()


def test_files_are_copied_into_a_pod_and_back(k8s: K8sBed, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(os.urandom(1 << 20))
    name = running(k8s, "host")
    k8s.kubectl("cp", str(tmp_path / "sent"), f"{name}:/srv/arrived")
    k8s.kubectl("cp", f"{name}:/srv/arrived", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "sent").read_bytes()
    assert not Path("/srv/arrived").exists()


def test_a_command_that_the_image_lacks(k8s: K8sBed) -> None:
    done = k8s.kubectl("exec", running(k8s, "host"), "--", "no-such-program", check=False)
    assert done.returncode == 1
    assert '"no-such-program": executable file not found in $PATH' in done.stderr
    k8s.create(pod("lost", "no-such-program"))
    ended = terminated(k8s.wait_for_phase("lost", "Failed"))
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found in $PATH' in ended["message"]


def test_logs_are_followed_until_the_container_ends(k8s: K8sBed) -> None:
    talks = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.2; done"
    name = running(k8s, "talker", "sh", "-c", talks)
    followed = k8s.kubectl("logs", "-f", name).stdout.splitlines()
    assert [line for line in followed if line.startswith("out")] == ["out 1", "out 2", "out 3"]
    assert [line for line in followed if line.startswith("err")] == ["err 1", "err 2", "err 3"]
    assert k8s.kubectl("logs", "--tail=1", name).stdout.splitlines() == followed[-1:]


def test_an_image_that_cannot_be_pulled(k8s: K8sBed) -> None:
    lost = pod("lost", *SLEEP)
    lost["spec"]["containers"][0]["image"] = "registry.example/missing:1"
    k8s.create(lost)
    wait_for(lambda: waiting(k8s, "lost").get("reason") == "ImagePullBackOff", lambda: str(waiting(k8s, "lost")))
    assert waiting(k8s, "lost")["message"] == 'Back-off pulling image "registry.example/missing:1"'
    assert k8s.pod("lost")["status"]["phase"] == "Pending"
    events = k8s.kubectl("get", "events", "-o", "jsonpath={.items[*].message}").stdout
    assert 'failed to resolve reference "registry.example/missing:1"' in events
    refused = k8s.kubectl("logs", "lost", check=False).stderr
    # Kubernetes has two texts for it, by where the kubelet is between two tries.
    assert "is waiting to start: trying and failing to pull image" in refused or "image can't be pulled" in refused


def test_a_volume_that_is_not_there(k8s: K8sBed) -> None:
    k8s.create(pod("lost", *SLEEP, mounts={"mountPath": "/data"}))

    def reasons() -> list[str]:
        return [each.get("message", "") for each in k8s.pod("lost")["status"].get("conditions", [])]

    wait_for(lambda: any('persistentvolumeclaim "data" not found' in text for text in reasons()), reasons)
    assert k8s.pod("lost")["status"]["phase"] == "Pending"


def test_a_secret_that_is_not_there(k8s: K8sBed) -> None:
    lost = pod("lost", *SLEEP, volumes=[{"name": "key", "secret": {"secretName": "absent"}}])
    lost["spec"]["containers"][0]["volumeMounts"] = [{"name": "key", "mountPath": "/key"}]
    k8s.create(lost)

    def events() -> str:
        return k8s.kubectl("get", "events", "-o", "jsonpath={.items[*].message}").stdout

    wait_for(lambda: 'secret "absent" not found' in events(), events, every_s=0.2)
    assert waiting(k8s, "lost")["reason"] == "ContainerCreating"


def test_what_configmaps_secrets_and_fields_say(k8s: K8sBed) -> None:
    assert Path("/var/run").readlink() == Path("/run")
    trap = "no: 'quote\"\nand 1e3"
    k8s.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "words"},
            "data": {"trap": trap, "file": "text"},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"id": "hidden"}},
    )
    script = 'printf "%s|%s|%s|%s|" "$TRAP" "$KEY" "$NAME" "$ADDRESS"; cat /etc/words/file /run/a-key/id'
    asking = pod(
        "asking", "sh", "-c", script,
        volumes=[
            {"name": "words", "configMap": {"name": "words"}},
            {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o600}},
        ],
    )  # fmt: skip
    container = asking["spec"]["containers"][0]
    places = {"words": "/etc/words", "key": "/var/run/a-key"}
    container["volumeMounts"] = [{"name": name, "mountPath": path} for name, path in places.items()]
    container["env"] = [
        {"name": "TRAP", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "trap"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "id"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    k8s.create(asking)
    address = k8s.wait_for_phase("asking", "Succeeded")["status"]["podIP"]
    assert k8s.kubectl("logs", "asking").stdout == f"{trap}|hidden|asking|{address}|texthidden\n"
    assert not Path("/run/a-key").exists(), "the container's links lead into the container"


def test_shared_memory_is_as_large_as_was_asked_for(k8s: K8sBed) -> None:
    sized = pod(
        "sized", "df", "--output=size", "-B1M", "/dev/shm",
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
    )  # fmt: skip
    sized["spec"]["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    k8s.create(sized, pod("usual", "df", "--output=size", "-B1M", "/dev/shm"))
    for name, size in (("sized", "256"), ("usual", "64")):
        k8s.wait_for_phase(name, "Succeeded")
        assert k8s.kubectl("logs", name).stdout.split()[-1] == size


def test_pods_share_a_nodes_gpus_and_wait_for_them(k8s: K8sBed) -> None:
    def wants(name: str, gpus: int) -> dict[str, Any]:
        made = pod(name, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; sleep 300", nodeName=None)
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n1"}
        made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        return made

    k8s.create(wants("a", 5), wants("b", 3))
    given = set()
    for name in ("a", "b"):
        k8s.wait_for_phase(name, "Running")
        wait_for(lambda name=name: k8s.kubectl("logs", name).stdout.strip(), f"{name} to say what it has")
        given |= set(k8s.kubectl("logs", name).stdout.strip().split(","))
    assert given == {str(index) for index in range(8)}
    k8s.create(wants("c", 1))

    def unschedulable() -> str:
        return "".join(each.get("message", "") for each in k8s.pod("c")["status"].get("conditions", []))

    wait_for(lambda: "Insufficient nvidia.com/gpu" in unschedulable(), unschedulable)
    k8s.kubectl("delete", "pod", "b")
    k8s.wait_for_phase("c", "Running")


def test_a_pod_is_asked_to_end_and_has_time_for_it(k8s: K8sBed) -> None:
    files = Path(k8s.make_volume("data"))
    script = "trap 'echo asked > /data/said; exit' TERM; touch /data/up; while :; do sleep 0.1; done"
    k8s.create(pod("polite", "sh", "-c", script, mounts={"mountPath": "/data"}, terminationGracePeriodSeconds=60))
    wait_for((files / "up").exists, "the pod runs")
    k8s.kubectl("delete", "pod", "polite", timeout_s=30)
    assert (files / "said").read_text() == "asked\n"


def test_a_pod_that_does_not_end_is_killed_after_its_grace(k8s: K8sBed) -> None:
    files = Path(k8s.make_volume("data"))
    # As most first processes of a container do, it has no handler for the signal.
    script = "touch /data/up; while :; do date +%s.%N > /data/last; sleep 0.1; done"
    k8s.create(pod("deaf", "sh", "-c", script, mounts={"mountPath": "/data"}, terminationGracePeriodSeconds=3))
    wait_for((files / "up").exists, "the pod runs")
    asked = time.time()
    k8s.kubectl("delete", "pod", "deaf")
    last = float((files / "last").read_text())
    assert last - asked > 2.5
    assert time.time() - last > 0.1


def test_a_pod_that_runs_longer_than_it_may(k8s: K8sBed) -> None:
    k8s.create(pod("long", *SLEEP, activeDeadlineSeconds=1))
    assert k8s.wait_for_phase("long", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_a_container_is_started_again_where_its_pod_says_so(k8s: K8sBed) -> None:
    files = Path(k8s.make_volume("data"))
    script = "test -e /data/once && exit 0; touch /data/once; exit 9"
    k8s.create(pod("again", "sh", "-c", script, mounts={"mountPath": "/data"}, restartPolicy="OnFailure"))
    k8s.wait_for_phase("again", "Succeeded")
    assert (files / "once").exists()
    assert k8s.pod("again")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_container_sees_neither_the_tests_files_nor_other_processes(k8s: K8sBed, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    there = seen_in_tmp()
    name = running(k8s, "alone")
    look = (
        'cat >/dev/null; ls -A /tmp; [ -e "$0" ] && echo seen; python3 -c "import msgspec"; echo $?; ls -d /proc/[0-9]*'
    )
    said = exec_in(k8s, name, "sh", "-c", look, str(tmp_path)).stdout.decode().split()
    assert said[: len(there) + 2] == [*there, "0", "/proc/1"]
    assert len(said) < 6 + len(there)


def test_a_volume_is_full(k8s: K8sBed) -> None:
    k8s.make_volume("data", is_small=True)
    k8s.create(pod("greedy", "dd", "if=/dev/zero", "of=/data/big", "bs=1M", "count=2", mounts={"mountPath": "/data"}))
    k8s.wait_for_phase("greedy", "Failed")
    assert "No space left on device" in k8s.kubectl("logs", "greedy").stdout
