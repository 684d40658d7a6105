"""What SLURM is asked about jobs, and how its answers are read. Pure.

All jobs are asked for by name, which derives from their attempts: names of others, whatever is in them, never get into
an answer, and no id is trusted, because SLURM uses ids again.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from dispatcher.errors import OutletError
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.scheduler import JobState, Phase, Submitted
from dispatcher.outlets.remote.operations import Confirm, Failed, Ran, Run
from dispatcher.outlets.slurm.states import SlurmJob, best, job_state, status_of_pair, status_of_wait

# A controller that is down lets squeue try for 18 s and longer.
TIMEOUT_S: Final = 60.0
# Names in one call, so that the argument stays below the kernel's limit (128 KiB).
_MOST_NAMES: Final = 2000
# For how long accounting is searched; without this sacct begins at midnight.
_ACCOUNTING_SINCE: Final = "now-30days"
# Width of each column of squeue: separators were added to --Format after 20.11. The last one holds free text.
_COLUMNS: Final = {
    "ArrayJobID": 20, "ArrayTaskID": 14, "JobID": 20, "Name": 128, "State": 24, "exit_code": 14, "PreemptTime": 26,
    "RestartCnt": 12, "BatchHost": 72, "Reason": 256,
}  # fmt: skip
_ACCOUNTING: Final = ("JobID", "JobName", "State", "ExitCode", "NodeList")
_SHOWN: Final = re.compile(
    r"^JobId=(?P<id>\d+) (?:ArrayJobId=(?P<array>\d+) (?:ArrayTaskId=(?P<task>\d+) )?)?JobName=(?P<name>\S+) UserId="
    r".*? JobState=(?P<state>\S+) Reason=(?P<reason>.*?) Dependency=.*? Restarts=(?P<restarts>\d+) "
    r".*?ExitCode=(?P<status>\d+:\d+) .*? PreemptTime=(?P<preempted>\S+) .*?(?: BatchHost=(?P<host>\S+) |$)"
)
_NO_ACCOUNTING: Final = re.compile(r"accounting storage is disabled|accounting_storage/none", re.I)

_CONCLUSION: Final = re.compile(r"error: Batch job submission failed:")

# Prints the name of the cluster.
_WHERE: Final = """
found=$(scontrol show config) || exit
names=$(printf '%s\\n' "$found" | sed -n 's/^ClusterName *= *//p' | sort -u)
[ "$(printf '%s\\n' "$names" | wc -l)" = 1 ] || {
    echo "SLURM_CLUSTERS=$SLURM_CLUSTERS means several clusters: say which one with 'clusters' of the host" >&2
    exit 1
}
printf '%s\\n' "$names"
"""

_PROGRAMS: Final = ("sbatch", "squeue", "scontrol", "sacct", "sinfo", "scancel")
R = TypeVar("R", bound=Run)

Found = Mapping[tuple[str, int], list[JobState]]


def in_cluster(run: R, name: str | None) -> R:
    """The call in this one of several clusters; None: in the one that the host's own configuration takes."""
    if name is None:
        return run
    program, *rest = run.words
    if program not in _PROGRAMS:
        # A script's programs take it from there.
        return msgspec.structs.replace(run, environment={**run.environment, "SLURM_CLUSTERS": name})
    # They fail for another one in their environment before they read their options, and jobs would have it too.
    environment = {**run.environment, "SLURM_CLUSTERS": None}
    return msgspec.structs.replace(run, words=(program, f"--clusters={name}", *rest), environment=environment)


def where() -> Confirm:
    """The call that tells which cluster answers."""
    return Confirm(words=("sh", "-c", _WHERE), timeout_s=TIMEOUT_S)


def query(attempts: Sequence[Submitted]) -> list[Run]:
    """One squeue for all; ended jobs are shown for as long as the controller remembers them (MinJobAge)."""
    names = sorted({attempt.name for attempt in attempts})
    return [_squeue(names[at : at + _MOST_NAMES]) for at in range(0, len(names), _MOST_NAMES)]


def read_query(answers: Sequence[Any]) -> Found:
    """The jobs that squeue has named; raises OutletError when one of the calls has failed."""
    rows = []
    for answer in answers:
        rows += [_queue_row(line) for line in printed("squeue", answer).splitlines() if line.strip()]
    return _by_attempt(rows)


def detail(attempts: Sequence[Submitted]) -> list[Run]:
    """scontrol for jobs whose id is known, and accounting for all."""
    ids = sorted({attempt.handle.partition("_")[0] for attempt in attempts if attempt.handle})
    names = sorted({attempt.name for attempt in attempts})
    shown = [_run("scontrol", "show", "job", "--oneliner", job) for job in ids]
    return [*shown, *(_sacct(names[at : at + _MOST_NAMES]) for at in range(0, len(names), _MOST_NAMES))]


