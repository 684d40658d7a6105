"""Whether entries can be started: checks of their commands, templates, interpreters and setups before a start.

A check takes microseconds per entry, so a pod makes it before each claim. Faults of a single entry's values (a text
that no argument can hold) are found when its attempt is made.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import devices
from dispatcher.base.file_identity import Identity, identity_at
from dispatcher.config import Config, Method, interpreter
from dispatcher.errors import TemplateError, nearest
from dispatcher.matrix.entry import Entry
from dispatcher.templates.command import (
    OWN_PLACEHOLDERS,
    braces_advice,
    outputs_of,
    runs_python,
    shell_problem,
    too_long,
    unfilled,
    unfilled_path,
    uses_script,
)
from dispatcher.templates.training import imported_packages, missing, parameters

# A bound on memory, for entries that each have a command of their own.
_MOST_SHAPES: Final = 10_000
_PACKAGE: Final = "dispatcher"
_JOB_CLASSES: Final = "job classes need"


class TemplateState(msgspec.Struct, frozen=True):
    """A template as it was when last read. `fault`: why it cannot be rendered."""

    identity: Identity | None
    fault: str = ""
    parameters: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    imports: frozenset[str] = frozenset()


class Readiness:
    """The faults that prevent entries from being started, by the workspace's files as last read.

    `on_pod`: whether the entries would run on this host. On other hosts a missing template outside the workspace is
    not reported, because the pod may have it. `all_run_here`: on no other host, so that their Python can be asked for
    this package.
    """

    def __init__(self, config: Config, *, on_pod: bool = True, all_run_here: bool = False) -> None:
        self._config = config
        self._on_pod = on_pod
        self._all_run_here = all_run_here
        self._faults: dict[Hashable, str] = {}
        self._templates: dict[Path, TemplateState] = {}
        # Entries of different shapes, by method.
        self._methods: dict[str, list[Entry]] = {}
        self.unusable: dict[str, str] = {}

    def fault(self, entry: Entry) -> str:
        """Why no host could start the entry; empty when it can be started."""
        method = self._config.method(entry.method)
        return self.fault_of_shape(entry) or fault_of_values(method, entry)

    def fault_of_shape(self, entry: Entry) -> str:
        """Why neither the entry nor any other with the same keys could be started. They share a text."""
        shape = entry.shape()
        fault = self._faults.get(shape)
        if fault is None:
            if len(self._faults) >= _MOST_SHAPES:
                self._faults.clear()
            fault = self._faults[shape] = self._fault(entry)
        return fault

    def _fault(self, entry: Entry) -> str:
        method = self._config.method(entry.method)
        problem = shell_problem(method, entry)
        if problem:
            return problem
        lacking = _lacking(method, entry)
        if lacking:
            return lacking
        if not uses_script(method, entry):
            return ""
        template = self.template(method)
        if template.fault:
            return template.fault
        required = missing(template.required, entry, method)
        if not required:
            return ""
        return f"has no {', '.join(required)}, which {self.short(str(method.template))} requires ('...')"

    def unusable_methods(self, shapes: Iterable[Entry]) -> dict[str, str]:
        """The methods of these entries that this host cannot start, each with the reason; also kept as `unusable`."""
        self._methods = {}
        for entry in shapes:
            self._methods.setdefault(entry.method, []).append(entry)
        self.unusable = self._method_faults()
        return self.unusable

    def has_changed(self) -> bool:
        """Whether templates or interpreters have changed; the changed ones are then read again."""
        changed = [path for path, seen in self._templates.items() if identity_at(path) != seen.identity]
        for path in changed:
            del self._templates[path]
            self._faults.clear()
        return bool(changed) or self._method_faults() != self.unusable

    def _method_faults(self) -> dict[str, str]:
        return {name: why for name, entries in self._methods.items() if (why := self._method_fault(name, entries))}

    def _method_fault(self, name: str, entries: Iterable[Entry]) -> str:
        method = self._config.method(name)
        fault = method_fault(method)
        # The Python of a container, or one that the setup puts first on PATH, cannot be asked.
        if fault or not self._all_run_here or method.setup or method.container is not None:
            return fault
        reader = next((reader for entry in entries if (reader := self._package_reader(method, entry))), "")
        if not reader:
            return ""
        # Imported here because it needs subprocess, and most methods have the Python of the dispatcher.
        from dispatcher.templates.job_python import package_fault

        return package_fault(method, reader, extra="jax" if reader == _JOB_CLASSES else "")

    def _package_reader(self, method: Method, entry: Entry) -> str:
        """What of the entry's attempt needs this package; empty when nothing is known to."""
        if entry.command is not None or entry.env or entry.container is not None:
            return ""
        if entry.job is not None:
            return _JOB_CLASSES
        if not uses_script(method, entry) or not runs_python(method):
            return ""
        return f"{self.short(str(method.template))} imports" if _PACKAGE in self.template(method).imports else ""

    def templates(self) -> Collection[Path]:
        """The templates that have been read."""
        return self._templates.keys()

    def template(self, method: Method) -> TemplateState:
        """The method's template as last read."""
        path = method.template
        known = self._templates.get(path)
        if known is None:
            known = self._templates[path] = self._read(path)
        return known

    def short(self, text: str) -> str:
        """`text` with paths relative to the workspace, which keeps tables narrow."""
        return text.replace(f"{self._config.layout.root}{os.sep}", "")

    def _read(self, path: Path) -> TemplateState:
        identity = identity_at(path)
        if identity is None and not self._on_pod and not path.is_relative_to(self._config.layout.root):
            return TemplateState(None)
        try:
            known, imports = parameters(path), imported_packages(path)
        except TemplateError as error:
            return TemplateState(identity, self.short(str(error)))
        required = tuple(key for key, is_required in known.items() if is_required)
        return TemplateState(identity, "", frozenset(known), required, imports)


