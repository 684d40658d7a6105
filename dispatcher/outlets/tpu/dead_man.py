"""Deletes a TPU VM of which no dispatcher has been heard for too long. It runs on the VM, as root, on Python 3.8.

The startup script of the VM starts it (timer.py) on every worker, and it goes on on worker 0. What it needs to know, it
asks the VM's metadata server; it deletes with the VM's own service account, after it has found out that this may:

    python3 dead_man.py DIRECTORY SECONDS https://tpu.googleapis.com/

A dispatcher writes a file into DIRECTORY, with the seconds until it has to write again; 0: never. `state` there is for
dispatchers: `armed`, or `unable` and why.
"""

import fcntl
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Tuple

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/"
RENEWALS = ("alive", "ending")
# No VM has this name: deleting it tells whether deleting is allowed, and does nothing.
PROBE = "dispatcher-dead-man-asks-whether-it-may-delete"
STEP_S = 5.0
TRY_AGAIN_S = 60.0
ANSWER_S = 30.0
FORBIDDEN, ABSENT = 403, 404


def metadata(path: str) -> str:
    request = urllib.request.Request(METADATA + path, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return str(answer.read().decode())


def tpu_env() -> Dict[str, str]:
    """What the VM is told of itself: lines such as `NODE_ID: 'pod'`."""
    pairs = (line.partition(":") for line in metadata("attributes/tpu-env").splitlines())
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


class Cloud:
    """The API of TPU VMs. A node is named as it names it."""

    def __init__(self, endpoint: str) -> None:
        known = tpu_env()
        self.place = f"projects/{known['CONSUMER_PROJECT_ID']}/locations/{known['ZONE']}"
        self.node = f"{self.place}/nodes/{known['NODE_ID']}"
        self.endpoint = endpoint.rstrip("/")

    def call(self, method: str, path: str) -> Tuple[int, Dict[str, Any]]:
        """Status and message; OSError when there is no answer."""
        token = json.loads(metadata("service-accounts/default/token"))["access_token"]
        request = urllib.request.Request(
            f"{self.endpoint}/v2/{path}", method=method, headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return answer.status, dict(json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                return error.code, dict(json.loads(text))
            except ValueError:
                return error.code, {"error": {"message": text[:500]}}

    def why_unable(self) -> str:
        """Why it may not delete the VM; empty when it may."""
        status, answer = self.call("DELETE", f"{self.place}/nodes/{PROBE}")
        return "" if status == ABSENT else message(status, answer)

    def delete(self) -> str:
        """Delete the VM, with the queued resource that has brought it; why that was refused."""
        status, node = self.call("GET", self.node)
        queued = node.get("queuedResource", "") if status < 400 else ""
        for path in ([f"{queued}?force=true"] if queued else []) + [self.node]:
            status, answer = self.call("DELETE", path)
            if status < 400:
                return ""
        return message(status, answer)


def message(status: int, answer: Dict[str, Any]) -> str:
    error = answer.get("error", {})
    return f"{status} {error.get('message', '') if isinstance(error, dict) else error}"


def renewals(directory: str) -> List[float]:
    """The seconds that dispatchers have written since; a file that cannot be read is one as well."""
    found = []
    for name in RENEWALS:
        path = os.path.join(directory, name)
        try:
            with open(path, encoding="ascii") as file:
                found.append(float(file.read()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            found.append(-1.0)
        os.unlink(path)
    return found


def tell(directory: str, text: str) -> None:
    path = os.path.join(directory, "state")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(f"{path}.new", path)


def tried(call: Any) -> str:
    """What it returns, or why it could not be done."""
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001 -- whatever an answer may be, the VM costs money if this process ends
        return f"{type(error).__name__}: {error}"


class Timer:
    """The time that is left to a VM; `cloud` deletes it."""

    def __init__(self, directory: str, limit_s: float, cloud: Any) -> None:
        self.directory = directory
        self.limit_s = limit_s
        self.cloud = cloud
        self.heard_s = time.monotonic()
        self.asked_s = -TRY_AGAIN_S
        self.why = "it has not asked yet"

    def step(self) -> None:
        """Take in what dispatchers have written, and delete the VM when none has for too long."""
        now_s = time.monotonic()
        for told_s in renewals(self.directory):
            self.heard_s = now_s
            self.limit_s = self.limit_s if told_s < 0 else told_s
        is_over = self.limit_s > 0 and now_s - self.heard_s >= self.limit_s
        if (self.why or is_over) and now_s - self.asked_s >= (STEP_S if is_over else TRY_AGAIN_S):
            self.asked_s = now_s
            self.why = tried(self.cloud.delete if is_over else self.cloud.why_unable)
            tell(self.directory, f"unable: {self.why}" if self.why else "armed")

    def pause_s(self) -> float:
        return min(STEP_S, max(0.1, self.limit_s / 20)) if self.limit_s > 0 else STEP_S


def main(directory: str, limit_s: str, endpoint: str) -> None:
    # On every worker, because dispatchers write to all of them. Whoever logs in may write there, and remove only what
    # is his own.
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o1777)
    while True:
        try:
            if tpu_env()["WORKER_ID"] != "0":
                return
            cloud = Cloud(endpoint)
            break
        except Exception:  # noqa: BLE001 -- as in `tried`; the network of a machine that boots may not be there yet
            time.sleep(STEP_S)
    with open(os.path.join(directory, "lock"), "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The startup script was run again.
            return
        timer = Timer(directory, float(limit_s), cloud)
        while True:
            # On a full disk, or with a file in its way, it goes on.
            tried(timer.step)
            time.sleep(timer.pause_s())


if __name__ == "__main__":
    main(*sys.argv[1:])
