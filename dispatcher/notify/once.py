"""Telling people from a command: what is due now, without a pod; and a test of the targets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Final

from dispatcher.base import files
from dispatcher.base.programs import wait_for_any
from dispatcher.config import Config
from dispatcher.errors import UsageError, nearest
from dispatcher.notify.checks import faults_in, refuse_unusable
from dispatcher.notify.conditions import Conditions
from dispatcher.notify.notifier import Notifier
from dispatcher.notify.process import Outcome, SendingProcess
from dispatcher.notify.text import test_payload, workspace_id
from dispatcher.notify_config import Notify, Target
from dispatcher.run_state.facets.notices import FAILED, Notice
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.store import Store

_LONGEST_WAIT_S: Final = 60.0


def settings_of(config: Config) -> Notify:
    """The targets and their events. Raises UsageError when there are none."""
    if config.notify is None:
        raise UsageError(f"{config.layout.config_file} has no notify: docs/notify.md shows what to write")
    return config.notify


def tell(store: Store, config: Config, conditions: Conditions, *, at_once: bool) -> list[Notice]:
    """Send what is due, and wait for it; the notices that were under way meanwhile.

    `at_once`: without the delay that bundles, for no pod is there to send it later.
    """
    refuse_unusable(config.layout.config_file, settings_of(config))
    notifier = Notifier(store, config, conditions, lambda _: None)
    notifier.begin()
    conditions.nothing_runs_since(_silence_s(store))
    begun_at = now_text(time.time())
    try:
        notifier.step(poll_is_due=True, at_once=at_once)
        while notifier.is_busy():
            notifier.wait(_LONGEST_WAIT_S)
            notifier.step(poll_is_due=False)
    finally:
        notifier.give_up()
    return [notice for notice in store.fold.notices.sent if notice.claimed_at >= begun_at]


def send_test(config: Config, names: Iterable[str] = ()) -> dict[str, Outcome]:
    """Send a test notice to these targets, or to all: how it went. Nothing is journalled."""
    notify = settings_of(config)
    chosen = list(names) or list(notify.targets)
    for name in chosen:
        if name not in notify.targets:
            raise UsageError(f"there is no target {name!r}{nearest(name, notify.targets)}")
    return {name: _tested(config, notify.targets[name]) for name in chosen}


def _tested(config: Config, target: Target) -> Outcome:
    faults = list(faults_in(target))
    if faults:
        return Outcome(FAILED, "; ".join(faults))
    root = config.layout.root
    sending = SendingProcess(target, test_payload(root.name, target.name, workspace_id(root)))
    try:
        while (outcome := sending.outcome()) is None:
            wait_for_any([sending])
    except BaseException:
        sending.kill()
        raise
    return outcome


def _silence_s(store: Store) -> float:
    """How long ago the journal's last line was written."""
    try:
        written_s = os.stat(store.layout.journal(store.generation or 0)).st_mtime
    except OSError:
        return 0.0
    return max(0.0, files.server_now_s(store.layout.run_state) - written_s)
