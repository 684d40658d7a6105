"""Rendering of node.sh, which sets up a node, runs the command of an attempt and cleans up."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatcher import contract
from dispatcher.errors import TemplateError
from dispatcher.hosts.types import Container
from dispatcher.outlets.idle_times import GAP_INTERVALS, SMI_LIMIT_S
from dispatcher.outlets.node.containers import IMAGE_KEEP_DAYS, IMAGE_WAIT_S, container_words
from dispatcher.outlets.node.setup import JuiceFS, NodeSetup
from dispatcher.provenance.interpreters import host_report_source
from dispatcher.templates.launcher import render_launcher
from dispatcher.workspace import Layout


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node reports about an attempt's provenance (dispatcher/provenance/host_report.py).

    `packages` is the directory in which all attempts share lists of packages, empty where the node does not see it.
    `gpus` is how many it has, over all its nodes. `allowed` are the variables whose values are recorded, but for those
    that are `left_out`.
    """

    packages: str
    gpus: int
    allowed: tuple[str, ...]
    left_out: tuple[str, ...]


class GpuWatch(msgspec.Struct, frozen=True, kw_only=True):
    """How often a node looks whether the attempt leaves its GPUs idle (templates/node_gpus.sh.j2), and their number."""

    gpus: int
    interval_s: float


class NodeJob(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that a node runs. `root` is the workspace and `directory` the attempt's, both as the node sees them.

    `label` names the attempt within the workspace. `environment` are its variables (None removes one), which also
    reach a node to which the environment of the first one is not passed on. `uses_gpus`: it asks for GPUs.
    `has_setup`: the file `setup.sh` is read here and not by the wrapper. `syncs`: `uv sync` makes the environment of
    the shipped code. `cwd` is where the command runs, below the directory of the code. `facts` is what the node tells
    of itself, None: nothing. `watch`: it looks whether its GPUs are idle. `activate`: see bundle.py.
    """

    root: str
    directory: str
    label: str
    environment: Mapping[str, str | None]
    uses_gpus: bool
    group_may_write: bool
    has_setup: bool = False
    syncs: bool = False
    cwd: str = ""
    facts: Facts | None = None
    watch: GpuWatch | None = None
    env_files: tuple[str, ...] = ()
    activate: Mapping[str, str] | None = None


def render_node(layout: Layout, setup: NodeSetup, job: NodeJob) -> str:
    """The script for `job`; `layout` is the workspace here, whose templates/ is read. Raises TemplateError."""
    environment: dict[str, str | None] = {**setup.env, **job.environment}
    return render_launcher(
        layout,
        "node.sh.j2",
        {
            "directory": job.directory,
            "root": job.root,
            "label": job.label,
            "work_id": setup.work_id,
            "work": setup.work,
            "local_dir": setup.local_dir,
            "exports": [f"{name}={value}" for name, value in environment.items() if value is not None],
            "unset": [name for name, value in environment.items() if value is None],
            "tmpdir": environment.get("TMPDIR"),
            "modules": setup.modules,
            "setup": job.has_setup,
            "activate": job.activate,
            "cwd": job.cwd,
            "env_files": job.env_files,
            "cwd_is_absolute": job.cwd.startswith("/"),
            "group_may_write": job.group_may_write,
            "juicefs": _juicefs(setup.juicefs),
            "uv": _uv(setup) if job.syncs and setup.container is None else None,
            "facts": _facts(job.facts),
            "watch": _watch(job.watch),
            "container": _container(setup.container, setup, job, environment),
        },
    )


def _facts(facts: Facts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "program": host_report_source(),
        "file": contract.PROVENANCE_HOST_FILE,
        "packages": facts.packages,
        "gpus": facts.gpus,
        "allowed": " ".join(facts.allowed),
        "left_out": " ".join(facts.left_out),
    }


def _watch(watch: GpuWatch | None) -> dict[str, Any] | None:
    if watch is None:
        return None
    # One sample may be missing, and the driver may need all of its time for each.
    gap_s = GAP_INTERVALS * watch.interval_s + SMI_LIMIT_S
    return {
        "gpus": watch.gpus,
        "interval_s": watch.interval_s,
        "limit_s": SMI_LIMIT_S,
        "gap_s": math.ceil(gap_s),
        "file": contract.GPU_USE_FILE,
    }


def private_files(setup: NodeSetup) -> dict[str, bytes]:
    """The files of an attempt's directory that only its owner may read."""
    if setup.juicefs is None or setup.juicefs.password is None:
        return {}
    return {contract.PASSWORD_FILE: setup.juicefs.password.encode()}


def _juicefs(mount: JuiceFS | None) -> dict[str, Any] | None:
    if mount is None:
        return None
    given = (("--cache-size", mount.cache_size), ("--all-squash", mount.all_squash))
    return {
        "url": mount.url,
        "root": mount.root,
        "cache_dir": mount.cache_dir,
        "options": [word for name, value in given if value for word in (name, value)],
        "installer": _installer(mount.installer),
        # Attempts that use the same mount have this in common, whatever workspace they are of.
        "lock": f"juicefs-{hashlib.sha256(mount.root.encode()).hexdigest()[:16]}",
    }


def _installer(text: str | None) -> dict[str, str] | None:
    """Where a program that is missing comes from, and the SHA-256 that this has, empty where it is not checked."""
    if not text:
        return None
    source, _, digest = text.partition("#sha256=")
    return {"source": source, "sha256": digest}


def _uv(setup: NodeSetup) -> dict[str, Any]:
    return {
        "directory": setup.uv_dir,
        "installer": _installer(setup.uv_installer),
        "options": [word for group in setup.uv_groups for word in ("--group", group)],
    }


def _container(
    container: Container | None, setup: NodeSetup, job: NodeJob, environment: Mapping[str, str | None]
) -> dict[str, Any] | None:
    if container is None:
        return None
    directories = list(dict.fromkeys((job.root, *setup.directories)))
    broken = [name for name, value in environment.items() if value is not None and "\n" in value]
    if container.runtime == "enroot" and broken:
        raise TemplateError(f"container: enroot cannot pass {broken[0]}, whose value has a line break")
    words = container_words(container, [*directories, setup.work])
    return {
        **msgspec.structs.asdict(words),
        "directories": directories,
        "names": [name for name, value in environment.items() if value is not None],
        "gpus": setup.gpus if job.uses_gpus else "",
        "name": f"dispatcher-{setup.work_id}-{job.label}",
        "images": setup.images,
        "image_wait_s": IMAGE_WAIT_S,
        "image_keep_days": IMAGE_KEEP_DAYS,
    }
