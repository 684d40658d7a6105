"""What is known of an attempt's provenance when it is rendered; the rest is found out beside its start."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence

from dispatcher.base import devices
from dispatcher.base.variables import recorded
from dispatcher.config import Config, Method, interpreter
from dispatcher.outlets.assignment import Assignment, method_of
from dispatcher.outlets.base import Site
from dispatcher.outlets.code.snapshot import Changes, CodeSnapshot
from dispatcher.provenance.origin import Origin
from dispatcher.provenance.record import GitState, Template
from dispatcher.templates.training import template_digest


def origin_of(
    config: Config, assigned: Assignment, site: Site, command: Sequence[str], scripts: Mapping[str, bytes]
) -> Origin:
    """The origin of an attempt that runs `command`; `scripts` is its training script by path, if it has one."""
    entry, method, code = assigned.entry, method_of(config, assigned), assigned.code
    paths = config.layout.attempt(assigned.key.job_id, assigned.key.number)
    template = script = None
    for content in scripts.values():
        name = os.path.relpath(config.method(entry.method).template, config.layout.root)
        template = Template(path=name, sha256=template_digest(method.template))
        script = hashlib.sha256(content).hexdigest()
    given = {**method.env, **devices.narrowed(site.environment, {**method.env, **entry.env})}
    container = entry.container or method.container
    return Origin(
        directory=os.fspath(paths.directory),
        command=tuple(command),
        template=template,
        script_sha256=script,
        environment=_environment(config.provenance_env, given, entry.env) if site.host is not None else {},
        env_names=tuple(sorted({*method.env, *entry.env})),
        git=None if code is None else _git_of(code),
        problems=(code.changes.problem,) if code is not None and code.changes and code.changes.problem else (),
        runs_workspace=site.is_shared and code is None,
        host=site.host,
        # A setup may change it, and with it what the default interpreter is.
        path=_path(method, {**method.env, **entry.env}) if not method.setup else None,
        hides_python=container is not None or (bool(method.setup) and method.python is None),
        cwd=_cwd(config, assigned, site),
    )


def _git_of(code: CodeSnapshot) -> GitState:
    changes = code.changes or Changes()
    return GitState(
        commit=code.commit,
        is_dirty=code.is_dirty,
        shipped=code.digest,
        diff=changes.diff,
        diff_stat=changes.diff_stat,
        diff_bytes=changes.diff_bytes,
        diff_omitted=changes.diff_omitted,
    )


def _cwd(config: Config, assigned: Assignment, site: Site) -> str:
    cwd = assigned.entry.cwd or ""
    if assigned.code is None or not site.is_shared:
        return cwd
    return os.path.join(config.layout.code_copy(assigned.code.digest), cwd)


def _path(method: Method, env: Mapping[str, str]) -> str:
    path = env.get("PATH", os.environ.get("PATH", os.defpath))
    if method.python is None:
        return path
    return os.pathsep.join([os.fspath(interpreter(method.python).parent), path])


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
