"""The configuration of a pod. dispatcher.yaml may change while the pod runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.base.file_identity import Identity, identity_of
from dispatcher.config import Config, load_config
from dispatcher.errors import ConfigError
from dispatcher.hosts.types import Cluster, Hosts
from dispatcher.matrix.limits import Limits
from dispatcher.outlets.idle_times import sampling_interval_s
from dispatcher.workspace import Layout

_Identity = tuple[Identity | None, ...]

# What others rely on for as long as the pod runs, by field: the store, the heartbeat, the attempts in flight.
_KEPT: Final = {
    "matrix": "matrix",
    "script_lock": "script_lock",
    "lock": "lock",
    "poll_interval_s": "poll_interval",
    "heartbeat_s": "heartbeat",
    "lost_after_s": "lost_after",
    "kill_grace_s": "kill_grace",
    "code": "code",
}

# An editor that saves in place leaves the file without its contents, or its name, for less than this in all.
_SAVED_AFTER_S: Final = (0.02, 0.1)


class CurrentConfig:
    """`now` is the last valid configuration, but for what cannot change while a pod runs.

    `hosts_in_use()` names the hosts that have outlets here; these are made once.
    """

    def __init__(
        self, config: Config, log: Callable[[str], None], hosts_in_use: Callable[[], Collection[str]] = tuple
    ) -> None:
        self.now = config
        self._log = log
        self._hosts_in_use = hosts_in_use
        self._problem = ""
        self._unchangeable = ""
        # Of the files; options of the command may have changed hosts in `now`.
        self._read_hosts: Hosts | None = None
        self._identity: _Identity | None = None
        # Whether not even that could be told the last time: it is asked again with the next poll.
        self._is_unreadable = False
        # Of the files when they were valid for the last time.
        self._valid: _Identity | None = None

    def files(self) -> list[Path]:
        """The files that `follow` reads."""
        hosts_file = self.now.hosts_file
        return [self.now.layout.config_file, *([] if hosts_file is None else [hosts_file])]

    def has_changed(self) -> bool:
        """Whether `follow` is due. Cheap: asked under the lock, before each claim."""
        try:
            return not self._is_unreadable and tuple(map(_identity, self.files())) != self._identity
        except OSError:
            return False

    def follow(self) -> bool:
        """Read the files if they have changed. Returns whether `now` is another configuration.

        What is wrong with them is reported, and `now` stays.
        """
        self._is_unreadable = True
        try:
            found = self._find()
            self._is_unreadable = False
            if found == self._identity:
                return False
            self._identity = found
            self._refuse_emptied(found)
            read = load_config(Layout(self.now.layout.root), self.now.hosts_file)
            _refuse_unusable(read, self.now)
        except (OSError, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            name = self.now.layout.config_file.name
            self._problem = self._tell(self._problem, f"{name}: the previous configuration is kept: {why}")
            return False
        if self._problem:
            self._log(f"{self.now.layout.config_file.name} is read again")
        self._problem, self._valid = "", found
        return self._take(read)

    def notes(self) -> list[str]:
        """What is wrong with the files, and which of their changes wait for a restart."""
        return [note for note in (self._problem, self._unchangeable) if note]

    def _tell(self, known: str, text: str) -> str:
        if text and text != known:
            self._log(f"warning: {text}")
        return text

    def _find(self) -> _Identity:
        for pause_s in (*_SAVED_AFTER_S, 0.0):
            # On a network filesystem a file that was just replaced may seem to be missing.
            files.refresh_names(self.now.layout.root)
            found = tuple(map(_identity, self.files()))
            if found == self._identity or not self._emptied(found):
                break
            time.sleep(pause_s)
        return found

    def _refuse_emptied(self, found: _Identity) -> None:
        for path, now in self._emptied(found):
            raise ConfigError(f"{path} is {'missing' if now is None else 'empty'}; restart the pod if it is to be")

    def _emptied(self, found: _Identity) -> list[tuple[Path, Identity | None]]:
        """The files that an editor may be saving in place: they were valid, and have no contents now."""
        known = zip(self.files(), self._valid or (), found, strict=False)
        return [(path, now) for path, valid, now in known if valid is not None and valid[1] and not (now and now[1])]

    def _take(self, read: Config) -> bool:
        now = self.now
        unchangeable = [key for field, key in _KEPT.items() if getattr(read, field) != getattr(now, field)]
        if read.layout.status_file != now.layout.status_file:
            unchangeable.append("status_file")
        if sampling_interval_s(read) != sampling_interval_s(now):
            unchangeable.append("gpu_idle (how often the GPUs of this host are looked at)")
        hosts, changed = self._hosts(read.hosts)
        unchangeable += [f"hosts.{name}" for name in changed]
        text = f"restart the pod for the change of {', '.join(unchangeable)} in dispatcher.yaml" if unchangeable else ""
        self._unchangeable = self._tell(self._unchangeable, text)
        kept = {field: getattr(now, field) for field in _KEPT}
        self.now = msgspec.structs.replace(read, layout=now.layout, hosts=hosts, **kept)
        return self.now != now

    def _hosts(self, read: Hosts) -> tuple[Hosts, list[str]]:
        """The hosts in force, and those in use that are described otherwise: then all stay as they were."""
        before, now = self._read_hosts, self.now.hosts
        if before is None:
            self._read_hosts = read
            return now, []
        in_use = [name for name in self._hosts_in_use() if name in now.hosts]
        changed = [name for name in in_use if _description(read, name) != _description(before, name)]
        if changed:
            return now, changed
        self._read_hosts = read
        return msgspec.structs.replace(read, hosts={**read.hosts, **{name: now.hosts[name] for name in in_use}}), []


def _identity(path: Path) -> Identity | None:
    found = files.stat(path)
    return None if found is None else identity_of(found)


def _refuse_unusable(read: Config, now: Config) -> None:
    """Raise ConfigError for what only shows when it is used."""
    Limits.of(read)
    if read.notify is not None and read.notify != now.notify:
        from dispatcher.notify.checks import refuse_unusable

        refuse_unusable(read.layout.config_file, read.notify)


def _description(hosts: Hosts, name: str) -> tuple[object, Cluster | None]:
    host = hosts.hosts.get(name)
    return host, None if host is None else hosts.cluster_of(host)
