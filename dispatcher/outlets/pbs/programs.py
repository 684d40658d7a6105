"""Calls of PBS's programs that need more than one of them: small scripts, and how they are given their arguments.

Values are arguments of the scripts, never part of their text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dispatcher.outlets.remote.operations import Confirm, Run

# Of OpenPBS, which exits with the low byte of its error numbers (15000 and up).
UNKNOWN_JOB: Final = 153
FINISHED_JOB: Final = 35
_ALREADY_EXITING: Final = 202
_DELETE_IN_PROGRESS: Final = 237
# 162 and 255: the server cannot be connected to, or the system has failed; 171: a credential; 183: the protocol.
TRANSIENT: Final = frozenset({162, 171, 183, 255})
# Limits of jobs in the queue (198, and 38 and 39 for one user), a queue that takes none (173), a server that is busy or
# about to stop (13, 104, 212): the same is accepted later.
BUSY: Final = frozenset({13, 38, 39, 104, 173, 198, 212})
# What another queue may take: limits of jobs (38, 39, 198) or of resources (188), a queue that does not exist (170),
# takes none (173), or not those of this user (159, 174).
_OF_ONE_QUEUE: Final = frozenset({38, 39, 159, 170, 173, 174, 188, 198})
UNKNOWN_RESOURCE: Final = 187
NOTHING_TO_DELETE: Final = frozenset({0, UNKNOWN_JOB, FINISHED_JOB, _ALREADY_EXITING, _DELETE_IN_PROGRESS})


def _any(statuses: Iterable[int]) -> str:
    """A pattern of `case` for exit statuses."""
    return "|".join(map(str, sorted(statuses)))


# Ids, `--`, names. A finished job is only shown with -x, of which a server without history complains, with status 0.
# `-E` makes it one request for all ids; without it OpenPBS since December 2023 shows the first of several alone, with
# status 0. What is not shown is not said to be unknown, either, so each such id is asked for alone.
_QUERY: Final = r"""
ids=
while [ "$1" != -- ]; do ids="$ids $1"; shift; done
shift
user=$(id -un) || exit
history=-x
[ -z "$(qselect -x -u "$user" -N d- 2>&1)" ] || history=
for name; do
    found=$(qselect $history -u "$user" -N "$name") || exit
    ids="$ids $found"
done
set -- $ids
if [ $# = 0 ]; then
    echo '{"Jobs": {}}'
    exit
fi
# Prints a listing, and sets `shown`: the numbers of the jobs in it.
show() {
    listing=$(qstat $history -f -F json "$@")
    status=$?
    printf '%s\n' "$listing"
    shown=" $(printf '%s\n' "$listing" | sed -n 's/^[[:space:]]*"\([0-9]*\)[^"]*":[[:space:]]*{.*/\1/p' | tr '\n' ' ')"
}
show -E "$@" 2>/dev/null
at_once=$shown
unknown=0
for id; do
    case $at_once in *" ${id%%.*} "*) continue ;; esac
    show "$id"
    case $status:$shown in
        0:*" ${id%%.*} "*) ;;
        0:*) echo "qstat: it neither shows $id nor says why not" >&2; exit 1 ;;
        35:* | 153:*) unknown=$status ;;
        *) exit $status ;;
    esac
done
exit $unknown
"""

# Queues, `--`, the other arguments of qsub. The first one that takes the job has it, those last that start none. Where
# all refuse it, the status is that of one that may take it later, if there is one.
_SUBMIT: Final = rf"""
exec 3>&1
queues=
while [ "$1" != -- ]; do queues="$queues $1"; shift; done
shift
started=
stopped=
for queue in $queues; do
    case $(qstat -Q -f "$queue" 2>/dev/null) in
        *'started = True'*) started="$started $queue" ;;
        *) stopped="$stopped $queue" ;;
    esac
done
refusal=
for queue in $started $stopped; do
    # qsub leaves a process behind for a minute, which must not hold on to the output.
    complaint=$(qsub -q "$queue" "$@" 2>&1 >&3 3>&-)
    status=$?
    [ -z "$complaint" ] || echo "$queue: $complaint" >&2
    case $status in
        {_any(BUSY & _OF_ONE_QUEUE)}) refusal=$status ;;
        {_any(_OF_ONE_QUEUE - BUSY)}) refusal=${{refusal:-$status}} ;;
        *) exit $status ;;
    esac
done
exit $refusal
"""

# Ids, `--`, names: by force they are killed first.
_CANCEL: Final = f"""
force=$1
shift
ids=
while [ "$1" != -- ]; do ids="$ids $1"; shift; done
shift
user=$(id -un) || exit
for name; do
    found=$(qselect -u "$user" -N "$name") || exit
    ids="$ids $found"
done
set -- $ids
[ $# != 0 ] || exit 0
if [ "$force" = force ]; then
    # The script kills what is in other sessions, before it is killed itself.
    qsig -s SIGUSR2 "$@" 2>/dev/null
    sleep 1
    qsig -s SIGKILL "$@" 2>/dev/null
fi
complaint=$(qdel "$@" 2>&1) && exit
# The status is that of the last job that it complains of, whatever it says of the others.
worst=0
for id; do
    complaint=$(qdel "$id" 2>&1)
    status=$?
    case $status in
        {_any(NOTHING_TO_DELETE)}) ;;
        *) echo "$complaint" >&2; worst=$status ;;
    esac
done
exit $worst
"""

# Prints the server's name.
_WHERE: Final = """
found=$(qstat -B -f -F json) || exit
printf '%s\\n' "$found" | sed -n 's/.*"pbs_server":[[:space:]]*"\\([^"]*\\)".*/\\1/p'
"""

_LIMITS: Final = """
id -un && qstat -B -f -F json
"""


def submit(queues: Sequence[str], arguments: Sequence[str]) -> Run:
    """Submits to the first of these queues that takes the job; without one, to the server's default queue."""
    if len(queues) < 2:
        return Run(words=["qsub", *(word for queue in queues for word in ("-q", queue)), *arguments])
    return _run(_SUBMIT, [*queues, "--", *arguments])


def query(ids: Sequence[str], names: Sequence[str]) -> Run:
    """Tells, as JSON, of the jobs with these ids, and of this user's jobs with these names."""
    return _run(_QUERY, [*ids, "--", *names])


def cancel(ids: Sequence[str], names: Sequence[str], *, force: bool) -> Run:
    """Deletes these jobs; with `force` their processes are killed before."""
    return _run(_CANCEL, ["force" if force else "", *ids, "--", *names])


def limits() -> Run:
    """Tells the user's name in the first line, and after it the server's attributes as JSON."""
    return _run(_LIMITS, [])


def where() -> Confirm:
    """Tells the name of the server that answers."""
    return Confirm(words=["sh", "-c", _WHERE, "dispatcher"])


def _run(script: str, arguments: Sequence[str]) -> Run:
    return Run(words=["sh", "-c", script, "dispatcher", *arguments])
