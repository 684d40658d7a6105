"""A claimed entry, as it is rendered for the place where it runs."""

from __future__ import annotations

import msgspec

from dispatcher.config import Config, Method
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Key, Request, Slot
from dispatcher.outlets.code.snapshot import CodeSnapshot


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed entry: what runs as which attempt of which pod, in which slot, and from which copy of the code."""

    entry: Entry
    key: Key
    pod: str
    request: Request
    slot: Slot
    code: CodeSnapshot | None = None


def method_of(config: Config, assigned: Assignment) -> Method:
    """The entry's method; its template is that of the copy of the code, unless it is outside of the workspace."""
    method, layout = config.method(assigned.entry.method), config.layout
    if assigned.code is None or not method.template.is_relative_to(layout.root):
        return method
    template = layout.code_copy(assigned.code.digest) / method.template.relative_to(layout.root)
    return msgspec.structs.replace(method, template=template)
