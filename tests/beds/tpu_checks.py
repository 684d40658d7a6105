"""What the Cloud TPU API takes and what it refuses: accelerators, runtime versions, names and fields.

Wordings of refusals that users have reported are kept; where none is known the words are this file's own.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any

# A second project of the same user, who may use both.
PROJECT, OTHER_PROJECT = "lab-project", "other-project"
ZONES = ("us-central2-b", "us-west4-a", "europe-west4-b")
# Chips of one worker, and how many of the type's number make one chip (v4-8 has 8 cores: 4 chips).
GENERATIONS = {"v2": (4, 2), "v3": (4, 2), "v4": (4, 2), "v5litepod": (4, 1), "v5p": (4, 2), "v6e": (4, 1)}
SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
VERSIONS = (
    "tpu-ubuntu2204-base", "tpu-vm-base", "tpu-vm-v4-base", "tpu-vm-tf-2.17.0-pjrt", "v2-alpha-tpuv4",
    "v2-alpha-tpuv5-lite", "v2-alpha-tpuv5", "v2-alpha-tpuv6e",
)  # fmt: skip
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"[a-z0-9_-]{0,63}")
NODE: dict[str, Any] = {
    "acceleratorType": str, "acceleratorConfig": {"type": str, "topology": str}, "cidrBlock": str, "description": str,
    "dataDisks": list, "labels": dict, "metadata": dict, "runtimeVersion": str, "tags": list,
    "networkConfig": {"network": str, "subnetwork": str, "enableExternalIps": bool, "canIpForward": bool,
                      "queueCount": int},
    "schedulingConfig": {"preemptible": bool, "reserved": bool, "spot": bool},
    "serviceAccount": {"email": str, "scope": list},
    "shieldedInstanceConfig": {"enableSecureBoot": bool},
}  # fmt: skip
QUEUED: dict[str, Any] = {
    "tpu": {"nodeSpec": list}, "spot": {}, "guaranteed": {"minDuration": str}, "reservationName": str,
    "queueingPolicy": {"validUntilDuration": str, "validUntilTime": str, "validAfterDuration": str,
                       "validAfterTime": str, "validInterval": {"startTime": str, "endTime": str}},
}  # fmt: skip
NODE_SPEC: dict[str, Any] = {
    "parent": str, "nodeId": str, "node": NODE, "multisliceParams": {"nodeCount": int, "nodeIdPrefix": str},
}  # fmt: skip
# What v2alpha1 has besides.
ALPHA_NODE: dict[str, Any] = {"autocheckpointEnabled": bool, "bootDiskConfig": dict}
ALPHA_SCHEDULING: dict[str, Any] = {"provisioningModel": str, "reservationName": str}
ALPHA_QUEUED: dict[str, Any] = {"bestEffort": {}, "provisioningModel": str, "runDuration": dict}

# Code and message that creating a node or granting a queued resource ends with.
NO_CAPACITY = (
    8,
    (
        'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are offered '
        "(see https://cloud.google.com/tpu/docs/regions) [EID: {event}]"
    ),
)
NO_RESERVATION = (
    9,
    ("Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: {event}]"),
)
PREEMPTED = 3, "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: {event}]"
# Message of the refusal with status 429.
QUOTA = "Quota limit 'TPUV4PreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-central2."

STATUS = {
    "INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404, "ALREADY_EXISTS": 409, "ABORTED": 409, "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500,
    "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504,
}  # fmt: skip


class Refusal(Exception):
    """An answer of the API that is an error; `status` is one of the names in STATUS."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, STATUS[status]


def bad_request(text: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"Cloud TPU received a bad request. {text} [EID: {event_id()}]")


def error_of(ending: tuple[int, str], zone: str) -> dict[str, Any]:
    code, message = ending
    return {"code": code, "message": message.replace("{zone}", zone).replace("{event}", event_id())}


def event_id() -> str:
    return f"0x{random.getrandbits(60):x}"


def check_place(project: str, zone: str) -> None:
    if project not in (PROJECT, OTHER_PROJECT):
        raise Refusal("PERMISSION_DENIED", f"Permission denied on resource project {project}.")
    if zone not in (*ZONES, "-"):
        raise Refusal("PERMISSION_DENIED", f"Permission denied on 'locations/{zone}' (or it may not exist).")


