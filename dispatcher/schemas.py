"""The JSON schemas of the files that people write, for editors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.base.schema.json_schema import DIALECT, of_struct
from dispatcher.config import Config
from dispatcher.hosts.read import hosts_schema
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.sweep import SweepFile
from dispatcher.tuning.settings import Settings

_NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$"}
_OF_ENTRIES: Final[Mapping[str, Any]] = {
    "job_id": {**_NAME, "description": "the name of the job; it becomes a folder's name"},
    "method": {**_NAME, "description": "which template and which settings of dispatcher.yaml"},
}


def _config() -> Mapping[str, Any]:
    return of_struct(Config, hosts_schema())


def _entry() -> Mapping[str, Any]:
    """All other keys are parameters."""
    return {**of_struct(Entry, _OF_ENTRIES, is_open=True), "required": list(_OF_ENTRIES)}


# What each is the schema of: dispatcher.yaml, one object of a manifest, a manifest, a sweep file, tune.yaml.
SCHEMAS: Final[Mapping[str, Callable[[], Mapping[str, Any]]]] = {
    "config": _config,
    "entry": _entry,
    "manifest": lambda: {"type": "array", "items": _entry()},
    "sweep": lambda: of_struct(SweepFile),
    "study": lambda: of_struct(Settings),
}


def schema(name: str) -> Mapping[str, Any]:
    """The JSON schema of a kind of file, one of SCHEMAS."""
    return {"$schema": DIALECT, "title": f"dispatcher: {name}", **SCHEMAS[name]()}
