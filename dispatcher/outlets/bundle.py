"""Rendering of bundles, which is pure but for the templates that it reads, and their delivery into a workspace."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping

import msgspec

from dispatcher import contract
from dispatcher.base import devices, files, outputs
from dispatcher.base.values import memory_text
from dispatcher.config import PYTHON_PLACES, Config, Method, interpreter, own_programs
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.assignment import Assignment, method_of
from dispatcher.outlets.base import Bundle, Site
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.env_file import env_files
from dispatcher.outlets.idle_times import node_interval_s
from dispatcher.outlets.node.script import Facts, GpuWatch, NodeJob, private_files, render_node
from dispatcher.outlets.node.setup import NodeSetup, code_file
from dispatcher.outlets.origin import origin_of
from dispatcher.outlets.wrapper import DID_NOT_BEGIN, DOES_NOT_KNOW, watch_interval_s
from dispatcher.templates.command import command_line, outputs_of, uses_script
from dispatcher.templates.launcher import render_launcher
from dispatcher.templates.render import render_bootstrap
from dispatcher.templates.training import encode_script, render_training
from dispatcher.workspace import AttemptPaths, Layout


def render(config: Config, assigned: Assignment, site: Site) -> Bundle:
    """What the attempt is started from at `site`; raises TemplateError when the entry cannot be rendered."""
    entry, method, code = assigned.entry, method_of(config, assigned), assigned.code
    paths = site.layout.attempt(assigned.key.job_id, assigned.key.number)
    script = site.layout.method_scripts(entry.method) / f"train_{entry.job_id}.py"
    contents = dict(entry_bundle(assigned).files)
    shared: dict[str, bytes] = {}
    if uses_script(method, entry):
        name = os.path.relpath(script, site.layout.root)
        shared[name] = encode_script(render_training(method.template, entry, method))
    if method.setup:
        # The wrapper checks for that last line, which is not reached after a syntax error.
        contents[paths.setup.name] = _encode(f"{method.setup}\ndispatcher_setup_is_read=1\n")
    python = _python(config, method, entry, site)
    if entry.job is not None and entry.command is None and not site.is_shared:
        contents[contract.BOOTSTRAP_FILE] = _bootstrap(assigned, site)
        command = [python, os.fspath(paths.directory / contract.BOOTSTRAP_FILE)]
    else:
        command = command_line(method, entry, script, python, paths.directory)
    if method.result is not None or method.metrics is not None:
        left = msgspec.structs.replace(outputs_of(method, entry), is_elsewhere=not site.is_shared)
        contents[contract.OUTPUTS_FILE] = outputs.encode(left)
    if code is not None and site.is_shared:
        contents[contract.CODE_FILE] = code_file(code.digest, code.commit_text, code.path)
    environment = _environment(config, assigned, method, site)
    node = _node_setup(config, method, entry, site)
    # What is in a container, only that knows.
    activate = _activate(config, method, site) if node is None or node.container is None else None
    if node is not None:
        job = NodeJob(
            root=os.fspath(site.layout.root),
            directory=os.fspath(paths.directory),
            label=f"{assigned.key.job_id}.{assigned.key.number}",
            environment=environment,
            uses_gpus=bool(assigned.slot.gpus or site.gpus),
            group_may_write=site.group_may_write,
            has_setup=bool(method.setup) and not site.is_shared,
            syncs=not site.is_shared and method.python is None,
            cwd=entry.cwd or "",
            facts=_facts(config, assigned, site),
            watch=_watch(config, assigned, site),
            env_files=tuple(env_files(config, entry)),
            # In a shared workspace the wrapper has done so, before a setup that may change it again.
            activate=activate if node.modules or not site.is_shared else None,
        )
        contents[contract.NODE_FILE] = _encode(render_node(config.layout, node, job))
    # A node extracts the code itself.
    copy = site.layout.code_copy(code.digest) if code is not None and node is None else None
    wrapper = render_launcher(
        config.layout,
        "wrapper.sh.j2",
        {
            "root": os.fspath(copy or site.layout.root),
            "workspace": os.fspath(site.layout.root),
            "cannot_start_status": DID_NOT_BEGIN,
            "lost_status": DOES_NOT_KNOW,
            "directory": os.fspath(paths.directory),
            "is_elsewhere": not site.is_shared,
            "command": [*_launcher(paths, site, node), *command],
            "node": node is not None,
            # A node changes into it itself, once it has made the directory.
            "env_files": env_files(config, entry) if node is None else [],
            "activate": activate if site.is_shared else None,
            "cwd": os.fspath((copy or site.layout.root) / entry.cwd) if entry.cwd and node is None else None,
            # Where the workspace is not seen, the code that a setup needs is only there when the launcher has run.
            "setup": bool(method.setup) and site.is_shared,
            # What the command's interpreter is, unless the setup puts another one on PATH.
            "python": "" if method.python else os.fspath(interpreter(None)),
            "exports": [
                *(f"{name}={value}" for name, value in environment.items() if value is not None),
                *(_code_exports(code) if copy is not None and code is not None else ()),
            ],
            "unset": [name for name, value in environment.items() if value is None],
            # A pod may have the job held to its part of this host, but not in a container.
            "cgroup": bool(assigned.slot.cpus or assigned.slot.memory_mib) and node is None,
            "memory_limit": memory_text(assigned.slot.memory_mib),
            "time_limit_s": time_limit_s(entry, method),
            "kill_grace_s": math.ceil(config.kill_grace_s),
            "watch_s": math.ceil(watch_interval_s(config)),
            "group_may_write": site.group_may_write,
        },
    )
    return Bundle(
        key=assigned.key,
        request=assigned.request,
        slot=assigned.slot,
        files={**contents, paths.wrapper.name: _encode(wrapper)},
        shared_files=shared,
        private_files=private_files(node) if node is not None else {},
        # The marker by which strays are found must be in the environment of the very first process.
        environment={contract.ATTEMPT_DIR: os.fspath(paths.directory)},
        time_limit_s=time_limit_s(entry, method) or None,
        labels=_labels(config, entry),
        origin=origin_of(config, assigned, site, command, shared) if config.provenance else None,
        code=code,
    )


def entry_bundle(assigned: Assignment) -> Bundle:
    """The part of a bundle that can always be rendered: the entry as claimed, which reports read."""
    document = json.dumps(assigned.entry.document(), ensure_ascii=False, indent=1).encode() + b"\n"
    contents = {contract.ENTRY_FILE: document}
    return Bundle(key=assigned.key, request=assigned.request, slot=assigned.slot, files=contents)


def deliver(bundle: Bundle, layout: Layout) -> bool:
    """Write the files of a bundle into the workspace of `layout`; raises StorageError.

    The attempt's directory exists since it was claimed. False when a wrapper has taken the attempt already: then its
    files stay as they are, because bash reads a script while it runs it.
    """
    paths = layout.attempt(bundle.key.job_id, bundle.key.number)
    with files.storing("preparing", paths.directory), files.shared_umask(layout.root):
        if paths.taken.exists():
            return False
        for name, content in bundle.files.items():
            mode = 0o777 if name == contract.WRAPPER_FILE else 0o666
            files.write_new(paths.directory / name, content, mode)
        for name, content in bundle.private_files.items():
            files.write_new(paths.directory / name, content, 0o600)
    for name, content in bundle.shared_files.items():
        path = layout.root / name
        with files.storing("writing the script", path), files.shared_umask(layout.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace_file(path, content, durable=False)
    return True


def _code_exports(code: CodeSnapshot) -> tuple[str, ...]:
    return f"{contract.CODE_COMMIT}={code.commit_text}", f"{contract.CODE_DIGEST}={code.digest}"


def _environment(config: Config, assigned: Assignment, method: Method, site: Site) -> dict[str, str | None]:
    paths = site.layout.attempt(assigned.key.job_id, assigned.key.number)
    own = {**method.env, **assigned.entry.env}
    # Where a scheduler may have given it GPUs all the same, or keeps none from those that ask for none.
    hidden = devices.HIDDEN if assigned.request.gpus == 0 else {}
    return {
        **site.defaults,
        **_not_inherited(method, site),
        **own,
        **devices.narrowed({**site.environment, **hidden}, own),
        contract.JOB_ID: assigned.key.job_id,
        contract.ATTEMPT: str(assigned.key.number),
        contract.POD: assigned.pod,
        contract.ATTEMPT_DIR: os.fspath(paths.directory),
        contract.ROOT: os.fspath(site.layout.root),
        contract.KILL_GRACE: str(math.ceil(config.kill_grace_s)),
    }


def _not_inherited(method: Method, site: Site) -> dict[str, None]:
    """What would have the interpreter of the method import from another environment, that of the dispatcher."""
    if method.python is None:
        return {}
    configured = site.node.env if site.node is not None else {}
    return {name: None for name in PYTHON_PLACES if name not in configured}


def _bootstrap(assigned: Assignment, site: Site) -> bytes:
    request, key = assigned.request, assigned.key
    return render_bootstrap(
        assigned.entry.document(),
        {"gpus": request.gpus, "chip": request.chip, **site.directories},
        {"job_id": key.job_id, "attempt": key.number, "pod": assigned.pod},
    )


def _facts(config: Config, assigned: Assignment, site: Site) -> Facts | None:
    """What the node reports, unless the pod knows it or it is not wanted."""
    if site.host is not None or not config.provenance:
        return None
    return Facts(
        packages=os.fspath(site.layout.provenance_packages("x").parent) if site.is_shared else "",
        gpus=site.gpus,
        allowed=config.provenance_env,
        left_out=tuple(assigned.entry.env),
    )


def _watch(config: Config, assigned: Assignment, site: Site) -> GpuWatch | None:
    """How the node watches the GPUs of the attempt, unless the pod does or it is not wanted."""
    interval_s = node_interval_s(config.gpu_idle_of(assigned.entry.method))
    if site.host is not None or not site.gpus or interval_s is None:
        return None
    return GpuWatch(gpus=site.gpus, interval_s=interval_s)


def _node_setup(config: Config, method: Method, entry: Entry, site: Site) -> NodeSetup | None:
    """What is set up around the command. The entry's container is used, else the method's, else the host's.

    This host needs no set-up of its own, only that for a container.
    """
    container = entry.container or method.container
    if container is None:
        return site.node
    # Paths tell the workspaces of this host apart.
    work_id = hashlib.sha256(os.fsencode(config.layout.root)).hexdigest()[:12]
    own = NodeSetup(work_id=work_id, images=os.fspath(config.layout.run_state / "images"))
    return msgspec.structs.replace(site.node or own, container=container)


def _launcher(paths: AttemptPaths, site: Site, node: NodeSetup | None) -> list[str]:
    name = site.launcher or (contract.NODE_FILE if node is not None else "")
    return ["bash", os.fspath(paths.directory / name)] if name else []


def _python(config: Config, method: Method, entry: Entry, site: Site) -> str:
    """The interpreter as the attempt finds it: an environment of the workspace is part of the code that is shipped.

    A container has its own.
    """
    path = interpreter(method.python)
    container = entry.container or method.container or (site.node and site.node.container)
    if site.is_shared and (container is None or method.python is not None):
        return os.fspath(path)
    if method.python is None:
        return "python"
    if not path.is_relative_to(config.layout.root):
        return os.fspath(path)
    # From the directory in which the command runs, which may be one of the shipped code.
    start = config.layout.root / (entry.cwd or "")
    return os.path.relpath(path, start if start.is_relative_to(config.layout.root) else config.layout.root)


def _activate(config: Config, method: Method, site: Site) -> Mapping[str, str] | None:
    """The interpreter whose environment is activated, and the programs of the dispatcher's own, which it replaces.

    A relative path is below the shipped code.
    """
    if method.python is None:
        return None
    path, root = interpreter(method.python), config.layout.root
    if not site.is_shared and path.is_relative_to(root):
        path = path.relative_to(root)
    return {"python": os.fspath(path), "own": own_programs() if site.is_shared else ""}


def _labels(config: Config, entry: Entry) -> dict[str, str]:
    """What people call the attempt: by its own words where it is a job of a class, else by workspace and method."""
    given = {"project": config.layout.root.name, "group": entry.method}
    given |= {word: str(entry.params[word]) for word in given if entry.params.get(word)}
    return {**given, "name": entry.job_id}


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def time_limit_s(entry: Entry, method: Method) -> int:
    """The time limit of an attempt of `entry` in whole seconds, 0 for none."""
    limit_s = entry.time_limit_s if entry.time_limit_s is not None else method.time_limit_s
    return math.ceil(limit_s) if limit_s else 0
