"""Everything that an attempt finds in its directory when it starts."""

from __future__ import annotations

import json
import math
import os

from dispatcher import contract
from dispatcher.base import files
from dispatcher.config import Config, Method, interpreter
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Attempt, Slot
from dispatcher.outlets.local.gpus import visible_devices
from dispatcher.templates.command import command_line, uses_script
from dispatcher.templates.launcher import render_launcher
from dispatcher.templates.training import render_training, write_script
from dispatcher.workspace import AttemptPaths

# How often a wrapper looks whether its attempt has been given to somebody else.
WATCH_S = 30.0


def watch_interval_s(config: Config) -> float:
    """The wrapper's interval; shorter where lost attempts are given away sooner."""
    return max(1.0, min(WATCH_S, config.lost_after_s / 4))


def prepare(config: Config, pod: str, entry: Entry, number: int, slot: Slot, paths: AttemptPaths) -> Attempt:
    """Write the entry, the training script and the wrapper; raises TemplateError when the entry cannot be rendered."""
    layout = config.layout
    method = config.method(entry.method)
    script = layout.method_scripts(entry.method) / f"train_{entry.job_id}.py"
    with files.storing("preparing", paths.directory), files.shared_umask(layout.root):
        files.write_new(paths.entry, json.dumps(entry.document(), ensure_ascii=False, indent=1).encode() + b"\n")
        if uses_script(method, entry):
            write_script(script, render_training(method.template, entry, method))
        if method.setup:
            # The wrapper asks for that last line, which is not reached after a syntax error.
            setup = f"{method.setup}\ndispatcher_setup_is_read=1\n"
            files.write_new(paths.setup, setup.encode("utf-8", "surrogateescape"))
        environment = _environment(config, pod, entry, method, number, slot, paths)
        wrapper = render_launcher(
            layout,
            "wrapper.sh.j2",
            {
                "root": os.fspath(layout.root),
                "directory": os.fspath(paths.directory),
                "command": command_line(method, entry, script),
                "setup": bool(method.setup),
                # What the command's interpreter is, unless the setup puts another one on PATH.
                "python": "" if method.python else os.fspath(interpreter(None)),
                "exports": [f"{name}={value}" for name, value in environment.items() if value is not None],
                "unset": [name for name, value in environment.items() if value is None],
                "time_limit_s": _time_limit_s(entry, method),
                "kill_grace_s": math.ceil(config.kill_grace_s),
                "watch_s": math.ceil(watch_interval_s(config)),
                "group_may_write": files.group_may_write(layout.root),
            },
        )
        files.write_new(paths.wrapper, wrapper.encode("utf-8", "surrogateescape"), 0o777)
    return Attempt(
        job_id=entry.job_id,
        number=number,
        directory=paths.directory,
        wrapper=paths.wrapper,
        root=layout.root,
        gpus=slot.gpus,
        # The marker by which strays are found must be in the environment of the very first process.
        environment={contract.ATTEMPT_DIR: os.fspath(paths.directory)},
    )


def _environment(
    config: Config, pod: str, entry: Entry, method: Method, number: int, slot: Slot, paths: AttemptPaths
) -> dict[str, str | None]:
    return {
        **method.env,
        **entry.env,
        **visible_devices(slot.gpus),
        contract.JOB_ID: entry.job_id,
        contract.ATTEMPT: str(number),
        contract.POD: pod,
        contract.ATTEMPT_DIR: os.fspath(paths.directory),
        contract.ROOT: os.fspath(config.layout.root),
        contract.KILL_GRACE: str(math.ceil(config.kill_grace_s)),
    }


def _time_limit_s(entry: Entry, method: Method) -> int:
    """Whole seconds, 0 for none."""
    limit_s = entry.time_limit_s if entry.time_limit_s is not None else method.time_limit_s
    return math.ceil(limit_s) if limit_s else 0
