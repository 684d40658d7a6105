"""The words of gcloud for TPU VMs and queued resources, and what its answers and failures mean. Pure.

Every value is an argument of its own, so a shell never sees one. gcloud asks nothing (`--quiet`) and answers in JSON.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError, UsageError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.operations import Failed, Ran
from dispatcher.outlets.remote.programs import Program
from dispatcher.outlets.tpu import creation

PROGRAM: Final = "gcloud"
# A request that has waited so long in the queue expires, and a dispatcher that lives asks anew.
QUEUED_FOR_S: Final = 86400
# Which workspace a VM was created for. Google allows lower case letters, digits, `-` and `_` in both.
WORKSPACE_LABEL: Final = "dispatcher-workspace"

_VM: Final = ("compute", "tpus", "tpu-vm")
_QUEUED: Final = ("compute", "tpus", "queued-resources")
# What the API takes as the name of a VM or of a queued resource.
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_LONGEST_NAME: Final = 63
_FULL_NAME: Final = re.compile(r"projects/([^/]+)/locations/([^/]+)/[^/]+/([^/]+)")
_LONGEST_MESSAGE: Final = 2000
# It reads files only, but takes a second to start.
_CONFIG_S: Final = 30.0


class Failure(enum.Enum):
    """What a failure of gcloud means for what comes next."""

    # There is no such VM or queued resource.
    ABSENT = "absent"
    # There is one already, or it was asked for before.
    EXISTS = "exists"
    # Google has none free there at the moment.
    NO_CAPACITY = "no capacity"
    # The project may not have more.
    QUOTA = "quota"
    # The same call will be refused again: no permission, an argument that cannot be, not logged in.
    REFUSED = "refused"
    # The same call may work later: the API is busy, has a fault, cannot be reached, or changes the same thing now.
    TRANSIENT = "transient"


class GcloudError(OutletError):
    """gcloud has failed; `failure` is the class, the message has gcloud's own words."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's addresses; `external` is empty for a VM that has internal ones only."""

    address: str
    external: str = ""


class Vm(msgspec.Struct, frozen=True, kw_only=True):
    """A TPU VM as the API describes it. `state` is the API's word; new ones appear.

    `identity` differs from that of any VM that had this name before. `workers` are in the order of their index.
    `health` is empty where the API tells none, `queued_resource` is the id of the request that has brought it.
    """

    state: str
    identity: str
    accelerator_type: str = ""
    workers: tuple[Endpoint, ...] = ()
    labels: Mapping[str, str] = {}
    health: str = ""
    health_description: str = ""
    queued_resource: str = ""
    created: str = ""
    project: str = ""

    def is_of(self, workspace: str) -> bool:
        """Whether it was created for the workspace with this id."""
        return self.labels.get(WORKSPACE_LABEL) == workspace


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A queued resource: `state` is the API's word, `why` what it reports about a failure.

    `accelerator_type` is that of the VM that it brings.
    """

    state: str
    why: str = ""
    accelerator_type: str = ""
    project: str = ""


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """A VM that a workspace has created, or its queued resource (`queued` is the id) where the VM is not there."""

    name: str
    project: str
    zone: str
    state: str
    accelerator_type: str = ""
    queued: str = ""

    @property
    def text(self) -> str:
        """In a few words: `v4-8 in us-central2-b of lab, READY`."""
        kind = f"{self.accelerator_type or 'a TPU VM'} in {self.zone} of {self.project}"
        return f"{kind}, its queued resource is {self.state}" if self.queued else f"{kind}, {self.state}"

    @property
    def cost(self) -> str:
        """Whether it costs money, for people. A request that has come to nothing stays, and brings no VM."""
        is_over = self.queued and self.state in ("FAILED", "SUSPENDED")
        return "and costs nothing" if is_over else "and may cost money"

    @property
    def deletion(self) -> str:
        """The command with which a person deletes it when no configured host leads to it."""
        return f"dispatcher outlets delete {self.name} --zone {self.zone} --project {self.project}"


def name_problem(host: TpuHost) -> str:
    """Why no TPU VM can have the host's name; empty when one can."""
    if _NAME.fullmatch(host.name):
        return ""
    return (
        f"hosts.{host.name}: a TPU VM has the host's name, and that must begin with a lower case letter and have only "
        f"lower case letters, digits and '-', at most {_LONGEST_NAME}"
    )