def read_detail(attempts: Sequence[Submitted], answers: Sequence[Any]) -> dict[Key, JobState]:
    """What is known of the attempts. Where one of the programs has failed, all others are UNKNOWN."""
    asked = detail(attempts)
    rows, problem = [], ""
    for question, answer in zip(asked, answers, strict=True):
        program = question.words[0]
        if _has_nothing(program, answer):
            continue
        try:
            lines = printed(program, answer).splitlines()
        except OutletError as error:
            problem = str(error)
            continue
        read = _shown_row if program == "scontrol" else _account_row
        rows += [row for line in lines if (row := read(line)) is not None]
    found = select(attempts, _by_attempt(rows))
    if problem:
        missing = [attempt.key for attempt in attempts if attempt.key not in found]
        found |= {key: JobState(phase=Phase.UNKNOWN, why=problem) for key in missing}
    return found


def select(attempts: Sequence[Submitted], found: Found) -> dict[Key, JobState]:
    """The states of those attempts that were found."""
    known = {attempt.key: found.get((attempt.name, attempt.index)) for attempt in attempts}
    return {key: best(states) for key, states in known.items() if states}


def printed(program: str, answer: Any) -> str:
    """What a program has printed; raises OutletError, with its own words, when it failed."""
    if isinstance(answer, Ran) and answer.exit_code == 0:
        return answer.out
    raise OutletError(failure(program, answer))


def failure(program: str, answer: Any) -> str:
    """Why a call of a program failed, on one line."""
    if isinstance(answer, Failed):
        return f"{program}: {answer.error}"
    if not isinstance(answer, Ran):
        return f"{program}: no answer, but {answer!r}"
    if answer.exit_code is None:
        return f"{program} was ended after its time limit"
    lines = [line.strip().removeprefix(f"{program}: ") for line in (answer.err or answer.out).splitlines()]
    # What sbatch concludes from the errors before it says less than these.
    causes = [line for line in lines if line and not _CONCLUSION.match(line)]
    said = " | ".join(causes if any("error:" in line for line in causes) else filter(None, lines))
    return f"{program}: {said or 'it printed nothing'} (exit status {answer.exit_code})"


def _run(*words: str) -> Run:
    return Run(words=words, timeout_s=TIMEOUT_S)


def _squeue(names: Sequence[str]) -> Run:
    columns = ",".join(f"{column}:{width}" for column, width in _COLUMNS.items())
    return _run(
        "squeue", "--me", "--all", "--array", "--noheader", "--states=all", f"--name={','.join(names)}",
        f"--Format={columns}",
    )  # fmt: skip


def _sacct(names: Sequence[str]) -> Run:
    return _run(
        "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates",
        f"--starttime={_ACCOUNTING_SINCE}", f"--name={','.join(names)}", f"--format={','.join(_ACCOUNTING)}",
    )  # fmt: skip


def _queue_row(line: str) -> SlurmJob:
    values, at = {}, 0
    for column, width in _COLUMNS.items():
        values[column] = line[at : at + width].strip()
        at += width
    task = values["ArrayTaskID"]
    is_task = task.isdecimal()
    return SlurmJob(
        handle=f"{values['ArrayJobID']}_{task}" if is_task else values["JobID"],
        name=values["Name"],
        index=int(task) if is_task else 0,
        state=values["State"],
        reason=values["Reason"],
        status=status_of_wait(values["exit_code"]),
        preempted_at=values["PreemptTime"],
        restarts=int(values["RestartCnt"]) if values["RestartCnt"].isdecimal() else 0,
        host=values["BatchHost"],
    )


def _shown_row(line: str) -> SlurmJob | None:
    """A line of `scontrol show job --oneliner`; None for one that is none, or for tasks that wait together."""
    found = _SHOWN.match(line)
    if found is None or (found["array"] and not found["task"]):
        return None
    return SlurmJob(
        handle=f"{found['array']}_{found['task']}" if found["array"] else found["id"],
        name=found["name"],
        index=int(found["task"] or 0),
        state=found["state"],
        reason=found["reason"],
        status=status_of_pair(found["status"]),
        preempted_at=found["preempted"],
        restarts=int(found["restarts"]),
        host=found["host"] or "",
    )


def _account_row(line: str) -> SlurmJob | None:
    """A line of sacct; None for a job that it does not call ended, because accounting may have missed the end."""
    values = dict(zip(_ACCOUNTING, line.split("|"), strict=False))
    if len(values) < len(_ACCOUNTING):
        return None
    job, _, task = values["JobID"].partition("_")
    row = SlurmJob(
        handle=values["JobID"],
        name=values["JobName"],
        index=int(task) if task.isdecimal() else 0,
        state=values["State"],
        status=status_of_pair(values["ExitCode"]),
        host=values["NodeList"],
    )
    is_one = job.isdecimal() and (not task or task.isdecimal())
    return row if is_one and job_state(row).phase is Phase.ENDED else None


def _by_attempt(rows: Iterable[SlurmJob]) -> dict[tuple[str, int], list[JobState]]:
    found: dict[tuple[str, int], list[JobState]] = {}
    for row in rows:
        found.setdefault((row.name, row.index), []).append(job_state(row))
    return found


def _has_nothing(program: str, answer: Any) -> bool:
    """Whether the answer says that there is nothing to know: no such job, or a site without accounting."""
    if isinstance(answer, Failed):
        return program == "sacct" and answer.errno == errno.ENOENT
    if not isinstance(answer, Ran) or answer.exit_code in (0, None):
        return False
    if program == "sacct":
        return bool(_NO_ACCOUNTING.search(answer.err))
    return "Invalid job id" in answer.err
