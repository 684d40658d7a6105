"""The code of submissions: which one attempts on a host run, and what becomes of a submission that waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dispatcher.config import CodeMode, Config
from dispatcher.errors import StorageError
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.preparing import Preparer
from dispatcher.outlets.batch.remote_host import RemoteHost
from dispatcher.outlets.batch.sending import Sender
from dispatcher.outlets.batch.shipping import Shipping
from dispatcher.outlets.batch.tracked import Tracked
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.node.setup import code_file
from dispatcher.outlets.remote.connection import Connection


class CodeDelivery:
    """The code for one host. `asked`: what a person has asked for; None: what dispatcher.yaml says."""

    def __init__(
        self,
        config: Config,
        connection: Connection,
        sender: Sender,
        preparer: Preparer,
        tracked: Mapping[Key, Tracked],
        asked: CodeMode | None,
    ) -> None:
        self._config = config
        self._sender = sender
        self._preparer = preparer
        self._tracked = tracked
        self._asked = asked
        self._has_begun = False
        self.shipping = Shipping(config.layout, connection, self._shipped, self._failed)

    def work(self, digests: Iterable[str]) -> None:
        """Take in what was answered and begin what comes next; never waits."""
        self.shipping.work(digests)

    def begin(self, remote: RemoteHost) -> None:
        """The host was reached: before anything is claimed, it is known whether there is code to be sent."""
        if self._has_begun:
            return
        self._has_begun = True
        mode = self._asked
        if mode is None:
            # Attempts run what the host sees of the workspace, unless a person asks otherwise.
            mode = CodeMode.NONE if remote.is_shared else self._config.code
        self.shipping.begin(mode, remote.share)
        self.shipping.work(())

    def start_over(self) -> None:
        """The host is another one, which has no code yet."""
        self._has_begun = False
        self.shipping.start_over()

    def _shipped(self, names: Sequence[str], snapshot: CodeSnapshot, archive: str) -> None:
        """The host has the code of these submissions, so they can go."""
        content = code_file(snapshot.digest, snapshot.commit_text, archive)
        for name in names:
            submission = self._sender.held(name)
            if submission is None:
                continue
            try:
                deliveries = [
                    delivery
                    for bundle in submission.bundles
                    for delivery in self._preparer.add_code(self._tracked[bundle.key], content, snapshot.label)
                ]
            except StorageError as error:
                self._sender.give_up(name, str(error))
            else:
                self._sender.release(name, deliveries)

    def _failed(self, names: Sequence[str], why: str) -> None:
        for name in names:
            self._sender.give_up(name, why)
