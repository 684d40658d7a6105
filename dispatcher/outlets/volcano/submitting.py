"""Submitting the Jobs of one submission with one `kubectl create`, and what its answers mean. Pure.

A Job that exists already was made by an earlier call whose answer was lost, or by another dispatcher: it counts as
accepted if its labels and annotations say that it is of the same attempt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dispatcher.errors import OutletError, TemplateError
from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, NoRoom, Refused, Submission
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.outlets.volcano.kubectl import Kubectl, Problem, Reason, cure, problems
from dispatcher.outlets.volcano.manifest import KIND, SUBMISSION, identity, job_name
from dispatcher.outlets.volcano.objects import Job, of_kind, read_list

# One request for each Job, most of which take some milliseconds; a webhook may take 30 s.
_TIMEOUT_S: Final = 120.0
# Runs the words before `--` with the given input and, when something exists already, the words after it.
_SCRIPT: Final = r"""
create=()
while [[ $1 != -- ]]; do
    create+=("$1")
    shift
done
shift
{ errors=$("${create[@]}" 2>&1 >&3 3>&-); } 3>&1
status=$?
printf '%s\n' "$errors" >&2
[[ $errors != *AlreadyExists* ]] || "$@" </dev/null
exit "$status"
"""
# The server has surely not made it: it says so, or it would first have asked a webhook that failed.
_NOT_MADE: Final = re.compile(r"failed calling webhook|\(TooManyRequests\)")
# The host's configuration or the cluster is wrong, and no attempt is: they wait until that is mended.
_OF_THE_HOST: Final = (Reason.LOGIN, Reason.DENIED, Reason.NO_KIND)


def submit(kubectl: Kubectl, submission: str, jobs: Iterable[Mapping[str, Any]]) -> Run:
    """The call that makes these Jobs; TemplateError for a value that JSON does not have."""
    create = kubectl.words("create", "-f", "-", "-o", "name")
    look = kubectl.words("get", KIND, "-l", f"{SUBMISSION}={submission}", "-o", "json")
    try:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(jobs)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"templates/volcano.yaml has a value that cannot be sent: {error}") from None
    return Run(words=("bash", "-c", _SCRIPT, "submit", *create, "--", *look), stdin=text, timeout_s=_TIMEOUT_S)


def accepted(kubectl: Kubectl, submission: Submission, answer: Any) -> Accepted | Refused | NoRoom | Doubtful:
    """What the answer means; the server's messages are passed on whole."""
    if isinstance(answer, Failed):
        # It was not started.
        return Refused(why=answer.error, is_transient=True)
    if not isinstance(answer, Ran) or answer.exit_code is None or answer.exit_code < 0:
        return Doubtful(why=f"kubectl create was ended before it reported what it did: {answer!r}"[:500])
    made, begin, shown = answer.out.partition("{")
    wanted = {job_name(submission.name, at): identity(one) for at, one in enumerate(submission.bundles)}
    names = {line.rpartition("/")[2] for line in made.split()}
    names |= {job_name(submission.name, at) for at in submission.accepted}
    found = problems(answer.exit_code, answer.err)
    if begin:
        try:
            names |= _ours(begin + shown, wanted)
        except OutletError as error:
            return Doubtful(why=str(error))
    if names >= wanted.keys():
        return Accepted(handle=submission.name)
    if names:
        return _partly(kubectl, found, frozenset(at for at, name in enumerate(wanted) if name in names), len(wanted))
    return _refused(kubectl, found, was_shown=bool(begin))


def _partly(kubectl: Kubectl, found: Sequence[Problem], made: frozenset[int], count: int) -> NoRoom | Doubtful:
    """What it means that only some of the Jobs were made."""
    over = [problem for problem in found if problem.reason is Reason.QUOTA]
    if over and all(problem.reason in (Reason.QUOTA, Reason.EXISTS) for problem in found):
        return NoRoom(why=_text(kubectl, over), accepted=made)
    return Doubtful(why=f"only {len(made)} of {count} Jobs were accepted: {_text(kubectl, found)}")


def _ours(text: str, wanted: Mapping[str, Mapping[str, str]]) -> set[str]:
    """The Jobs of these names that have our annotations."""
    jobs = {job.metadata.name: job.metadata.annotations or {} for job in of_kind(read_list(text), Job)}
    return {name for name, marks in wanted.items() if name in jobs and marks.items() <= jobs[name].items()}


def _refused(kubectl: Kubectl, found: Sequence[Problem], *, was_shown: bool) -> Refused | NoRoom | Doubtful:
    """What it means that none of the Jobs was made."""
    text = _text(kubectl, found)
    existing = [problem for problem in found if problem.reason is Reason.EXISTS]
    if existing and not was_shown:
        return Doubtful(why=text)
    if existing:
        return Refused(why=f"{text}: it does not belong to this attempt; remove it if it is not needed")
    if any(_may_be_made(problem) for problem in found):
        return Doubtful(why=text)
    if any(problem.reason is Reason.QUOTA for problem in found):
        return NoRoom(why=text)
    waits = any(problem.is_transient or problem.reason in _OF_THE_HOST for problem in found)
    return Refused(why=text, is_transient=waits) if found else Doubtful(why="kubectl create printed nothing")


def _may_be_made(problem: Problem) -> bool:
    return problem.is_doubtful and not _NOT_MADE.search(problem.message)


def _text(kubectl: Kubectl, found: Sequence[Problem]) -> str:
    """The first problem, whole, and what to do about it; the others mostly say the same."""
    if not found:
        return "kubectl gave no reason"
    advice = cure(found[0], kubectl)
    return f"{found[0].message}; {advice}" if advice else found[0].message
