"""What a session reports of a host that does not answer."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.errors import OutletError
from dispatcher.outlets.batch.agent_session import AgentSession, Step
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.exchange import Talk
from dispatcher.outlets.remote.operations import Hello, Operation
from dispatcher.outlets.remote.transport import LocalTransport


class RefusingTransport(LocalTransport):
    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        raise OutletError(f"{self.name}: the helper cannot start")
        yield


def test_a_problem_does_not_name_the_host_twice() -> None:
    """Warnings and tables begin with the name of the host."""
    lost: list[str] = []
    steps = [Step([Hello()], lambda _: None)]
    session = AgentSession(Connection("k8s", RefusingTransport("k8s")), lambda: steps, lambda: lost.append("call"))
    session.work()
    session.work()
    assert (session.problem, lost) == ("the helper cannot start", ["call"])
    session.close()