def host_problem(host: TpuHost) -> str:
    """Why no VM can be created for the host as it is configured; empty when one can."""
    return name_problem(host) or creation.argument_problems(host)


def queued_id(workspace: str, host: str) -> str:
    """The id of the queued resource for a host: the same for every caller, so that none is made twice."""
    name = f"d-{workspace}-{host}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"d-{workspace}-{hashlib.blake2b(host.encode(), digest_size=10).hexdigest()}"


def describe(host: TpuHost) -> list[str]:
    """The command that describes the VM: `read_vm`."""
    return [PROGRAM, *_VM, "describe", host.name, *_common(host)]


def create(host: TpuHost, workspace: str) -> list[str]:
    """The command that creates the VM and waits until it is READY. Raises OutletError for what the host lacks."""
    return [*_creating(host, _VM), host.name, *creation.of_vm(host, _labels(workspace)), *_common(host)]


def delete(host: TpuHost) -> list[str]:
    """The command that deletes the VM and waits for that; one of a queued resource goes with `delete_queued`."""
    return [PROGRAM, *_VM, "delete", host.name, *_common(host)]


def create_queued(host: TpuHost, workspace: str, valid_s: int = QUEUED_FOR_S) -> list[str]:
    """The command that asks for the VM when there is capacity; it returns when the request stands.

    It expires after `valid_s`: without a dispatcher it would bring a VM weeks later. Google knows no preemptible
    ones there: a spot VM takes their place. Raises OutletError as `create`.
    """
    words = [*_creating(host, _QUEUED), queued_id(workspace, host.name), f"--node-id={host.name}"]
    valid = f"--valid-until-duration={valid_s}s"
    return [*words, *creation.of_queued(host, _labels(workspace)), valid, "--async", *_common(host)]


def describe_queued(host: TpuHost, queued: str) -> list[str]:
    """The command that describes a queued resource: `read_queued`."""
    return [PROGRAM, *_QUEUED, "describe", queued, *_common(host)]


def delete_queued(host: TpuHost, queued: str) -> list[str]:
    """The command that takes the request back, whatever its state, and deletes the VM that it has brought."""
    return [PROGRAM, *_QUEUED, "delete", queued, "--force", *_common(host)]


def list_vms(project: str | None) -> list[str]:
    """The command that lists the VMs of a project in all zones: `read_created`."""
    return [PROGRAM, *_VM, "list", *_everywhere(project)]


def list_queued(project: str | None) -> list[str]:
    """The command that lists the queued resources of a project in all zones: `read_created`."""
    return [PROGRAM, *_QUEUED, "list", *_everywhere(project)]


def start_text(host: TpuHost) -> str:
    """The command with which a person starts a VM that is stopped."""
    project = "" if host.project is None else f" --project={host.project}"
    return f"gcloud {' '.join(_VM)} start {host.name} --zone={host.zone}{project}"


def location(host: TpuHost) -> list[str]:
    """Where the VM is: the options that every command about it has."""
    return [f"--zone={host.zone}", *([] if host.project is None else [f"--project={host.project}"])]


def own_project(host: TpuHost) -> str:
    """The project that gcloud takes now for a host that names none; UsageError where it has none.

    gcloud may take another project for the next call, so all later calls name this one.
    """
    cure = f"set `project` of hosts.{host.name}, or `gcloud config set project NAME`"
    try:
        finished = Program([PROGRAM, "config", "get-value", "project", "--quiet"], limit_s=_CONFIG_S).wait()
    except OutletError as error:
        raise UsageError(f"hosts.{host.name}: gcloud's own project is unknown: {error}; {cure}") from None
    found = finished.out.decode(errors="replace").strip()
    if finished.exit_code != 0 or not found or found == "(unset)":
        why = finished.killed_because or message(finished.errors) or "it has none"
        raise UsageError(f"hosts.{host.name}: gcloud's own project is unknown: {why}; {cure}")
    return found


def read_vm(answer: Ran | Failed) -> Vm | None:
    """The VM that `describe` has shown; None: there is surely none. Raises GcloudError when it cannot be told."""
    found = _read(answer)
    return None if found is None else _vm(found)


