"""What sbatch's answer means, and the limits of a site. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, Limits, Refused
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.outlets.slurm.questions import failure

# sbatch itself tries again for a while when the controller is busy.
TIMEOUT_S: Final = 120.0
# What --parsable prints: the id, with the cluster's name where there are several. A site's own text may precede it.
_ID: Final = re.compile(r"^(\d+)(?:;\S+)?$", re.M)
# Nothing shows whether the controller has taken the job: sbatch lost it on the way there or on the way back.
_DOUBTFUL: Final = re.compile(
    r"socket timed out|unable to contact|connection (?:refused|reset|timed out|failure)|communication|"
    r"(?:send|receive|shutdown|connect) failure|transport endpoint|zero bytes were transmitted|broken pipe|"
    r"unexpected message|insane message|message (?:send|receive)|interrupted system call|unspecified error|"
    r"backup controller|no route to host|timed out",
    re.I,
)
# What may be accepted later.
_TRANSIENT: Final = re.compile(
    r"MaxSubmit|GrpSubmit|submit limit|temporarily|resource temporarily unavailable|partition not available|"
    r"job count|rate limit|authentication|credential|munge|is in maintenance|batch submissions? (?:is|are) disabled",
    re.I,
)
_SETTING: Final = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.M)
_MOST_TASKS: Final = re.compile(r"max_array_tasks=(\d+)")
# The limits of this user, who is not known here; without accounting, sacctmgr fails.
_ASSOCIATIONS: Final = (
    'exec sacctmgr --noheader --parsable2 show assoc where "user=$(id -un)" '
    '${SLURM_CLUSTERS:+"cluster=$SLURM_CLUSTERS"} format=Account,MaxSubmitJobs,GrpSubmitJobs'
)


def submit(script: str, environment: Mapping[str, None]) -> Run:
    """Submit a batch script that is on the host, without these variables."""
    return Run(words=("sbatch", "--parsable", script), environment=environment, timeout_s=TIMEOUT_S)


def accepted(answer: Any) -> Accepted | Refused | Doubtful:
    """What sbatch's answer means. Exit status 0 and an id count, whatever else it has printed."""
    if isinstance(answer, Failed):
        # It was not started.
        return Refused(why=failure("sbatch", answer), is_transient=True)
    if not isinstance(answer, Ran) or answer.exit_code is None or answer.exit_code < 0:
        return Doubtful(why=failure("sbatch", answer))
    if answer.exit_code == 0:
        found = _ID.findall(answer.out)
        return Accepted(handle=found[-1]) if found else Doubtful(why=f"sbatch printed no id, but {answer.out!r}")
    why = failure("sbatch", answer)
    if _TRANSIENT.search(answer.err):
        return Refused(why=why, is_transient=True)
    return Doubtful(why=why) if _DOUBTFUL.search(answer.err) else Refused(why=why)


def limits_query(qos: str | None) -> list[Run]:
    """The calls that tell the limits of the site and of the user."""
    asked = [Run(words=("scontrol", "show", "config")), Run(words=("sh", "-c", _ASSOCIATIONS))]
    if qos:
        words = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "where", f"name={qos}")
        asked.append(Run(words=(*words, "format=Name,MaxSubmitJobsPU,GrpSubmitJobs")))
    return asked


def limits(answers: Sequence[Any], account: str | None) -> Limits:
    """The limits; what a site does not tell, such as one without accounting, has none."""
    config = dict(_SETTING.findall(_text(answers[0])))
    size = _number(config.get("MaxArraySize", ""))
    if tasks := _MOST_TASKS.search(config.get("SchedulerParameters", "")):
        size = min(size or int(tasks[1]), int(tasks[1]))
    rows = [line.split("|") for answer in answers[1:] for line in _text(answer).splitlines()]
    # Of associations with several accounts, that of the account which is used; the first column of a QOS is its name.
    counted = [row for row in rows if not account or row[0] == account] or rows
    found = [number for row in counted for cell in row[1:] if (number := _number(cell)) is not None]
    # An array has indices below MaxArraySize, and begins at 0. 0 switches arrays off.
    return Limits(array_size=None if size is None else max(1, size), in_flight=min(found, default=None))


def _text(answer: Any) -> str:
    return answer.out if isinstance(answer, Ran) and answer.exit_code == 0 else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
