"""A claimed entry, as it is rendered for the place where it runs."""

from __future__ import annotations

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Key, Request, Slot


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed entry: what runs as which attempt of which pod, and in which slot."""

    entry: Entry
    key: Key
    pod: str
    request: Request
    slot: Slot