def read_queued(answer: Ran | Failed) -> Queued | None:
    """The queued resource that `describe_queued` has shown; None: there is surely none. Raises GcloudError."""
    found = _read(answer)
    if found is None:
        return None
    return _queued(found)


def read_created(vms: Ran | Failed, queued: Ran | Failed, workspace: str, project: str | None) -> list[Created]:
    """What `list_vms` and `list_queued` of a project have shown of a workspace. Raises GcloudError."""
    there = [one for one in (_created(each, workspace) for each in _read_list(vms)) if one is not None]
    requests = [one for one in (_created_queued(each, workspace) for each in _read_list(queued)) if one is not None]
    places = {(one.project, one.zone, one.name) for one in there}
    found = [*there, *(one for one in requests if (one.project, one.zone, one.name) not in places)]
    # Google may call a project by its number.
    return found if project is None else [msgspec.structs.replace(one, project=project) for one in found]


def check(answer: Ran | Failed) -> None:
    """Raises GcloudError when the command has failed."""
    if isinstance(answer, Failed):
        raise GcloudError(Failure.REFUSED, answer.error)
    if answer.exit_code is None:
        raise GcloudError(Failure.TRANSIENT, f"gcloud did not answer in time: {message(answer.err)}".rstrip(": "))
    if answer.exit_code != 0:
        raise GcloudError(failure_of(answer.exit_code, answer.err), message(answer.err) or _silent(answer.exit_code))


def failure_of(exit_code: int, err: str) -> Failure:
    """The class of a failure with this exit status and these words on stderr."""
    if exit_code == 2:
        return Failure.REFUSED
    text = message(err)
    for failure, pattern in _WORDINGS:
        if pattern.search(text):
            return failure
    return Failure.REFUSED if exit_code > 0 else Failure.TRANSIENT


def message(err: str) -> str:
    """What gcloud says about its failure, in one line, without its warnings and its usage."""
    errors = err[err.find("ERROR:") :] if "ERROR:" in err else err
    text = re.sub(r"^ERROR: (\(gcloud[^)]*\) )?", "", errors.strip())
    text = text.partition("\nUsage:")[0]
    inner = re.search(r'"message": ("(?:[^"\\]|\\.)*")', text)
    if inner is not None:
        code = re.search(r'"code": (\d+)', text)
        text = f"{msgspec.json.decode(inner[1], type=str)}" + (f" (code {code[1]})" if code else "")
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + " [...]"


# In this order: a stock-out and a full quota are both code 8, and the API says RESOURCE_EXHAUSTED of a caller that asks
# too often as well.
_WORDINGS: Final[tuple[tuple[Failure, re.Pattern[str]], ...]] = (
    (Failure.ABSENT, re.compile(r"NOT_FOUND: Resource '[^']*/(nodes|queuedResources)/[^']*' was not found")),
    # What else they say is about what was refused: a network, a value.
    (Failure.REFUSED, re.compile(r"^(PERMISSION_DENIED|UNAUTHENTICATED|INVALID_ARGUMENT|NOT_FOUND)\b")),
    (Failure.EXISTS, re.compile(r"ALREADY_EXISTS")),
    (
        Failure.TRANSIENT,
        re.compile(r"rate.?limit|per (minute|second|100 seconds)|quota metric|too many requests|\b429\b", re.I),
    ),
    (
        Failure.NO_CAPACITY,
        re.compile(
            r"no more capacity|not enough (capacity|resources)|insufficient (reserved )?capacity"
            r"|out of (capacity|stock)|stock-?out"
            r"|RESOURCE_POOL_EXHAUSTED|enough resources available|no (available )?capacity|capacity is (un|not )avail"
            r"|reservation .{0,80}(exhausted|no capacity)|currently unavailable",
            re.I,
        ),
    ),
    (Failure.QUOTA, re.compile(r"quota|limit '[^']*' (has been )?exceeded", re.I)),
    # An operation that ended so; a request that was refused so came too soon.
    (Failure.NO_CAPACITY, re.compile(r"\(code 8\)")),
    (Failure.TRANSIENT, re.compile(r"RESOURCE_EXHAUSTED")),
    (
        Failure.TRANSIENT,
        re.compile(
            r"\b(ABORTED|UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|UNKNOWN|CANCELLED|FAILED_PRECONDITION)\b"
            r"|\b(409|5\d\d)\b|HTTPError 5|backend error|internal error|server error|try again"
            r"|\(code (4|10|13|14)\)|reach|connect|network|timed? ?out|time-?out|temporar|name resolution",
            re.I,
        ),
    ),
)


