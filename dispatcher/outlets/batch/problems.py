"""What is wrong with one host, for the loop, for people, and for the outlet itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dispatcher.outlets.batch.agent_session import AgentSession
from dispatcher.outlets.batch.capacity import Submissions
from dispatcher.outlets.batch.provisioning import Provisioning
from dispatcher.outlets.batch.remote_host import RemoteHost
from dispatcher.outlets.batch.sending import Sender
from dispatcher.outlets.batch.shipping import Shipping

# For how long the first answer of a host is awaited before what prefers it goes elsewhere.
_FIRST_ANSWER_S: Final = 10.0


class Problems:
    """Gathers what keeps anything from being submitted, and warns people once of each new fault."""

    def __init__(
        self,
        host: Provisioning,
        session: AgentSession,
        remote: RemoteHost,
        shipping: Shipping,
        sender: Sender,
        warn: Callable[[str], None],
    ) -> None:
        """`warn` is told what is wrong, and of an empty text when nothing is any more."""
        self._host = host
        self._session = session
        self._remote = remote
        self._shipping = shipping
        self._sender = sender
        self._warn = warn
        self._told = ""
        # An entry that prefers this host does not go elsewhere because the pod has just begun.
        self._awaited_until_s = time.monotonic() + _FIRST_ANSWER_S

    @property
    def unreached(self) -> str:
        """Why the host cannot be reached now; empty when it can, as far as is known."""
        return self._host.problem or self._session.problem or self._remote.problem

    def awaited_for_s(self) -> float:
        """Seconds until the first answer of the host is not awaited any more."""
        return self._awaited_until_s - time.monotonic()

    def note(self, capacity: Submissions) -> None:
        """What keeps anything from being submitted now: the loop claims nothing for this outlet meanwhile."""
        missing = "" if self._remote.is_reached else (self._remote.problem or "not reached yet")
        reached = self._host.problem or self._session.problem or missing
        capacity.problem = reached or self._host.unfit or self._shipping.problem or self._sender.problem
        capacity.place = self._remote.place
        capacity.gpus_are_taken = bool(self._sender.waiting_text())
        if self.awaited_for_s() <= 0:
            capacity.is_awaited = False
        if self._host.is_busy:
            # What is wrong is known when it was looked at.
            return
        # That a call was not answered is no news of a host that is known not to be up.
        failed = self._host.failure or ("" if self._host.problem else self._session.problem)
        wrong = failed or self._remote.problem or self._shipping.failure or self._sender.problem
        if wrong != self._told and capacity.limit:
            self._warn(wrong)
            self._told = wrong
        if wrong or not capacity.problem:
            capacity.is_awaited = False
