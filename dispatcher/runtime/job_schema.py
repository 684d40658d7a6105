"""The JSON schema of a job file, for editors, from the dataclasses of the job's configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dispatcher.base.schema.json_schema import DIALECT, of_struct, of_type
from dispatcher.runtime.job_file import ChipRequest
from dispatcher.runtime.places import REQUIRED, Place, layout


def job_schema(key: str, classes: Iterable[type]) -> dict[str, Any]:
    """The schema of files with `job: KEY` and the configuration of these dataclasses. Other keys are refused."""
    found = _group()
    found["properties"] = {"job": {"const": key}, "request": {"anyOf": [of_struct(ChipRequest), {"type": "null"}]}}
    for place in layout(*classes).values():
        *groups, name = place.path.split(".")
        here = found
        for group in groups:
            here = here["properties"].setdefault(group, _group())
        here["properties"][name] = _value(place)
    return {"$schema": DIALECT, "title": f"dispatcher job: {key}", **found, "required": ["job"]}


def _group() -> dict[str, Any]:
    """`training:` with all its keys commented out is null."""
    return {"type": ["object", "null"], "properties": {}, "additionalProperties": False}


def _value(place: Place) -> dict[str, Any]:
    kinds = {"allOf": [of_type(kind) for kind in place.kinds]}
    described: dict[str, Any] = {"anyOf": [kinds, {"const": REQUIRED}]}
    return {**described, "description": "required"} if place.required else {**described, "default": place.default}
