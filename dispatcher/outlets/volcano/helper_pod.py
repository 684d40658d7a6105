"""The helper's pod: made when it is needed, waited for, and removed. The methods of HelperPod are parts of talks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.outlets.remote.programs import Program, given, ran
from dispatcher.outlets.volcano.helper_job import HELPER_LABEL
from dispatcher.outlets.volcano.helper_state import HelperState, Stage, judge, warnings
from dispatcher.outlets.volcano.kubectl import Kubectl, Problem, Reason, cure, first_problem

T = TypeVar("T")
# Yields programs one after the other, is sent how each has ended, and returns what they are for.
Steps = Generator[Program, Finished, T]

_REQUEST_S: Final = 20.0
_FIRST_PAUSE_S: Final = 0.3
_LONGEST_PAUSE_S: Final = 3.0
_CLOSING_S: Final = 10.0
# The API server learns of a container's end from the kubelet, some time later.
_SETTLED_S: Final = 2.0
# One that has ended is followed by another, but not for ever.
_MOST_MADE: Final = 3
_NO_PYTHON: Final = (
    "the helper's image must have python3 (3.6 or newer) and sh; name one that has with `helper_image` of the host"
)


class HelperPod:
    """The helper that the manifest `job` makes; `host` is the host's name in messages."""

    def __init__(self, host: str, kubectl: Kubectl, job: Mapping[str, Any]) -> None:
        self.name: str = job["metadata"]["name"]
        self._host = host
        self._kubectl = kubectl
        self._manifest = json.dumps(job).encode()
        self._may_exist = False

    def ready(self, limit_s: float) -> Steps[str]:
        """Wait for the helper, which is made where there is none; the name of its pod. Raises OutletError.

        One that waits for room or for its image is left to wait; one that cannot run is removed.
        """
        ends_at_s = time.monotonic() + limit_s
        pause_s, made, is_new = _FIRST_PAUSE_S, 0, False
        state = (yield from self._state()) if self._may_exist else HelperState(stage=Stage.ABSENT)
        while state.stage is not Stage.READY:
            if state.stage is Stage.BROKEN or (state.stage is Stage.ENDED and is_new):
                why = yield from self._reason(state)
                yield from self.removed()
                raise OutletError(why)
            if time.monotonic() >= ends_at_s or made > _MOST_MADE:
                raise OutletError((yield from self._reason(state)))
            if state.stage is Stage.ENDED:
                yield from self.removed()
            if state.stage in (Stage.ABSENT, Stage.ENDED):
                is_new = yield from self._made()
                made += 1
            yield Program(["sleep", f"{pause_s:.1f}"], limit_s=None)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
            state = yield from self._state()
        return state.pod

    def is_gone(self, pod: str) -> Steps[bool]:
        """Whether that pod is surely no helper any more: deleted, or over."""
        for is_settled in (False, True):
            if is_settled:
                yield Program(["sleep", f"{_SETTLED_S:.1f}"], limit_s=None)
            try:
                state = yield from self._state()
            except OutletError:
                return False
            if state.pod != pod or state.stage is not Stage.READY:
                return True
        return False

    def removed(self) -> Steps[None]:
        """Remove it, if the API server can be reached: otherwise it ends by itself."""
        if self._may_exist:
            finished = yield Program(self._delete_words(), limit_s=_REQUEST_S)
            self._may_exist = finished.exit_code != 0

    def close(self) -> None:
        """Remove it; waits for some seconds at most."""
        if not self._may_exist:
            return
        try:
            Program(self._delete_words(), limit_s=_CLOSING_S).close(_CLOSING_S)
        except OutletError:
            # Without kubectl there is none.
            return

    def _made(self) -> Steps[bool]:
        """Whether the Job is a new one; False: there is one of its name."""
        self._may_exist = True
        words = self._kubectl.words("create", "--validate=false", "-f", "-", request_s=_REQUEST_S)
        finished = yield Program(words, limit_s=_REQUEST_S, stdin=given(self._manifest))
        problem = _problem(finished)
        if problem is not None and problem.reason not in (Reason.EXISTS, Reason.DELETING):
            raise OutletError(self._shown(problem))
        return problem is None

    def _state(self) -> Steps[HelperState]:
        return judge(self.name, (yield from self._objects("jobs.batch,pods", f"--selector={HELPER_LABEL}={self.name}")))

    def _reason(self, state: HelperState) -> Steps[str]:
        """Why it is not ready, in full."""
        what = state.pod or self.name
        whys = [state.why]
        if state.stage is Stage.ABSENT:
            whys.append(f"it was made {_MOST_MADE} times and is gone, or another Job has its name")
        try:
            about = f"--field-selector=type=Warning,involvedObject.name={what}"
            whys.append(warnings((yield from self._objects("events", about)), state.why))
        except OutletError:
            # A user who may not read events still gets the rest.
            pass
        said = "; ".join(why for why in whys if why) or "the cluster gives no reason"
        how = {Stage.ENDED: "has ended", Stage.BROKEN: "cannot start"}.get(state.stage, "is not ready")
        hint = f" ({_NO_PYTHON})" if "executable file not found" in said or "no such file or directory" in said else ""
        # Each try has a pod with a name of its own, which is no news: a warning is repeated when its text changes.
        stable = re.sub(rf"\b{re.escape(self.name)}-[a-z0-9]{{5}}\b", self.name, said)
        return f"{self._host}: the helper {self.name} {how}: {stable}{hint}"

    def _objects(self, kinds: str, selector: str) -> Steps[Sequence[Mapping[str, Any]]]:
        words = self._kubectl.words("get", kinds, selector, "--output=json", request_s=_REQUEST_S)
        finished = yield Program(words, limit_s=_REQUEST_S)
        problem = _problem(finished)
        if problem is not None:
            raise OutletError(self._shown(problem))
        try:
            found: Sequence[Mapping[str, Any]] = json.loads(finished.out)["items"]
        except (ValueError, KeyError, TypeError) as error:
            raise OutletError(f"{self._host}: kubectl printed no list of {kinds}: {error!r}") from error
        return found

    def _delete_words(self) -> list[str]:
        options = ("--ignore-not-found", "--wait=false", "--cascade=background")
        return self._kubectl.words("delete", f"jobs.batch/{self.name}", *options, request_s=_CLOSING_S)

    def _shown(self, problem: Problem) -> str:
        hint = cure(problem, self._kubectl)
        return f"{self._host}: {problem.message}" + (f" ({hint})" if hint else "")


def _problem(finished: Finished) -> Problem | None:
    answer = ran(finished)
    return first_problem(answer.exit_code, answer.err)