def check_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise bad_request(f"{what} {name!r} must match {NAME.pattern}")


def check_fields(body: Any, known: Mapping[str, Any], where: str) -> None:
    """Refuse what is in no message of this version, or of another type."""
    for key, value in body.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            text = f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field."
            raise Refusal("INVALID_ARGUMENT", text)
        kind = known[key]
        if not isinstance(value, dict if isinstance(kind, dict) else kind):
            raise Refusal("INVALID_ARGUMENT", f"Invalid value at '{path}': {value!r}")
        if isinstance(kind, dict):
            check_fields(value, kind, path)


def node_fields(version: str) -> dict[str, Any]:
    if version == "v2":
        return NODE
    return {**NODE, **ALPHA_NODE, "schedulingConfig": {**NODE["schedulingConfig"], **ALPHA_SCHEDULING}}


def check_node(node: dict[str, Any], zone: str, version: str) -> None:
    check_fields(node, node_fields(version), "node")
    accelerator = node.get("acceleratorType") or _chip_based(node)
    if workers_of(accelerator) is None:
        raise bad_request(f"the accelerator {accelerator} was not found in zone {zone}")
    runtime = node.get("runtimeVersion")
    if not runtime:
        raise bad_request("a runtime version is required")
    if runtime not in VERSIONS:
        raise bad_request(f"the runtime version {runtime} was not found in zone {zone}")
    for key, value in node.get("labels", {}).items():
        if not (key and key[0].isalpha() and LABEL.fullmatch(key) and LABEL.fullmatch(value)):
            raise bad_request(f"the label {key}={value} is invalid")
    scheduling = node.get("schedulingConfig", {})
    if scheduling.get("spot") and scheduling.get("preemptible"):
        raise bad_request("a node is either spot or preemptible")


def check_queued(body: dict[str, Any], project: str, zone: str, version: str) -> None:
    check_fields(body, QUEUED if version == "v2" else {**QUEUED, **ALPHA_QUEUED}, "queued_resource")
    specs = body.get("tpu", {}).get("nodeSpec", [])
    if len(specs) != 1:
        raise bad_request("a queued resource has one node spec")
    if "spot" in body and "guaranteed" in body:
        raise bad_request("a queued resource is either spot or guaranteed")
    (spec,) = specs
    check_fields(spec, {**NODE_SPEC, "node": node_fields(version)}, "queued_resource.tpu.node_spec[0]")
    if spec.get("parent") != f"projects/{project}/locations/{zone}":
        raise bad_request(f"the parent {spec.get('parent')} of the node is not that of the queued resource")
    check_node(spec.get("node", {}), zone, version)
    if "multisliceParams" not in spec:
        check_name(spec.get("nodeId", ""), "node_id")


def workers_of(accelerator: str) -> int | None:
    """How many machines it has; None where there is no such type."""
    generation, _, size = accelerator.partition("-")
    if generation not in GENERATIONS or not size.isdigit() or int(size) not in SIZES:
        return None
    chips_per_worker, cores_per_chip = GENERATIONS[generation]
    if int(size) % cores_per_chip:
        return None
    chips = int(size) // cores_per_chip
    # Small slices of these stand on one machine of eight chips.
    return 1 if generation in ("v5litepod", "v6e") and chips <= 8 else math.ceil(chips / chips_per_worker)


def _chip_based(node: Mapping[str, Any]) -> str:
    """`type` and `topology` (V4, 2x2x2) as an accelerator type (v4-16)."""
    config = node.get("acceleratorConfig")
    if not config:
        # What the API makes of a node that names none.
        return "v2-8"
    generation = {"V5LITE_POD": "v5litepod"}.get(config.get("type", ""), config.get("type", "").lower())
    sides = config.get("topology", "").split("x")
    if generation not in GENERATIONS or not all(side.isdigit() for side in sides):
        return f"{config.get('type')} {config.get('topology')}"
    return f"{generation}-{math.prod(map(int, sides)) * GENERATIONS[generation][1]}"
