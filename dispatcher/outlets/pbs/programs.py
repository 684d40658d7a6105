"""Calls of PBS's programs that need more than one of them: small scripts, and how they are given their arguments.

Values are arguments of the scripts, never part of their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.outlets.remote.operations import Confirm, Run

# Of OpenPBS, which exits with the low byte of its error numbers (15000 and up).
UNKNOWN_JOB: Final = 153
FINISHED_JOB: Final = 35
ALREADY_EXITING: Final = 202
DELETE_IN_PROGRESS: Final = 237
# 162: the server cannot be connected to, or the system has failed; 171: a credential; 183: the protocol.
TRANSIENT: Final = frozenset({162, 171, 183})
# Limits of jobs in the queue (198, and 38 and 39 for one user), a queue that takes none (173), a server that is busy or
# about to stop (13, 104, 212): the same is accepted later.
BUSY: Final = frozenset({13, 38, 39, 104, 173, 198, 212})
NOTHING_TO_DELETE: Final = frozenset({0, UNKNOWN_JOB, FINISHED_JOB, ALREADY_EXITING, DELETE_IN_PROGRESS})

# Ids, `--`, names: one listing for all. A finished job is only shown with -x, which a server without history refuses;
# its complaint is dropped, because each further line has to be about a job.
_QUERY: Final = """
history=-x
ids=
while [ "$1" != -- ]; do ids="$ids $1"; shift; done
shift
user=$(id -un) || exit
for name; do
    found=$(qselect $history -u "$user" -N "$name" 2>&1)
    status=$?
    if [ "$status$history" = 36-x ]; then
        history=
        found=$(qselect -u "$user" -N "$name" 2>&1)
        status=$?
    fi
    if [ $status != 0 ]; then
        echo "$found" >&2
        exit $status
    fi
    ids="$ids $found"
done
set -- $ids
if [ $# = 0 ]; then
    echo '{"Jobs": {}}'
    exit
fi
exec 3>&1
complaint=$(qstat $history -f -F json "$@" 2>&1 >&3)
status=$?
[ "$status$history" != 36-x ] || exec qstat -f -F json "$@"
[ -z "$complaint" ] || echo "$complaint" >&2
exit $status
"""

# Ids, `--`, names: SIGKILL first where it is asked for.
_CANCEL: Final = """
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
[ "$force" != force ] || qsig -s SIGKILL "$@" 2>/dev/null
exec qdel "$@"
"""

# Prints the server's name.
_WHERE: Final = """
found=$(qstat -B -f -F json) || exit
printf '%s\\n' "$found" | sed -n 's/.*"pbs_server": *"\\([^"]*\\)".*/\\1/p'
"""

_LIMITS: Final = """
id -un && qstat -B -f -F json
"""


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