def fault_of_values(method: Method, entry: Entry) -> str:
    """Why no host could start this very entry, found without rendering it; empty when it can be started."""
    return _device_fault(method, entry) or too_long(method, entry) or _path_fault(method, entry)


def _lacking(method: Method, entry: Entry) -> str:
    """Which placeholder cannot be filled for the want of a key; empty when all can."""
    lacking = unfilled(method, entry)
    if lacking:
        key = lacking[0]
        near = nearest(key, [*entry.document(), *OWN_PLACEHOLDERS])
        return f"the command has {{{key}}}, which the entry does not have{near}; {braces_advice(key)}"
    key = unfilled_path(method, entry)
    if not key:
        return ""
    near = nearest(key, entry.document())
    return f"`result` or `metrics` of method {method.name} has {{{key}}}, which the entry does not have{near}"


def _path_fault(method: Method, entry: Entry) -> str:
    """Why what a script leaves would not be in its attempt's directory, because of the entry's values."""
    if method.result is None and method.metrics is None:
        return ""
    try:
        outputs_of(method, entry)
    except TemplateError as error:
        return str(error).removeprefix(f"{entry.job_id}: ")
    return ""


def _device_fault(method: Method, entry: Entry) -> str:
    """Why the entry cannot have the GPUs of which its `env` says that it sees them."""
    if not entry.env and not method.env:
        return ""
    env = {**method.env, **entry.env}
    gpus = method.gpus if entry.gpus is None else entry.gpus
    return devices.fault(env) or devices.contradiction(gpus, devices.named(env))


def method_fault(method: Method) -> str:
    """Why this host cannot start any attempt of the method: its interpreter or the syntax of its setup."""
    if method.python is not None:
        path = interpreter(method.python)
        if not os.access(path, os.X_OK) or path.is_dir():
            what = "no interpreter" if path == method.python else "a directory without bin/python"
            return f"python = {method.python}: {what} on this host; create it, or set another one in dispatcher.yaml"
    return _setup_fault(method.setup) if method.setup else ""


@lru_cache(maxsize=64)
def _setup_fault(setup: str) -> str:
    """Bash's syntax error in these lines, with the line number; empty when there is none."""
    # Imported here because only methods with a setup need it, and most commands have none.
    import subprocess

    done = subprocess.run(
        ["/bin/bash", "-n"], input=setup, capture_output=True, text=True, errors="replace", check=False
    )
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines() or ["bash cannot read it"]
    return f"setup: {lines[0].partition(': ')[2] or lines[0]}"
