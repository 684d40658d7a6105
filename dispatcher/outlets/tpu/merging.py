"""The answers of all workers of a TPU VM as the answer of one host. Pure.

An attempt has begun when it has begun on all workers, lives while it lives on any, and has ended when all have left
their exit status. It is that of the worker that failed first, and names it: what fails on the others is mostly that
this one is gone. Reports, progress and `output.log` are those of worker 0; the ends of the other logs come home as
`output.1.log`, `output.2.log` ... when no process is left on any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.outlets.remote.operations import (
    AttemptFiles,
    Check,
    Checked,
    CheckResult,
    Deliver,
    Delivered,
    Failed,
    FileSizes,
    Greeting,
    Has,
    Hello,
    Launch,
    Launched,
    Operation,
    Ran,
    Read,
    ReadAnswer,
    Remove,
    Removed,
    RunThere,
    Signal,
    Signalled,
    Store,
    Stored,
    Tail,
    TailRead,
    Write,
    Written,
)
from dispatcher.workspace import log_name

# What each worker has answered to one operation, by its index.
Answers = Sequence[Any]
_GOES_ON: Final = ("started", "alive", "taken")


def merged(operations: Sequence[Operation], answers: Sequence[Answers]) -> list[Any]:
    """One answer to each operation; `answers` has those of each worker, in the order of the operations."""
    return [_merged(operation, [each[at] for each in answers]) for at, operation in enumerate(operations)]


def has_room(answer: Any) -> bool:
    """Whether a launch on worker 0 allows those on the others: the attempt runs there, or has run."""
    return isinstance(answer, Launched) and answer.outcome in _GOES_ON


def is_done_on_first(answer: Failed) -> bool:
    """Whether what has failed on other workers was done on worker 0."""
    return answer.error.startswith("worker ") and not answer.error.startswith("worker 0: ")


def half_started(operations: Sequence[Operation], answers: Sequence[Answers]) -> list[str]:
    """The directories of attempts that were launched on some workers and could not be on others."""
    found = []
    for at, operation in enumerate(operations):
        if isinstance(operation, Launch):
            going_on = [has_room(each[at]) for each in answers]
            if any(going_on) and not all(going_on):
                found.append(operation.directory)
    return found


def to_be_stopped(operations: Sequence[Operation], answers: Sequence[Answers]) -> list[str]:
    """The directories of attempts that have failed on one worker, or are gone there, and go on on another."""
    found: dict[str, None] = {}
    for at, operation in enumerate(operations):
        each = [answer[at] for answer in answers]
        if any(isinstance(answer, Failed) for answer in each):
            continue
        if isinstance(operation, Check):
            for index, directory in enumerate(operation.directories):
                if _is_broken_off([answer.attempts[index] for answer in each]):
                    found[directory] = None
        elif isinstance(operation, Read):
            for index, look in enumerate(operation.looks):
                if _has_failed_somewhere([answer.seen[index] for answer in each]):
                    found[look.directory] = None
    return list(found)


def _merged(operation: Operation, answers: Answers) -> Any:
    failures = [f"worker {index}: {answer.error}" for index, answer in enumerate(answers) if isinstance(answer, Failed)]
    if failures and len(answers) == 1:
        return answers[0]
    if failures:
        return Failed(error="; ".join(failures), errno=next(one.errno for one in answers if isinstance(one, Failed)))
    merge = _MERGES[type(operation)]
    return merge(answers)


def _greeting(answers: Sequence[Greeting]) -> Greeting | Failed:
    first = answers[0]
    for index, other in enumerate(answers):
        for name, path in first.directories.items():
            if other.directories.get(name) != path:
                where = f"{other.directories.get(name)} on worker {index} and {path} on worker 0"
                return Failed(error=f"the directory `{name}` is {where}, and must be the same on all workers")
    programs = {name: path for name, path in first.programs.items() if all(name in one.programs for one in answers)}
    # Several workers need a directory each, so they are no part of a workspace that they see.
    return msgspec.structs.replace(first, programs=programs, probe=first.probe if len(answers) == 1 else None)


def _delivered(answers: Sequence[Delivered]) -> Delivered:
    return Delivered(was_taken=any(one.was_taken for one in answers))


def _written(answers: Sequence[Written]) -> Written:
    return Written(existed=all(one.existed for one in answers))


def _ran(answers: Sequence[Ran]) -> Ran:
    """That of the first worker on which it failed."""
    return next((one for one in answers if one.exit_code != 0), answers[0])


def _removed(answers: Sequence[Removed]) -> Removed:
    return Removed(failed=[line for one in answers for line in one.failed])


def _stored(answers: Sequence[Stored]) -> Stored:
    return Stored(existed=all(one.existed for one in answers))


def _found(answers: Sequence[FileSizes]) -> FileSizes:
    """A file is there when all have it, equally large."""
    sizes = zip(*(one.sizes for one in answers), strict=True)
    return FileSizes(sizes=[each[0] if len(set(each)) == 1 else None for each in sizes])


def _tail(answers: Sequence[TailRead]) -> TailRead:
    """What the workers have to say, one after the other; what the first one says stands without its name."""
    said = [
        b"worker %d: " % index + one.content if index else one.content
        for index, one in enumerate(answers)
        if one.content
    ]
    if not said:
        return TailRead(content=b"" if any(one.content is not None for one in answers) else None)
    return TailRead(content=b"\n".join(said))


def _launched(answers: Sequence[Launched]) -> Launched | Failed:
    """That of worker 0. That one of the others has no room although worker 0 had it is a failure."""
    first = answers[0]
    if not has_room(first):
        return first
    refused = [f"worker {index}: {one.why}" for index, one in enumerate(answers) if not has_room(one)]
    return Failed(error="; ".join(refused)) if refused else first


def _signalled(answers: Sequence[Signalled]) -> Signalled:
    return Signalled(count=sum(one.count for one in answers))


def _checks(answers: Sequence[CheckResult]) -> CheckResult:
    return CheckResult(attempts=[_checked(each) for each in zip(*(one.attempts for one in answers), strict=True)])


def _checked(each: Sequence[Checked]) -> Checked:
    """An attempt that was not launched on all workers is not known yet, whatever it does on the others.

    So it is submitted again, and the launch is completed. The one that explains the end is the one that is gone without
    an exit status; it also gives the host that is named.
    """
    gone = [one for one in each if _is_gone(one)]
    was_launched = all(one.was_launched for one in each)
    error = "; ".join(f"worker {index}: {one.error}" for index, one in enumerate(each) if one.error)
    return msgspec.structs.replace(
        gone[0] if gone and not any(one.is_alive for one in each) else each[0],
        is_alive=_is_alive([one.is_alive for one in each]) if was_launched or error else False,
        was_launched=was_launched,
        was_taken=all(one.was_taken for one in each),
        has_exit=all(one.has_exit for one in each),
        was_rebooted=any(one.was_rebooted for one in gone),
        error=error if len(each) > 1 else each[0].error,
    )


def _is_gone(one: Checked) -> bool:
    return one.was_launched and one.is_alive is False and not one.has_exit


def _is_broken_off(each: Sequence[Checked]) -> bool:
    return any(one.is_alive for one in each) and any(_is_gone(one) for one in each)


def _is_alive(words: Sequence[bool | None]) -> bool | None:
    if any(words):
        return True
    return None if None in words else False


def _sight(answers: Sequence[ReadAnswer]) -> ReadAnswer:
    return ReadAnswer(seen=[_seen(each) for each in zip(*(one.seen for one in answers), strict=True)])


def _seen(each: Sequence[AttemptFiles]) -> AttemptFiles:
    first = each[0]
    if len(each) == 1:
        return first
    errors = [f"worker {index}: {one.error}" for index, one in enumerate(each) if one.error]
    if errors:
        return msgspec.structs.replace(first, files={}, stamps={}, grown={}, error="; ".join(errors))
    files, stamps = dict(first.files), dict(first.stamps)
    if not all(contract.TAKEN_FILE in one.files for one in each[1:]):
        _leave_out(contract.TAKEN_FILE, files, stamps)
    if all(_has_ended(one) for one in each):
        files[contract.EXIT_FILE] = _first_failure([one.files[contract.EXIT_FILE] for one in each])
    else:
        _leave_out(contract.EXIT_FILE, files, stamps)
    is_alive = _is_alive([one.is_alive for one in each])
    if is_alive is False:
        files |= {log_name(index): one.log_end for index, one in enumerate(each) if one.log_end}
    unwritten = next((one.unwritten for one in each if one.unwritten), "")
    return msgspec.structs.replace(first, files=files, stamps=stamps, is_alive=is_alive, unwritten=unwritten)


def _leave_out(name: str, files: dict[str, bytes], stamps: dict[str, tuple[int, int]]) -> None:
    """It is asked for again, as if it had not been there."""
    files.pop(name, None)
    stamps.pop(name, None)


def _has_ended(one: AttemptFiles) -> bool:
    """Whether it has left its exit status, and not only begun to write it."""
    content = one.files.get(contract.EXIT_FILE)
    return content is not None and (content.endswith(b"\n") or one.is_alive is False)


def _has_failed_somewhere(each: Sequence[AttemptFiles]) -> bool:
    """Whether a worker has left a status other than 0 while another one goes on."""
    ended = [one.files[contract.EXIT_FILE] for one in each if _has_ended(one)]
    return any(one.is_alive for one in each) and any(map(_has_failed, ended))


class _Exit(msgspec.Struct):
    """`exit_code` None: the wrapper could not begin the job."""

    exit_code: int | None
    ended_at: str = ""
    signal: str = ""


def _read_exit(content: bytes) -> _Exit | None:
    try:
        return msgspec.json.decode(content, type=_Exit)
    except msgspec.MsgspecError:
        return None


def _has_failed(content: bytes) -> bool:
    """Also where the content cannot be read."""
    found = _read_exit(content)
    return found is None or found.exit_code != 0


def _first_failure(exits: Sequence[bytes]) -> bytes:
    """The exit status that counts: of those that are not 0 the first one in time, with its worker; else worker 0's.

    The clocks of the workers of a VM agree to the millisecond or so, and a failure needs longer to reach the others.
    """
    failed = [index for index, content in enumerate(exits) if _has_failed(content)]
    if not failed:
        return exits[0]

    def place(index: int) -> tuple[bool, str, int]:
        found = _read_exit(exits[index])
        return (True, "", index) if found is None else (bool(found.signal), found.ended_at, index)

    worker = min(failed, key=place)
    if worker == 0 or _read_exit(exits[worker]) is None:
        return exits[worker]
    document = msgspec.json.decode(exits[worker], type=dict[str, Any])
    return msgspec.json.encode({**document, "worker": worker}) + b"\n"


_MERGES: Final[Mapping[type[Operation], Callable[[Any], Any]]] = {
    Hello: _greeting,
    Deliver: _delivered,
    Write: _written,
    RunThere: _ran,
    Remove: _removed,
    Read: _sight,
    Tail: _tail,
    Launch: _launched,
    Check: _checks,
    Signal: _signalled,
    Has: _found,
    Store: _stored,
}
