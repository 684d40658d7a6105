"""How an attempt's command is started on several nodes: by srun, one task on each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# srun kills its tasks at once when it gets TERM, before they can save anything. So it is kept out of the process group
# that the wrapper signals, and the tasks are signalled through SLURM: `scancel --signal` reaches all steps of the job,
# and not its batch script. Where that fails, srun gets the signal after all. The status comes through a pipe, because
# bash 5.2 loses that of a process that ends while a signal interrupts `wait`; in POSIX mode a signal interrupts `read`.
# A task leaves its status in a file (see `finish` in node.sh.j2), and one that was signalled is 0 for srun, which
# signals the others when one of them is not 0. A task without a file was killed before anyone had told it to end:
# so its status, which only srun knows, is what ended the others.
_START: Final = r"""
exec {output}>&1
coproc steps {
    trap : TERM INT
    read -r _ || exit
    DISPATCHER_STATUS_BY_FILE=1 setsid srun "$@" >&"$output" {output}>&-
    echo $?
}
starter=$!
exec {outcome}<&"${steps[0]}"
tell() {
    scancel --signal=TERM "$SLURM_JOB_ID" || kill -TERM $(<"/proc/$starter/task/$starter/children")
}
trap tell TERM INT
echo >&"${steps[1]}"
set -o posix
status=
while [[ -z $status ]]; do
    read -r -u "$outcome" status
    read_status=$?
    [[ -n $status ]] || ((read_status > 128)) || status=1
done
# By name: a list of the directory may be older.
true <"$DISPATCHER_ATTEMPT_DIR"
highest=$status
for ((rank = 0; rank < ${1#--nodes=}; rank++)); do
    file=$DISPATCHER_ATTEMPT_DIR/node.$rank.status
    if [[ -s $file ]] && read -r of_task <"$file" && [[ $of_task =~ ^[0-9]+$ ]]; then
        ((of_task > highest)) && highest=$of_task
    elif ((status)); then
        first=$DISPATCHER_ATTEMPT_DIR/node.first
        [[ ! -s $first || $(<"$first") == status* ]] || echo "status $status" >"$first"
        exit "$status"
    fi
done
exit "$highest"
"""


def start_on_nodes(nodes: int, cpus: int | None) -> Sequence[str]:
    """The words that run the ones after them on every node; a task that fails ends all. None where there is one node.

    The exit status is the highest of all tasks; the wrapper goes by the one that failed first.
    """
    if nodes == 1:
        return ()
    # From 22.05 on srun does not take over --cpus-per-task of the job. Without --wait, tasks may run on for WaitTime of
    # the cluster when the first one is done.
    each = (f"--cpus-per-task={cpus}",) if cpus else ()
    spread = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    return ("bash", "-c", _START, "srun", *spread, *each, "--kill-on-bad-exit=1", "--wait=0", "--export=ALL")
