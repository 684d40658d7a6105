"""Stopping jobs in SLURM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from dispatcher.outlets.batch.scheduler import Submitted
from dispatcher.outlets.remote.operations import Ran, Run
from dispatcher.outlets.slurm.questions import failure

_TIMEOUT_S: Final = 120.0
# A job that ends between the two programs is no error.
_GONE: Final = re.compile(r"already complet|invalid job id|job/step already|not found", re.I)

# Reads lines of NAME INDEX and cancels what squeue shows under these names: an id from an earlier answer may be that of
# another user's job by now, and many calls of scancel at once overload the controller. Of a running job only the batch
# script gets TERM. It passes TERM on, and then the attempt's grace period counts and not the site's KillWait. SLURM
# never kills a job at once: KILL is TERM first, and KILL after KillWait. So by force the steps are named, which SLURM
# does kill, before the batch script is told to kill what it has started (USR2): with its end they have none any more.
_SCRIPT: Final = r"""
set -o pipefail
declare -A wanted=() names=()
while read -r name index; do
    wanted[$name/$index]=1 names[$name]=1
done
printf -v list '%s,' "${!names[@]}"
found=$(squeue --me --all --array --noheader --name="${list%,}" --format='%j %K %i %T') || exit
waiting=() running=()
while read -r name index id state; do
    [[ $index =~ ^[0-9]+$ ]] || index=0
    [[ -n ${wanted[$name/$index]-} ]] || continue
    case $state in
        COMPLETING) [[ $1 == force ]] && running+=("$id") ;;
        PENDING | REQUEUE* | SPECIAL_EXIT | RESV_DEL_HOLD | CONFIGURING) waiting+=("$id") ;;
        *) running+=("$id") ;;
    esac
done <<<"$found"
status=0
for ((at = 0; at < ${#waiting[@]}; at += 100)); do
    scancel "${waiting[@]:at:100}" || status=$?
done
for ((at = 0; at < ${#running[@]}; at += 100)); do
    some=("${running[@]:at:100}")
    if [[ $1 == force ]]; then
        steps=$(squeue --steps --noheader --jobs="$(IFS=,; echo "${some[*]}")" --format=%i | grep -E '\.[0-9]+$')
        [[ -z $steps ]] || scancel --signal=KILL $steps 2>/dev/null
        scancel --signal=USR2 --batch "${some[@]}" 2>/dev/null
        scancel --signal=KILL --full "${some[@]}" || status=$?
    else
        scancel --signal=TERM --batch "${some[@]}" || status=$?
    fi
done
exit "$status"
"""


def cancel(attempts: Sequence[Submitted], *, force: bool) -> list[Run]:
    """One call that stops all of these: TERM to their batch scripts, or KILL to everything in them."""
    lines = sorted({f"{attempt.name} {attempt.index}\n" for attempt in attempts})
    words = ("bash", "-c", _SCRIPT, "scancel", "force" if force else "gently")
    return [Run(words=words, stdin="".join(lines), timeout_s=_TIMEOUT_S)] if lines else []


def cancelled(answer: Any) -> str:
    """Why the call has to be repeated; empty when nothing is left to cancel."""
    if not isinstance(answer, Ran) or answer.exit_code is None:
        return failure("scancel", answer)
    if answer.exit_code == 0:
        return ""
    lines = [line for line in answer.err.splitlines() if line.strip()]
    return "" if lines and all(_GONE.search(line) for line in lines) else failure("scancel", answer)
