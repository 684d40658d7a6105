"""What a pod tells people: beside its loop, and before it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dispatcher.base import files
from dispatcher.config import Config, LockKind
from dispatcher.notify import once
from dispatcher.notify.checks import refuse_unusable
from dispatcher.notify.conditions import Conditions
from dispatcher.notify.notifier import Notifier
from dispatcher.notify_config import Notify
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import Ending, Participant, Pass, Shared
from dispatcher.pod.participants.stalled import StallWatch
from dispatcher.run_state import liveness
from dispatcher.run_state.facets.notices import Notice
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_LOOK_S: Final = 0.2
# Clocks of hosts differ by less.
_SILENT_S: Final = 600.0


class Notices(Participant):
    """The part of one pod in telling people. One that looks once and ends leaves it to others: the journal has it all.

    Where `notify` is not configured this does nothing, but for taking back targets that were configured before.
    """

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self._shared = shared
        self._config = shared.config
        self._watched = StallWatch(shared, backlog)
        self._notifier: Notifier | None = None
        self._conditions: Conditions | None = None
        # The settings that the notifier goes by.
        self._followed: Notify | None = None

    def prepare(self) -> None:
        """Raise ConfigError where this pod could not tell what it is to tell."""
        notify = self._config.now.notify
        if notify is not None and not self._shared.options.once:
            refuse_unusable(self._config.now.layout.config_file, notify)

    def begin(self) -> None:
        """Make known who is told what, from now on."""
        self._followed = notify = self._config.now.notify
        shared, layout = self._shared, self._config.now.layout
        if shared.options.once or (notify is None and not shared.store.fold.notices.targets):
            return
        self._conditions = Conditions(
            (notify or Notify(targets={})).nothing_running_after_s,
            lambda: liveness.read_pods(layout),
            lambda info: is_dead(info, shared.observer.is_alive, shared.options.pod),
            self._watched.stalled,
        )
        self._notifier = Notifier(shared.store, self._config.now, self._conditions, shared.log)
        self._notifier.begin()

    def after(self, now: Pass) -> None:
        """Do what is due; never waits."""
        notify = self._config.now.notify
        if notify != self._followed and self._notifier is None:
            self.begin()
        elif notify != self._followed and self._notifier is not None:
            self._notifier.follow(notify or Notify(targets={}))
            self._followed = notify
        if self._notifier is not None:
            self._notifier.step(poll_is_due=now.poll_is_due)

    def due_in_s(self, *, claiming: bool) -> float | None:
        return None if self._notifier is None else self._notifier.due_in_s()

    def wait_fds(self) -> list[int]:
        return [] if self._notifier is None else self._notifier.wait_fds()

    def finish(self, ending: Ending) -> None:
        """Tell what is left, as no pod may be there to do so later; wait for what is being sent, until its deadline."""
        notifier = self._notifier
        if notifier is None or self._conditions is None:
            return
        if ending.goes_on():
            if ending.gives_up and not self._others_live():
                self._conditions.nothing_will_run()
            notifier.step(poll_is_due=False, at_once=True)
        while notifier.is_busy() and ending.goes_on():
            notifier.wait(_LOOK_S)
            notifier.step(poll_is_due=False)
        notifier.give_up()

    def _others_live(self) -> bool:
        layout, me = self._config.now.layout, self._shared.options.pod
        others = (info for info in liveness.read_pods(layout) if info.pod != me and info.phase != "ended")
        return any(map(self._shared.observer.is_alive, others))


def tell_once(store: Store, config: Config, stalled: Callable[[], Mapping[str, float | None]]) -> list[Notice]:
    """Tell from a command what is due; the notices that were sent, or could not be."""
    layout = config.layout
    observer = Observer(layout, config.lost_after_s, lambda: store.lock_kind == LockKind.FLOCK)
    infos = [info for info in liveness.read_pods(layout) if info.phase != "ended"]
    alive = {info.pod for info in infos if observer.is_alive(info)}
    if observer.is_network:
        # A held lock may be that of a host that is gone.
        now_s = files.server_now_s(layout.pods_dir)
        alive -= {info.pod for info in infos if is_silent(layout, info, config.lost_after_s, now_s)}
    conditions = Conditions(
        once.settings_of(config).nothing_running_after_s,
        lambda: liveness.read_pods(layout),
        lambda info: is_dead(info, lambda one: one.pod in alive),
        stalled,
    )
    return once.tell(store, config, conditions, at_once=not alive)


def is_silent(layout: Layout, info: PodInfo, lost_after_s: float, now_s: float) -> bool:
    """Whether a pod's last heartbeat is so old that delays do not explain it; all by the clock of the file server.

    A command has no time to see whether a heartbeat rises.
    """
    found = files.stat(layout.pod_file(info.pod))
    return found is not None and now_s - found.st_mtime > max(lost_after_s, _SILENT_S)


def is_dead(info: PodInfo, is_alive: Callable[[PodInfo], bool], me: str = "") -> bool:
    """Whether a dispatcher is gone that has not ended, and is not `me`."""
    return info.pod != me and info.phase != "ended" and not info.is_short_lived and not is_alive(info)
