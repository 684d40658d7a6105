"""kubectl: the words that start it for a host, and what its failures mean.

kubectl itself tries again for some seconds where the server asks it to (429 with Retry-After). Its messages begin with
the server's reason in brackets, and this is what they are told apart by; texts are looked at only where one reason
stands for several things.
"""

from __future__ import annotations

import enum
import os
import re
import shlex
from typing import Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.remote.programs import Program

PROGRAM: Final = "kubectl"
# One request to the API server.
_REQUEST_S: Final = 30
# It reads files only.
_CONFIG_S: Final = 10.0


class Reason(enum.Enum):
    """What kind of failure it is."""

    NOT_FOUND = "not found"
    EXISTS = "exists"
    # An object of this name is there until its end.
    DELETING = "being deleted"
    QUOTA = "quota"
    # The user has no right to do it.
    DENIED = "denied"
    # What was sent is wrong, or the cluster's rules forbid it.
    INVALID = "invalid"
    # The server does not know this kind of object.
    NO_KIND = "no such kind"
    # No kubeconfig, no such context, expired credentials, a certificate that is not trusted.
    LOGIN = "login"
    # Too many requests, a conflict of writers, a server or a webhook that fails.
    BUSY = "busy"
    # There is no connection; nothing was sent.
    UNREACHABLE = "unreachable"
    # It may have been done.
    TIMED_OUT = "timed out"
    OTHER = "other"


_TRANSIENT: Final = (Reason.DELETING, Reason.QUOTA, Reason.BUSY, Reason.UNREACHABLE, Reason.TIMED_OUT)
_DOUBTFUL: Final = (Reason.BUSY, Reason.TIMED_OUT, Reason.OTHER)


class Problem(msgspec.Struct, frozen=True):
    """One failure: `message` is kubectl's own text, which has the server's."""

    reason: Reason
    message: str

    @property
    def is_transient(self) -> bool:
        """The same may succeed later."""
        return self.reason in _TRANSIENT

    @property
    def is_doubtful(self) -> bool:
        """What was asked for may have been done all the same."""
        return self.reason in _DOUBTFUL


class Kubectl:
    """kubectl with a host's kubeconfig, context and namespace; what the host does not say is left to kubectl.

    `root` is the directory that a relative `kubeconfig` belongs to.
    """

    def __init__(self, host: VolcanoHost, root: str | os.PathLike[str]) -> None:
        self._options = [f"--namespace={host.namespace}"]
        if host.kubeconfig is not None:
            path = os.path.expanduser(os.path.expandvars(host.kubeconfig))
            self._options.append(f"--kubeconfig={os.path.join(os.path.abspath(root), path)}")
        if host.context is not None:
            self._options.append(f"--context={host.context}")

    def words(self, *arguments: str, request_s: float | None = _REQUEST_S) -> list[str]:
        """The words of a call. `request_s` limits each request; None for those that last, such as `exec` and `wait`."""
        limit = [] if request_s is None else [f"--request-timeout={request_s:g}s"]
        return [PROGRAM, *self._options, *limit, *arguments]

    def by_hand(self, *arguments: str) -> str:
        """The same for people to try."""
        return f"`{shlex.join([PROGRAM, *self._options, *arguments])}`"


def current_context(host: VolcanoHost, root: str | os.PathLike[str]) -> str | None:
    """The context that kubectl takes now; None where there is none, as inside a cluster. No cluster is asked."""
    return next(iter(_config(host, root, "current-context")), None)


def contexts(host: VolcanoHost, root: str | os.PathLike[str]) -> list[str]:
    """Those that kubectl knows on this machine."""
    return _config(host, root, "get-contexts", "--output=name")


def _config(host: VolcanoHost, root: str | os.PathLike[str], *words: str) -> list[str]:
    plain = msgspec.structs.replace(host, context=None)
    try:
        program = Program(Kubectl(plain, root).words("config", *words), limit_s=_CONFIG_S)
    except OutletError:
        # That there is no kubectl is told when the host is reached.
        return []
    finished = program.wait()
    return finished.out.decode(errors="replace").splitlines() if finished.exit_code == 0 else []


def problems(exit_code: int | None, err: str) -> tuple[Problem, ...]:
    """Why a call has failed, one for each object where it was about several; none when it has not.

    `exit_code` None: it was killed when its time was over.
    """
    if exit_code == 0:
        return ()
    if exit_code is None:
        said = f": {err.strip()}" if err.strip() else ""
        return (Problem(Reason.TIMED_OUT, f"{PROGRAM} gave no answer in time{said}"),)
    found = tuple(Problem(_reason(message), message) for message in _messages(err))
    how = f"signal {-exit_code}" if exit_code < 0 else f"status {exit_code}"
    return found or (Problem(Reason.OTHER, f"{PROGRAM} failed with {how} and no error message"),)


