"""The way to the volume: calls of the agent in a helper, a small pod that mounts it.

`kubectl exec` carries the agent's input and output. The helper is made when a call needs it, and one of the same owner
is used again. It is removed at the end, and after a call that it gave no answer to; that of a dispatcher that was
killed ends by itself when no call has used it for some minutes (helper_job.py). Archives of code arrive as with every
other outlet: complete and with the right SHA-256, or not at all, however the stream ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Final

from dispatcher import contract
from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.remote import follow
from dispatcher.outlets.remote.exchange import Exchange, Talk, agent_words
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.remote.transport import explain_limit
from dispatcher.outlets.volcano.helper_job import CONTAINER, IDLE_S, PYTHON, USING, helper_job
from dispatcher.outlets.volcano.helper_pod import HelperPod, Steps
from dispatcher.outlets.volcano.kubectl import Kubectl
from dispatcher.outlets.volcano.merging import FILE, read_template
from dispatcher.workspace import Layout

# A call waits so long for the helper, or for this part of its time if that is less.
_READY_S: Final = 120.0
_READY_PART: Final = 0.8
# A command as a call: while it runs, the helper is in use.
_RUN: Final = f"{USING}import sys;os.execvp(sys.argv[1],sys.argv[1:])"
# kubectl's status is also 0 when the stream was cut off: a command that has ended well says so by another one.
_DONE: Final = 99
_DONE_THERE: Final = f'"$@" && exit {_DONE}'
_DONE_HERE: Final = f"""
exec 3<&0
"$@" <&3 & child=$!
trap 'kill "$child"' TERM
wait "$child"; code=$?
[ "$code" -ne {_DONE} ] || exit 0
[ "$code" -ne 0 ] || exit 1
exit "$code"
"""
# Runs the words after `--`. Those before it ask every so many seconds whether the helper is ready: when it is not, such
# as when its node is lost, the call is ended, which would hang. A server that cannot be asked says nothing.
_WATCH_EVERY_S: Final = 10
_WATCHED: Final = f"""
ask=()
while [[ $1 != -- ]]; do
    ask+=("$1")
    shift
done
shift
exec 3<&0 </dev/null {{never}}<> <(:)
"$@" <&3 3<&- & child=$!
exec 3<&-
(
    exec >&2
    while ! read -rt {_WATCH_EVERY_S} -u "$never"; do
        ready=$("${{ask[@]}}" 2>/dev/null) || continue
        [[ $ready == True ]] || break
    done
    kill "$child"
) & watch=$!
wait "$child"
status=$?
kill "$watch" 2>/dev/null
exit "$status"
"""
_READY_PATH: Final = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
_TERMINATED: Final = re.compile(r"command terminated with (?:non-zero )?exit code:? (?:.*exit code )?(\d+)")


class HelperTransport:
    """The transport to the volume of a host. `owner` is who has the helper: two at the same time must differ in it.

    A helper that no call has used for `idle_s` ends by itself.
    """

    def __init__(self, host: VolcanoHost, layout: Layout, owner: str, idle_s: int = IDLE_S) -> None:
        """Raises StorageError, and TemplateError for a template of the project's Jobs that cannot be used."""
        self.sent_bytes = 0
        self._host = host
        self._kubectl = Kubectl(host, layout.root)
        job = helper_job(host, workspace_id(layout), owner, read_template(layout.templates_dir / FILE), idle_s)
        self._helper = HelperPod(host.name, self._kubectl, job)
        # The helper's pod since it was ready; empty: it has to be looked for.
        self._pod = ""
        self._calls = 0

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        ends_at_s = time.monotonic() + timeout_s
        exchange = Exchange(operations, timeout_s)
        pod = yield from self._reached(ends_at_s)
        finished, answers = yield from self._call(exchange, pod, ends_at_s)
        if answers is None and not finished.killed_because and (yield from self._may_work_again(pod, finished)):
            # All operations may be repeated.
            pod = yield from self._reached(ends_at_s)
            finished, answers = yield from self._call(exchange, pod, ends_at_s)
        if answers is not None:
            return answers
        self._forget(pod)
        if not self._calls:
            yield from self._helper.removed()
        raise OutletError(self._explain(pod, finished))

    def failed(self, *, another_runs: bool) -> None:
        """The call itself has removed what gave no answer."""

    def reach(self, timeout_s: float) -> Talk:
        self._pod = ""
        yield from self._reached(time.monotonic() + timeout_s)
        return ()

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._run(follow.follow_command(directory, offset, name))

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._run(follow.rest_command(directory, offset, name))

    def close(self) -> None:
        self._helper.close()

    def _reached(self, ends_at_s: float) -> Steps[str]:
        if not self._pod:
            left_s = ends_at_s - time.monotonic()
            self._pod = yield from self._helper.ready(min(_READY_S, _READY_PART * left_s))
        return self._pod

    def _call(self, exchange: Exchange, pod: str, ends_at_s: float) -> Steps[tuple[Finished, Sequence[Any] | None]]:
        self.sent_bytes += exchange.size
        words = self._exec(pod, USING + agent_words(PYTHON)[-1])
        program = exchange.program(self._watched(pod, words), max(1, round(ends_at_s - time.monotonic())))
        self._calls += 1
        try:
            finished = yield program
        finally:
            self._calls -= 1
        return finished, exchange.answers(finished.out)

    def _watched(self, pod: str, words: Sequence[str]) -> list[str]:
        """The words of a call that ends when the helper is not ready any more, such as when its node is lost."""
        asked = self._kubectl.words(
            "get", "pods", f"--field-selector=metadata.name={pod}", f"--output=jsonpath={_READY_PATH}",
            request_s=_WATCH_EVERY_S,
        )  # fmt: skip
        return ["bash", "-c", _WATCHED, "call", *asked, "--", *words]

    def _may_work_again(self, pod: str, finished: Finished) -> Steps[bool]:
        if (yield from self._helper.is_gone(pod)):
            # It had ended before, or was deleted under the call.
            self._forget(pod)
            return True
        # kubectl ends well when its stream was cut off.
        return finished.exit_code == 0

    def _exec(self, pod: str, source: str, *arguments: str) -> list[str]:
        """The words that run this program of Python in the helper."""
        command = (PYTHON, "-I", "-c", source, *arguments)
        return self._kubectl.words("exec", "-i", pod, f"--container={CONTAINER}", "--", *command, request_s=None)

    def _run(self, command: Sequence[str]) -> list[str]:
        """The words that run a command in the helper; their status is 0 only when the command's was."""
        if not self._pod:
            raise OutletError(f"{self._host.name}: the helper was not reached")
        there = self._exec(self._pod, _RUN, "sh", "-c", _DONE_THERE, "sh", *command)
        return ["sh", "-c", _DONE_HERE, "sh", *there]

    def _forget(self, pod: str) -> None:
        """Another call may have found the next one already."""
        if self._pod == pod:
            self._pod = ""

    def _explain(self, pod: str, finished: Finished) -> str:
        """Why the call of the agent has brought no answer, for people."""
        where = f"{self._host.name}: the helper {pod}"
        said = finished.errors.strip()
        if finished.killed_because:
            return explain_limit(where, finished)
        if "SyntaxError" in said:
            return f"{where} has a python3 older than 3.6; name another image with `helper_image`: {said}"
        ended = _TERMINATED.search(said)
        if ended and ended[1] == "137":
            return f"{where}: the call was killed (status 137); if its memory was too small, `helper_resources` sets it"
        if finished.exit_code == 0:
            return f"{where}: the stream ended before the answer was complete"
        return f"{where} gave no answer (status {finished.exit_code}): {said or 'and no error message'}"
