"""Volcano's custom resource definitions: for a cluster, and to check manifests without one.

The API server drops fields that a definition does not have; here they are mistakes, as they are to `kubectl`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import jsonschema

RELEASES = ("v1.5.1", "master")
FOLDER = Path(__file__).with_name("volcano_crds")

Schema = dict[str, Any]


@functools.cache
def definitions(release: str) -> tuple[Schema, ...]:
    return tuple(
        definition
        for path in sorted((FOLDER / release).glob("*.yaml"))
        for definition in yaml.safe_load_all(path.read_text())
        if definition
    )


def check(manifest: Mapping[str, Any], release: str) -> None:
    """ValueError with all that does not fit the definition of the manifest's kind."""
    validator = _validator(release, str(manifest.get("apiVersion")), str(manifest.get("kind")))
    problems = [
        f"{'.'.join(map(str, error.absolute_path)) or 'manifest'}: {error.message}"
        for error in validator.iter_errors(manifest)
    ]
    if problems:
        raise ValueError(f"does not fit Volcano {release}: {'; '.join(sorted(problems))}")


@functools.cache
def _validator(release: str, api_version: str, kind: str) -> jsonschema.Draft7Validator:
    import jsonschema  # Every test run imports this module, with the fixtures.

    group, _, name = api_version.partition("/")
    for definition in definitions(release):
        spec = definition["spec"]
        if (spec["group"], spec["names"]["kind"]) != (group, kind):
            continue
        for version in spec["versions"]:
            if version["name"] == name:
                schema = _json_schema(version["schema"]["openAPIV3Schema"])
                # What every object has.
                schema["properties"]["metadata"] = {"type": "object"}
                return jsonschema.Draft7Validator(schema)
    raise ValueError(f"Volcano {release} has no {api_version} {kind}")


def _json_schema(schema: Schema) -> Schema:
    """The same as JSON Schema, closed: fields that are not named are refused."""
    result = {name: value for name, value in schema.items() if not name.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    if result.pop("nullable", False) and "type" in result:
        result["type"] = [result["type"], "null"]
    if "properties" in schema:
        result["properties"] = {name: _json_schema(value) for name, value in schema["properties"].items()}
        result.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _json_schema(schema["additionalProperties"])
    if "items" in schema:
        result["items"] = _json_schema(schema["items"])
    return result


def for_server(definition: Schema) -> Schema:
    """A definition that an API server of 1.20 takes: it reads `default: ""` as null, and refuses that.

    A key of a list that loses its default so has to be given then. Descriptions are most of a definition, and every
    `kubectl create` would be told them.
    """
    return _for_server(definition)


def _for_server(part: Any) -> Any:
    if isinstance(part, list):
        return [_for_server(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {
        name: _for_server(value)
        for name, value in part.items()
        if (name, value) != ("default", "") and not (name == "description" and isinstance(value, str))
    }
    items = kept.get("items")
    for key in part.get("x-kubernetes-list-map-keys", ()):
        if "default" not in items["properties"][key] and key not in items.get("required", []):
            items["required"] = [*items.get("required", []), key]
    return kept