def first_problem(exit_code: int | None, err: str) -> Problem | None:
    """The same for a call about one object; None when it has worked."""
    return next(iter(problems(exit_code, err)), None)


def cure(problem: Problem, kubectl: Kubectl) -> str:
    """What to do about it, for people; empty where the message says it."""
    match problem.reason:
        case Reason.LOGIN:
            return f"{kubectl.by_hand('get', 'pods')} must work without a question: log in again, or correct " + (
                "`kubeconfig` and `context` of the host"
            )
        case Reason.UNREACHABLE | Reason.TIMED_OUT:
            return f"is the API server up, and is a VPN needed? {kubectl.by_hand('version')} must show its version"
        case Reason.DENIED:
            return "the cluster's administrator gives rights with a Role and a RoleBinding in this namespace"
        case Reason.QUOTA:
            return f"{kubectl.by_hand('describe', 'quota')} shows what is used"
        case Reason.NO_KIND:
            return "the cluster's administrator has to install Volcano"
        case _:
            return ""


# Of client-go's own log: what it tells is in the message that follows.
_LOG_LINE: Final = re.compile(r"[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ |Warning: ")
# A message may have several lines; these begin one.
_BEGINS: Final = re.compile(
    r"Error from server|The \S+ \".*\" is invalid|error: |Error in configuration|Unable to connect to the server|"
    r"The connection to the server|unable to recognize|resource mapping not found|command terminated"
)


def _messages(err: str) -> list[str]:
    found: list[list[str]] = []
    for line in err.strip().splitlines():
        if not found or _BEGINS.match(line) or _LOG_LINE.match(line):
            found.append([line])
        else:
            found[-1].append(line)
    whole = ["\n".join(part).strip() for part in found]
    return [text for text in whole if not _LOG_LINE.match(text)] or whole[-1:]


_OF_SERVER: Final = re.compile(r"Error from server(?: \((\w+)\))?")
_BY_WORD: Final = {
    "NotFound": Reason.NOT_FOUND,
    "AlreadyExists": Reason.EXISTS,
    "Unauthorized": Reason.LOGIN,
    "Invalid": Reason.INVALID,
    "BadRequest": Reason.INVALID,
    "NotAcceptable": Reason.INVALID,
    "RequestEntityTooLarge": Reason.INVALID,
    "Conflict": Reason.BUSY,
    "TooManyRequests": Reason.BUSY,
    "InternalError": Reason.BUSY,
    "ServiceUnavailable": Reason.BUSY,
    "Expired": Reason.BUSY,
    "Timeout": Reason.TIMED_OUT,
    "ServerTimeout": Reason.TIMED_OUT,
}
# The first that matches a message without a reason of the server.
_BY_TEXT: Final = (
    # A webhook's own verdict, which mostly has none.
    (Reason.INVALID, r'admission webhook "[^"]*" denied the request'),
    (Reason.LOGIN, r"x509:|tls: |Unauthorized|getting credentials|localhost:8080 was refused"),
    (Reason.LOGIN, r"context was not found|context \".*\" does not exist|^error: stat |error loading config"),
    (Reason.NO_KIND, r"doesn't have a resource type|no matches for kind"),
    (Reason.UNREACHABLE, r"dial tcp|was refused|no such host|no route to host|network is unreachable"),
    (Reason.TIMED_OUT, r"deadline exceeded|Client\.Timeout|(?i:timeout)|timed out|EOF|connection reset|broken pipe"),
    (Reason.TIMED_OUT, r"connection lost|stream error|closed network connection"),
    (Reason.INVALID, r"is invalid|error validating data|error parsing"),
)


def _reason(message: str) -> Reason:
    of_server = _OF_SERVER.match(message)
    if of_server and of_server[1] == "Forbidden":
        return _forbidden(message)
    if of_server and of_server[1] == "AlreadyExists" and "being deleted" in message:
        return Reason.DELETING
    if of_server and of_server[1] in _BY_WORD:
        return _BY_WORD[of_server[1]]
    if of_server and of_server[1] is None and "429" in message:
        return Reason.BUSY
    found = next((reason for reason, pattern in _BY_TEXT if re.search(pattern, message)), None)
    return found or (Reason.BUSY if of_server else Reason.OTHER)


def _forbidden(message: str) -> Reason:
    """The server says `Forbidden` of quotas, of other rules of admission, and of rights."""
    if "exceeded quota" in message:
        return Reason.QUOTA
    if re.search(r'User "[^"]*" cannot ', message):
        return Reason.DENIED
    return Reason.DELETING if "is being terminated" in message else Reason.INVALID
