"""The outlets of a pod: those that it was started with, and those that it needs for attempts of dead dispatchers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from dispatcher.config import Config
from dispatcher.errors import ConfigError, StorageError, UsageError
from dispatcher.hosts.types import Location
from dispatcher.outlets.base import Key, Outlet
from dispatcher.outlets.batch.identity import read_submission
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.kinds import make_for_orphans, make_outlets

# Between a host's name, which has none, and a location.
_AT: Final = "@"


class PodOutlets(Mapping[str, Outlet]):
    """As a mapping: the outlets with slots of this pod by name, the preferred first.

    `without_slots` are further ones, which are made when a record in flight of a dead dispatcher names them. Raises
    UsageError for options that cannot be used.
    """

    def __init__(self, context: PodContext) -> None:
        self._context = context
        self._own = make_outlets(context)
        self.without_slots: dict[str, Outlet] = {}
        # By the names of outlets that are not made by the configuration: the host's name, and where its calls go.
        self._located: dict[str, tuple[str, Location]] = {}
        # Why an outlet cannot be made, by name.
        self._problems: dict[str, str] = {}

    def __getitem__(self, name: str) -> Outlet:
        return self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def name_for_orphan(self, key: Key, outlet: str) -> str:
        """What `for_orphans` makes for an attempt of a dead dispatcher whose record names this outlet.

        `HOST@LOCATION` where it was submitted elsewhere than the host leads to, as far as is known.
        """
        config = self._context.config
        host = config.hosts.hosts.get(outlet)
        try:
            submission = read_submission(config.layout.attempt(key.job_id, key.number))
        except StorageError:
            # It says nothing.
            return outlet
        if host is None or submission is None:
            return outlet
        location = submission.location
        made = self._own.get(outlet) or self.without_slots.get(outlet)
        if location.is_reached_as(host.location) if made is None else made.leads_to(location):
            return outlet
        name = f"{outlet}{_AT}{location.text()}"
        self._located[name] = outlet, location
        return name

    def for_orphans(self, name: str) -> Outlet | None:
        """The outlet of this name, made now if need be; None where this host has no configuration for it."""
        known = self._own.get(name) or self.without_slots.get(name)
        if known is not None or name in self._problems:
            return known
        try:
            made = make_for_orphans(self._context, *self._located.get(name, (name, None)))
        except (ConfigError, UsageError) as error:
            # Also of a host that this pod has no slots on, and whose template is being changed.
            self._cannot(name, str(error))
            return None
        if made is None:
            self._cannot(name, "no such host is configured (in dispatcher.yaml, or with --hosts FILE)")
            return None
        self.without_slots[name] = made
        return made

    def follow(self, config: Config) -> None:
        """Make outlets by this configuration from now on; those that there are stay as they are."""
        self._context = msgspec.structs.replace(self._context, config=config)
        self._problems.clear()

    def names(self) -> set[str]:
        """The names of all outlets that were made, of hosts as they are configured."""
        return {*self._own, *(name.partition(_AT)[0] for name in self.without_slots)}

    def _cannot(self, name: str, why: str) -> None:
        self._problems[name] = f"attempts of dead dispatchers on {name} cannot be looked after here: {why}"

    def with_orphans(self) -> list[Outlet]:
        """All outlets, also those without slots."""
        return [*self._own.values(), *self.without_slots.values()]

    def place(self, name: str) -> str:
        """Where attempts of this outlet keep their checkpoints; empty where that is not known here."""
        known = self._own.get(name) or self.without_slots.get(name)
        return "" if known is None else known.capacity.place

    def notes(self) -> list[str]:
        """Why attempts of dead dispatchers are left to other pods."""
        return list(self._problems.values())

    def close(self) -> None:
        """Release what the outlets hold; attempts run on. Hosts that hang are waited for at the same time."""
        outlets = self.with_orphans()
        with ThreadPoolExecutor(max(1, len(outlets))) as pool:
            closing = [pool.submit(outlet.close) for outlet in outlets]
        for each in closing:
            each.result()
