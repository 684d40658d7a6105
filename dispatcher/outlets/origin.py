"""What is known of an attempt's provenance when it is rendered; the rest is found out beside its start."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence

from dispatcher.base.variables import recorded
from dispatcher.config import Config
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Site
from dispatcher.provenance.origin import Origin
from dispatcher.provenance.record import Template
from dispatcher.templates.training import template_digest


def origin_of(
    config: Config, assigned: Assignment, site: Site, command: Sequence[str], scripts: Mapping[str, bytes]
) -> Origin:
    """The origin of an attempt that runs `command`; `scripts` is its training script by path, if it has one."""
    entry, method = assigned.entry, config.method(assigned.entry.method)
    paths = config.layout.attempt(assigned.key.job_id, assigned.key.number)
    template = script = None
    for content in scripts.values():
        name = os.path.relpath(method.template, config.layout.root)
        template = Template(path=name, sha256=template_digest(method.template))
        script = hashlib.sha256(content).hexdigest()
    given = {**method.env, **site.environment}
    container = entry.container or method.container
    return Origin(
        directory=os.fspath(paths.directory),
        command=tuple(command),
        template=template,
        script_sha256=script,
        environment=_environment(config.provenance_env, given, entry.env) if site.host is not None else {},
        env_names=tuple(sorted({*method.env, *entry.env})),
        runs_workspace=site.is_shared,
        host=site.host,
        # A setup may change it, and a container has its own.
        path=_path({**method.env, **entry.env}) if not method.setup and container is None else None,
        cwd=entry.cwd or "",
    )


def _path(env: Mapping[str, str]) -> str:
    return env.get("PATH", os.environ.get("PATH", os.defpath))


def _environment(
    allowed: tuple[str, ...], given: Mapping[str, str | None], by_entry: Mapping[str, str]
) -> dict[str, str]:
    """The recorded variables, from the pod's environment and what method and slot set; not those of the entry."""
    own = {name: value for name, value in _inherited(allowed).items() if name not in given}
    changed = {name: value for name, value in given.items() if value is not None}
    return {name: value for name, value in {**own, **recorded(changed, allowed)}.items() if name not in by_entry}


@functools.lru_cache(maxsize=4)
def _inherited(allowed: tuple[str, ...]) -> Mapping[str, str]:
    """Once for a pod: its environment stays as it is, and is searched at every start otherwise."""
    return recorded(os.environ, allowed)
