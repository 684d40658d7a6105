"""A project's `templates/volcano.yaml`: parts of a Volcano Job that are merged over the one that is made.

Mappings are merged key by key; null removes a key. Lists whose members all have a `mountPath`, or else a `name`, are
merged by it; new members are added at the end. Everything else is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dispatcher.base import yaml_text
from dispatcher.base.values import shown
from dispatcher.errors import TemplateError
from dispatcher.outlets.volcano.manifest import CONTAINER, TASK

FILE: Final = "volcano.yaml"
_KEYS: Final = ("mountPath", "name")
# What submissions are found and told apart by.
_OWN_PREFIX: Final = "dispatcher/"
_OWN_VARIABLE: Final = "DISPATCHER_"


def read_template(path: Path) -> Mapping[str, Any]:
    """The project's parts of the Job; none where there is no such file. Raises TemplateError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TemplateError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return yaml_text.load_mapping(text, "parts of a Volcano Job, such as {spec: {minSuccess: 1}}")
    except ValueError as error:
        raise TemplateError(f"{path}: {error}") from None


def merged(job: Mapping[str, Any], template: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The Job with the parts of the template; TemplateError for one that changes what must stay."""
    result = _over(job, template)
    before, after = _controlled(job), _controlled(result)
    for place in {**before, **after}:
        if before.get(place) != after.get(place):
            found = f" = {shown(after[place])}" if after.get(place) is not None else ""
            raise TemplateError(f"{path}: {place}{found}: this is set by the dispatcher; remove it from the template")
    assert isinstance(result, dict)
    return result


def pod_spec(template: Mapping[str, Any]) -> Mapping[Any, Any]:
    """What a template says of the Kubernetes pods of a Job; empty where it says nothing."""
    return _mapping(_at(_named(_at(template, "spec", "tasks"), TASK), "template", "spec"))


def _over(below: Any, above: Any) -> Any:
    if isinstance(above, Mapping):
        # Also where there is nothing below it: not every Job has what a template removes.
        below = _mapping(below)
        kept = {key: value for key, value in below.items() if above.get(key, value) is not None}
        added = {key: _over(below.get(key), value) for key, value in above.items() if value is not None}
        return {**kept, **added}
    if isinstance(below, list) and isinstance(above, list):
        key = next((key for key in _KEYS if _all_have(key, below) and _all_have(key, above)), None)
        return above if key is None or not below else _by(key, below, above)
    return above


def _by(key: str, below: list[Any], above: list[Any]) -> list[Any]:
    result = {member[key]: member for member in below}
    for member in above:
        result[member[key]] = _over(result.get(member[key]), member)
    return list(result.values())


def _all_have(key: str, members: list[Any]) -> bool:
    return all(isinstance(member, Mapping) and isinstance(member.get(key), str) for member in members)


def _controlled(job: Any) -> dict[str, Any]:
    """What a template must leave as it is, by its place in the Job."""
    found = {name: _at(job, *name.split(".")) for name in ("apiVersion", "kind", "metadata.name", "metadata.namespace")}
    found |= {
        f"spec.{name}": _at(job, "spec", name) for name in ("schedulerName", "minAvailable", "maxRetry", "policies")
    }
    found["names of spec.tasks"] = _names(_at(job, "spec", "tasks"))
    task, place = _named(_at(job, "spec", "tasks"), TASK), f"spec.tasks[{TASK}]"
    found |= {f"{place}.{name}": _at(task, name) for name in ("replicas", "minAvailable", "policies", "dependsOn")}
    template = _at(task, "template")
    found[f"{place}.template.spec.restartPolicy"] = _at(template, "spec", "restartPolicy")
    container = _named(_at(template, "spec", "containers"), CONTAINER)
    inside = f"containers[{CONTAINER}]"
    found |= {f"{inside}.{name}": _at(container, name) for name in ("command", "args")}
    variables = _at(container, "env")
    found |= {
        f"{inside}.env[{name}]": _at(_named(variables, name))
        for name in _names(variables)
        if _is_own(name, _OWN_VARIABLE)
    }
    for owner, what in (("Job", job), ("pod template", template)):
        for kind in ("labels", "annotations"):
            marks = _at(what, "metadata", kind)
            own = {key: value for key, value in _mapping(marks).items() if _is_own(key, _OWN_PREFIX)}
            found |= {f"{kind} of the {owner}: {key}": value for key, value in own.items()}
    return found


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = _mapping(value).get(key)
    return value


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _named(members: Any, name: str) -> Any:
    found = members if isinstance(members, list) else []
    return next((member for member in found if _at(member, "name") == name), None)


def _names(members: Any) -> list[Any]:
    return [_at(member, "name") for member in members] if isinstance(members, list) else []


def _is_own(name: object, prefix: str) -> bool:
    return isinstance(name, str) and name.startswith(prefix)
