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
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.options import PodOptions
from dispatcher.pod.reconciler import Reconciler
from dispatcher.pod.stalled import StallWatch
from dispatcher.run_state import liveness
from dispatcher.run_state.facets.notices import Notice
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_LOOK_S: Final = 0.2
# Clocks of hosts differ by less.
_SILENT_S: Final = 600.0


class PodNotices:
    """The part of one pod in telling people. One that looks once and ends leaves it to others: the journal has it all.

    Where `notify` is not configured this does nothing, but for taking back targets that were configured before.
    """

    def __init__(
        self,
        store: Store,
        config: CurrentConfig,
        options: PodOptions,
        observer: Observer,
        reconciler: Reconciler,
        log: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._options = options
        self._observer = observer
        self._reconciler = reconciler
        self._log = log
        self._notifier: Notifier | None = None
        self._conditions: Conditions | None = None
        # The settings that the notifier goes by.
        self._followed: Notify | None = None

    def check(self) -> None:
        """Raise ConfigError where this pod could not tell what it is to tell."""
        notify = self._config.now.notify
        if notify is not None and not self._options.once:
            refuse_unusable(self._config.now.layout.config_file, notify)

    def begin(self) -> None:
        """Make known who is told what, from now on."""
        self._followed = notify = self._config.now.notify
        layout = self._config.now.layout
        if self._options.once or (notify is None and not self._store.fold.notices.targets):
            return
        self._conditions = Conditions(
            (notify or Notify(targets={})).nothing_running_after_s,
            lambda: liveness.read_pods(layout),
            lambda info: is_dead(info, self._observer.is_alive, self._options.pod),
            StallWatch(self._store, self._config, self._reconciler).stalled,
        )
        self._notifier = Notifier(self._store, self._config.now, self._conditions, self._log)
        self._notifier.begin()

    def _others_live(self) -> bool:
        layout, me = self._config.now.layout, self._options.pod
        others = (info for info in liveness.read_pods(layout) if info.pod != me and info.phase != "ended")
        return any(map(self._observer.is_alive, others))

    def step(self, *, poll_is_due: bool) -> None:
        """Do what is due; never waits."""
        if self._config.now.notify != self._followed:
            self._follow_config()
        if self._notifier is not None:
            self._notifier.step(poll_is_due=poll_is_due)

    def _follow_config(self) -> None:
        if self._notifier is None:
            self.begin()
            return
        notify = self._config.now.notify
        self._notifier.follow(notify or Notify(targets={}))
        self._followed = notify

    def due_in_s(self) -> float | None:
        return None if self._notifier is None else self._notifier.due_in_s()

    def wait_fds(self) -> list[int]:
        return [] if self._notifier is None else self._notifier.wait_fds()

    def finish(self, goes_on: Callable[[], bool], *, gives_up: bool) -> None:
        """At the end of the pod: tell what is left, for nobody may be there to do so later.

        Waits for what is being sent, each within its deadline, as long as `goes_on()`. `gives_up`: the pod was to run
        until nothing is left, and ends by itself.
        """
        notifier = self._notifier
        if notifier is None or self._conditions is None:
            return
        if goes_on():
            if gives_up and not self._others_live():
                self._conditions.nothing_will_run()
            notifier.step(poll_is_due=False, at_once=True)
        while notifier.is_busy() and goes_on():
            notifier.wait(_LOOK_S)
            notifier.step(poll_is_due=False)
        notifier.give_up()


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