def _labels(workspace: str) -> Mapping[str, str]:
    return {WORKSPACE_LABEL: workspace}


def _creating(host: TpuHost, group: Sequence[str]) -> list[str]:
    # Of gcloud 528 only the alpha commands know the option.
    return [PROGRAM, *(["alpha"] if host.reservation is not None else []), *group, "create"]


def _everywhere(project: str | None) -> list[str]:
    given = [] if project is None else [f"--project={project}"]
    return ["--zone=-", *given, "--format=json", "--quiet"]


def _common(host: TpuHost) -> list[str]:
    return [*location(host), "--format=json", "--quiet"]


def _read(answer: Ran | Failed) -> dict[str, Any] | None:
    try:
        check(answer)
    except GcloudError as error:
        if error.failure is Failure.ABSENT:
            return None
        raise
    document: dict[str, Any] = _decode(answer, dict[str, Any])
    return document


def _read_list(answer: Ran | Failed) -> list[Any]:
    check(answer)
    listed: list[Any] = _decode(answer, list[Any])
    return listed


def _decode(answer: Ran | Failed, type_: Any) -> Any:
    assert isinstance(answer, Ran)
    try:
        return msgspec.json.decode(answer.out, type=type_)
    except msgspec.MsgspecError as error:
        raise GcloudError(Failure.TRANSIENT, f"gcloud's answer cannot be read: {error}: {answer.out[:200]!r}") from None


def _created(found: object, workspace: str) -> Created | None:
    """None for one of others."""
    document = _mapping(found)
    vm = _vm(document)
    if not vm.is_of(workspace):
        return None
    project, zone, name = _place(document)
    return Created(name=name, project=project, zone=zone, state=vm.state, accelerator_type=vm.accelerator_type)


def _created_queued(found: object, workspace: str) -> Created | None:
    document = _mapping(found)
    project, zone, ident = _place(document)
    name = str(_node_spec(document).get("nodeId", ""))
    if ident != queued_id(workspace, name):
        return None
    queued = _queued(document)
    kind = queued.accelerator_type
    return Created(name=name, project=project, zone=zone, state=queued.state, accelerator_type=kind, queued=ident)


def _queued(found: Mapping[str, Any]) -> Queued:
    state = _mapping(found.get("state"))
    data = next((value for name, value in state.items() if name.endswith("Data") and isinstance(value, dict)), {})
    return Queued(
        state=str(state.get("state", "")),
        why=str(_mapping(data.get("error")).get("message", "")),
        accelerator_type=str(_mapping(_node_spec(found).get("node")).get("acceleratorType", "")),
        project=_place(found)[0],
    )


def _node_spec(queued: Mapping[str, Any]) -> Mapping[str, Any]:
    specs = _mapping(queued.get("tpu")).get("nodeSpec")
    return _mapping(specs[0]) if isinstance(specs, list) and specs else {}


def _place(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """Project, zone and own name from the API's full one; empty where it has none."""
    match = _FULL_NAME.fullmatch(str(found.get("name", "")))
    return (match[1], match[2], match[3]) if match else ("", "", "")


def _vm(found: Mapping[str, Any]) -> Vm:
    endpoints = [_mapping(each) for each in found.get("networkEndpoints") or ()]
    return Vm(
        state=str(found.get("state", "")),
        # The bare number is the API's own id; without it the time of creation tells two of one name apart.
        identity=str(found.get("id") or found.get("createTime") or ""),
        accelerator_type=str(found.get("acceleratorType", "")),
        workers=tuple(
            Endpoint(
                address=str(each.get("ipAddress", "")),
                external=str(_mapping(each.get("accessConfig")).get("externalIp", "")),
            )
            for each in endpoints
        ),
        labels={str(name): str(value) for name, value in _mapping(found.get("labels")).items()},
        health=str(found.get("health", "")),
        health_description=str(found.get("healthDescription", "")),
        queued_resource=str(found.get("queuedResource") or "").rpartition("/")[2],
        created=str(found.get("createTime", "")),
        project=_place(found)[0],
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _silent(exit_code: int) -> str:
    return f"gcloud ended with status {exit_code} and without a message"
