"""What a pod tells people: beside its loop, and before it ends."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

from dispatcher.config import Config
from dispatcher.notify.checks import refuse_unusable
from dispatcher.notify.conditions import Conditions
from dispatcher.notify.notifier import Notifier
from dispatcher.notify_config import Notify
from dispatcher.pod.options import PodOptions
from dispatcher.run_state import liveness
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_LOOK_S = 0.2


class PodNotices:
    """The part of one pod in telling people. One that looks once and ends leaves it to others: the journal has it all.

    Where `notify` is not configured this does nothing, but for taking back targets that were configured before.
    """

    def __init__(
        self, store: Store, config: Config, options: PodOptions, observer: Observer, log: Callable[[str], None]
    ) -> None:
        self._store = store
        self._config = config
        self._options = options
        self._observer = observer
        self._log = log
        self._notifier: Notifier | None = None

    def check(self) -> None:
        """Raise ConfigError where this pod could not tell what it is to tell."""
        if self._config.notify is not None and not self._options.once:
            refuse_unusable(self._config.layout.config_file, self._config.notify)

    def begin(self) -> None:
        """Make known who is told what, from now on."""
        notify, layout = self._config.notify, self._config.layout
        if self._options.once or (notify is None and not self._store.fold.notices.targets):
            return
        conditions = Conditions(
            (notify or Notify()).nothing_running_after_s,
            lambda: dead_pods(layout, self._observer.pod_is_alive, self._options.pod),
            lambda: liveness.read_pods(layout),
        )
        self._notifier = Notifier(self._store, self._config, conditions, self._log)
        self._notifier.begin()

    def step(self, *, poll_is_due: bool) -> None:
        """Do what is due; never waits."""
        if self._notifier is not None:
            self._notifier.step(poll_is_due=poll_is_due)

    def due_in_s(self) -> float | None:
        return None if self._notifier is None else self._notifier.due_in_s()

    def wait_fds(self) -> list[int]:
        return [] if self._notifier is None else self._notifier.wait_fds()

    def finish(self, goes_on: Callable[[], bool]) -> None:
        """At the end of the pod: tell what is left, for nobody may be there to do so later.

        Waits for what is being sent, each within its deadline, as long as `goes_on()`.
        """
        notifier = self._notifier
        if notifier is None:
            return
        if goes_on():
            notifier.step(poll_is_due=False, at_once=True)
        while notifier.is_busy() and goes_on():
            select.select(notifier.wait_fds(), [], [], min(_LOOK_S, notifier.due_in_s() or 0.0))
            notifier.step(poll_is_due=False)
        notifier.give_up()


def dead_pods(layout: Layout, is_alive: Callable[[str], bool], me: str = "") -> Iterator[PodInfo]:
    """The dispatchers that are gone and have not ended."""
    for info in liveness.read_pods(layout):
        if info.pod != me and info.phase != "ended" and not info.is_short_lived and not is_alive(info.pod):
            yield info
